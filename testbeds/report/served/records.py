"""The records of a run's requests: those that it wrote, or those that its ledger says.

A lab run's ledger has the stall of every layer of every token. A layer takes its stall, the GPU's
time, and the fabric's where it demanded something, so the tokens of a session have exact times from
its first step on. Sessions begin when another ends, with contexts that are stored: arrival, prefill
and prefix are no part of such a run.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from offstage.asic_model.twice import DEVICE, FLASH, LINK
from offstage.bindings.errors import BadInput
from offstage.bindings.units import format_rate
from offstage.host.request_file import (
    REQUESTS_NAME,
    Recorded,
    read_requests,
)
from offstage.host.request_record import RequestRecord, ServedRun, Used
from offstage.testbeds.lab.results.ledger_file import LEDGER_NAME, describe, ledger_rows
from offstage.testbeds.lab.results.summary import LabSummary, PointInfo
from offstage.testbeds.lab.run.point import HIT_NS
from offstage.testbeds.report.bottleneck.figures import NO_DEVICE, spec_of
from offstage.testbeds.report.page.files import (
    SUMMARY_NAME,
    holds_lab_summary,
    read_lab_summary,
    refuse_model_run,
)

__all__ = ["records_of"]

FIX = "give a folder of `lab run`, of `lab pod --requests` or of `host run --out`"
STORED = "a lab run begins with contexts that are stored"
BY_RUN = "the ledger counts it by run, not by request"
PACES = {"tier", "tier.time_per_token", "tier.decode_cost"}
PACED = "time_per_token differs between the points of the sweep"
CHIP = "what a chip model takes for a hit is in no ledger"
ABSENT = {
    **dict.fromkeys(("ttft_ms", "e2e_ms", "queue_ms", "found", "absent_blocks"), STORED),
    **dict.fromkeys(("unreadable_blocks", "wasted_blocks"), BY_RUN),
}
TIMES = ("tpot_ms", "itl_ms")
COLUMNS = ("seed", "session", "step", "layer", "demands", "stall_ns", "end_late")


def records_of(folder: Path) -> list[Recorded]:
    """The records of the run in `folder`, or of a file of them. BadInput: it has none."""
    path = folder if folder.is_file() else folder / REQUESTS_NAME
    if path.is_file():
        return read_requests(path)
    if (folder / SUMMARY_NAME).is_file() and holds_lab_summary(folder):
        return _of_lab(folder, read_lab_summary(folder))
    refuse_model_run(folder)
    raise BadInput("has no records of requests", str(folder), FIX)


def _of_lab(folder: Path, summary: LabSummary) -> list[Recorded]:
    ledger, spec = folder / LEDGER_NAME, spec_of(summary, str(folder))
    paced = bool(PACES & spec.sweep.keys() or (spec.sweep and spec.tier.decode_cost))
    found: list[Recorded] = []
    for number, described in sorted(describe(ledger).items()):
        info = described.info
        why = PACED if paced else CHIP if info.device else ""
        records = _of_point(ledger, number, 0 if why else spec.time_per_token_ns)
        points = [one for one in summary.points if one.info == info]
        run = ServedRun(
            label=_label(info),
            provenance="modelled",
            used=_used(points[0].used if points else {}, records, spec.time_per_token_ns),
            absent=ABSENT | dict.fromkeys(TIMES if why else (), why),
        )
        found.append((run, records))
    if not found:
        raise BadInput("has no points with a ledger", str(folder), FIX)
    return found


def _label(info: PointInfo) -> str:
    """A point by what tells it from the others of its run."""
    words = [info.workload, info.policy, info.eviction, f"buffer {info.buffer_over_k:g} k"]
    words += [f"pool {info.hbm_pool_over_k:g} k"] * bool(info.hbm_pool_over_k)
    words += [f"cap {format_rate(info.bandwidth_bytes_per_s)}"] * bool(info.bandwidth_bytes_per_s)
    return ", ".join(words)


def _used(device: dict[str, float], records: Sequence[RequestRecord], token_ns: int) -> Used:
    """The device's as the chip model counted it; the GPU's own time over that of the tokens."""
    parts = {"link": LINK, "dpu_cores": DEVICE, "drive": FLASH}
    absent = dict.fromkeys(() if device else parts, NO_DEVICE)
    absent["hbm_pool"] = "how full the pool is, is in no ledger"
    took_ns = sum(one.end_ns or 0 for one in records)
    if not took_ns:
        absent["gpu"] = "the times of tokens are not known"
    tokens = sum(one.output_tokens or 0 for one in records)
    return Used(
        gpu=min(1.0, tokens * token_ns / took_ns) if took_ns else None,  # a layer is whole ns
        absent=absent,
        **{name: device.get(part) for name, part in parts.items()},
    )


def _of_point(ledger: Path, number: int, token_ns: int) -> list[RequestRecord]:
    """The sessions of one point over all seeds. `token_ns`: the GPU's time for a token; 0: what a
    token took is not known."""
    table = ledger_rows(ledger, number, COLUMNS)
    rows = {name: table.column(name).to_numpy().astype(np.int64) for name in COLUMNS}
    order = np.lexsort((rows["layer"], rows["step"], rows["session"], rows["seed"]))
    rows = {name: values[order] for name, values in rows.items()}
    layer_ns = token_ns // (int(rows["layer"].max(initial=0)) + 1)
    took_ns = rows["stall_ns"] + layer_ns + HIT_NS * (rows["demands"] > 0)
    firsts = np.flatnonzero(np.diff(rows["session"], prepend=-1) | np.diff(rows["seed"], prepend=0))
    found = []
    for begin, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
        each_ns = np.bincount(rows["step"][begin:end], took_ns[begin:end]).astype(np.int64)
        record = RequestRecord(
            request=int(rows["session"][begin]),
            session=int(rows["session"][begin]),
            output_tokens=len(each_ns),
            late_blocks=int(rows["end_late"][begin:end].sum()),
        )
        if token_ns:
            record.scheduled_ns, record.first_token_ns = 0, int(each_ns[0])
            record.gaps_ns = [(gap, len(list(run))) for gap, run in groupby(each_ns[1:].tolist())]
            record.end_ns = int(each_ns.sum())
        found.append(record)
    return found
