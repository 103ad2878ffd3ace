"""A recorded run on disk: its decision log, the record next to it, and the host's figures.

A run is the folder of `offstage demo` (which keeps the record of the arm with the most prefetchers
in `records/`), or a folder that `offstage dpu serve --record` wrote; `offstage host run --out` may
write into the same one, which adds the host's figures. A run that cannot be compared is refused in
one line: a folder without a log, a log with a hole, a run of another version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from offstage import __version__
from offstage.asic_model.trace import RECORDS
from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.notes import Note
from offstage.bindings.outside import read_json
from offstage.bindings.stages import StageTimes
from offstage.dpu.watch.busy import BusyShares
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.files import SUMMARY_NAME, read_summary

__all__ = ["LOG_NAME", "RECORDS", "Recorded", "find_runs", "of_machine", "read_run", "with_policy"]

LOG_NAME, RECORD_NAME = "decisions.log", "record.json"
CONSTRUCTED = Note(
    "fetch-constructed",
    "no host's own times of fetches: they are the log's, from decision to answer, plus means of "
    "the stage timers",
)
FIX = "record one: `offstage demo`, or `offstage dpu serve --record`"


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """What a comparison reads of `record.json`. `device`: the preset of the modelled device in the
    loop; empty: none. `laboratory`: what was run, where no machine was measured; `model` and
    `block_tokens` are then of its spec."""

    stages: dict[str, StageTimes]
    storage: str
    device: str = ""
    laboratory: str = ""
    model: str = ""
    block_tokens: int = 0
    version: str | None = None
    closed: bool = False
    log_bytes_lost: int = 0
    machine: BusyShares = BusyShares()


@dataclass(frozen=True)
class Recorded:
    """One run. `result` and `summary`: from the host, if a summary is next to the log."""

    path: Path
    record: Record
    result: RunResult | None
    summary: Summary | None

    @property
    def log(self) -> Path:
        """Its decision log."""
        return self.path / LOG_NAME

    @property
    def stages(self) -> dict[str, StageTimes]:
        """Stages by name, those of the daemon with their buckets."""
        host = self.result.stages if self.result is not None else {}
        return {**host, **self.record.stages}

    @property
    def fetch_ms(self) -> list[float]:
        """Quantiles of the times that the host's fabric spent on fetches; empty: unknown."""
        return self.result.fabric_ms if self.result is not None else []

    @property
    def fetch_count(self) -> int:
        """Fetches behind them."""
        return self.result.fetch_count if self.result is not None else 0

    @property
    def notes(self) -> list[Note]:
        """The host's notes on the run."""
        of_all = self.summary.notes if self.summary is not None else []
        if not self.fetch_ms:
            of_all = [*of_all, CONSTRUCTED]
        return [*of_all, *(self.result.notes if self.result is not None else [])]

    @property
    def device(self) -> str:
        """The preset of the modelled device in the loop; empty: none."""
        return self.record.device

    @property
    def block_tokens(self) -> int:
        """Tokens of a block; 0: unknown."""
        if self.summary is not None:
            return self.summary.workload.block_tokens
        return self.record.block_tokens

    @property
    def provenance(self) -> str:
        """The provenance of its times."""
        if self.record.laboratory:
            return "modelled"
        if self.result is not None:
            return self.result.provenance
        return "emulated" if "emulated" in self.record.storage else "measured"


def find_runs(folder: Path) -> list[Path]:
    """The folders under `folder` that contain a decision log: itself, or those of its `records/`.
    BadInput if there is none."""
    if (folder / LOG_NAME).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"{RECORDS}/*/{LOG_NAME}"))
    if found:
        # Measured before emulated, as everywhere.
        return sorted(found, key=lambda path: not path.name.startswith("measured"))
    if not folder.is_dir():
        raise BadInput("no such folder", str(folder), FIX)
    raise BadInput("the run has no decision log", str(folder), FIX)


def with_policy(runs: Sequence[Path], policy: str) -> list[Path]:
    """The runs with this policy, by its name in the report; all of them for "". BadInput, with the
    nearest, if there is none, and for a recording that stands alone: a folder of its own says no
    policy."""
    if policy and runs[0].parent.name != RECORDS:
        raise BadInput(
            "one recording, and no arms of a demo to choose from",
            f"{runs[0]}: --policy {policy}",
            "leave --policy out",
        )
    names = {path: path.name.partition("-")[2] for path in runs}
    name = policy.replace(" + ", "+").replace("+", "-")  # a page spaces it out
    found = [path for path in runs if not policy or names[path] == name]
    if not found:
        raise BadInput(
            f"no run with the policy {policy!r}",
            str(runs[0].parent),
            nearest(policy, dict.fromkeys(names.values())),
        )
    return found


def read_run(path: Path) -> Recorded:
    """The run in a folder with a decision log. BadInput for one that cannot be compared."""
    record = _record(path / RECORD_NAME)
    if record.laboratory:
        return Recorded(path, record, None, None)
    summaries = [one for one in (path, path.parent.parent) if (one / SUMMARY_NAME).is_file()]
    if not summaries:
        return Recorded(path, record, None, None)
    summary = read_summary(summaries[0])
    _check_version(summary.version, summaries[0] / SUMMARY_NAME)
    named = [one for one in summary.runs if record_name(one.provenance, one.name) == path.name]
    result = named[0] if named else summary.runs[0] if len(summary.runs) == 1 else None
    return Recorded(path, record, result, summary)


def of_machine(run: Recorded) -> Recorded:
    """The run. BadInput for one of the laboratory, which measured no machine."""
    if run.record.laboratory:
        raise BadInput(
            "a run of the laboratory: no machine was measured",
            str(run.path),
            "give a recorded run; this one is a load: `offstage compare RUN --load "
            f"from={run.path}`",
        )
    return run


def record_name(provenance: str, name: str) -> str:
    """The folder name of a demo's run."""
    return f"{provenance}-{name.replace('+', '-')}"


def _record(path: Path) -> Record:
    record = read_json(path, FIX, Record, what="not written by a recorder")
    _check_version(record.version, path)
    if not record.closed:
        raise BadInput(
            "the recording is incomplete",
            str(path),
            "end the daemon with SIGTERM, and record again",
        )
    if record.log_bytes_lost:
        raise BadInput(
            "the decision log has a hole",
            str(path),
            "raise limits.log of the daemon, and record again",
        )
    return record


def _check_version(version: object, path: Path) -> None:
    if version != __version__:
        was = f"is of version {version}" if version else "has no version"
        raise BadInput(f"the run {was}; this is {__version__}", str(path), "record it again")
