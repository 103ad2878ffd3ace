"""`offstage bench l2`: LMCache's bench of a second level, on the tier and on LMCache's files.

LMCache's program drives each adapter, and verifies every byte. Adapters take turns, each turn
over an empty folder or a fresh daemon. Both store their data alike: through the page cache or
with O_DIRECT, in neither case flushed. Past the page cache fio reads as many bytes at once from a
file in that folder. Where a virtual machine's host provides memory when it is first used, fewer
turns wait for that (`provided`).
"""

import json
import mmap
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.storage import Buffer
from offstage.testbeds.beds.daemon import serve
from offstage.testbeds.beds.said import ask
from offstage.testbeds.bench.fio import FIO_SPARE_BYTES, fio_reads
from offstage.testbeds.bench.rows import BenchResult, Row, aimed
from offstage.testbeds.bench.storage_result import Case

__all__ = ["ADAPTERS", "STATES", "L2Result", "bench_l2", "compare", "provided", "rates_of"]

ADAPTERS = {"fs": "", "plugin": "OffstageL2", "native_plugin": "NativeClient"}
"""By LMCache's name of the kind, the class of ours."""
STATES = {"page cache": False, "direct": True}
"""What is read and written, and whether it bypasses the page cache."""
AIM = 2.5  # through the page cache; past it the drive binds both
DRIVE_AIM = 0.95  # of what fio reads
DRIVE_FILE_BYTES = 1 << 28
DRIVE_READ_BYTES = 1 << 30
WAIT_S = 300.0
OBJECTS_MIN_BYTES = 1 << 30
ALIGN_BYTES = 4096
SESSIONS_MIN = 256  # a client has half of them
PROVIDED_MAX_BYTES = 4 << 30
APART_BYTES = 512 * 1024  # less than the huge page that a host takes back


Rates = dict[str, dict[str, float]]
"""Figures of one state, by adapter and operation."""


class L2Result(BenchResult, kw_only=True):
    """Each of our adapters against LMCache's files: MB/s by state, adapter and operation."""

    size_kib: int
    in_flight: int
    rounds: int
    turns: int
    mb_per_s: dict[str, dict[str, dict[str, list[float]]]]
    """MB/s of each turn."""
    median_mb_per_s: dict[str, Rates] = msgspec.field(default_factory=dict)
    over_files: dict[str, Rates] = msgspec.field(default_factory=dict)
    drive_mb_per_s: list[float] = msgspec.field(default_factory=list)
    """What fio reads past the page cache, in each turn."""
    over_drive: dict[str, float] = msgspec.field(default_factory=dict)
    """Loads past the page cache to that, by adapter."""

    def about(self) -> list[str]:
        return [
            f"measured against LMCache's own adapter of files: {self.in_flight} objects of "
            f"{self.size_kib} KiB in flight, the median round of {self.rounds}, the median "
            f"of {self.turns} turns; every byte verified, nothing flushed by either",
            "to fio: its random reads of such objects, as many in flight, once a turn; LMCache "
            "looks all objects up before the first load, and a lookup brings them into memory",
        ]


def bench_l2(
    program: Path,
    *,
    folder: Path | None,
    size_kib: int,
    in_flight: int,
    rounds: int,
    turns: int,
    say: Callable[[str], None],
) -> L2Result:
    """`program`: LMCache's `lmcache`. MB/s of each adapter, operation and turn. BadInput: the
    program does not exist; RunFailed: it failed, or did not verify the loaded data."""
    if not program.is_file():
        raise BadInput("not LMCache's program", str(program), "give its environment's bin/lmcache")
    if shutil.which("fio") is None:
        raise BadInput("fio is not installed", "bench l2", "apt-get install fio")
    found = L2Result(
        size_kib=size_kib, in_flight=in_flight, rounds=rounds, turns=turns, mb_per_s={}
    )
    with provided(PROVIDED_MAX_BYTES):
        for state, direct in STATES.items():
            of_state = found.mb_per_s[state] = {name: {} for name in ADAPTERS}
            for turn in range(turns):
                for name in ADAPTERS:
                    say(f"{state}, turn {turn + 1} of {turns}: {name}")
                    for operation, rate in _turn(program, found, folder, name, direct).items():
                        of_state[name].setdefault(operation, []).append(rate)
                if direct:
                    say(f"{state}, turn {turn + 1} of {turns}: fio")
                    found.drive_mb_per_s.append(_drive(found, folder, turn))
    compare(found)
    return found


def _turn(
    program: Path, asked: L2Result, folder: Path | None, name: str, direct: bool
) -> dict[str, float]:
    """One run of LMCache's bench over a fresh adapter: MB/s by operation."""
    words = ["--num-keys", "1", "--in-flight", str(asked.in_flight)]
    words += ["--data-size-kb", str(asked.size_kib), "--rounds", str(asked.rounds)]
    words += ["--no-skip-verify", "--lookup-max-hit-rate", "1.0", "--format", "json"]
    words += ["--l1-align-bytes", str(ALIGN_BYTES)] if direct else []
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="offstage-l2-") as place,
        _adapter(asked, name, Path(place), direct) as spec,
    ):
        said = _run(program, [*words, "--l2-adapter", json.dumps(spec)])
    return rates_of(said, asked.rounds * asked.in_flight, asked.size_kib, name)


@contextmanager
def provided(most_bytes: int) -> Iterator[None]:
    """So much memory, or a quarter of what is free, has been used and is free again. A virtual
    machine's host may take back what is free in whole huge pages (Linux's free page reporting), and
    to provide a page takes several times as long as the copy into it: so of each 512 KiB one page
    is kept."""
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = min(most_bytes, free // 4) // APART_BYTES * APART_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    with mmap.mmap(-1, max(size, APART_BYTES), flags=flags) as memory:
        for start in range(0, len(memory), APART_BYTES):
            memory.madvise(mmap.MADV_DONTNEED, start + mmap.PAGESIZE, APART_BYTES - mmap.PAGESIZE)
        yield


def _drive(asked: L2Result, folder: Path | None, seed: int) -> float:
    """MB/s of fio's reads of such objects past the page cache, as many in flight."""
    size_bytes = asked.size_kib * 1024
    case = Case(size_bytes, asked.in_flight, max(DRIVE_READ_BYTES // size_bytes, 1))
    file_bytes = max(DRIVE_FILE_BYTES, 2 * size_bytes)
    buffer = Buffer(size_bytes * asked.in_flight + FIO_SPARE_BYTES, name="offstage-bench")
    with tempfile.TemporaryDirectory(dir=folder, prefix="offstage-l2-") as place:
        file = Path(place) / "drive"
        with file.open("wb") as out:
            out.write(np.random.default_rng(seed).bytes(file_bytes))
            out.flush()
            os.fsync(out.fileno())
        return fio_reads(file, case, buffer, case.count, seed).bytes_per_s / 1e6


def compare(found: L2Result) -> None:
    """Medians of the turns, their ratios to those of files and to fio's, and the rows."""
    for state, each in found.mb_per_s.items():
        medians = found.median_mb_per_s[state] = {
            name: {operation: statistics.median(turns) for operation, turns in one.items()}
            for name, one in each.items()
        }
        files = medians["fs"]
        over = found.over_files[state] = {
            name: {operation: rate / files[operation] for operation, rate in one.items()}
            for name, one in medians.items()
            if name != "fs"
        }
        found.rows += [
            Row(
                f"{state}, {operation}: {name}",
                "MB/s",
                medians[name][operation],
                files[operation],
                ratio,
                None if STATES[state] else aimed(ratio, ">=", AIM),
            )
            for name, one in over.items()
            for operation, ratio in one.items()
        ]
        if found.drive_mb_per_s and STATES[state]:
            drive = statistics.median(found.drive_mb_per_s)
            for name in over:
                ratio = found.over_drive[name] = medians[name]["load"] / drive
                title, aim = f"{state}, load: {name} to fio", aimed(ratio, ">=", DRIVE_AIM)
                found.rows.append(Row(title, "MB/s", medians[name]["load"], drive, ratio, aim))


def rates_of(said: str, objects: int, size_kib: int, adapter: str) -> dict[str, float]:
    """MB/s by operation, of the median round, parsed from LMCache's output. RunFailed: not all
    were stored, found, loaded and verified."""
    begin, where = said.find("\n{"), f"lmcache bench l2, {adapter}"
    if "keys data verified OK" not in said or begin < 0:
        raise RunFailed("LMCache did not verify the loaded data", where, "run it by itself")
    try:
        return _rates(json.JSONDecoder().raw_decode(said[begin + 1 :])[0], objects, size_kib, where)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunFailed(
            f"its output has an unknown format ({type(error).__name__}: {error})",
            where,
            "use another release of LMCache",
        ) from None


def _rates(found: Any, objects: int, size_kib: int, where: str) -> dict[str, float]:
    rates = {}
    for row in (row for name, row in found["metrics"].items() if "op_" in name):
        if row["operation"] != "Lookup" and row["total_success"] != objects:
            raise RunFailed(
                f"{row['operation']}: {row['total_success']} of {objects} objects",
                where,
                "run it by itself",
            )
        if row["operation"] != "Lookup":
            size_mb = row["keys_per_round"] * size_kib * 1024 / 1e6
            rates[row["operation"].lower()] = 1e3 * size_mb / row["duration_p50_ms"]
    return rates


@contextmanager
def _adapter(asked: L2Result, name: str, place: Path, direct: bool) -> Iterator[dict[str, object]]:
    """LMCache's configuration of the adapter; a daemon ends with the block. It has sessions for a
    lease of every object, all of which LMCache looks up before it loads the first."""
    objects = asked.in_flight * (asked.rounds + 1)
    if name == "fs":
        yield {"type": name, "base_path": str(place / "files"), "use_odirect": direct}
        return
    sections = {
        "daemon": {
            "endpoint": f"ipc://{place}/control",
            "runtime_dir": str(place / "run"),
            "metrics_endpoint": "",
        },
        "arena": {"size": "256MiB", "payload": "128KiB", "layers": 1},
        "storage": {
            "path": str(place / "store"),
            "size": max(OBJECTS_MIN_BYTES, 4 * asked.size_kib * 1024 * objects),
            "direct": direct,
        },
        "store": {"durable": False, "segment": "32MiB"},
        "limits": {
            "sessions": max(SESSIONS_MIN, 2 * objects),
            "context_tokens": 65536,
            "chunks": 1 << 17,
        },
    }
    with serve(sections, place) as tier:
        yield {
            "type": name,
            "module_path": "offstage.host.connectors.lmcache",
            "class_name": ADAPTERS[name],
            "adapter_params": {
                "endpoint": tier.endpoint,
                "weights_id": "none",
                "layout": "bytes",
                "runtime_dir": str(tier.runtime_dir),
            },
        }


def _run(program: Path, words: list[str]) -> str:
    path = os.pathsep.join(one for one in sys.path if one)
    said, _ = ask(
        [str(program), "bench", "l2", *words],
        "lmcache bench l2",
        "run it by itself",
        WAIT_S,
        environ=os.environ | {"PYTHONPATH": path},
    )
    return said.decode(errors="replace")
