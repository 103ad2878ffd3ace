"""The page of a comparison: the answer and its uncertainty, the table, the pictures."""

from pathlib import Path

from offstage.bindings.durable import write_text
from offstage.bindings.notes import Note
from offstage.testbeds.document import as_json
from offstage.testbeds.report.compare.columns import Comparison
from offstage.testbeds.report.compare.effect import FEW_DRAWS
from offstage.testbeds.report.compare.latency import ccdf, waterfall
from offstage.testbeds.report.compare.load import heat_map, hockey_stick, isolation, throughput
from offstage.testbeds.report.compare.models_shown import models_figure, models_section
from offstage.testbeds.report.compare.ranges import crossover, tornado
from offstage.testbeds.report.compare.sentence import tiles
from offstage.testbeds.report.compare.table import late_drives, table_section
from offstage.testbeds.report.page.markup import facts
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.page.void import void_markup

__all__ = [
    "JSON_NAME",
    "PAGE_NAME",
    "figures_of",
    "noted",
    "render",
    "under_load",
    "write_comparison",
]

OF_THE_RUN = ("latency", "waterfall")
"""Pictures that show the recorded run's own times."""
PAGE_NAME, JSON_NAME = "compare.html", "compare.json"
OF_RUN = "Hits and fetch times are at the recorded run's own load, not at this one."
PRICED = (
    "Prices and power are those of offstage plan, of its H100. Dollars and Wh pay for decoding; a "
    "plan's also pay for prefill."
)


def write_comparison(found: Comparison, out: Path) -> tuple[Path, Path]:
    """Writes page and figures into `out`; returns their paths."""
    page_path, json_path = out / PAGE_NAME, out / JSON_NAME
    write_text(json_path, as_json(found))
    write_text(page_path, render(found))
    return page_path, json_path


def render(found: Comparison) -> str:
    """The page as text."""
    page = Page(
        title="Offstage: a measured DPU compared with modelled chips",
        sentence=found.sentence,
        setup=found.setup,
        tiles=tiles(found.columns),
        tiles_of=under_load(found),
        sections=[
            table_section(found.columns),
            *models_section(found.models),
            *figures_of(found),
        ],
        command=found.command,
        again=f"Offstage {escape(found.version)}. {found.samples} draws of all parameters "
        f"together are behind each range of a speed-up, which covers {_held(found.samples)} of "
        "them; every parameter with its source: <code>offstage asic presets NAME</code>.",
        foot=[facts("The workload, in full", found.workload)],
        version=found.version,
        kind="comparison",
        notes=noted(found),
    )
    return str(page)


def under_load(found: Comparison) -> str:
    """What the figures at a load are of, and how their dollars stand to those of a plan; empty
    without a load."""
    return f"Modelled, for {found.load}. {OF_RUN} {PRICED}" if found.load else ""


def figures_of(found: Comparison) -> list[Figure]:
    """Every figure of the page that has data."""
    columns = found.columns
    pieces: list[tuple[str, str, list[Plot | None], str]] = [
        (
            "throughput",
            "Tokens per second against load",
            [throughput(columns)],
            "All GPUs share one device; the dot is its knee, where a unit of it begins to bind. "
            "Where lines lie on each other the devices make no difference.",
        ),
        (
            "latency",
            "Fetch latency",
            [ccdf(columns)],
            "Share of fetches that took longer than a time; further left and lower is better. "
            "A fetch is from when the host asks for its blocks until it has them: by the host's "
            "own clock in the measured run, by the model's in a modelled one. "
            "Hits are the left shoulder, reads from the store the right one.",
        ),
        (
            "waterfall",
            "Where the time of a fetch is spent",
            [waterfall(columns)],
            "By unit, waiting included. For the measured run each stage has its mean, and the "
            "storage the remainder. In the model of today's daemon link_in is ring wait and "
            "answer.",
        ),
        (
            "utilisation",
            "How busy each unit is",
            [heat_map(one) for one in columns],
            "Busy share of each unit over the run.",
        ),
        (
            "load",
            "Latency under load",
            [hockey_stick(columns, found.loads)] if any(found.loads) else [],
            "More and more copies of the same sessions: the bandwidth delivered to the hosts, "
            "and the 99th percentile of fetch latency. Where a line turns up, a unit is saturated.",
        ),
        (
            "tornado",
            "Which parameters matter",
            [tornado(one.effects, one.device, one.base) for one in found.tornados],
            "Each parameter at the ends of its range, all others as in the preset; the 15 that "
            "change the result most.",
        ),
        (
            "crossover",
            "Where the devices are equal",
            [crossover(one) for one in found.crossovers],
            "The speed-up over two parameters; the dot is the preset, the strong line equal speed.",
        ),
        (
            "isolation",
            "Isolation",
            [isolation(found.neighbours, found.neighbours_device)] if found.neighbours else [],
            "A session with a steady, small load shares the device with one whose load grows, of "
            "another tenant or of the same.",
        ),
    ]
    shown = [
        (name, title, [one for one in plots if one is not None], note)
        for name, title, plots, note in pieces
    ]
    late = void_markup(late_drives(columns).values())
    figures = [Figure(*one, after=late if one[0] in OF_THE_RUN else "") for one in shown if one[2]]
    return [*models_figure(found.models), *figures]


def _held(samples: int) -> str:
    return "all" if samples < FEW_DRAWS else "nine in ten"


def noted(found: Comparison) -> dict[Note, str]:
    """Every column's notes, each with the devices that it applies to."""
    told: dict[Note, list[str]] = {}
    for one in found.columns:
        for note in one.notes:
            told.setdefault(note, []).append(one.device)
    return {note: "; ".join(names) for note, names in told.items()}
