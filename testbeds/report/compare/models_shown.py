"""What a device carries of each model: in a sentence, as a table, and as a picture."""

from collections.abc import Sequence

from offstage.testbeds.report.compare.columns import Carried, ModelLoad, Range
from offstage.testbeds.report.compare.sentence import BASELINES, against
from offstage.testbeds.report.compare.table import two_lines
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import count, size
from offstage.testbeds.report.page.pictures import CYCLE, Picture, colour, plain_logs
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.table import NOTHING, Column, Part, Table

__all__ = ["carried_sentence", "models_figure", "models_section", "models_table"]

BASE = BASELINES[0]
CARRIED = (
    "Sessions that the least of three means allows: what the device's busiest unit lets through "
    "while no session waits, buffers in its memory, caches on its drives. The end of a bar names "
    "that means. Memory of the GPUs, where resident bytes must fit, is not asked."
)
MEANS = {"memory": "its memory", "capacity": "size of its drives"}


def _sessions(one: Carried) -> float:
    found = one.by_need[one.binds]
    return 0.0 if found is None else found


def _means(one: Carried) -> str:
    return MEANS.get(one.binds, one.load.knee_unit)


def _context(tokens: int) -> str:
    return f"{tokens >> 20}M" if tokens % (1 << 20) == 0 else f"{tokens >> 10}K"


def _title(row: ModelLoad) -> str:
    return f"{row.model} at {_context(row.context_tokens)}"


def _few(value: float) -> str:
    return count(value) if value >= 100 else f"{value:.3g}"


def _range(value: Range | None, mark: str = "") -> str:
    if value is None:
        return NOTHING
    return f"{mark}{_few(value.value)} ({_few(value.low)} to {_few(value.high)})"


def _against_base(row: ModelLoad, one: Carried) -> str:
    base = next((other for other in row.devices if other.device == BASE), one)
    if one is base:
        return NOTHING
    verdict = against(one.load.tokens_per_s, base.load.tokens_per_s)
    return {"a tie with": "a tie"}.get(verdict, verdict)


def carried_sentence(rows: Sequence[ModelLoad]) -> str:
    """The largest and the smallest model at the longest context: the baselines, and the first chip,
    whose drives are those of the first baseline."""
    longest = max(one.context_tokens for one in rows)
    ends = [one for one in rows if one.context_tokens == longest]
    return " ".join(f"{_told(row)}." for row in (ends[0], *ends[-1:][: len(ends) - 1]))


def _told(row: ModelLoad) -> str:
    bases = [one for one in row.devices if one.device in BASELINES]
    chip = next((one for one in row.devices if one not in bases), bases[0])
    carried = ", ".join(
        f"{one.device} carries {_few(_sessions(one))} (bound by {_means(one)})"
        for one in (*bases, chip)
    )
    verdicts = ", ".join(
        f"{against(chip.load.tokens_per_s, one.load.tokens_per_s)} {one.device} "
        f"({_range(one.load.tokens_per_s)}, {_range(one.load.dollars, '$')})"
        for one in bases
        if one is not chip
    )
    return (
        f"A session of {_title(row)} has {size(row.session_bytes)}: {carried}; at the load "
        f"{chip.device} serves {_range(chip.load.tokens_per_s)} tokens/s for "
        f"{_range(chip.load.dollars, '$')} per 1M decoded tokens, {verdicts}"
    )


def models_table(rows: Sequence[ModelLoad]) -> Table:
    """A part for each model and context, in it a row for each device."""
    columns = [
        Column("device", left=True),
        Column("sessions", tip=CARRIED),
        Column("bound by", left=True),
        Column("tokens/s", tip="of all GPUs at the load"),
        Column("$ per 1M decoded tokens"),
        Column("bottleneck at the load", left=True),
        Column(f"tokens/s against {BASE}", left=True),
    ]
    parts = [
        Part(
            [
                [
                    one.device,
                    _few(_sessions(one)),
                    _means(one),
                    two_lines(_range(one.load.tokens_per_s)),
                    two_lines(_range(one.load.dollars, "$")),
                    one.load.binds,
                    _against_base(row, one),
                ]
                for one in row.devices
            ],
            title=_title(row),
            small=f"{size(row.session_bytes)} a session, of it {size(row.resident_bytes)} resident "
            f"with the GPU and {size(row.buffer_bytes)} as a buffer with the device; a token reads "
            f"{count(row.reads_per_token)} times, {size(row.read_bytes_per_token)}",
        )
        for row in rows
    ]
    return Table(columns, parts, title="By model")


def models_section(rows: Sequence[ModelLoad]) -> list[str]:
    """The table as markup; none without several models."""
    if not rows:
        return []
    said = f"{rows[0].load.partition(', each')[0]}; each decodes as many sessions of every model."
    return [section("by-model", "By model", as_html(models_table(rows), "by model"), said)]


def models_figure(rows: Sequence[ModelLoad]) -> list[Figure]:
    """The picture; none without several models."""
    title = "Sessions of each model that a device carries"
    return [Figure("models", title, [_carried_plot(rows)], CARRIED)] if rows else []


def _carried_plot(rows: Sequence[ModelLoad]) -> Plot:
    """Sessions by device, in groups by model and context."""
    devices = [one.device for one in rows[0].devices]
    step = len(devices) + 1
    height = 1.0 + 0.2 * step * len(rows)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for at, device in enumerate(devices):
            found = [row.devices[at] for row in rows]
            places = [number * step + at for number in range(len(rows))]
            values = [_sessions(one) for one in found]
            shade = colour(CYCLE[at % len(CYCLE)])
            bars = axes.barh(places, values, height=0.85, color=shade, label=device)
            for bar, one, row in zip(bars, found, rows, strict=True):
                told = f"{_few(_sessions(one))}, {_means(one)}"
                drawn.tip(bar, f"{_title(row)} on {device}: {told}")
                place = (bar.get_width(), bar.get_y() + 0.42)
                axes.annotate(f" {told}", place, va="center", fontsize=7, color=colour("muted"))
        middle = (len(devices) - 1) / 2
        axes.set_yticks(
            [number * step + middle for number in range(len(rows))], [_title(one) for one in rows]
        )
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        most = max(_sessions(one) for row in rows for one in row.devices)
        plain_logs(axes, x="number")
        axes.set_xlim(0.5, most * 4)
        axes.set_xlabel("sessions that one device carries (modelled)")
        drawn.legend(axes)

    said = "; ".join(
        f"{_title(row)}: "
        + ", ".join(f"{one.device} {_few(_sessions(one))}" for one in row.devices)
        for row in rows
    )
    return Plot("models", said, draw, height=height, scroll=True, legend_rows=len(devices))
