"""`offstage report`: makes a page again, writes its figures as files, or compares two runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import offstage
from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from offstage.testbeds.cli.printed import Differences, FiguresMade, PageMade
    from offstage.testbeds.report.bottleneck.tree import Bottleneck

__all__ = ["register"]

COMPARED = ("nontrivial_hit", "reads_per_demand", "stall_ms_mean")


PaperOption = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="write every figure of the run's pages there, as SVG, PDF and PNG at the size of a "
        "paper",
    ),
]
BottleneckOption = Annotated[
    bool,
    typer.Option(
        "--bottleneck",
        help="run the run again with one thing changed at a time, and show on its page what binds, "
        "as `offstage bottleneck` does",
    ),
]
AcceptOption = Annotated[
    Path | None,
    typer.Option(
        "--accept",
        metavar="FILE",
        help="show on the run's page the judgement that `offstage accept --out FILE` wrote",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `offstage report`."""
    app.command()(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="folders of runs, or a summary.json; two: compared"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="file to write, default: report.html in the run's folder; of a "
            "comparison a folder, default: none",
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="POLICY",
            help="compare with this policy of the (first) run, over the same requests",
        ),
    ] = "",
    paper: PaperOption = None,
    figures: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            help="figure to compare; may be repeated; default: non-trivial hits, "
            "reads per demand, mean stall",
        ),
    ] = None,
    bottleneck: BottleneckOption = False,
    accept: AcceptOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Write report.html from summary.json or pod.json and show its table, or compare lab runs.

    With --figures, RUN is anything a page was made of, also the file of `bench engine --out`. With
    two RUNs each policy of the second is compared with the same one of the first, with --against
    with that one. Differences are paired over the same requests; --out has HTML, CSV, LaTeX, JSON.
    """
    from rich.console import Group
    from rich.text import Text

    from offstage.testbeds.report.page.files import holds_lab_summary
    from offstage.testbeds.report.rerun.pod import holds_pod

    if len(runs) > 1 or against or figures:
        if paper is not None:
            raise BadInput(
                "--figures with a comparison",
                "command line",
                "give --out FOLDER: it holds the comparison's figures too",
            )
        return _compared(runs, out, against, figures or list(COMPARED), form)
    (run,) = runs
    if paper is not None:
        paths = _for_paper(run, paper)
        files: FiguresMade = {"files": {name: str(path) for name, path in paths.items()}}
        return emit(files, form, Group(*map(Text, files["files"].values())))
    page = out or (run if run.is_dir() else run.parent) / "report.html"
    judged = "" if accept is None else _judged(accept, run)
    binds = None
    if bottleneck:
        from offstage.testbeds.cli.bottleneck import bottleneck_of

        binds = bottleneck_of(run)
    write = _pod if holds_pod(run) else _lab if holds_lab_summary(run) else _demo
    sentence, table = write(run, page, binds, judged)
    result: PageMade = {"sentence": sentence, "report": str(page)}
    return emit(result, form, Group(table, "", sentence, "", str(page)))


def _compared(
    runs: list[Path], out: Path | None, against: str, figures: list[str], form: Format
) -> None:
    from rich.console import Group
    from rich.text import Text

    from offstage.testbeds.lab.results.paired import FIGURES, difference, pairs, sides_of
    from offstage.testbeds.report.lab.differences import differences_sentence, differences_table
    from offstage.testbeds.report.lab.differences_page import write_differences

    if unknown := [name for name in figures if name not in FIGURES]:
        raise BadInput(
            f"no figure {unknown[0]!r}", "--figure", f"choose one of {', '.join(FIGURES)}"
        )
    if len(runs) == 1 and not against:
        raise BadInput("nothing to compare", str(runs[0]), "name a second run, or --against POLICY")
    first, *others = [sides_of(run) for run in runs]
    rows = [
        row
        for second in others or [first]
        for one, other in pairs(first, second, against)
        for row in difference(one, other, figures)
    ]
    rows.sort(key=lambda row: figures.index(row.figure))
    paths = {} if out is None else write_differences(rows, out, offstage.__version__)
    sentence = differences_sentence(rows)
    lines = ["", sentence, "", *map(str, paths.values())]
    document: Differences = {
        "sentence": sentence,
        "differences": rows,
        "files": {name: str(path) for name, path in paths.items()},
    }
    emit(document, form, Group(differences_table(rows), *map(Text, lines)))


def _judged(file: Path, run: Path) -> str:
    """The section of an acceptance of that run."""
    from offstage.testbeds.cli.accept import read_acceptance
    from offstage.testbeds.report.accept.section import acceptance_section

    return acceptance_section(read_acceptance(file, run))


def _for_paper(run: Path, folder: Path) -> dict[str, Path]:
    """The figures of every page whose data is in the folder of a run, or in the given file."""
    from offstage.testbeds.cli.paper_figures import figures_of_file, files_of
    from offstage.testbeds.report.page.plot import write_figures

    found = [one for path in files_of(run) for one in figures_of_file(path)]
    return write_figures(found, folder)


def _demo(
    run: Path, page: Path, binds: "Bottleneck | None", judged: str
) -> "tuple[str, RenderableType]":
    from offstage.testbeds.report import console_table, read_summary, write_report

    summary = read_summary(run)
    write_report(summary, page, binds, judged)
    return summary.sentence, console_table(summary)


def _pod(
    run: Path, page: Path, binds: "Bottleneck | None", judged: str
) -> "tuple[str, RenderableType]":
    from offstage.testbeds.report.bottleneck.pod_page import write_pod_report
    from offstage.testbeds.report.bottleneck.section import ASK, members_table
    from offstage.testbeds.report.rerun.pod import pod_by_figures

    found = binds or pod_by_figures(run, ASK)
    write_pod_report(found, page, offstage.__version__, judged)
    return found.sentence, members_table(found)


def _lab(
    run: Path, page: Path, binds: "Bottleneck | None", judged: str
) -> "tuple[str, RenderableType]":
    from offstage.testbeds.report.lab.page import write_lab_report
    from offstage.testbeds.report.lab.requests import requests_table
    from offstage.testbeds.report.lab.sentence import lab_sentence
    from offstage.testbeds.report.lab.table import lab_table
    from offstage.testbeds.report.page.files import read_lab_summary

    summary = read_lab_summary(run)
    write_lab_report(summary, page, binds, judged)
    table = lab_table(summary) if summary.points else requests_table(summary.requests)
    return lab_sentence(summary), table
