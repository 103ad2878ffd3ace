"""Does a baseline's local tier return what was put, and count as the device would?

Runs over the firmware's drive with and without kept blocks, and over drives that fail or hang.
"""

import ctypes
import errno
import importlib.util
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, RunFailed, StoreFull
from offstage.bindings.fabric import FetchRequest, FetchResult, PutRequest
from offstage.bindings.keys import checksum
from offstage.bindings.layouts import ENDS
from offstage.bindings.storage import Done, StorageConfig
from offstage.host.baselines import (
    WRITE_ROWS,
    FirmwareDrive,
    KvikioDrive,
    LocalStore,
    LocalTier,
    why_no_kvikio,
)

PAYLOAD, LAYERS, CHUNKS, LAYER = 6_000, 2, 20, 1
SINKS, WINDOW = 1, 2
HANGS = 0
Make = Callable[..., LocalTier]


class MemoryDrive:
    """A drive whose I/Os end at the next poll; `result`: what reads return if they fail."""

    name, warning, depth = "memory", "", 6

    def __init__(self, slots: int, store: LocalStore, result: int | None = None) -> None:
        self.rows = np.zeros((slots + WRITE_ROWS, store.stride_bytes), np.uint8)
        self.result, self._file = result, np.zeros(store.size_bytes, np.uint8)
        self._flying: list[tuple[bool, int, int]] = []

    def _take(self, write: bool, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        room = self.depth - len(self._flying)
        pairs = list(zip(rows.tolist(), offsets.tolist(), strict=True))[:room]
        self._flying += [(write, row, offset) for row, offset in pairs]
        return len(pairs)

    def read(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        return self._take(False, rows, offsets)

    def write(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        return self._take(True, rows, offsets)

    def poll(self, timeout_ns: int = 0) -> list[Done]:
        if not self._flying or (self.result == HANGS and not self._flying[0][0]):
            return []
        write, row, offset = self._flying.pop(0)
        there = self._file[offset : offset + self.rows.shape[1]]
        if write:
            there[:] = self.rows[row]
        elif self.result is None:
            self.rows[row] = there
        return [Done(row, len(there) if write or self.result is None else self.result)]

    def stats(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        assert not self._flying


def source() -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, (CHUNKS, PAYLOAD), np.uint8)


def names(first: int = 0, count: int = CHUNKS) -> list[bytes]:
    return [number.to_bytes(16, "little") for number in range(first, first + count)]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a tier of this many slots over a file that the firmware's storage reads."""

    def made(slots: int, keep: bool, store: LocalStore | None = None) -> LocalTier:
        store = store or LocalStore(tmp_path / "blocks", LAYERS, PAYLOAD, 2 * CHUNKS)
        config = StorageConfig(
            path=str(store.path), size_bytes=store.size_bytes, lba_size_bytes=4096
        )
        drive = FirmwareDrive(config, slots + WRITE_ROWS, store.stride_bytes)
        return LocalTier(store, drive, keep=keep)

    return made


def opened(tier: LocalTier, contents: list[bytes] | None = None) -> int:
    session = tier.session_open(select_blocks=4, sink_blocks=SINKS, window_blocks=WINDOW)
    tier.append(session, names() if contents is None else contents)
    return session


def filled(tier: LocalTier) -> int:
    session = opened(tier)
    assert not tier.put(
        PutRequest(session, LAYER, np.arange(CHUNKS, dtype=np.uint32), source())
    ).any()
    return session


def fetch(tier: LocalTier, session: int, ordinals: list[int], **more: Any) -> FetchResult:
    """Fetch once, into rows in reverse order, and compare the bytes."""
    wanted = np.array(ordinals, np.uint32)
    target = np.zeros((len(wanted) + 1, PAYLOAD + 8), np.uint8)
    index = np.arange(len(wanted), 0, -1, dtype=np.uint32)
    keys = np.zeros((len(wanted), 2), np.uint64)
    result = tier.fetch(
        FetchRequest(session, 0, LAYER, wanted, keys, target, target_index=index, **more)
    )
    for row, ordinal, rc, came in zip(index, ordinals, result.rcs, result.checksums, strict=True):
        if rc == 0:
            assert np.array_equal(target[row, :PAYLOAD], source()[ordinal])
            assert int(came) == checksum(source()[ordinal])
    return result


@settings(max_examples=25, deadline=None)
@given(
    wanted=st.lists(
        st.lists(st.integers(0, CHUNKS - 1), min_size=1, max_size=6, unique=True), max_size=20
    ),
    keep=st.booleans(),
)
def test_kept_blocks_are_those_of_a_plain_lru(wanted: list[list[int]], keep: bool) -> None:
    """Ends match a six-line model, and bytes match what was put. With no kept blocks there is no
    hit."""
    store = LocalStore(Path("unused"), LAYERS, PAYLOAD, CHUNKS)
    tier = LocalTier(store, MemoryDrive(8, store), keep=keep)
    session, model, seen = filled(tier), OrderedDict[int, None](), set[int]()
    for ordinals in wanted:
        expected = []
        for one in ordinals:
            expected.append("retained" if one in model else "capacity" if one in seen else "cold")
        hits = [one for one in ordinals if one in model]
        for one in [*hits, *(one for one in ordinals if one not in hits)]:
            model[one] = None
            model.move_to_end(one)
            seen.add(one)
        result = fetch(tier, session, ordinals)
        assert [ENDS[end] for end in result.ends] == expected and not result.rcs.any()
        assert result.hit_count == len(hits)
        while len(model) > (8 if keep else 0):
            model.popitem(last=False)
    ledger = tier.ledger()
    assert ledger.demands == sum(map(len, wanted)) == sum(ledger.ends)
    inside = [one for row in wanted for one in row if SINKS <= one < CHUNKS - WINDOW]
    assert ledger.nontrivial == len(inside) == sum(ledger.nontrivial_ends)
    misses = ledger.demands - ledger.ends[ENDS.index("retained")]
    assert ledger.demand_bytes_read == misses * store.stride_bytes
    tier.close()


def test_a_block_that_another_session_brought_is_shared_or_late(make: Make) -> None:
    """Two sessions that request a block share one read: late while it is in flight, shared
    afterwards."""
    tier = make(8, keep=True)
    first, second = filled(tier), opened(tier)
    wanted = np.array([3, 4], np.uint32)
    keys, target = np.zeros((2, 2), np.uint64), np.zeros((4, PAYLOAD), np.uint8)
    one = tier.fetch_begin(FetchRequest(first, 0, LAYER, wanted, keys, target))
    other = tier.fetch_begin(FetchRequest(second, 0, LAYER, wanted, keys, target[2:]))
    assert [ENDS[end] for end in tier.fetch_end(other).ends] == ["late", "late"]
    assert [ENDS[end] for end in tier.fetch_end(one).ends] == ["cold", "cold"]
    assert np.array_equal(target, source()[[3, 4, 3, 4]])
    third = opened(tier)
    assert [ENDS[end] for end in fetch(tier, third, [3]).ends] == ["shared"]
    assert tier.ledger().demand_bytes_read == 2 * tier.store.stride_bytes
    assert tier.ledger().shared_chunks == 2 * CHUNKS
    tier.close()


def test_a_store_outlives_the_tiers_over_it(make: Make) -> None:
    """A new baseline, with nothing in memory, reads what an earlier one wrote."""
    tier = make(4, keep=True)
    filled(tier)
    tier.close()
    again = make(4, keep=True, store=tier.store)
    session = again.session_open(select_blocks=4)
    assert set(again.append(session, names()).stored_layers) == {1}
    assert [ENDS[end] for end in fetch(again, session, [5, 19]).ends] == ["cold", "cold"]
    again.close()


def test_chunks_are_named_by_all_before_them(make: Make) -> None:
    """The same content after another prefix is another block."""
    tier = make(4, keep=False)
    session = tier.session_open(select_blocks=4)
    one = tier.append(session, names(0, 3)).keys
    other = tier.session_open(select_blocks=4)
    two = tier.append(other, names(0, 2)).keys + tier.append(other, names(5, 1)).keys
    assert two[:2] == one[:2] and two[2] != one[2]
    third = tier.session_open(select_blocks=4)
    assert tier.append(third, names(1, 2)).keys[0] not in one
    tier.close()


def test_more_demands_than_slots_all_end(make: Make) -> None:
    tier = make(3, keep=True)
    session = filled(tier)
    assert not fetch(tier, session, list(range(CHUNKS))).rcs.any()
    assert tier.ledger().evictions == CHUNKS - 3
    tier.close()


@pytest.mark.parametrize(
    ("result", "rc"), [(-errno.ENXIO, -errno.ENXIO), (4096, -errno.EIO), (HANGS, -errno.ETIMEDOUT)]
)
def test_a_read_that_fails_is_short_or_hangs_ends_its_demand(result: int, rc: int) -> None:
    """The demand ends with the reason, and the same block is read once the drive recovers."""
    store = LocalStore(Path("unused"), LAYERS, PAYLOAD, CHUNKS)
    drive = MemoryDrive(4, store)
    tier = LocalTier(store, drive, keep=True)
    session = filled(tier)
    drive.result = result
    failed = fetch(tier, session, [1, 2], timeout_ns=20_000_000)
    assert list(failed.rcs) == [rc, rc] and set(failed.ends) == {255}
    assert failed.failed_count == 2
    drive.result = None
    assert not fetch(tier, session, [1, 2]).rcs.any()
    tier.close()


def test_a_full_file_says_so(make: Make) -> None:
    tier = make(4, keep=False)
    opened(tier)
    with pytest.raises(StoreFull, match=str(2 * CHUNKS)):
        opened(tier, names(100, 2 * CHUNKS))
    tier.close()


def test_too_many_calls_at_once_are_refused(make: Make) -> None:
    tier = make(4, keep=False)
    session = filled(tier)
    none = np.empty(0, np.uint32), np.zeros((0, 2), np.uint64), np.zeros((1, PAYLOAD), np.uint8)
    flying = [
        tier.fetch_begin(FetchRequest(session, 0, LAYER, *none)) for _ in range(tier.calls_max)
    ]
    with pytest.raises(RunFailed, match="in flight"):
        tier.fetch_begin(FetchRequest(session, 0, LAYER, *none))
    assert set(tier.poll()) == set(flying) and tier.poll() == []
    for one in flying:
        tier.fetch_end(one)
    tier.close()


def test_kvikio_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not installed, half installed, or without the CUDA driver: the line says why and names the
    fix."""
    from offstage.host.baselines import kvikio_drive

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "not installed (in a checkout of Offstage: pip install" in why_no_kvikio()
    with pytest.raises(BadInput, match="pip install"):
        KvikioDrive(tmp_path / "blocks", 4, 4096)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(kvikio_drive, "DRIVER_LIBRARY", "libno-such-driver.so.1")
    assert "install the NVIDIA driver" in why_no_kvikio()
    monkeypatch.setattr(kvikio_drive, "DRIVER_LIBRARY", "libc.so.6")

    def half(name: str) -> None:
        raise ImportError("no half of it")

    monkeypatch.setattr(kvikio_drive.importlib, "import_module", half)
    assert "no half of it (pip install --force-reinstall" in why_no_kvikio()


THROUGH_KVIKIO = """
import sys
from pathlib import Path
import numpy as np
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.host.baselines import READ_ROWS, WRITE_ROWS, KvikioDrive, LocalStore, LocalTier
store = LocalStore(Path(sys.argv[1]), 2, 65536, 40)
with open(store.path, "wb") as file:
    file.truncate(store.size_bytes)
drive = KvikioDrive(store.path, READ_ROWS + WRITE_ROWS, store.stride_bytes)
tier = LocalTier(store, drive, keep=False)
session = tier.session_open(select_blocks=4)
tier.append(session, [n.to_bytes(16, "little") for n in range(40)])
source = np.random.default_rng(5).integers(0, 256, (40, 65536), np.uint8)
wanted = np.arange(40, dtype=np.uint32)
assert not tier.put(PutRequest(session, 1, wanted, source)).any()
order = np.random.default_rng(6).permutation(wanted)
target = np.zeros_like(source)
keys = np.zeros((40, 2), np.uint64)
result = tier.fetch(FetchRequest(session, 0, 1, order, keys, target))
assert not result.rcs.any() and np.array_equal(target, source[order])
tier.close()
print(drive.name)
"""


@pytest.mark.kvikio
def test_kvikio_reads_what_it_wrote(tmp_path: Path) -> None:
    """The real library's own CPU path, over the machine's CUDA driver or, if there is none, a stub
    of it."""
    if importlib.util.find_spec("kvikio") is None:
        pytest.skip("kvikio is not installed: pip install '.[gpu-cuda12]'")
    import cuda_driver_stub

    env = dict(os.environ)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        cuda_driver_stub.build(tmp_path)
        env["LD_LIBRARY_PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", THROUGH_KVIKIO, str(tmp_path / "blocks")],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kvikio ")
