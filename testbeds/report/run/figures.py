"""Figures of counts: where demands were served, and the fates of prefetches.

On the page their bars are markup: names are above them and wrap, and a bar is as wide as the
card. For paper the same segments are drawn.
"""

from collections.abc import Sequence

from offstage.bindings.layouts import ENDS
from offstage.bindings.ledger import share
from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.page.bars import Key, Row, bars_height, draw_bars
from offstage.testbeds.report.page.markup import (
    Segment,
    bar,
    bar_row,
    figure,
    folded,
    key,
    legend,
    swatch,
)
from offstage.testbeds.report.page.numbers import count, percent
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.run.definitions import END_TEXTS, FATE_TEXTS
from offstage.testbeds.report.run.plots import Colours, heading
from offstage.testbeds.report.run.runs import MISS_ENDS, Group, labels
from offstage.testbeds.report.run.void import HITS
from offstage.testbeds.table import Column, Table

__all__ = ["fates_figure", "served_figure"]

SERVED = ("hbm", *ENDS)
FATES = ("used", "late", "unused", "cancelled")
CAUSE_LABELS = {"pattern": "pattern (ema)"}


def served_figure(groups: Sequence[Group], colours: Colours) -> Figure:
    """Shares of the selections by where they were served."""
    present = [end for end in SERVED if any(_served(r)[end] for g in groups for r in g.runs)]
    keys = [key(f"var(--end-{end})", _end_label(end), tip=END_TEXTS[end]) for end in present]
    provenances = dict.fromkeys(group.provenance for group in groups)
    keys += [key("var(--muted)", name, name) for name in provenances]
    drawn_keys = [(f"end-{end}", _end_label(end)) for end in present]
    return Figure(
        "served",
        "Where the selected blocks came from",
        [_served_plot(group, colours, drawn_keys) for group in groups],
        "The thin bar is all blocks that the kernels read, split into those in the GPU's HBM pool "
        "and those demanded from the DPU; the thick bar is the demands alone: staged in time, by "
        "prefetcher, then late, then missed.",
        legend(keys),
    )


def _served_plot(group: Group, colours: Colours, keys: Sequence[Key]) -> Plot:
    markup, rows = [], []
    for run, name in zip(group.runs, labels(group), strict=True):
        thin, thick = _served_segments(run)
        markup.append(_row(run, name, colours, _served_bars(run, group), _served_note(run)))
        rows.append((name, (thin, thick), ""))
    return _bars(
        f"served {group.title}",
        group,
        markup,
        rows,
        keys,
        "of selections (thin)\nand of demands, %",
    )


def _bars(
    name: str,
    group: Group,
    markup: Sequence[str],
    rows: Sequence[Row],
    keys: Sequence[Key],
    xlabel: str,
) -> Plot:
    return Plot(
        name,
        f"{xlabel}, {group.where}",
        lambda drawn: draw_bars(drawn, rows, keys, xlabel),
        heading=heading(group, HITS),
        by_hand="".join(markup),
        paper_height=bars_height(rows, keys),
    )


def _end_label(end: str) -> str:
    if end == "hbm":
        return "HBM pool"
    return f"miss: {end}" if end in MISS_ENDS else end


def _served(run: RunResult) -> dict[str, int]:
    return {"hbm": max(0, run.selected - run.demands), **{e: run.ends.get(e, 0) for e in ENDS}}


def _served_segments(run: RunResult) -> tuple[list[Segment], list[Segment]]:
    """All selections as a thin bar, the demands among them as a thick one."""
    served = _served(run)
    selected, demands = max(1, sum(served.values())), max(1, run.demands)
    thin = [
        Segment(
            served["hbm"] / selected,
            "var(--end-hbm)",
            f"HBM pool: {percent(served['hbm'] / selected)} of selections, "
            f"{count(served['hbm'])} blocks\n{END_TEXTS['hbm']}",
        ),
        Segment(
            run.demands / selected,
            "var(--muted)",
            f"demands: {percent(run.demands / selected)} of selections, "
            f"{count(run.demands)} blocks\nrequested from the DPU: the thick bar",
        ),
    ]
    thick = [
        Segment(
            served[end] / demands,
            f"var(--end-{end})",
            f"{_end_label(end)}: {percent(served[end] / demands)} of demands, "
            f"{percent(served[end] / selected)} of selections, {count(served[end])} blocks"
            f"\n{END_TEXTS[end]}",
        )
        for end in ENDS
    ]
    return thin, thick


def _served_bars(run: RunResult, group: Group) -> str:
    served, (thin, thick) = _served(run), _served_segments(run)
    demands, selected = max(1, run.demands), max(1, sum(served.values()))
    said = ", ".join(f"{_end_label(e)} {percent(served[e] / demands)}" for e in ENDS if served[e])
    pool = f"HBM pool {percent(served['hbm'] / selected)} of selections"
    return bar(thin, "thin", pool) + bar(thick, group.provenance, f"of demands: {said}")


def _served_note(run: RunResult) -> str:
    lost = run.demands - run.ended.hits
    return f"{percent(share(lost, run.demands))} late or missed"


def _row(run: RunResult, name: str, colours: Colours, content: str, note: str) -> str:
    mark = swatch(colours[tuple(sorted(run.prefetchers))])
    return bar_row(mark + escape(name), note, content)


def fates_figure(groups: Sequence[Group], colours: Colours) -> Figure | str:
    """Fates of the blocks that were read ahead, and the same as a table by prefetcher."""
    title = "Fates of prefetched blocks"
    caption = (
        "Each bar is all blocks that were read ahead of a demand: the longer its first segment, "
        "the fewer were wasted; candidates dropped before they were read are only in the "
        "table."
    )
    keys = legend([key(f"var(--fate-{fate})", fate, tip=FATE_TEXTS[fate]) for fate in FATES])
    plots, table = [], []
    for group in groups:
        markup: list[str] = []
        rows: list[Row] = []
        for run, name in zip(group.runs, labels(group), strict=True):
            sums = _fate_sums(run)
            if not any(sums[fate] for fate in FATES):
                continue
            markup.append(_row(run, name, colours, _fate_bar(run, group, sums), _fate_note(sums)))
            rows.append((name, (_fate_segments(run, sums),), ""))
            table += _fate_rows(run, name, group)
        if markup:
            drawn_keys = [(f"fate-{fate}", fate) for fate in FATES]
            plots.append(
                _bars(
                    f"fates {group.title}",
                    group,
                    markup,
                    rows,
                    drawn_keys,
                    "of what was read ahead, %",
                )
            )
    if not plots:
        return figure("fates", title, '<p class="empty">Nothing was prefetched.</p>', caption, keys)
    return Figure("fates", title, plots, caption, keys, _fate_table(table))


def _fate_sums(run: RunResult) -> dict[str, int]:
    return {
        fate: sum(row.get(fate, 0) for row in run.fates.values()) for fate in (*FATES, "dropped")
    }


def _fate_segments(run: RunResult, sums: dict[str, int]) -> list[Segment]:
    total = sum(sums[fate] for fate in FATES)
    segments = []
    for fate in FATES:
        by_cause = [
            f"{_cause(cause)}: {count(row[fate])}"
            for cause, row in run.fates.items()
            if row.get(fate)
        ]
        head = f"{fate}: {percent(sums[fate] / total)}, {count(sums[fate])} blocks"
        tip = "\n".join([head, FATE_TEXTS[fate], *by_cause])
        segments.append(Segment(sums[fate] / total, f"var(--fate-{fate})", tip))
    return segments


def _fate_bar(run: RunResult, group: Group, sums: dict[str, int]) -> str:
    total = sum(sums[fate] for fate in FATES)
    said = ", ".join(f"{fate} {percent(sums[fate] / total)}" for fate in FATES)
    return bar(_fate_segments(run, sums), group.provenance, said)


def _fate_note(sums: dict[str, int]) -> str:
    read = sum(sums[fate] for fate in FATES)
    return f"{percent(sums['used'] / read)} of {count(read)} used"


def _cause(cause: str) -> str:
    return CAUSE_LABELS.get(cause, cause)


def _fate_rows(run: RunResult, name: str, group: Group) -> list[list[object]]:
    return [
        [
            f"{name}, {group.title}",
            _cause(cause),
            *(row.get(fate, 0) for fate in (*FATES, "dropped")),
        ]
        for cause, row in run.fates.items()
    ]


def _fate_table(rows: Sequence[Sequence[object]]) -> str:
    columns = [Column("run", left=True), Column("brought by", left=True)]
    columns += [Column(name, count) for name in (*FATES, "dropped")]
    table = as_html(Table.of(columns, rows), "prefetched blocks by prefetcher")
    return folded("By prefetcher, as a table", table)
