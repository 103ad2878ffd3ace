"""The tables of `offstage requests`, and the lines below them."""

from collections.abc import Sequence

from offstage.testbeds.report.page.numbers import milliseconds, percent
from offstage.testbeds.table import NOTHING, Column, Table
from offstage.testbeds.workloads.requests.served import SLO_TIMES, ServedFigures

__all__ = ["lines_below", "served_tables"]

TIMES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
    "e2e_ms": "E2E",
    "queue_ms": "queue",
}
QUANTILES = ("p50", "p90", "p99", "mean")
BLOCKS = ("absent", "unreadable", "late", "wasted")
USED = {
    "gpu": "GPU",
    "link": "link",
    "dpu_cores": "DPU cores",
    "drive": "drive",
    "hbm_pool": "HBM pool",
}


def served_tables(one: ServedFigures) -> list[Table]:
    """The latencies of a run; and its hits, goodput, blocks that were no use, and what was busy."""
    columns = [Column("time", left=True), *(Column(name, milliseconds) for name in QUANTILES)]
    told = {name: getattr(one, name) for name in TIMES}
    rows = [
        [TIMES[name], *(at and getattr(at, each) for each in QUANTILES)]
        for name, at in told.items()
    ]
    refused = f", {one.refused:,} refused" * bool(one.refused)
    title = f"{one.label}: {one.requests:,} requests{refused}"
    figures = [Column("figure", left=True), Column("value")]
    return [Table.of(columns, rows, title), Table.of(figures, _rates(one))]


def _rates(one: ServedFigures) -> list[list[str]]:
    rate = one.goodput_per_s
    shares = {
        "requests within the SLO": None if one.objective is None else one.objective.met,
        "hit rate by tokens": one.hit_tokens,
        **{f"of it, {tier}": at for tier, at in one.hit_by_tier.items()},
        "hit rate by requests": one.hit_requests,
        **{f"{name} used": getattr(one.used, key) for key, name in USED.items()},
    }
    counts = {f"blocks {name}": getattr(one, f"{name}_blocks") for name in BLOCKS}
    return [
        ["goodput", NOTHING if rate is None else f"{rate:.3g}/s"],
        *([name, NOTHING if at is None else percent(at)] for name, at in shares.items()),
        *([name, NOTHING if at is None else f"{at:,}"] for name, at in counts.items()),
    ]


def lines_below(found: Sequence[ServedFigures]) -> list[str]:
    """The objective of each run, and why a figure is absent."""
    lines: dict[str, None] = {}
    for one in found:
        asked = one.objective
        if asked is not None:
            parts = ("TTFT", asked.ttft_ms), ("TPOT", asked.tpot_ms)
            limits = [f"{name} <= {milliseconds(at)}" for name, at in parts if at is not None]
            by = "given" if asked.given else f"{SLO_TIMES:g}x the median of {one.unloaded} unloaded"
            lines[f"SLO of {one.label}: {', '.join(limits)} ({by})"] = None
    reasons: dict[str, dict[str, None]] = {}
    for one in found:
        for name, why in {**one.absent, **one.used.absent}.items():
            reasons.setdefault(why, {})[name] = None
    lines |= {f"absent: {', '.join(names)}: {why}": None for why, names in reasons.items()}
    return list(lines)
