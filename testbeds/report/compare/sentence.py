"""The result in one sentence, with its uncertainty, from the columns alone."""

from collections.abc import Sequence

from offstage.testbeds.report.compare.columns import Column, Range
from offstage.testbeds.report.page.numbers import percent

__all__ = ["answer", "model_error"]

EVEN = 0.02
"""An interval within this of 1 is called no difference."""


def answer(columns: Sequence[Column], few_draws: int = 0) -> str:
    """The fastest chip's speed-up, the drives' part of it, and the model's error. `few_draws`: the
    number of draws behind its intervals, when too few for more than their range."""
    measured, *others = columns
    own = _own(measured, others)
    chips = [
        one for one in others if one.speed_up_mean is not None and _is_chip(one) and one is not own
    ]
    if not chips:
        return f"No device was compared with the {measured.device}."
    best = max(chips, key=lambda one: one.speed_up_mean.value if one.speed_up_mean else 0.0)
    assert best.speed_up_mean is not None
    label = best.device + (
        " (modelled, uncalibrated)" if best.calibrated is False else " (modelled)"
    )
    text = f"On this run's decisions {label} would fetch {_times(best.speed_up_mean)} "
    text += f"the {measured.device}"
    if best.speed_up_same_drives is not None:
        text += (
            f", and {_times(best.speed_up_same_drives)} today's daemon, modelled on the same drives"
        )
    if few_draws:
        text += f"; ranges cover {few_draws} draws"
    binds = f"; its first bottleneck is {best.binds_first}" if best.binds_first else ""
    return f"{text}{binds}; {model_error(measured, others)}."


def model_error(measured: Column, others: Sequence[Column]) -> str:
    """The error of the model of the measured device."""
    own = _own(measured, others)
    if own is None:
        return "no model of the measured DPU was run, so the models' error is unknown"
    pieces = [
        f"{_signed(getattr(own.fetch_ns, key), getattr(measured.fetch_ns, key))} in {name}"
        for key, name in (("mean", "mean"), ("p99", "p99"))
    ]
    return f"the same model of the {measured.device} is off by {' and '.join(pieces)} fetch latency"


def _own(measured: Column, others: Sequence[Column]) -> Column | None:
    """The model of the measured device: of the daemon, or of the chip that was in the loop."""
    return next(
        (
            one
            for one in others
            if one.device.startswith("dpu_") or measured.device.startswith(f"{one.device} ")
        ),
        None,
    )


def _signed(modelled: float, measured: float) -> str:
    if not measured:
        return "an unknown amount"
    error = modelled / measured - 1.0
    return ("+" if error > 0 else "") + percent(error)


def _times(value: Range) -> str:
    low, high = value.low, value.high
    if abs(low - 1.0) < EVEN and abs(high - 1.0) < EVEN:
        return "no faster than"
    if f"{low:.2g}" == f"{high:.2g}":
        return f"{_plain(low)} times as fast as"
    return f"{_plain(low)} to {_plain(high)} times as fast as"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _is_chip(column: Column) -> bool:
    return not column.device.startswith("dpu_")
