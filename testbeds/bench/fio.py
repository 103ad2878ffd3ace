"""fio beside our I/O: the reference of `offstage bench storage`.

As ours: io_uring, O_DIRECT, fixed buffers and a registered file, into the same memory.
"""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from offstage.bindings.outside import said_json
from offstage.bindings.storage import Buffer
from offstage.testbeds.beds.said import ask
from offstage.testbeds.bench.storage_result import Case, Sample

__all__ = ["FIO_SPARE_BYTES", "SPIN", "fio_reads", "fio_version", "fio_writes"]

FIO_TIMEOUT_S = 300
FIO_SPARE_BYTES = 4 << 20  # fio maps more than it reads into
T = TypeVar("T")
SPIN = "--iodepth_batch_complete_min=0"  # at larger depths this keeps fio's queue from filling


class _Percentile(msgspec.Struct):
    p50: float = msgspec.field(name="50.000000")
    p99: float = msgspec.field(name="99.000000")


class _Latency(msgspec.Struct):
    percentile: _Percentile


class _Moved(msgspec.Struct):
    io_bytes: int
    runtime: Annotated[float, msgspec.Meta(gt=0)]


class _Read(_Moved):
    lat_ns: _Latency


class _ReadJob(msgspec.Struct):
    read: _Read


class _WriteJob(msgspec.Struct):
    write: _Moved


class _Reads(msgspec.Struct):
    """The parts of fio's report that are used: `runtime` in ms."""

    jobs: Annotated[list[_ReadJob], msgspec.Meta(min_length=1)]


class _Writes(msgspec.Struct):
    jobs: Annotated[list[_WriteJob], msgspec.Meta(min_length=1)]


def fio_version() -> str:
    """What it says it is."""
    return ask(["fio", "--version"], "bench storage", "run fio", FIO_TIMEOUT_S)[0].decode().strip()


def _sizes(case: Case) -> list[str]:
    """As ours are: of two sizes half of each, beginning where the smaller may."""
    if not case.other_bytes:
        return [f"--bs={case.block_bytes}"]
    split = f"--bssplit={case.block_bytes}/50:{case.other_bytes}/50"
    return [split, f"--blockalign={case.other_bytes}"]


def fio_reads(
    file: Path, case: Case, buffer: Buffer, count: int, seed: int, *more: str, size_bytes: int = 0
) -> Sample:
    """`count` reads of a case at random places in the first `size_bytes` of the file (0: in all of
    it), into the buffer, with `more` of fio's options. RunFailed: fio failed."""
    said = _fio(
        _Reads,
        file,
        case,
        buffer,
        "--readonly",
        "--rw=randread",
        "--norandommap",
        f"--number_ios={count}",
        f"--io_size={count * max(case.block_bytes, case.other_bytes)}",
        f"--size={(size_bytes or file.stat().st_size) // case.block_bytes * case.block_bytes}",
        f"--randseed={seed}",
        *more,
    )
    read = said.jobs[0].read
    found = read.lat_ns.percentile
    return Sample(read.io_bytes * 1e3 / read.runtime, found.p50, found.p99)


def fio_writes(file: Path, case: Case, buffer: Buffer, size_bytes: int) -> float:
    """Bytes/s of a case's writes, in order, into a new file of preallocated extents, which is
    removed. RunFailed: fio failed."""
    try:
        said = _fio(
            _Writes, file, case, buffer, "--rw=write", "--fallocate=native", f"--size={size_bytes}"
        )
    finally:
        file.unlink(missing_ok=True)
    write = said.jobs[0].write
    return write.io_bytes * 1e3 / write.runtime


def _fio(report: type[T], file: Path, case: Case, buffer: Buffer, *more: str) -> T:
    iomem = "mmaphuge" if buffer.reserved else "mmapshared"
    command = [
        "fio",
        "--name=reference",
        f"--filename={file}",
        "--ioengine=io_uring",
        "--direct=1",
        "--fixedbufs=1",
        "--registerfiles=1",
        f"--iomem={iomem}:{buffer.path}",
        *_sizes(case),
        f"--iodepth={case.queue_depth}",
        "--lat_percentiles=1",
        "--output-format=json",
        *more,
    ]
    said, complaint = ask(command, str(file), "run fio", FIO_TIMEOUT_S)
    said = said[max(said.find(b"{"), 0) :]  # after its log lines
    return said_json(said, complaint, str(file), "run fio", report)
