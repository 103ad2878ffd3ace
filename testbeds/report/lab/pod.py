"""The page of `offstage lab pod`, and its table for a terminal: hits, load and recovery over N."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from offstage.bindings.durable import write_text
from offstage.testbeds.document import as_json
from offstage.testbeds.lab.pod.summary import Beside, PodSummary, Row
from offstage.testbeds.report.page.markup import facts, figure
from offstage.testbeds.report.page.numbers import milliseconds, percent, seconds
from offstage.testbeds.report.page.page import Page, Tile
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.table import Column, Table

__all__ = ["pod_sentence", "pod_table", "write_pod_results"]

COLOURS = ("set-pattern", "set-window", "set-shared", "set-1", "set-5", "set-2", "set-4", "set-3")
COLUMNS = (
    Column("daemons", short="N"),
    Column("schedule", left=True),
    Column("fault", left=True),
    Column("hit", percent),
    Column("in pool", percent, short="pool"),
    Column("first token", milliseconds, short="first"),
    Column("p99", milliseconds),
    Column("load CV", lambda value: f"{value:.3f}", brief=False),
    Column("max/mean", lambda value: f"{value:.2f}"),
    Column("refused"),
    Column("lost", percent),
    Column("worst window", percent, brief=False),
    Column("back", brief=False),
    Column("back, less share", short="back"),
)
Line = tuple[str, list[tuple[int, float, str]]]


def write_pod_results(summary: PodSummary, out: Path) -> dict[str, Path]:
    """summary.json and report.html in `out`. RunFailed if the disk refuses."""
    paths = {"summary": out / "summary.json", "report": out / "report.html"}
    write_text(paths["summary"], as_json(summary))
    write_text(paths["report"], render(summary))
    return paths


def pod_sentence(summary: PodSummary) -> str:
    """The finding, from the smallest pod to the largest, of the first schedule."""
    first = summary.rows[0].schedule
    own = [one for one in summary.rows if one.schedule == first]
    plain = [one for one in own if one.fault == "none"] or own
    small, large = (pick(plain, key=lambda one: one.daemons) for pick in (min, max))
    if small is large:
        return _of_one_size(summary)
    text = (
        f"From {small.daemons} to {large.daemons} daemons the hit rate goes from "
        f"{percent(small.means['hit'])} to {percent(large.means['hit'])} and the most loaded "
        f"daemon from {small.means['load_max']:.2f} to {large.means['load_max']:.2f} times "
        "the mean"
    )
    deaths = [one for one in own if one.fault == "death"]
    if deaths:
        small, large = (pick(deaths, key=lambda one: one.daemons) for pick in (min, max))
        text += (
            f"; a death costs {percent(small.means['lost'])} of later hits with "
            f"{small.daemons} daemons, {percent(large.means['lost'])} with {large.daemons}"
        )
    return text + "."


def _of_one_size(summary: PodSummary) -> str:
    """The finding of its schedules, or of its faults if it has some."""
    rows = summary.rows
    text = f"With {rows[0].daemons} daemons {percent(rows[0].means['hit'])} of tokens hit"
    faults = [
        f"{percent(one.means['lost'])} ({one.fault})"
        for one in rows
        if one.fault != "none" and one.schedule == rows[0].schedule
    ]
    if faults:
        return f"{text}; of the hits after it a fault costs {', '.join(faults)}."
    waits = [f"{milliseconds(one.means['first_ms_p50'])} ({one.schedule})" for one in rows]
    return f"{text}; the first token takes {', '.join(waits)}, in the median."


def pod_table(summary: PodSummary) -> Table:
    """All rows; for a terminal with refused requests if there are some."""
    refused = any(row.refused for row in summary.rows)
    columns = [replace(one, brief=refused) if one.title == "refused" else one for one in COLUMNS]
    return Table.of(columns, map(_cells, summary.rows))


def _cells(row: Row) -> list[object]:
    means = row.means
    lost: tuple[object, ...] = (None,) * 4
    if "lost" in means:
        back = _back(row, "back_s"), _back(row, "back_less_s")
        lost = means["lost"], means["lowest"], *back
    names = ("hit", "pool_hit", "first_ms_p50", "first_ms_p99", "load_cv", "load_max")
    named = (str(row.daemons), row.schedule, row.fault)
    return [*named, *(means[name] for name in names), row.refused, *lost]


def _back(row: Row, name: str) -> str:
    """Mean seconds; seeds that did not recover are counted separately."""
    text = seconds(row.means[name]) if name in row.means else ""
    return f"{text} (not {row.not_back} of {row.seeds})" if row.not_back else text


def render(summary: PodSummary) -> str:
    """The page as text."""
    spec = summary.spec
    load = Path(spec.trace).name if spec.trace else "generated arrivals"
    points = figure(
        "points",
        "All pods",
        as_html(pod_table(summary), "all pods", "points"),
        "Means over seeds. Lost, worst window and back compare with the same requests "
        "without the fault.",
    )
    sections = [*_figures(summary), points, *_beside(summary.beside)]
    page = Page(
        title="Offstage: pods in virtual time",
        sentence=pod_sentence(summary),
        setup=f"{summary.points[0].requests:,} requests, {load}; KV of {spec.model}; "
        f"shards of {spec.shard_tokens:,} tokens. Modelled: no daemon was run.",
        tiles=_tiles(summary),
        sections=sections,
        command=summary.command,
        again="Spec and seeds determine every figure: times are virtual.",
        foot=[facts("The spec", msgspec.to_builtins(spec))],
        version=summary.version,
        kind="pod report",
        notes=dict.fromkeys(summary.notes, ""),
    )
    return str(page)


def _tiles(summary: PodSummary) -> list[Tile]:
    large = max(
        (one for one in summary.rows if one.fault == summary.rows[0].fault),
        key=lambda one: one.daemons,
    )
    means, name = large.means, f"{large.daemons} daemons"
    return [
        Tile("hit rate", percent(means["hit"]), f"{name}; prefix tokens"),
        Tile("load", f"{means['load_max']:.2f}×", f"{name}; most loaded over mean"),
        Tile("first token", milliseconds(means["first_ms_p50"]), f"{name}; median"),
        Tile("points", str(len(summary.points)), "pods, schedules, faults, seeds"),
    ]


def _figures(summary: PodSummary) -> list[Figure]:
    rows = summary.rows
    plain = [one for one in rows if one.fault == "none"]
    faults = [one for one in rows if "lost" in one.means]
    found = [
        Figure(
            "hits",
            "Hit rate over daemons",
            [
                _plot("hit rate", plain, "hit", "prefix tokens that need no prefill", share=True),
                _plot("first token", plain, "first_ms_p50", "median time to the first token, ms"),
            ],
            "Modelled. Tokens of a request's unbroken prefix in the host's pool or in the pod, "
            "over all input tokens. Whiskers: lowest and highest seed.",
        ),
        Figure(
            "load",
            "Load over daemons",
            [
                _plot("load", plain, "load_max", "bytes sent by the most loaded, over the mean"),
                _plot(
                    "shards",
                    plain,
                    "shards_cv",
                    "variation of shards homed at a daemon",
                    bound="shards_cv_expected",
                ),
            ],
            "Left: bytes read. Right: shards homed; dashed: random placement, the square root of "
            "(N - 1) / shards. The excess of left over right is due to hot shards.",
        ),
    ]
    if faults:
        found.append(
            Figure(
                "faults",
                "Cost of a fault",
                [
                    _plot(
                        "lost",
                        faults,
                        "lost",
                        "hits lost, of later hits",
                        share=True,
                        by="fault",
                    ),
                    _plot("back", faults, "back_less_s", "seconds until hits are back", by="fault"),
                ],
                "Compared with the same requests without the fault. Back: after the last window "
                "below 95 % of the hits without it, less the daemon's share. Blocks that are not "
                "requested again do not return, so this time depends on the trace and the pod.",
            )
        )
    return found


def _lines(rows: Sequence[Row], key: str, by: str) -> list[Line]:
    schedules = list(dict.fromkeys(one.schedule for one in rows))
    named: Callable[[Row], str] = lambda one: ", ".join(  # noqa: E731
        ([one.fault] if by == "fault" else [])
        + ([one.schedule] if len(schedules) > 1 or by != "fault" else [])
    )
    lines: dict[str, list[tuple[int, float, str]]] = {}
    for one in rows:
        if key in one.means:
            low, high = one.ranges[key]
            tip = f"{named(one)}, {one.daemons} daemons: {one.means[key]:.4g}"
            tip += f" ({low:.4g} to {high:.4g})" if one.seeds > 1 else ""
            lines.setdefault(named(one), []).append((one.daemons, one.means[key], tip))
    return list(lines.items())


def _plot(
    name: str,
    rows: Sequence[Row],
    key: str,
    label: str,
    *,
    share: bool = False,
    by: str = "schedule",
    bound: str = "",
) -> Plot:
    lines = _lines(rows, key, by)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for at, (line, points) in enumerate(lines):
            tint = colour(COLOURS[at % len(COLOURS)])
            axes.plot(
                [x for x, _, _ in points],
                [y for _, y, _ in points],
                color=tint,
                label=line,
                linestyle=LINE_STYLES["modelled"],
            )
            for x, y, tip in points:
                (dot,) = axes.plot([x], [y], "o", color=tint, markersize=5)
                drawn.tip(dot, tip, spot="spot")
        for one in rows if not drawn.paper else ():
            if key in one.ranges and one.seeds > 1:
                axes.plot([one.daemons] * 2, one.ranges[key], color=colour("muted"), linewidth=0.8)
        if bound:
            ends = sorted({one.daemons: one.means[bound] for one in rows}.items())
            axes.plot(
                [x for x, _ in ends],
                [y for _, y in ends],
                color=colour("muted"),
                linewidth=0.9,
                linestyle=(0, (4, 3)),
                label="chance",
            )
        axes.set_xscale("log", base=2)
        counts = sorted({one.daemons for one in rows})
        axes.set_xticks(counts, [str(one) for one in counts])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        if share:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
        axes.set(xlabel="daemons", ylabel=label)
        drawn.legend(axes)

    return Plot(
        name,
        f"{label}, over the number of daemons",
        draw,
        height=3.0,
        legend_rows=len(lines) + bool(bound),
    )


def _beside(found: Sequence[Beside]) -> list[str]:
    """A live pod's measurements next to the laboratory's figure; empty if none was given."""
    if not found:
        return []
    columns = [
        Column("figure", left=True),
        *(
            Column(name, lambda value: f"{value:.4g}")
            for name in ("live, measured", "here, modelled")
        ),
        Column("note", left=True),
    ]
    rows = [[f"{one.figure}, {one.daemons} daemons", one.live, one.lab, one.note] for one in found]
    return [
        figure(
            "beside",
            "Compared with a live pod",
            as_html(Table.of(columns, rows), "comparison with a live pod"),
            "A live pod on one machine shares its cores, memory and drive, so its times do not "
            "predict the model's; both choose the daemon to read from by the same code.",
        )
    ]
