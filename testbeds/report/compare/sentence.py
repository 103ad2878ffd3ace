"""The result in one sentence and a few tiles, with its uncertainty, from the columns alone.

The effect comes first: tokens per second at a stated load, chips against the BlueFields. Devices
whose ranges overlap are a tie. The model of the measured machine is no baseline, but the check of
the method: its error is part of every range.
"""

import math
from collections.abc import Sequence

from offstage.asic_model.result import Times
from offstage.testbeds.report.compare.columns import Column, LoadFigures, Range
from offstage.testbeds.report.page.numbers import clock_ns, percent
from offstage.testbeds.report.page.page import Tile

__all__ = ["BASELINES", "against", "answer", "is_close", "model_error", "tiles"]

BASELINES = ("bluefield3", "bluefield4")
MEGA = 1e6
JOULE_PER_WH = 3600.0


def answer(columns: Sequence[Column], load: str, few_draws: int = 0) -> str:
    """The best chip's tokens/s against the baselines', at the load; then which devices are loaded
    at all, and the model's error. `few_draws`: the number of draws behind the ranges, when too few
    for more than their range."""
    measured, *others = columns
    chosen = _chosen(columns)
    if chosen is None:
        return f"No device was compared with the {measured.device}."
    best, bases = chosen
    assert best.load is not None
    label = f"{best.device} (modelled{', uncalibrated' if best.calibrated is False else ''})"
    text = f"At {load}, {label} would serve {_tokens(best.load.tokens_per_s)} tokens/s"
    pieces = [
        f"{one.device} {_tokens(one.load.tokens_per_s)}" for one in bases if one.load is not None
    ]
    if pieces:
        text += f", {' and '.join(pieces)}: {_verdict(best, bases)}"
    rest = [_loaded([one for one in others if one.load is not None and one is not _own(columns)])]
    if few_draws:
        rest.append(f"the ranges cover {few_draws} draw{'s' * (few_draws != 1)}")
    rest.append(model_error(measured, others))
    return f"{text}; {'; '.join(rest)}."


def against(one: Range, other: Range) -> str:
    """Whether one of two rates is larger, in words; whose ranges overlap are a tie."""
    if one.low <= other.high and other.low <= one.high:
        return "a tie with"
    if one.low > other.high:
        return f"at least {_plain(one.low / max(other.high, 1e-12))} times"
    return "less than"


def tiles(columns: Sequence[Column]) -> list[Tile]:
    """The effect, then latency: the best chip, with the first baseline's figure under it."""
    chosen = _chosen(columns)
    if chosen is None:
        return []
    best, bases = chosen
    load = best.load
    assert load is not None
    base = bases[0] if bases else None
    other = base.load if base is not None else None
    name = base.device if base is not None else ""

    def under(figure: str) -> str:
        return f"{name} {figure}" if other is not None else ""

    def told(value: Range | None, before: str = "") -> str:
        if value is None:
            return "–"
        return f"{before}{_plain(value.value)}" if value.value < MEGA else mega(value.value)

    def mega(value: float) -> str:
        return f"{value / MEGA:,.3g} M"

    def hours(joule: Range) -> Range:
        return Range(*(one / JOULE_PER_WH for one in (joule.value, joule.low, joule.high)))

    def figure(of: LoadFigures, key: str) -> Range | None:
        return hours(of.joule) if key == "joule" else getattr(of, key)

    rows = (
        ("tokens/s", "tokens_per_s", ""),
        ("ms per token", "token_ms", ""),
        ("$ per 1M decoded tokens", "dollars", "$"),
        ("Wh per 1M decoded tokens", "joule", ""),
    )
    found = [
        Tile(
            f"{what}, {best.device}",
            told(figure(load, key), mark),
            under(told(figure(other, key), mark)) if other is not None else "",
        )
        for what, key, mark in rows
    ]
    found.append(Tile(f"GPUs per {best.device}", _gpus(load), under(_gpus(other)) if other else ""))
    fetch = clock_ns(base.fetch_ns.mean) if base is not None else ""
    found.append(Tile(f"mean fetch, {best.device}", clock_ns(best.fetch_ns.mean), under(fetch)))
    return found


CLOSE = {"mean": 0.15, "p99": 0.30}
"""How far a fetch latency of the model of the measured device may be from the run's."""


def is_close(modelled: Times, measured: Times) -> bool:
    """Whether mean and p99 are within `CLOSE`."""
    return all(
        abs(getattr(modelled, key) / (getattr(measured, key) or math.inf) - 1.0) <= limit
        for key, limit in CLOSE.items()
    )


def model_error(measured: Column, others: Sequence[Column]) -> str:
    """The error of the model of the measured device."""
    own = _own([measured, *others])
    if own is None:
        return "the measured device itself was not modelled, so the models' error is unknown"
    mean, tail = (
        _off(getattr(own.fetch_ns, key), getattr(measured.fetch_ns, key)) for key in ("mean", "p99")
    )
    return (
        f"as a check, the same model of the {measured.device} predicts a mean fetch latency {mean} "
        f"and a p99 {tail}, which the ranges include{f'; {own.off}' if own.off else ''}"
    )


def _chosen(columns: Sequence[Column]) -> tuple[Column, list[Column]] | None:
    """The chip that serves the most, and the baselines; without a chip the best of these."""
    own = _own(columns)
    shown = [one for one in columns[1:] if one.load is not None and one is not own]
    bases = [one for one in shown if one.device in BASELINES]
    chips = [one for one in shown if one.device not in BASELINES] or bases
    if not chips:
        return None
    best = max(chips, key=lambda one: one.load.tokens_per_s.value if one.load else 0.0)
    return best, [one for one in bases if one is not best]


def _verdict(best: Column, bases: Sequence[Column]) -> str:
    """Who serves more, in words; whose ranges overlap are a tie."""
    kinds: dict[str, list[str]] = {}
    for one in bases:
        assert best.load is not None and one.load is not None
        kind = against(best.load.tokens_per_s, one.load.tokens_per_s)
        kinds.setdefault(kind, []).append(one.device)
    return ", ".join(f"{kind} {' and '.join(names)}" for kind, names in kinds.items())


def _loaded(devices: Sequence[Column]) -> str:
    """Whether the load exercises any device: which, by what; in one line if none."""
    found = {one.device: one.load for one in devices if one.load is not None}
    bound = {name: load for name, load in found.items() if load.binds != "nothing"}
    if not bound:
        most = max((load.busiest_share for load in found.values()), default=0.0)
        return f"this load saturates no device: no unit is more than {percent(most)} busy"
    pieces = [
        f"{load.binds} on {name} ({percent(load.busiest_share)})" for name, load in bound.items()
    ]
    pieces[0] = f"busiest units: {pieces[0]}"
    idle = [name for name in found if name not in bound]
    if idle:
        pieces.append(f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no bottleneck")
    return ", ".join(pieces)


def _own(columns: Sequence[Column]) -> Column | None:
    """The model of the measured device: of the daemon, or of the chip that was in the loop."""
    measured, *others = columns
    return next(
        (
            one
            for one in others
            if one.device.startswith("dpu_") or measured.device.startswith(f"{one.device} ")
        ),
        None,
    )


def _off(modelled: float, measured: float) -> str:
    if not measured:
        return "with an unknown error"
    error = modelled / measured - 1.0
    return f"{percent(abs(error))} too {'high' if error > 0 else 'low'}"


def _gpus(load: LoadFigures) -> str:
    return "–" if load.knee_gpus is None else _plain(load.knee_gpus)


def _tokens(value: Range) -> str:
    if f"{value.low:.3g}" == f"{value.high:.3g}":
        return _plain(value.value)
    return f"{_plain(value.value)} ({_plain(value.low)} to {_plain(value.high)})"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
