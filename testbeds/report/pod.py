"""The page of `offstage bench pod`: hits over time with the pod's faults, and its table."""

from collections.abc import Sequence
from pathlib import Path

from offstage.bindings.durable import write_text
from offstage.testbeds.bench.pod.faults import Done
from offstage.testbeds.bench.pod.result import PodResult, TraceResult
from offstage.testbeds.report.page.markup import figure
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.pictures import Picture
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["figures_of", "render", "write_page"]

Found = PodResult | TraceResult
CAPTION = (
    "Share of the acknowledged blocks requested in each second that arrived complete and correct. "
    "Lines: a fault was injected; dotted: it was removed. Missing blocks were computed again and "
    "put."
)


def write_page(found: Found, path: Path, version: str) -> None:
    """Writes the page of either mode."""
    write_text(path, render(found, version))


def render(found: Found, version: str) -> str:
    """The page as text."""
    sections = [
        *figures_of(found),
        figure("verdicts", "What must hold", "".join(map(as_html, found.tables())), ""),
    ]
    page = Page(
        title="Offstage: a pod that fails",
        sentence=_sentence(found),
        setup=_setup(found),
        sections=sections,
        version=version,
        kind="pod report",
        notes=dict.fromkeys(found.notes, ""),
    )
    return str(page)


def figures_of(found: Found) -> list[Figure]:
    """Every figure of the page."""
    if isinstance(found, TraceResult):
        plots = [_hits(found.trace, found.figures.series, found.done)]
        return [Figure("hits", "Hits over time", plots, CAPTION)]
    plots = [_hits(name, one.series, found.done) for name, one in found.phases.items()]
    return [Figure("hits", "Hits over time, phase by phase", plots, CAPTION)]


def _hits(name: str, series: Sequence[Sequence[float]], done: Sequence[Done]) -> Plot:
    begin_s, end_s = series[0][0], series[-1][0] + 1
    marks = [one for one in done if begin_s <= one.at_s <= end_s]

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        axes.step(
            [at - begin_s for at, known, _ in series if known],
            [hits / known for _, known, hits in series if known],
            where="post",
        )
        for one in marks:
            line = axes.axvline(
                one.at_s - begin_s,
                color="0.5",
                linewidth=1,
                linestyle=":" if one.healed else "-",
            )
            drawn.tip(line, f"{one.fault} {one.member}{' undone' if one.healed else ''}")
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
        axes.set(xlabel="time, s", ylabel="hits of known blocks")

    least = min((hits / known for _, known, hits in series if known), default=0.0)
    file = "".join(one if one.isalnum() else "-" for one in name)[:40].strip("-")
    return Plot(
        f"hits-{file}",
        f"Hits by second: {name}. The lowest second had {percent(least)}.",
        draw,
        heading=tag("h3", escape(name)),
        paper_height=2.2,
    )


def _sentence(found: Found) -> str:
    if isinstance(found, TraceResult):
        return (
            f"{found.figures.hits:,} of {found.figures.known:,} known blocks arrived, "
            f"{found.wrong} of them wrong."
        )
    return f"{len(found.rows) - len(found.missed)} of {len(found.rows)} aims reached."


def _setup(found: Found) -> str:
    if isinstance(found, TraceResult):
        return (
            f"{found.span_s / 60:.0f} minutes of {found.trace} in "
            f"{found.seconds / 60:.1f}, {found.compression:.2f} s of the trace in one; "
            f"four daemons on one machine, {found.hosts} hosts. Measured."
        )
    return (
        f"Four daemons on one machine, {found.hosts} hosts, {found.rate_hz:g} requests a "
        f"second, a fetch deadline of {found.deadline_s * 1e3:g} ms. Measured."
    )
