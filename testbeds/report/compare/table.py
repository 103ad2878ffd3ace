"""The table of a comparison: a row for each figure, a column for each device."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from offstage.testbeds.report.compare.columns import Column, Range
from offstage.testbeds.report.compare.style import variables
from offstage.testbeds.report.page.markup import folded, section
from offstage.testbeds.report.page.numbers import clock_ns, count, milliseconds, percent, ratio
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.page.void import void_cell, void_lines, void_markup
from offstage.testbeds.table import NOTHING, Cell, Table
from offstage.testbeds.table import Column as Head

__all__ = [
    "ROWS",
    "Row",
    "console_table",
    "devices_table",
    "late_drives",
    "table_section",
    "two_lines",
]


class Row(NamedTuple):
    """One figure: its key in documents, its label, its meaning, its format."""

    key: str
    label: str
    text: str
    show: Callable[[Column], str]
    brief: bool = False
    """Also show it in the terminal's table."""


def _range(value: Range | None, form: Callable[[float], str]) -> str:
    if value is None:
        return "–"
    if value.low == value.high:
        return form(value.value)
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"


def _of_demands(column: Column, part: int) -> str:
    return percent(part / column.demands) if column.demands else "–"


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s" if value >= 1e8 else f"{value / 1e6:.3g} MB/s"


def _unit(name: str) -> Callable[[float], str]:
    return lambda value: f"{value:.3g} {name}".rstrip()


def _deadlines(column: Column) -> str:
    if column.deadlines_missed is None:
        return "–"
    of = f" of {count(column.tokens)}" if column.tokens else ""
    return f"{count(column.deadlines_missed)}{of}"


def _diverged(column: Column) -> str:
    if column.provenance == "measured":
        return "–"
    return ", ".join(f"{name} {count(n)}" for name, n in column.diverged.items()) or "0"


def _joule(value: float) -> str:
    for unit, scale in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} J" if value >= 0.1 else f"{value * 1e3:.3g} mJ"


def _watt_hours(joule: float) -> str:
    value = joule / 3600
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _of_load(
    key: str, form: Callable[[float], str] = lambda value: f"{value:,.4g}"
) -> Callable[[Column], str]:
    return lambda one: "–" if one.load is None else _range(getattr(one.load, key), form)


def _tokens(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _dollar(value: float) -> str:
    return f"${value:,.3g}" if value < 1000 else f"${value:,.0f}"


def _knee(column: Column) -> str:
    if column.load is None or column.load.knee_gpus is None:
        return "–"
    return _tokens(column.load.knee_gpus)


ROWS = (
    Row(
        "load_tokens_per_s",
        "tokens/s",
        "Of all GPUs at the load that the headline states. The range contains the ranges of all "
        "parameters and the model's own error.",
        _of_load("tokens_per_s", _tokens),
        True,
    ),
    Row(
        "load_token_ms",
        "time of a token",
        "Of one session at that load, the GPU's own time included.",
        _of_load("token_ms", milliseconds),
        True,
    ),
    Row(
        "load_dollars",
        "$ per 1M decoded tokens",
        "Of the GPUs, rented by the hour, and the device with its drives, over its life, at the "
        "prices of offstage plan. Decoding only: a plan's row of this name pays for prefill too.",
        _of_load("dollars", _dollar),
        True,
    ),
    Row(
        "load_device_dollars",
        "$ per 1M, device alone",
        "Of the dollars per 1M decoded tokens, the share of the device with its drives.",
        _of_load("device_dollars", _dollar),
    ),
    Row(
        "load_joule",
        "Wh per 1M decoded tokens",
        "Energy of the GPUs and the device with its drives.",
        _of_load("joule", _watt_hours),
        True,
    ),
    Row(
        "load_device_joule",
        "Wh per 1M, device alone",
        "Of the Wh per 1M decoded tokens, the share of the device with its drives.",
        _of_load("device_joule", _watt_hours),
    ),
    Row(
        "load_binds",
        "bottleneck at this load",
        "The busiest unit; nothing where each is used less than a fifth.",
        lambda one: "–" if one.load is None else one.load.binds,
        True,
    ),
    Row(
        "load_knee_gpus",
        "GPUs per device",
        "GPUs of this load that one device can serve: with more, one of its units saturates.",
        _knee,
        True,
    ),
    Row(
        "load_knee_unit",
        "bottleneck at saturation",
        "The unit that is full first as GPUs are added.",
        lambda one: "–" if one.load is None else one.load.knee_unit or "–",
        True,
    ),
    Row(
        "load_tokens_per_s_max",
        "maximum tokens/s",
        "What that unit lets through, however many GPUs there are.",
        lambda one: (
            "–"
            if one.load is None or one.load.tokens_per_s_max is None
            else _tokens(one.load.tokens_per_s_max)
        ),
    ),
    Row(
        "hits",
        "hit",
        "Share of the demands that were staged before they were needed.",
        lambda one: _of_demands(one, one.hits),
    ),
    Row(
        "late",
        "late",
        "Share whose block was in flight when it was needed.",
        lambda one: _of_demands(one, one.late),
    ),
    Row(
        "misses",
        "miss",
        "Share whose block was neither staged nor in flight.",
        lambda one: _of_demands(one, one.misses),
    ),
    Row(
        "fetch_ns_mean",
        "fetch mean",
        "Time from when the host asks for a layer's blocks until it has the last of them: by the "
        "host's own clock in the measured run, by the model's in a modelled one.",
        lambda one: clock_ns(one.fetch_ns.mean),
        True,
    ),
    Row(
        "fetch_ns_p50",
        "fetch p50",
        "Half of the fetches took no longer.",
        lambda one: clock_ns(one.fetch_ns.p50),
    ),
    Row(
        "fetch_ns_p90",
        "fetch p90",
        "Nine in ten took no longer.",
        lambda one: clock_ns(one.fetch_ns.p90),
    ),
    Row(
        "fetch_ns_p99",
        "fetch p99",
        "All but one in a hundred took no longer.",
        lambda one: clock_ns(one.fetch_ns.p99),
        True,
    ),
    Row(
        "fetch_ns_p999",
        "fetch p99.9",
        "All but one in a thousand took no longer.",
        lambda one: clock_ns(one.fetch_ns.p999),
    ),
    Row(
        "speed_up_mean",
        "mean, faster by",
        "The measured run's mean fetch latency over this "
        "one's, with its range over the ranges of all parameters.",
        lambda one: _range(one.speed_up_mean, ratio),
    ),
    Row(
        "speed_up_p99",
        "p99, faster by",
        "The same for the 99th percentile.",
        lambda one: _range(one.speed_up_p99, ratio),
    ),
    Row(
        "speed_up_same_drives",
        "faster on the same drives",
        "Mean fetch latency of today's daemon, "
        "modelled on this device's drives, over this device's: the gain that does not come from "
        "the drives.",
        lambda one: _range(one.speed_up_same_drives, ratio),
    ),
    Row(
        "bytes_per_s",
        "bandwidth",
        "Bytes read from the drives over the time of the run.",
        lambda one: _rate(one.bytes_per_s),
    ),
    Row(
        "stall_ms_p50",
        "stall p50",
        "Time of a token, one step of one session, in fetches that waited for a block: half "
        "stalled no longer. In the measured run it is put together from the log and the mean time "
        "of each stage, so that all columns count alike; the host's own stall, in report.html, is "
        "by its clock, of a token and its batch.",
        lambda one: milliseconds(one.stall_ns.p50 / 1e6),
    ),
    Row(
        "stall_ms_p99",
        "stall p99",
        "All but one token in a hundred stalled no longer.",
        lambda one: milliseconds(one.stall_ns.p99 / 1e6),
    ),
    Row(
        "deadlines_missed",
        "deadlines missed",
        "Tokens that took longer than their session's "
        "pace, including the host's work: if the host alone is slower than the pace, as on a "
        "small machine, no device can help.",
        _deadlines,
    ),
    Row(
        "joule_per_gb",
        "J per GB",
        "Energy of the device per GB delivered to the hosts; at low utilisation mostly idle power.",
        lambda one: _range(one.joule_per_gb, _joule),
    ),
    Row(
        "joule_per_token",
        "J per token",
        "The same per decoded token of the run.",
        lambda one: _range(one.joule_per_token, _joule),
    ),
    Row(
        "watt",
        "power",
        "Energy over the time of the run.",
        lambda one: _range(one.watt, _unit("W")),
    ),
    Row(
        "area_mm2",
        "area",
        "Area of the die; accurate to a factor of two at best.",
        lambda one: _range(one.area_mm2, _unit("mm²")),
    ),
    Row(
        "arm_cores",
        "equivalent Arm cores",
        "Cores of a BlueField-3 needed for the command rate that this device can reach.",
        lambda one: _range(one.arm_cores, _unit("")),
    ),
    Row(
        "binds_first",
        "bottleneck in the run",
        "The busiest unit at the run's own load; nothing where each is used less than a fifth.",
        lambda one: one.binds_first or "–",
    ),
    Row(
        "diverged",
        "different decisions",
        "Decisions that differ from the recorded run's, by kind.",
        _diverged,
    ),
)


TIMED = (
    *("hits", "late", "misses", "fetch_ns_mean", "fetch_ns_p50", "fetch_ns_p90", "fetch_ns_p99"),
    *("fetch_ns_p999", "bytes_per_s", "stall_ms_p50", "stall_ms_p99", "deadlines_missed"),
)
"""Figures of a recorded run that depend on the times of its drive."""
AGAINST_RECORDED = ("speed_up_mean", "speed_up_p99")
"""Figures of a modelled device that are ratios to those of the recorded run."""


def late_drives(columns: Sequence[Column]) -> dict[int, str]:
    """By place, the columns of runs whose emulated drive was late, and what their note says."""
    return {
        at: note.what
        for at, one in enumerate(columns)
        for note in one.notes
        if note.code == "emulation-late"
    }


def _cell(row: Row, column: Column, own: str, recorded: str) -> Cell:
    """A figure, with what is said against it: of its own run, or of the one it is a ratio to."""
    cell = two_lines(row.show(column))
    why = own if row.key in TIMED else recorded if row.key in AGAINST_RECORDED else ""
    return cell if cell.text == NOTHING else void_cell(cell, why)


def devices_table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """A row for each figure, a column for each device."""
    heads = [Head("figure", left=True)]
    for column, name in zip(columns, variables(columns), strict=True):
        raw = column.calibrated is False
        heads.append(
            Head(
                column.device,
                short=f"{column.device} *" if raw else "",
                swatch=(f"var(--{name})", f"line {column.provenance}"),
                provenance=column.provenance,
                note="uncalibrated" if raw else "",
            )
        )
    late = late_drives(columns)
    recorded = next(iter(late.values()), "")
    lines = [
        [
            Cell(row.label, tip=row.text),
            *(_cell(row, one, late.get(at, ""), recorded) for at, one in enumerate(columns)),
        ]
        for row in rows
    ]
    raw = any(column.calibrated is False for column in columns)
    notes = ["* uncalibrated: no calibration on a measured run has passed"] if raw else []
    return Table.of(heads, lines, note="\n".join([*notes, *void_lines(late.values())]))


def table_section(columns: Sequence[Column]) -> str:
    """The whole table as markup, with the meaning of its rows folded under it."""
    known = _known(columns)
    meanings = "".join(f"<dt>{escape(row.label)}</dt><dd>{escape(row.text)}</dd>" for row in known)
    return section(
        "devices",
        "The devices on the same decisions",
        as_html(devices_table(known, columns), "table of devices")
        + void_markup(late_drives(columns).values()),
        "Brackets give a figure's range over the ranges of the model's parameters. A dash: not "
        "known for this device.",
        folded("What the rows mean", tag("dl", meanings, class_="glossary")),
    )


def _known(columns: Sequence[Column]) -> list[Row]:
    """The rows that at least one device has a figure for."""
    return [row for row in ROWS if any(row.show(one) != "–" for one in columns)]


def two_lines(text: str) -> Cell:
    """A figure, with its range below it on a page."""
    value, bracket, rest = text.partition(" (")
    return Cell(value, small=f"({rest}" if bracket else "", terse=text)


def console_table(columns: Sequence[Column]) -> Table:
    """The rows that matter most, for a terminal."""
    return devices_table([row for row in ROWS if row.brief], columns)
