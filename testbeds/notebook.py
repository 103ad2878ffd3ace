"""What `import offstage` gives a notebook or a script: run a spec, read results, compare, draw.

    import offstage

    results = offstage.run("small.toml", out="small")
    gain = results.difference("window+ema", against="none")
    gain.save("figures")

Tables are Arrow's: `table.to_pandas()`, `polars.from_arrow(table)`. Everything is what the command
line has, from the same code: a run from here has the same parts and the same bytes. Errors are
`offstage.OffstageError` with the one line that a command would print.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

import offstage
from offstage.bindings.errors import BadInput, needs
from offstage.testbeds.lab.results.ledger_file import LEDGER_NAME, describe, ledger_rows
from offstage.testbeds.lab.results.paired import FIGURES, Difference, difference, pairs, sides_of
from offstage.testbeds.lab.results.summary import Interval, LabSummary, PointInfo, PointSummary
from offstage.testbeds.report.page.tags import escape

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    from offstage.host.link.control import Control
    from offstage.host.values import Values
    from offstage.testbeds.progress import Progress

__all__ = ["Comparison", "Results", "connect", "load", "run", "values"]

SETTING = (
    "workload",
    "policy",
    "eviction",
    "buffer_over_k",
    "hbm_pool_over_k",
    "bandwidth_bytes_per_s",
    "device",
)


def run(
    spec: str | Path,
    *,
    out: str | Path = "lab-out",
    seeds: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
    jobs: int = 0,
    cluster: str = "",
    progress: "Progress | None" = None,
) -> "Results":
    """Run an experiment: a spec's TOML file or the name of a shipped one.

    seeds: in place of the spec's. changes: of its keys, such as `{"workload.steps": 64}`.
    jobs: processes, 0 for one for each core. What `out` holds of an earlier run is taken from it.
    BadInput for a bad spec, RunFailed where a point fails; of a spec with axes of a sweep such a
    point is in `results.summary.failed` instead.
    """
    from offstage.testbeds.lab.run.execute import default_jobs
    from offstage.testbeds.lab.run.experiment import compute, plan
    from offstage.testbeds.lab.run.summarize import finish
    from offstage.testbeds.lab.spec.load import find
    from offstage.testbeds.progress import Silent
    from offstage.testbeds.report.lab.page import write_results

    if jobs < 0:
        raise BadInput(f"jobs = {jobs}", "run", "give 1 or more, or 0 for one for each core")
    folder, shown = Path(out), progress or Silent()
    chosen = dict(changes or {}) | ({"seeds": list(seeds)} if seeds else {})
    experiment = plan(find(str(spec)), chosen)
    compute(
        experiment,
        folder / "parts",
        shown,
        jobs=jobs or default_jobs(),
        cluster=cluster,
        stop_at_failure=not experiment.sweep,
    )
    write_results(finish(experiment, folder / "parts", folder, shown), folder)
    return load(folder)


def load(folder: str | Path) -> "Results":
    """What an earlier run wrote. BadInput where the folder holds none."""
    from offstage.testbeds.report.page.files import read_lab_summary

    return Results(Path(folder), read_lab_summary(folder))


def connect(
    endpoint: str = "tcp://127.0.0.1:7411",
    *,
    tenant: str = "operator",
    secret: bytes | Path | None = None,
    curve_dir: Path | None = None,
) -> "Control":
    """A daemon's control connection: `status`, `ledger`, `policy_set`, sessions. A context manager.

    endpoint: an address, or a name of the user's daemons.toml. secret: None takes the one that the
    daemon left for this user. BadInput where no daemon answers or it refuses the login.
    """
    from offstage.host.endpoint import Endpoint

    found = Endpoint.find(
        endpoint, tenant=tenant, secret=secret, curve_dir=curve_dir, name="notebook"
    )
    return found.control()


@contextlib.contextmanager
def values(
    endpoint: str = "tcp://127.0.0.1:7411",
    *,
    tenant: str = "default",
    volume: bytes = bytes(16),
    durable: bool = False,
    secret: bytes | Path | None = None,
    runtime_dir: Path | None = None,
) -> "Iterator[Values]":
    """The values that a volume of a tenant has under keys of 1 to 16 bytes, at a daemon of this
    machine (`limits.values`): `store`, `retrieve`, `lengths`, `delete`. durable: a store ends when
    the value is on the drive. endpoint, secret: as of `connect`."""
    from offstage.host.endpoint import Endpoint
    from offstage.host.values import Values

    control, fabric = Endpoint.find(
        endpoint, tenant=tenant, secret=secret, runtime_dir=runtime_dir, name="values"
    ).connect()
    try:
        yield Values(fabric, volume, durable=durable)
    finally:
        fabric.close()
        control.close()


class Results:
    """A lab run: `summary` with every figure, its rows, and comparisons of its points."""

    def __init__(self, folder: Path, summary: LabSummary) -> None:
        self.folder = folder
        self.summary = summary

    @property
    def points(self) -> list[PointSummary]:
        """Every setting with its figures; each rate an interval of value, low and high."""
        return self.summary.points

    def table(self) -> "pa.Table":
        """One row a point: its setting, and its figures; an interval is `name`, `name_low` and
        `name_high`, null where nothing can be said."""
        needs("pyarrow", "parquet", "table")
        import pyarrow as pa

        return pa.Table.from_pylist([_row(point) for point in self.points])

    def ledger(self, policy: str = "", columns: Sequence[str] = ()) -> "pa.Table":
        """One row for each session, step and layer of every point, or of `policy`'s; `columns` of
        the ledger, or all. Further columns describe the point."""
        import pyarrow as pa

        path = self.folder / LEDGER_NAME
        said = {number: one.info for number, one in describe(path).items()}
        chosen = {
            number: info for number, info in said.items() if not policy or info.policy == policy
        }
        if not chosen:
            known = ", ".join(sorted({info.policy for info in said.values()}))
            raise BadInput(f"no point of policy {policy!r}", str(path), f"choose one of {known}")
        found = []
        for number, info in chosen.items():
            rows = ledger_rows(path, number, columns)
            for name in SETTING:
                rows = rows.append_column(name, pa.repeat(getattr(info, name), len(rows)))
            found.append(rows)
        return pa.concat_tables(found)

    def difference(
        self,
        policy: str = "",
        *,
        against: str = "none",
        other: "Results | None" = None,
        figures: Sequence[str] = ("nontrivial_hit",),
    ) -> "Comparison":
        """How much more `policy` (or every policy) has than `against`, at each buffer, paired over
        the same requests; `other`: of that run's points with this run's `against`. BadInput for
        unknown figures, and for runs over different requests."""
        if unknown := [name for name in figures if name not in FIGURES]:
            raise BadInput(
                f"no figure {unknown[0]!r}", "figures", f"choose one of {', '.join(FIGURES)}"
            )
        first = sides_of(self.folder)
        second = sides_of(other.folder) if other else first
        wanted = [side for side in second if not policy or side.info.policy == policy]
        if not wanted:
            known = ", ".join(sorted({side.info.policy for side in second}))
            raise BadInput(
                f"no point of policy {policy!r}", str(self.folder), f"choose one of {known}"
            )
        return Comparison(
            [
                row
                for one, two in pairs(first, wanted, against)
                for row in difference(one, two, figures)
            ]
        )

    def save_figures(self, folder: str | Path) -> dict[str, Path]:
        """Every figure of the report as SVG, PDF and PNG at the size of a paper; their paths by
        name."""
        from offstage.testbeds.report.lab.page import figures_of
        from offstage.testbeds.report.page.plot import write_figures

        return write_figures(figures_of(self.summary), Path(folder))

    def _repr_html_(self) -> str:
        from offstage.testbeds.report.lab.sentence import lab_sentence

        return f"<p><b>{escape(lab_sentence(self.summary))}</b></p>"


class Comparison:
    """Paired differences, one row a figure and pair of points."""

    def __init__(self, rows: list[Difference]) -> None:
        self.rows = rows

    def table(self) -> "pa.Table":
        """The rows; an interval is three columns."""
        needs("pyarrow", "parquet", "table")
        import pyarrow as pa

        return pa.Table.from_pylist([_row(row) for row in self.rows])

    def latex(self) -> str:
        """A `tabular` with the rules of booktabs."""
        from offstage.testbeds.report.lab.differences import as_latex

        return as_latex(self.rows)

    def figure(self, width: float = 3.4) -> "Figure":
        """The first figure's differences with their intervals, `width` inches wide, for print."""
        from offstage.testbeds.report.lab.differences_page import by_figure, draw_for_paper

        return draw_for_paper(by_figure(self.rows)[self.rows[0].figure], width)

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Page, CSV, LaTeX, JSON, and each figure as SVG, PDF and PNG; their paths by name."""
        from offstage.testbeds.report.lab.differences_page import write_differences

        return write_differences(self.rows, Path(folder), offstage.__version__)

    def __str__(self) -> str:
        from offstage.testbeds.report.lab.differences import differences_sentence

        return differences_sentence(self.rows)

    def _repr_html_(self) -> str:
        from offstage.testbeds.report.lab.differences_page import differences_html

        return differences_html(self.rows)


def _row(one: PointSummary | Difference) -> dict[str, float | str | None]:
    """Its scalars; an interval as three."""
    found: dict[str, float | str | None] = {}
    for field in msgspec.structs.fields(type(one)):
        value = getattr(one, field.name)
        # One figure has the name of a setting: the share of misses due to the policy.
        name = "policy_misses" if field.name == "policy" else field.name
        if isinstance(value, PointInfo):
            found |= {key: getattr(value, key) for key in SETTING}
        elif Interval in get_args(field.type):
            for end, column in (("value", name), ("low", f"{name}_low"), ("high", f"{name}_high")):
                found[column] = None if value is None else getattr(value, end)
        elif isinstance(value, bool | int | float | str):
            found[name] = value
    return found
