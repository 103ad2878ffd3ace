"""The recorder: drains ledger records and decision log into files while the daemon runs.

A run directory contains `ledger.bin` (records of RECORD back to back), `decisions.log` (the input
of `offstage dpu replay`), `moments.bin` (when each read and command passed each station, rows of
MOMENT) and `record.json` (version, dtype, counts, losses, time spent in each stage of a block, the
core's work, how busy the machine was). All rings in the firmware are bounded: events that arrive
faster than they are drained are lost, counted and reported. A log with a hole is not replayed, and
an incomplete recording fails the run that made it.

Replay of a recorded decision log: the same events must give the same decisions.
"""

import contextlib
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage import __version__
from offstage.bindings.core import RECORD, Replay, replay
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.figures import EventWork
from offstage.bindings.replay import Event, events
from offstage.bindings.stages import Stages
from offstage.dpu.log import Log
from offstage.dpu.storage.device import Device
from offstage.dpu.watch.busy import Busy

__all__ = [
    "Lost",
    "Recorder",
    "Replay",
    "first_difference",
    "forget",
    "read_lost",
    "read_records",
    "replay_log",
]

FILES = ("ledger.bin", "decisions.log", "record.json", "moments.bin")
CALLS_MAX = 64  # of one drain, so that the daemon's loop goes on


class Lost(msgspec.Struct):
    """What is missing from a recording, as in `record.json`."""

    records_lost: int = 0
    log_bytes_lost: int = 0
    write_errors: int = 0
    """Failed writes to the disk: nothing is written after the first."""

    def __bool__(self) -> bool:
        return self != Lost()


class Recorder:
    """Owns the files of one run. Call `drain` often and `close` once."""

    def __init__(
        self,
        directory: Path,
        device: Device,
        log: Log,
        about: Mapping[str, str | int] | None = None,
    ) -> None:
        """Create the directory; BadInput if it already holds a run or cannot be written. `about`:
        further entries of the manifest about the device."""
        self._device, self._log, self._directory = device, log, directory
        self._about = dict(about or {})
        self._record_count = self._log_bytes = 0
        self.lost = Lost()
        self._work: dict[str, EventWork] = {}  # of the core, for all events in the log
        try:
            # Private: the decision log says which sessions had what in common, and when.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths = [directory / name for name in FILES]
            if any(os.path.lexists(path) for path in paths):
                raise FileExistsError
            self._records: BinaryIO = paths[0].open("xb")
            self._decisions: BinaryIO = paths[1].open("xb")
            self._moments: BinaryIO = paths[3].open("xb")
        except FileExistsError:
            raise BadInput(
                "holds a recorded run", str(directory), "give --record a new directory"
            ) from None
        except OSError as error:
            raise BadInput(
                f"cannot be written ({error.strerror})",
                str(directory),
                "give --record a directory of your own",
            ) from None
        self._busy = Busy()
        self._write_manifest(closed=False)

    def drain(self) -> bool:
        """Drain the rings, at most CALLS_MAX portions; False once a write has failed: the daemon
        keeps running, and the rings overflow."""
        try:
            for _ in range(CALLS_MAX):
                if self.lost.write_errors:
                    return False
                records, log = self._device.records(), self._device.log()
                moments = self._device.moments()
                self._moments.write(moments.tobytes())
                self._records.write(records.tobytes())
                self._decisions.write(log)
                self._record_count += len(records)
                self._log_bytes += len(log)
                if not len(records) and not log and not len(moments):
                    return True
        except OSError as error:
            self._refused(error)
            return False
        except OffstageError as error:  # the reactor did not answer; retried at the next drain
            self._log.error("record_failed", error=str(error))
        return True

    def _refused(self, error: OSError) -> None:
        self.lost.write_errors += 1
        self._log.error("record_failed", path=str(self._directory), error=str(error))

    def check_lost(self) -> None:
        """Log what the rings lost since the last look."""
        try:
            ledger = self._device.ledger()
        except OffstageError as error:
            self._log.error("record_failed", error=str(error))
            return
        lost = {"records_lost": ledger.records_lost, "log_bytes_lost": ledger.log_bytes_lost}
        if any(count > getattr(self.lost, name) for name, count in lost.items()):
            self._log.error("record_lost", **lost, fix="raise limits.records and limits.log")
        for name, count in lost.items():
            setattr(self.lost, name, count)

    def close(self) -> None:
        """Drain once more, and write the manifest: counts, losses and costs."""
        self._drain_quiet()
        self.check_lost()
        for file in (self._records, self._decisions, self._moments):
            try:
                file.close()
            except OSError as error:  # of what was still to be written
                self._refused(error)
        self._write_manifest(closed=True)

    def _stages(self) -> Stages:
        try:
            return self._device.stages()
        except OffstageError as error:  # the recording is useful without them
            self._log.error("record_failed", error=str(error))
            return {}

    def _drain_quiet(self) -> None:
        """Drain until no event reached the core meanwhile, so that its work matches the log."""
        self.drain()
        for _ in range(CALLS_MAX):
            try:
                work = self._device.status().work
            except OffstageError as error:
                self._log.error("record_failed", error=str(error))
                return
            if work == self._work:
                return
            self._work = work
            if not self.drain():
                return

    def _write_manifest(self, closed: bool) -> None:
        manifest = {
            "version": __version__,
            "dtype": RECORD.descr,
            "records": self._record_count,
            "log_bytes": self._log_bytes,
            **msgspec.structs.asdict(self.lost),
            "work": msgspec.to_builtins(self._work),
            "epoch": self._device.boot_id,
            "storage": self._device.storage_name(),
            **self._about,
            "memory": msgspec.to_builtins(self._device.memory()),
            "stages": msgspec.to_builtins(self._stages()),
            "machine": msgspec.to_builtins(self._busy.since()),
            "closed": closed,
        }
        path = self._directory / "record.json"
        path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def forget(directory: Path) -> None:
    """Delete a recorded run, and its directory, unless it has other files."""
    for name in FILES:
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        directory.rmdir()


def read_records(directory: Path) -> NDArray[np.void]:
    """The ledger records of a run directory, whole ones only, as RECORD [count]."""
    path = directory / "ledger.bin"
    try:
        count = path.stat().st_size // RECORD.itemsize
        return np.fromfile(path, RECORD, count)
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})",
            str(path),
            "give the directory that --record wrote",
        ) from None


def read_lost(directory: Path) -> Lost:
    """What is missing from a recording by its manifest. BadInput if there is no manifest."""
    path = directory / "record.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lost)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(
            f"cannot be read ({error})", str(path), "give the directory that --record wrote"
        ) from None


def replay_log(path: Path) -> Replay:
    """Replay a log file. Raises Corrupt for a torn or foreign one, BadInput where none is read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            return replay(log, str(path))
    except ValueError:  # an empty file cannot be mapped
        raise BadInput("is empty", str(path), "record a run with `dpu serve --record`") from None
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})",
            str(path),
            "give the decisions.log of a recorded run",
        ) from None


def first_difference(path: Path) -> Event | None:
    """The first event of a log file on which a fresh core decides otherwise; None: it agrees."""
    return next((event for event in events(path.read_bytes(), str(path)) if not event.agreed), None)
