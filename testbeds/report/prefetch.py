"""The page of `offstage bench prefetch`: times to the first token against load, and what became of
what the hints named; in virtual time and in a real engine."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offstage.bindings.durable import write_text
from offstage.bindings.units import format_seconds
from offstage.testbeds.bench.engines.moment_result import LivePrefetchResult
from offstage.testbeds.bench.hint_arms import BOUNDS, RECOMPUTE, HintArm, HintCase, range_text
from offstage.testbeds.bench.prefetch import PrefetchResult
from offstage.testbeds.report.page.bars import Row, bars_height, draw_bars
from offstage.testbeds.report.page.markup import Segment, bar, bar_row, figure, key, legend
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour, plain_logs
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_page"]

Found = PrefetchResult | LivePrefetchResult
SHADES = ("set-pattern", "set-window", "set-shared", "set-1", "set-2", "set-5")
"""Of arms with hints, in their order."""
BOUND_SHADES = dict(zip(BOUNDS, ("set-4", "set-none", "ink"), strict=True))
MARKS = dict(zip(BOUNDS, ("v", "s", "^"), strict=True))
TICKS_MAX = 8
ENDS: Sequence[tuple[str, str, Callable[[HintArm], float | None]]] = (
    ("on time", "fate-used", lambda one: one.on_time),
    ("late", "fate-late", lambda one: one.late),
    ("missing", "end-capacity", lambda one: one.missing),
    ("absent", "end-hbm", lambda one: one.absent),
)
WASTED = ("wasted", "set-none")


def write_page(found: Found, path: Path, version: str) -> None:
    """Writes the page."""
    cases, tables = found.shown(), found.own_tables()
    sections: list[object] = []
    for at, (case, table) in enumerate(zip(cases, tables, strict=True)):
        sections += _figures(case, at, found.provenance)
        shown = as_html(table, table.title, "figures")
        sections.append(figure(f"table-{at}", table.title, shown, ""))
    page = Page(
        title="Offstage: when prefetch pays",
        sentence="; ".join(one.said() for one in cases) + ".",
        setup="; ".join(found.setup()),
        sections=sections,
        version=version,
        kind="bench report",
        notes=dict.fromkeys(found.notes, ""),
    )
    write_text(path, str(page))


def _figures(case: HintCase, at: int, provenance: str) -> list[Figure]:
    names = case.names
    keys = {one: key(f"var(--{_shade(names, one)})", one, "line") for one in names}
    times = [
        _lines(case, provenance, "median", "median, ms", lambda one: one.p50_s),
        _lines(case, provenance, "p99", "99th percentile, ms", lambda one: one.p99_s),
    ]
    loads = [_bars(case, load) for load in case.loads]
    arms = [one for load in case.loads.values() for one in load]
    ends = [(name, shade) for name, shade, of in ENDS if any(map(of, arms))]
    shades = [*ends, WASTED]
    made = [
        Figure(
            f"first-token-{at}",
            f"Time to the first token, {case.title}",
            _drawn(times),
            "Against load, by when hints are sent; both axes are logarithmic. None: no hints. "
            "Perfect: all that is stored is in the tier's memory.",
            legend(list(keys.values())),
        ),
        Figure(
            f"gained-{at}",
            f"Gained by hints, {case.title}",
            _drawn([_gained(case)]),
            "By how much the mean time to the first token is shorter than without hints. Whiskers, "
            "where requests were timed: 95 % intervals over requests in pairs.",
            legend([one for name, one in keys.items() if name != RECOMPUTE]),
        ),
        Figure(
            f"staged-{at}",
            f"On time, late, wasted, {case.title}",
            _drawn(loads),
            "Thick: what was needed and not in the host's or engine's own memory, by where it was "
            "then. On time: in the tier's memory. Late: on its way there. Missing: on the drive "
            f"alone. Absent: nowhere. Thin: of {case.read}, the share that nobody needed.",
            legend([key(f"var(--{shade})", name) for name, shade in shades]),
        ),
    ]
    return [one for one in made if one.plots]


def _drawn(plots: Sequence[Plot | None]) -> list[Plot]:
    """Those that have something to show."""
    return [one for one in plots if one is not None]


def _shade(names: Sequence[str], name: str) -> str:
    own = [one for one in names if one not in BOUNDS]
    return BOUND_SHADES.get(name) or SHADES[own.index(name) % len(SHADES)]


def _arms(case: HintCase, name: str) -> list[tuple[float, HintArm]]:
    found = [(load, one) for load, arms in case.loads.items() for one in arms]
    return [(load, one) for load, one in found if one.name == name]


def _lines(
    case: HintCase, provenance: str, name: str, ylabel: str, of: Callable[[HintArm], float]
) -> Plot | None:
    """A line for each arm, of times above 0; None: there are none."""
    points = {
        arm: [(load, of(one)) for load, one in _arms(case, arm) if of(one) > 0]
        for arm in case.names
    }

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for arm, found in points.items():
            (line,) = axes.plot(
                [load for load, _ in found],
                [1e3 * value for _, value in found],
                color=colour(_shade(case.names, arm)),
                linestyle=LINE_STYLES[provenance],
                marker=MARKS.get(arm, "o"),
                markersize=5,
            )
            values = "\n".join(f"load {load:g}: {format_seconds(one)}" for load, one in found)
            drawn.tip(line, f"{arm}\n{values}")
        plain_logs(axes, y="number")
        _load_axis(axes, case)
        axes.set_ylabel(ylabel)

    said = "; ".join(
        f"{arm} {', '.join(format_seconds(value) for _, value in found)}"
        for arm, found in points.items()
    )
    if not any(points.values()):
        return None
    return Plot(f"first-token-{name}", f"{ylabel} by load: {said}", draw, heading=_heading(name))


def _gained(case: HintCase) -> Plot | None:
    """What each arm gains; computing is left out, since it would flatten the others."""
    names = [one for one in case.names if one != RECOMPUTE]
    spread = 0.03  # of a load, so that whiskers of neighbours do not cover each other
    points = {
        name: [
            (load * (1 + spread * (at - len(names) / 2)), load, one)
            for load, one in _arms(case, name)
            if one.gained is not None
        ]
        for at, name in enumerate(names)
    }

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        axes.axhline(0, linewidth=0.8, color="0.5")
        for name, found in points.items():
            shade = colour(_shade(case.names, name))
            for x, load, one in found:
                gained = one.gained or 0.0
                low, high = one.gained_range or (gained, gained)
                axes.plot([x, x], [100 * low, 100 * high], color=shade, linewidth=1.2)
                (dot,) = axes.plot(
                    x, 100 * gained, color=shade, marker=MARKS.get(name, "o"), linestyle="none"
                )
                said = range_text(gained, one.gained_range)
                drawn.tip(dot, f"{name}, load {load:g}\n{said}", spot="spot")
        _load_axis(axes, case)
        axes.set_ylabel("shorter than without hints, %")

    said = "; ".join(
        f"{name} " + ", ".join(range_text(one.gained or 0.0, one.gained_range) for *_, one in found)
        for name, found in points.items()
    )
    if not any(points.values()):
        return None
    return Plot("gained", f"Gained against load: {said}", draw)


def _bars(case: HintCase, load: float) -> Plot | None:
    """Where what was needed was, by arm; None: nothing was."""
    rows: list[Row] = []
    markup = []
    for one in case.loads[load]:
        if one.on_time is None:
            continue
        ends = [
            Segment(of(one) or 0.0, f"var(--{shade})", f"{name}: {percent(of(one) or 0.0)}")
            for name, shade, of in ENDS
        ]
        note = "" if one.wasted is None else f"wasted {percent(one.wasted)}"
        wasted = one.wasted or 0.0
        thin = [
            Segment(wasted, f"var(--{WASTED[1]})", f"{note} of {case.read}"),
            Segment(1.0 - wasted, "transparent", ""),
        ]
        said = ", ".join(segment.tip for segment in ends if segment.share)
        drawn = bar(ends, "plain", f"{one.name}: {said}")
        thinly = bar(thin, "thin", f"{one.name}: {note}") if wasted else ""
        rows.append((one.name, (thin, ends), note))
        markup.append(bar_row(escape(one.name), note, thinly + drawn))
    if not rows:
        return None
    keys = [(shade, name) for name, shade, _ in ENDS] + [(WASTED[1], WASTED[0])]
    return Plot(
        f"staged-{load:g}",
        f"On time, late, missing and wasted by arm at load {load:g}",
        lambda drawn: draw_bars(drawn, rows, keys, "of what was needed (thick), %"),
        heading=_heading(f"load {load:g}"),
        by_hand="".join(markup),
        paper_height=bars_height(rows, keys),
    )


def _load_axis(axes: "Axes", case: HintCase) -> None:
    """Logarithmic, and numbered at the loads that were run."""
    plain_logs(axes, x="number")
    axes.set_xlabel("load")
    if len(case.loads) <= TICKS_MAX:
        axes.set_xticks(list(case.loads), [f"{load:g}" for load in case.loads])


def _heading(text: str) -> str:
    return tag("h3", escape(text))
