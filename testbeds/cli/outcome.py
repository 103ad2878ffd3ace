"""How a command that ran something tells what came out: files, a table, headlines as JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from offstage.testbeds.cli.common import Format, emit

if TYPE_CHECKING:
    from offstage.testbeds.live.results import Summary

__all__ = ["tell"]

HEADLINES = (
    "name", "storage", "provenance", "prefetchers", "demands", "hit_rate", "nontrivial_hit_rate",
    "late_rate", "miss_rate", "coverage", "accuracy", "traffic_ratio", "stall_ms_p50",
    "stall_ms_p99", "bytes_read", "blocks_verified", "blocks_corrupt", "warnings",
)  # fmt: skip


def tell(summary: "Summary", out: Path | None, form: Format) -> None:
    """Write summary.json and report.html to `out`, if there is one, and print the figures."""
    from rich.console import Group

    from offstage.testbeds.report import console_table, write_report, write_summary

    paths: dict[str, Path] = {}
    if out is not None:
        paths = {"summary": out / "summary.json", "report": out / "report.html"}
        write_summary(summary, paths["summary"])
        write_report(summary, paths["report"])
    lines = ["", *(str(path) for path in paths.values())] if paths else []
    warnings = dict.fromkeys(text for run in summary.runs for text in run.warnings)
    noted = ["", *(f"note: {text}" for text in warnings)] if warnings else []
    text = Group(console_table(summary), "", summary.sentence, *noted, *lines)
    emit(_headlines(summary, paths), form, text)


def _headlines(summary: "Summary", paths: dict[str, Path]) -> dict[str, Any]:
    """The headline figures and where the rest is."""
    return {
        "sentence": summary.sentence,
        "runs": [{name: getattr(run, name) for name in HEADLINES} for run in summary.runs],
        **{name: str(path) for name, path in paths.items()},
    }
