"""`offstage lab`: prefetch experiments in virtual time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import BadInput, Interrupted, RunFailed
from offstage.testbeds.cli.common import (
    ClusterOption,
    Format,
    FormatOption,
    JobsOption,
    emit,
    naming,
    parse_settings,
    seed_option,
)
from offstage.testbeds.cli.lab_pod import pod, toml_values
from offstage.testbeds.cli.names import presets, specs
from offstage.testbeds.table import Table

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import LabBounds, LabPolicies
    from offstage.testbeds.lab.results.summary import (
        Failed,
        LabSummary,
    )
    from offstage.testbeds.lab.run.experiment import Experiment
    from offstage.testbeds.progress import Progress

__all__ = ["register", "run_spec"]

ABOUT = "Prefetch experiments in virtual time, on the daemon's own decision core."

lab = typer.Typer(no_args_is_help=True, help=ABOUT)

SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        autocompletion=specs,
        help="a spec's TOML file, or the name of a shipped one",
    ),
]
OutOption = Annotated[Path, typer.Option("--out", help="folder for the results")]
SeedOption = Annotated[
    list[int] | None, seed_option("seed in place of the spec's; may be repeated")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change a key, such as workload.steps=64"),
]
RequestsOption = Annotated[
    str,
    typer.Option(
        "--trace", metavar="TRACE", help="request trace in place of the spec's: a file, or its name"
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="PRESET",
        autocompletion=presets,
        help="preset of the chip model; same as --set tier.device=PRESET",
    ),
]
RecordOption = Annotated[
    str,
    typer.Option(
        "--record",
        metavar="POLICY",
        help="also keep this policy's decision log, at its largest buffer, in OUT/records: a run "
        "for `offstage asic`, and a load for `offstage compare`; of a sweep one for each "
        "combination",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `offstage lab`."""
    lab.command("pod")(pod)
    app.add_typer(lab, name="lab")


@lab.callback()
def about() -> None:
    """Prefetch experiments in virtual time, on the daemon's own decision core."""


@lab.command()
def run(
    spec: SpecArgument,
    out: OutOption = Path("lab-out"),
    seed: SeedOption = None,
    changes: SetOption = None,
    device: DeviceOption = "",
    trace: RequestsOption = "",
    record: RecordOption = "",
    jobs: JobsOption = 0,
    cluster: ClusterOption = "",
    form: FormatOption = Format.text,
) -> None:
    """Run an experiment: every policy at every buffer with every seed, every combination of the
    spec's sweep axes, and the bounds.

    Writes ledger.parquet, summary.json, report.html and manifest.json to --out, and keeps what was
    computed in its folder `parts`: the same command resumes, and a changed spec computes only what
    changed. The first point that fails ends the run; one that is killed is tried again alone. Of a
    sweep, a point that fails, or a combination that contradicts itself, is listed at the end, with
    exit code 1; the others are in the results.
    """
    run_spec(
        spec,
        out,
        form,
        seeds=seed,
        changes=_on(device, changes),
        trace=trace,
        record=record,
        jobs=jobs,
        cluster=cluster,
    )


def run_spec(
    spec: str,
    out: Path,
    form: Format,
    *,
    seeds: list[int] | None = None,
    changes: list[str] | None = None,
    trace: str = "",
    record: str = "",
    jobs: int = 0,
    cluster: str = "",
) -> None:
    """`lab run`, from Python."""
    summary, recorded = _run(spec, out, seeds, changes, trace, record, jobs, cluster)
    _tell(summary, recorded, out, form)
    _refuse_failed(summary.failed, spec)


def _failed_lines(failed: Sequence["Failed"]) -> list[str]:
    return [f"failed: {one.point}: {one.message}" for one in failed]


def _refuse_failed(failed: Sequence["Failed"], spec: str) -> None:
    """RunFailed if a point failed. The others are printed and written by then."""
    if failed:
        raise RunFailed(
            f"failed: {len(failed)}; the first is {failed[0].point}: {failed[0].message}",
            spec,
            "the results include all other points",
        )


@lab.command()
def bounds(
    spec: SpecArgument,
    out: OutOption = Path("lab-out"),
    seed: SeedOption = None,
    changes: SetOption = None,
    jobs: JobsOption = 0,
    form: FormatOption = Format.text,
) -> None:
    """Compute only the bounds of a spec: without prefetch, clairvoyant, and of predictors.

    A later `lab run` into the same folder reuses them.
    """
    from rich.console import Group
    from rich.text import Text

    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.lab.results.summary import Failed
    from offstage.testbeds.lab.run.bounds_rows import bounds_rows, bounds_table

    experiment, folder = _planned(spec, out, seed, changes)
    with shown(1) as progress:
        _compute(experiment, folder, progress, jobs, "", bounds_only=True)
    rows = bounds_rows(experiment, folder)
    failed = [Failed(point=label, message=line) for label, line in experiment.refused]
    shown_rows = Group(bounds_table(rows), *map(Text, _failed_lines(failed)))
    document: LabBounds = {"bounds": rows, "failed": failed}
    emit(document, form, shown_rows)
    _refuse_failed(failed, spec)


@lab.command()
def policies(form: FormatOption = Format.text) -> None:
    """List every policy: what it uses, and its source."""
    from offstage.testbeds.lab.policies.registry import listing

    found = listing()
    names = ("policy", "uses", "eviction", "source")
    rows = [[one.name, one.uses, one.eviction or "", one.source] for one in found]
    table = Table.named(names, rows, left=4, wrap=names[1:])
    document: LabPolicies = {"policies": found}
    emit(document, form, table)


def _on(device: str, changes: list[str] | None) -> list[str]:
    """A spec's changes, including the device."""
    return [*(changes or []), *([f"tier.device={device}"] if device else [])]


def _run(
    name: str,
    out: Path,
    seeds: list[int] | None,
    changes: list[str] | None,
    trace: str,
    policy: str,
    jobs: int,
    cluster: str,
) -> tuple["LabSummary", Path | None]:
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.lab.run.record import chosen, record
    from offstage.testbeds.lab.run.summarize import finish

    experiment, folder = _planned(name, out, seeds, changes, trace)
    if policy:
        for variant in experiment.variants:
            chosen(variant, policy)  # refuses it before anything runs
    traces = sum(one.spec.workload.kind == "requests" for one in experiment.variants)
    with shown(2 + 2 * traces + len(experiment.variants) * bool(policy)) as progress:
        _compute(experiment, folder, progress, jobs, cluster, stop_at_failure=not experiment.sweep)
        summary = finish(experiment, folder, out, progress)
        return summary, record(experiment, policy, out, progress) if policy else None


def _planned(
    name: str, out: Path, seeds: list[int] | None, changes: list[str] | None, trace: str = ""
) -> tuple["Experiment", Path]:
    from offstage.testbeds.lab.run.experiment import plan
    from offstage.testbeds.lab.spec.load import find
    from offstage.testbeds.lab.spec.traced import on_trace

    path = find(name)
    chosen = on_trace(path, toml_values(changes, seeds), trace)
    with naming(_typed(seeds, changes, trace), str(path)):
        return plan(path, chosen), out / "parts"


def _typed(
    seeds: list[int] | None, changes: list[str] | None, trace: str
) -> dict[str, tuple[str, str]]:
    """The options that change a spec, as typed, with the key and value of each."""
    each = " ".join(f"--seed {one}" for one in seeds or [])
    found = {each: ("seeds", "")} if each else {}
    for key, value in parse_settings(changes or []).items():
        same = f"--device {value}" if key == "tier.device" else f"--set {key}={value}"
        found[same] = (key, value)
    return found | ({f"--trace {trace}": ("workload.trace", trace)} if trace else {})


def _compute(
    experiment: "Experiment",
    folder: Path,
    progress: "Progress",
    jobs: int,
    cluster: str,
    *,
    bounds_only: bool = False,
    stop_at_failure: bool = True,
) -> None:
    from offstage.testbeds.lab.run.execute import default_jobs
    from offstage.testbeds.lab.run.experiment import compute

    if jobs < 0:
        raise BadInput(f"--jobs = {jobs}", "lab", "give 1 or more, or 0 for one for each core")
    try:
        compute(
            experiment,
            folder,
            progress,
            jobs=jobs or default_jobs(),
            cluster=cluster,
            bounds_only=bounds_only,
            stop_at_failure=stop_at_failure,
        )
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted", str(folder), "the same command goes on from there"
        ) from None


def _tell(summary: "LabSummary", recorded: Path | None, out: Path, form: Format) -> None:
    from rich.console import Group
    from rich.text import Text

    from offstage.bindings.notes import note_lines
    from offstage.testbeds.cli.printed import Headline, LabRan
    from offstage.testbeds.report.lab.page import write_results
    from offstage.testbeds.report.lab.requests import requests_table
    from offstage.testbeds.report.lab.sentence import lab_sentence
    from offstage.testbeds.report.lab.table import lab_table

    paths = {**write_results(summary, out), "ledger": out / "ledger.parquet"}
    sentence = lab_sentence(summary)
    failed = _failed_lines(summary.failed)
    lines = ["", sentence, *note_lines(summary.notes), *failed, "", *map(str, paths.values())]
    lines += [] if recorded is None else [str(recorded)]
    document = LabRan(
        sentence=sentence,
        notes=summary.notes,
        points=[Headline.of(point) for point in summary.points],
        requests=summary.requests,
        failed=summary.failed,
        summary=str(paths["summary"]),
        report=str(paths["report"]),
        manifest=str(paths["manifest"]),
        ledger=str(paths["ledger"]),
        recorded=None if recorded is None else str(recorded),
    )
    table = requests_table(summary.requests) if summary.requests else lab_table(summary)
    emit(document, form, Group(table, *map(Text, lines)))
