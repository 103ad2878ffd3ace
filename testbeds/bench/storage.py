"""`offstage bench storage`: our io_uring side against fio, and the emulated drives' figures.

Both read the same file at random with the same block, depth, count and O_DIRECT, with fixed buffers
and a registered file, in turns (A B, B A, ...), so that a drift of the machine affects both. Both
read into the same memory, page for page: a shared buffer of ours that fio maps too. The number of
pages per transfer decides the bandwidth, so each case is read twice, into base pages and into huge
pages. If no huge pages are available, not even by reserving some while the bench runs, those rows
are missing and `notes` says so. A ratio is the median over the rounds of ours / fio in the same
round. At depths above 1 both sleep in the kernel while nothing has completed. At depth 1, where the
reactor spins, ours spins; the ratio to an fio that spins too is also given.

The emulation reads a memory-backed emulated drive and compares the result with the published
figures; `late_share` says how often the emulation could not keep the modelled time, and a figure
with a large share is this machine's, not the drive's.
"""

import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.notes import Note
from offstage.bindings.storage import (
    SPIN_ALWAYS_NS,
    WRITE,
    Buffer,
    Io,
    Preset,
    Storage,
    StorageConfig,
    nvme_cost,
)
from offstage.bindings.storage import preset as nvme_preset
from offstage.bindings.storage import presets as nvme_presets
from offstage.bindings.units import format_size
from offstage.testbeds.bench.drive_values import drive_values
from offstage.testbeds.bench.fio import FIO_SPARE_BYTES, SPIN, fio_reads, fio_version
from offstage.testbeds.bench.rows import check_size
from offstage.testbeds.bench.storage_result import (
    BLOCK_BYTES,
    CASES,
    ENTRY_CASES,
    GRANULE_CASES,
    GRANULES,
    Case,
    CaseFigures,
    Cited,
    Drive,
    EntryFigures,
    GranuleDrive,
    GranuleFigures,
    Granules,
    Sample,
    StorageResult,
    rows_of,
    rows_of_drive,
    rows_of_values,
)

__all__ = ["bench_storage"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FILE_SIZE_BYTES = 2 * GIB
SECTOR_BYTES = 512
FILL_BLOCK_BYTES = MIB
EMULATED_SIZE_BYTES = 256 * MIB
HUGE_PAGE_BYTES = 2 * MIB
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")

ONLY_READ = Note(
    "no-values",
    "no values: a file that exists is only read",
    "name a path that does not exist yet",
)

Say = Callable[[str], None]


def bench_storage(
    path: str | Path,
    *,
    rounds: int = 5,
    seed: int = 1,
    scale: float = 1.0,
    file_size_bytes: int = FILE_SIZE_BYTES,
    entries_only: bool = False,
    say: Say = lambda line: None,
) -> StorageResult:
    """Cases against fio on `path`, and the emulated presets. A path that does not exist is
    created with `file_size_bytes` (whole 8 MiB), filled and removed; one that exists is only
    read. `scale` shrinks the number of reads for a quick look. `entries_only`: leave out all but
    single entries. Raises BadInput if fio or
    O_DIRECT is missing."""
    if shutil.which("fio") is None:
        raise BadInput("fio is not installed", "bench storage", "apt-get install fio")
    check_size(rounds, scale)
    if file_size_bytes < 8 * FILL_BLOCK_BYTES or file_size_bytes % (8 * FILL_BLOCK_BYTES) != 0:
        raise BadInput("file_size_bytes is not a multiple of 8 MiB", "bench storage", "round it up")
    file = Path(path)
    created = not file.exists()
    if file.is_file() and file.stat().st_size < 8 * FILL_BLOCK_BYTES:
        raise BadInput(
            f"the file has only {file.stat().st_size} B",
            str(file),
            "name a file of 8 MiB or more, or one that does not exist yet",
        )
    try:
        if created:
            say(f"filling {file}")
            _fill(file, file_size_bytes, seed)
        with _huge_pages():
            cases, notes = _cases(file, () if entries_only else CASES, rounds, seed, scale, say)
            granules = Granules() if entries_only else _granules(file, rounds, seed, scale, say)
        entries, more = _entries(file, rounds, seed, scale, say)
        notes += more
        values = None
        if created and not entries_only:
            values = drive_values(file, rounds, seed, scale, say)
        elif not entries_only:
            notes.append(ONLY_READ)
        version = fio_version()
    finally:
        if created:
            file.unlink(missing_ok=True)
    drives = [] if entries_only else _emulated_drives()
    emulated = [_emulated(nvme_preset(name), seed, scale, say) for name in drives]
    return StorageResult(
        cases=cases,
        notes=notes,
        emulated=emulated,
        granules=granules,
        entries=entries,
        values=values,
        reference=f"{version} io_uring, direct=1, fixedbufs=1, registerfiles=1, iomem shared",
        path=str(file),
        rounds=rounds,
        seed=seed,
        rows=[row for one in [*cases, *entries] for row in rows_of(one)]
        + ([] if values is None else rows_of_values(values))
        + [row for one in emulated for row in rows_of_drive(one)],
    )


def _open(file: Path, queue_depth: int, size_bytes: int = 0, lba_bytes: int = 4 * KIB) -> Storage:
    config = StorageConfig(
        "io_uring",
        str(file),
        size_bytes=size_bytes,
        queue_depth_max=queue_depth,
        lba_size_bytes=lba_bytes,
        direct=True,
    )
    storage = Storage(config)
    if not storage.direct:
        storage.close()
        raise BadInput("the file system refuses O_DIRECT", str(file), "name a path on a disk")
    return storage


def _fill(file: Path, size_bytes: int, seed: int) -> None:
    """Real bytes everywhere: extents that were never written read faster than any device."""
    noise = np.random.default_rng(seed).integers(0, 256, 8 * FILL_BLOCK_BYTES, dtype=np.uint8)
    buffer = Buffer(noise.size)
    buffer.view[:] = noise.tobytes()
    with _open(file, 8, size_bytes) as storage:
        storage.register(buffer)
        for base in range(0, size_bytes, noise.size):
            done = storage.run(
                Io(WRITE, i, base + at, FILL_BLOCK_BYTES, buffer, at)
                for i, at in enumerate(range(0, noise.size, FILL_BLOCK_BYTES))
            )
            if any(end.result != FILL_BLOCK_BYTES for end in done):
                raise RunFailed("the file could not be filled", str(file), "check the disk")


def _buffer(case: Case, huge: bool) -> Buffer:
    """The buffer into which both sides read a case."""
    size_bytes = case.block_bytes * case.queue_depth + FIO_SPARE_BYTES
    return Buffer(size_bytes, huge, name="offstage-bench")


@contextmanager
def _huge_pages() -> Iterator[None]:
    """Reserves huge pages for the largest case, if permitted, and returns them at the end."""
    largest = max(case.block_bytes * case.queue_depth for case in CASES)
    need = -(-(largest + FIO_SPARE_BYTES) // HUGE_PAGE_BYTES)
    taken = 0
    try:
        missing = need - int((HUGE_PAGES / "free_hugepages").read_text())
        if missing > 0:
            taken = _reserve(missing)
    except (OSError, ValueError):
        pass  # no permission to reserve; transparent ones may do
    try:
        yield
    finally:
        if taken:
            _reserve(-taken)


def _reserve(more: int) -> int:
    """Adds `more` pages to the reserve as it is now, which another run may have changed meanwhile.

    Returns how many the kernel found.
    """
    pool = HUGE_PAGES / "nr_hugepages"
    total = int(pool.read_text())
    borrowed = int((HUGE_PAGES / "surplus_hugepages").read_text())
    pool.write_text(str(max(0, total - borrowed + more)))
    return int(pool.read_text()) - total


def _cases(
    file: Path, each: Sequence[Case], rounds: int, seed: int, scale: float, say: Say
) -> tuple[list[CaseFigures], list[Note]]:
    """Every case in base pages and in huge pages, and those left out."""
    cases: list[CaseFigures] = []
    notes: list[Note] = []
    for case, huge in ((case, huge) for case in each for huge in (False, True)):
        buffer = _buffer(case, huge)
        if buffer.huge == huge:
            cases.append(_measured(file, case, buffer, rounds, seed, scale, say))
        elif not notes:
            notes.append(
                Note(
                    "no-huge-pages",
                    "no huge pages for the read buffers",
                    "sysctl vm.nr_hugepages=16",
                )
            )
            say(str(notes[0]))
        del buffer  # its pages are the next one's
    return cases, notes


def _measured(
    file: Path, case: Case, buffer: Buffer, rounds: int, seed: int, scale: float, say: Say
) -> CaseFigures:
    count = max(64, int(case.count * scale))
    pairs: list[tuple[Sample, Sample]] = []
    spinning: list[float] = []
    for number in range(rounds):
        # A B, B A, A B ...: the second side finds the state that the first left behind.
        sides = (_ours, fio_reads) if number % 2 == 0 else (fio_reads, _ours)
        samples = {side: side(file, case, buffer, count, seed + number) for side in sides}
        pairs.append((samples[_ours], samples[fio_reads]))
        if case.queue_depth == 1:
            fio = fio_reads(file, case, buffer, count, seed + number, SPIN)
            spinning.append(samples[_ours].latency_ns_p50 / fio.latency_ns_p50)
    bandwidth = [ours.bytes_per_s / fio.bytes_per_s for ours, fio in pairs]
    latency = [ours.latency_ns_p50 / fio.latency_ns_p50 for ours, fio in pairs]
    found = CaseFigures(
        block_bytes=case.block_bytes,
        queue_depth=case.queue_depth,
        pages=buffer.pages,
        count=count,
        ours=_median([ours for ours, _ in pairs]),
        fio=_median([fio for _, fio in pairs]),
        bandwidth_ratio=statistics.median(bandwidth),
        bandwidth_ratio_range=(min(bandwidth), max(bandwidth)),
        latency_ratio=statistics.median(latency),
        latency_ratio_range=(min(latency), max(latency)),
        latency_ratio_fio_spinning=statistics.median(spinning) if spinning else None,
    )
    say(
        f"{format_size(case.block_bytes)} QD {case.queue_depth}, {buffer.pages}: "
        f"{found.ours.bytes_per_s / 1e9:.2f} GB/s, {found.bandwidth_ratio:.2f} of fio; "
        f"p50 {found.ours.latency_ns_p50 / 1e3:.0f} us, {found.latency_ratio:.2f} of fio"
    )
    return found


def _median(samples: list[Sample]) -> Sample:
    return Sample(
        statistics.median(one.bytes_per_s for one in samples),
        statistics.median(one.latency_ns_p50 for one in samples),
        statistics.median(one.latency_ns_p99 for one in samples),
    )


def _ours(file: Path, case: Case, buffer: Buffer, count: int, seed: int) -> Sample:
    lba_bytes = SECTOR_BYTES if case.block_bytes % (4 * KIB) else 4 * KIB
    with _open(file, case.queue_depth, lba_bytes=lba_bytes) as storage:
        storage.register(buffer)
        spin_ns = SPIN_ALWAYS_NS if case.queue_depth == 1 else 0
        return _sample(
            storage,
            buffer,
            case.block_bytes,
            case.queue_depth,
            count,
            seed,
            spin_ns,
            case.other_bytes,
        )


def _sample(
    storage: Storage,
    buffer: Buffer,
    block_bytes: int,
    queue_depth: int,
    count: int,
    seed: int,
    spin_ns: int = SPIN_ALWAYS_NS,
    other_bytes: int = 0,
) -> Sample:
    elapsed_ns, latency_ns = storage.bench_read(
        buffer, block_bytes, queue_depth, count, seed, spin_ns, other_bytes
    )
    p50, p99 = np.percentile(latency_ns, [50, 99])
    mean_bytes = (block_bytes + other_bytes) / 2 if other_bytes else block_bytes
    return Sample(count * mean_bytes * 1e9 / elapsed_ns, float(p50), float(p99))


def _emulated_drives() -> list[str]:
    """Those without schedulers: the cards of the others are computed (`offstage drive presets`)."""
    return [name for name in nvme_presets() if not nvme_preset(name).params["scheduled"]]


def _granules(file: Path, rounds: int, seed: int, scale: float, say: Say) -> Granules:
    """A part of a block against the whole: here, with fio; and on the presets, by `nvme_cost`."""
    cases = []
    for case in GRANULE_CASES:
        one = _measured(file, case, _buffer(case, huge=False), rounds, seed, scale, say)
        reads, size = (
            (2, case.block_bytes + case.other_bytes) if case.other_bytes else (1, case.block_bytes)
        )
        cases.append(
            GranuleFigures(
                **msgspec.structs.asdict(one),
                reads_per_block=reads,
                bytes_per_block=size,
                blocks_per_s=one.ours.bytes_per_s / size,
            )
        )
    part, whole = cases[1], cases[0]
    say(
        f"a granule of {BLOCK_BYTES // GRANULES // KIB} KiB compared with its block: "
        f"{part.blocks_per_s / whole.blocks_per_s:.2f} times the blocks, "
        f"{part.bytes_per_block / whole.bytes_per_block:.2f} of the bytes"
    )
    drives = []
    for name in _emulated_drives():
        params = nvme_preset(name).params
        whole_ns = nvme_cost(params, [(0, BLOCK_BYTES + 4 * KIB)])
        part_ns = nvme_cost(params, [(0, BLOCK_BYTES // GRANULES), (BLOCK_BYTES, 4 * KIB)])
        drives.append(
            GranuleDrive(
                preset=name,
                whole=whole_ns,
                whole_bound=whole_ns.bound,
                part=part_ns,
                part_bound=part_ns.bound,
                times_the_blocks=whole_ns.ns / part_ns.ns,
                media_saved=1 - part_ns.media / whole_ns.media,
            )
        )
        say(
            f"{name}, never idle: {whole_ns.ns / part_ns.ns:.2f} times the blocks, bound by "
            f"{part_ns.bound} where whole ones are by {whole_ns.bound}; media time saved "
            f"{1 - part_ns.media / whole_ns.media:.0%}"
        )
    return Granules(cases, drives)


def _entries(
    file: Path, rounds: int, seed: int, scale: float, say: Say
) -> tuple[list[EntryFigures], list[Note]]:
    """Single entries, with fio; none, and a note, where the file has no sectors of 512 B."""
    try:
        _open(file, 1, lba_bytes=SECTOR_BYTES).close()
    except BadInput as error:
        what = "no single entries: the file cannot be read in sectors of 512 B"
        return [], [
            Note("no-small-sectors", f"{what} ({error.what})", "name a path on another disk")
        ]
    found = []
    for entry_bytes, case in ENTRY_CASES.items():
        one = _measured(file, case, _buffer(case, huge=False), rounds, seed, scale, say)
        params = {name: nvme_preset(name).params for name in _emulated_drives()}
        found.append(
            EntryFigures(
                **msgspec.structs.asdict(one),
                entry_bytes=entry_bytes,
                reads_per_s=one.ours.bytes_per_s / case.block_bytes,
                fio_reads_per_s=one.fio.bytes_per_s / case.block_bytes,
                modelled_reads_per_s={
                    name: 1e9 / nvme_cost(drive, [(0, case.block_bytes)]).ns
                    for name, drive in params.items()
                },
            )
        )
    return found, []


def _emulated(drive: Preset, seed: int, scale: float, say: Say) -> Drive:
    """The figures of an emulated drive over memory, with its published ones."""
    cited = drive.cited
    config = StorageConfig(
        "emulated",
        size_bytes=EMULATED_SIZE_BYTES,
        queue_depth_max=512,
        busy_spin=True,
        nvme=drive.params,
        seed=seed,
    )
    source = Buffer(FILL_BLOCK_BYTES)
    source.view[:] = bytes(range(256)) * (FILL_BLOCK_BYTES // 256)
    with Storage(config) as storage:
        storage.run(
            Io(WRITE, 0, offset, FILL_BLOCK_BYTES, source)
            for offset in range(0, EMULATED_SIZE_BYTES, FILL_BLOCK_BYTES)
        )
        latency, latency_late = _emulated_run(storage, 4 * KIB, 1, int(4_000 * scale), seed)
        iops, iops_late = _emulated_run(storage, 4 * KIB, 512, int(400_000 * scale), seed)
        large, large_late = _emulated_run(storage, 128 * KIB, 32, int(20_000 * scale), seed)
    figures = {
        "read_latency_ns_p50": (latency.latency_ns_p50, cited.get("read_latency_ps", 0) / 1e3),
        "read_iops": (iops.bytes_per_s / (4 * KIB), float(cited.get("read_iops", 0))),
        "read_bytes_per_s": (large.bytes_per_s, float(cited.get("read_bytes_per_s", 0))),
    }
    late = dict(zip(figures, (latency_late, iops_late, large_late), strict=True))
    figures = {name: pair for name, pair in figures.items() if pair[1]}  # as far as published
    say(
        f"{drive.name}: "
        + ", ".join(f"{name} {got / cite:.2f} of cited" for name, (got, cite) in figures.items())
    )
    return Drive(
        drive.name,
        {name: Cited(got, cite, got / cite, late[name]) for name, (got, cite) in figures.items()},
        drive.source,
    )


def _emulated_run(
    storage: Storage, block_bytes: int, queue_depth: int, count: int, seed: int
) -> tuple[Sample, float]:
    """The sample, and the share of its reads that completed later than the model's time."""
    count = max(count, queue_depth)
    before = storage.stats()["emulation_late"]
    buffer = Buffer(block_bytes * queue_depth)
    sample = _sample(storage, buffer, block_bytes, queue_depth, count, seed)
    return sample, (storage.stats()["emulation_late"] - before) / count
