"""`offstage lab pod`: pods of up to 256 daemons in virtual time."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.bindings.errors import BadInput, Interrupted
from offstage.testbeds.cli.common import (
    ClusterOption,
    Format,
    FormatOption,
    JobsOption,
    TimeUnitOption,
    emit,
    parse_settings,
    seed_option,
)

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import LabPods
    from offstage.testbeds.lab.pod.spec import PodSpec

__all__ = ["pod", "toml_value", "toml_values"]


def pod(
    spec: Annotated[Path | None, typer.Argument(metavar="SPEC", help="a spec's TOML file")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="same as --set trace=FILE")
    ] = None,
    time_unit: TimeUnitOption = None,
    daemons: Annotated[
        str, typer.Option("--daemons", metavar="N,...", help="same as --set daemons=[N, ...]")
    ] = "",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a key")
    ] = None,
    seed: Annotated[
        list[int] | None,
        seed_option("seed in place of the spec's; may be repeated"),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside", metavar="RUN", help="compare with a run of `pod run --out`; may be repeated"
        ),
    ] = None,
    requests: Annotated[
        bool,
        typer.Option(
            "--requests",
            help="also write requests.parquet: the record of each request, for `offstage requests`",
        ),
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for the results")] = Path("pod-lab"),
    jobs: JobsOption = 0,
    cluster: ClusterOption = "",
    form: FormatOption = Format.text,
) -> None:
    """Pods of 1 to 256 daemons over a request trace: how hits, load and recovery grow.

    Writes summary.json, points.parquet and report.html to --out. Without SPEC and --trace it runs
    on generated arrivals."""
    from offstage.testbeds.lab.pod.spec import load_spec

    if jobs < 0:
        raise BadInput(f"--jobs = {jobs}", "lab pod", "give 1 or more, or 0 for one for each core")
    chosen = toml_values(changes, seed)
    if trace is not None:
        chosen["trace"] = str(trace)
    if time_unit is not None:
        chosen["time_unit"] = time_unit
    if daemons:
        chosen["daemons"] = _numbers(daemons)
    _run(load_spec(spec, chosen), beside or [], out, jobs, cluster, form, keep=requests)


def _numbers(text: str) -> list[int]:
    """The numbers of daemons of an option. BadInput for another text."""
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise BadInput(f"{text!r}", "--daemons", "give numbers, such as 2,8,32") from None


def _run(
    spec: "PodSpec",
    runs: list[Path],
    out: Path,
    jobs: int,
    cluster: str,
    form: Format,
    *,
    keep: bool,
) -> None:
    from rich.console import Group
    from rich.text import Text

    from offstage import __version__
    from offstage.bindings.notes import note_lines
    from offstage.host.request_file import (
        REQUESTS_NAME,
        Recorded,
        write_requests,
    )
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.lab.pod.execute import compute, write_parquet
    from offstage.testbeds.lab.pod.requests import trace_notes
    from offstage.testbeds.lab.pod.summary import PodSummary, beside, of_seeds, rows_of
    from offstage.testbeds.lab.results.vacuous import seeds_alike
    from offstage.testbeds.lab.run.execute import default_jobs
    from offstage.testbeds.report.lab.pod import pod_sentence, pod_table, write_pod_results

    served: list[Recorded] | None = [] if keep else None
    try:
        with shown(1) as progress:
            points = compute(spec, progress, jobs or default_jobs(), cluster, served)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", "lab pod", "start the same command again") from None
    rows = rows_of(points)
    summary = PodSummary(
        version=__version__,
        command=shlex.join(["offstage", *sys.argv[1:]]),
        spec=spec,
        points=points,
        rows=rows,
        beside=[one for run in runs for one in beside(run, rows, spec.deadline_ns / 1e9)],
        notes=[*trace_notes(spec), *seeds_alike(of_seeds(points))],
    )
    paths = write_pod_results(summary, out) | {"points": out / "points.parquet"}
    write_parquet(points, paths["points"])
    if served is not None:
        paths["requests"] = out / REQUESTS_NAME
        write_requests(paths["requests"], served)
    document: LabPods = {
        "sentence": pod_sentence(summary),
        "notes": summary.notes,
        "rows": rows,
        "beside": summary.beside,
        "summary": str(paths["summary"]),
        "report": str(paths["report"]),
        "points": str(paths["points"]),
        "requests": None if served is None else str(paths["requests"]),
    }
    lines = ["", pod_sentence(summary), *note_lines(summary.notes), "", *map(str, paths.values())]
    emit(document, form, Group(pod_table(summary), *map(Text, lines)))


def toml_values(changes: list[str] | None, seeds: list[int] | None) -> dict[str, Any]:
    """Keys of a spec as the command line changes them; the spec checks them."""
    chosen: Any = {key: toml_value(text) for key, text in parse_settings(changes or []).items()}
    if seeds and "seeds" in chosen:
        raise BadInput("seeds is set twice", "command line", "leave out --seed, or --set seeds")
    return {**chosen, "seeds": seeds} if seeds else chosen


def toml_value(text: str) -> Any:
    """A value parsed as TOML; a bare word is text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text
