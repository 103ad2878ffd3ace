"""Shows a command's results: files, a table, headlines as JSON."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from offstage.bindings.notes import note_lines
from offstage.testbeds.cli.common import Format, emit

if TYPE_CHECKING:
    from offstage.host.request_file import Recorded
    from offstage.testbeds.live.results import Summary

__all__ = ["print_summary"]

HEADLINES = (
    "name",
    "storage",
    "provenance",
    "prefetchers",
    "demands",
    "hit",
    "nontrivial_hit",
    "late",
    "miss",
    "coverage",
    "accuracy",
    "traffic_ratio",
    "stall_ms_p50",
    "stall_ms_p99",
    "fetch_ms_p50",
    "fetch_ms_p99",
    "tokens_per_s",
    "kernel_bytes_per_s",
    "roof_bytes_per_s",
    "staging_bytes",
    "bytes_read",
    "read_amplification",
    "blocks_verified",
    "blocks_corrupt",
    "notes",
)


def print_summary(
    summary: "Summary",
    out: Path | None,
    form: Format,
    served: Sequence["Recorded"] = (),
) -> None:
    """Write summary.json, report.html and the requests of `served` to `out`, if it is given, and
    print the figures. RunFailed, after all of that, if a check says that they must not be used."""
    from rich.console import Group

    from offstage.bindings.errors import brings
    from offstage.host.request_file import REQUESTS_NAME, write_requests
    from offstage.testbeds.live.checks import refuse
    from offstage.testbeds.report import (
        baselines_table,
        console_table,
        in_words,
        write_report,
        write_summary,
    )

    summary = in_words(summary)
    paths: dict[str, Path] = {}
    if out is not None:
        paths = {"summary": out / "summary.json", "report": out / "report.html"}
        write_summary(summary, paths["summary"])
        write_report(summary, paths["report"])
        if served and find_spec("pyarrow"):
            paths["requests"] = out / REQUESTS_NAME
            write_requests(paths["requests"], served)
    lines = ["", *(str(path) for path in paths.values())] if paths else []
    if served and paths and "requests" not in paths:
        lines.append(f"{REQUESTS_NAME} is not written without pyarrow; {brings('parquet')}")
    noted = note_lines(summary.noted())
    beside = baselines_table(summary)
    more: list[RenderableType] = [] if beside is None else [beside, ""]
    text = Group(
        *_answer(summary), console_table(summary), "", *more, summary.sentence, *noted, *lines
    )
    emit(_headlines(summary, paths), form, text)
    refuse(_failed(summary), str(paths.get("summary", "run")))


def _answer(summary: "Summary") -> list[RenderableType]:
    """What a real model wrote, first; empty without one."""
    from offstage.testbeds.report.run.model import model_sentence, model_texts

    if summary.model is None:
        return []
    parts: list[RenderableType] = []
    for who, said in model_texts(summary.model):
        parts += [Text(f"{who}:"), Text(indent(said.strip(), "  ")), ""]
    return [*parts, model_sentence(summary.model), ""]


def _failed(summary: "Summary") -> list[str]:
    from offstage.testbeds.live.checks import found

    runs = [*summary.runs, *summary.ahead, *summary.baselines]
    return [text for run in runs for text in found(run, run.called)]


def _headlines(summary: "Summary", paths: dict[str, Path]) -> dict[str, object]:
    """The headline figures and the paths of the rest."""
    return {
        "sentence": summary.sentence,
        "notes": list(summary.noted()),
        "failed": _failed(summary),
        "runs": [{name: getattr(run, name) for name in HEADLINES} for run in summary.runs],
        "baselines": [
            {name: getattr(run, name) for name in HEADLINES} for run in summary.baselines
        ],
        **{name: str(path) for name, path in paths.items()},
    }
