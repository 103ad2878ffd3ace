"""Do deletions last, and do archived chunks become complete, whatever fails on the way?

Runs the archive's tables and workers over a bucket and a store that are dictionaries.
"""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.archive import workers as workers_module
from offstage.dpu.archive.archived_device import ArchivedDevice, Wanted
from offstage.dpu.archive.format import Shape, name_of, object_key, unpack
from offstage.dpu.archive.journal import SIZE_BYTES_MAX, Journal
from offstage.dpu.archive.returns import Returns
from offstage.dpu.archive.s3 import Failed
from offstage.dpu.archive.state import Return, State, Tenant, Upload
from offstage.dpu.archive.workers import Workers

SHAPE = Shape(payload_bytes=64, layers=3, block_tokens=64)
KEY = object_key(b"k" * 16)
KEYS = [bytes([n]) * 16 for n in range(1, 5)]
ALL = "t/" + name_of(KEYS)
WAIT_S = 30.0


class Store:
    """A stand-in for Places. `rcs`: of the next reads; `there`: how many layers of each chunk."""

    count = 4

    def __init__(self) -> None:
        self.rcs: list[int] = []
        self.there = dict.fromkeys(KEYS, 3)

    def read(self, tenant: int, names: Sequence[tuple[bytes, int]]) -> list[tuple[int, bytes]]:
        rc = self.rcs.pop() if self.rcs else 0
        return [
            (rc, b"x" * 64) if layer < self.there[key] else (-errno.ENOENT, b"")
            for key, layer in names
        ]

    def look(self, tenant: int, keys: Sequence[bytes]) -> tuple[list[int], int]:
        return [self.there[key] for key in keys], 0


class Objects:
    """A stand-in for Bucket. `away`: nothing answers; `after`: a put fails after the object was
    stored; `hidden`: objects that the next listing omits."""

    def __init__(self) -> None:
        self.names_: dict[str, bytes] = {}
        self.away = False
        self.after = ""
        self.hidden: set[str] = set()
        self.listings = 0

    def _ask(self) -> None:
        if self.away:
            raise Failed("gone", "away")

    def names(self, prefix: str) -> Iterator[str]:
        self._ask()
        hidden, self.hidden = self.hidden, set()
        self.listings += 1
        return iter(
            [name for name in self.names_ if name.startswith(prefix) and name not in hidden]
        )

    def put(self, name: str, data: bytes) -> None:
        self._ask()
        self.names_[name] = data
        if self.after:
            raise Failed(self.after, "after all")

    def stop(self) -> None:
        pass

    def delete(self, name: str) -> None:
        self._ask()
        self.names_.pop(name, None)


class Bed:
    """Workers over both; `start` starts the daemon, `kill` ends it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bucket, self.store = folder, Objects(), Store()
        self.log: Any = SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), _silent))

    def start(self) -> None:
        self.state, self.tenant = State(9, 4, SHAPE.layers), Tenant(0, "t/", KEY)
        bucket: Any = self.bucket
        self.workers = Workers(self.state, bucket, SHAPE, self.folder / "j", 0, self.log)
        places: Any = self.store
        self.workers.start([self.tenant], [places, places])

    def kill(self) -> None:
        self.workers.close(0.0)

    def until(self, true: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < until_s
            self.workers.wake()
            time.sleep(0.005)

    def settled(self) -> None:
        """Wait until the bucket is listed and nothing is pending."""

        def quiet() -> bool:
            with self.state.lock:
                return (
                    not (
                        self.workers.away
                        or self.state.active
                        or self.state.uploads
                        or self.workers.deletes_waiting
                    )
                    and self.tenant.is_listed
                )

        self.until(quiet)


def _silent(*_: object, **__: object) -> None:
    pass


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    for name in ("AWAY_S", "AWAY_S_MAX", "LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(workers_module, name, 0.01)
    one = Bed(tmp_path)
    yield one
    one.kill()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_a_delete_before_the_listing_reaches_the_bucket(
    bed: Bed, restart: bool, everything: bool
) -> None:
    """The server has been away since the start when a chunk, or all, is deleted; the daemon may be
    killed before it returns. Another daemon's objects in a folder of this one's stay."""
    first, second = "t/" + name_of(KEYS[:2]), "t/" + name_of(KEYS[2:])
    foreign = "t/u/" + name_of(KEYS)
    bed.bucket.names_ = dict.fromkeys((first, second, foreign), b"")
    bed.bucket.away = True
    bed.start()
    if everything:
        bed.state.deleting_all(bed.tenant)
    else:
        bed.state.deleting(bed.tenant, KEYS[:1])
    assert bed.workers.deletes_waiting
    bed.until(lambda: bed.workers.noted(bed.tenant))
    if restart:
        bed.kill()
        bed.start()
    bed.bucket.away = False
    bed.settled()
    assert set(bed.bucket.names_) == ({foreign} if everything else {second, foreign})
    assert set(bed.tenant.known) == (set() if everything else set(KEYS[2:]))
    assert Journal(bed.folder / "j").names == set()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("everything", [False, True])
def test_a_listing_that_came_short_brings_no_deleted_chunk_back(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, everything: bool, when: str, restart: bool
) -> None:
    """A chunk, or all, is deleted before the first listing or between two, and the listing is
    incomplete: the chunk's object is gone, and unknown after the next start."""
    first, second = "t/" + name_of(KEYS[:2]), "t/" + name_of(KEYS[2:])
    bed.bucket.names_ = dict.fromkeys((first, second), b"")
    bed.bucket.away, bed.bucket.hidden = when == "before", {first, second}
    monkeypatch.setattr(workers_module, "AWAY_S", 3600.0 if when == "between" else 0.01)
    bed.start()
    if when == "between":
        bed.until(lambda: not bed.workers.away)
    if everything:
        bed.state.deleting_all(bed.tenant)
    else:
        bed.state.deleting(bed.tenant, KEYS[:1])
    bed.until(lambda: bed.workers.noted(bed.tenant))
    assert set(bed.bucket.names_) == {first, second}
    monkeypatch.setattr(workers_module, "AWAY_S", 0.01)
    if restart:
        bed.kill()
        bed.start()
    bed.bucket.away = False
    bed.workers._list_s = 0.0
    bed.settled()
    assert set(bed.bucket.names_) == (set() if everything else {second})
    bed.kill()
    bed.start()
    bed.settled()
    assert set(bed.tenant.known) == (set() if everything else set(KEYS[2:]))
    assert Journal(bed.folder / "j").names == set()


def test_what_goes_up_between_two_listings_is_known_and_stays(bed: Bed) -> None:
    """All is deleted before the first listing; chunks with the same keys are put and uploaded
    before the second. They are kept, and the bucket is not listed for ever."""
    bed.bucket.away = True
    bed.start()
    bed.state.deleting_all(bed.tenant)
    bed.until(lambda: bed.workers.noted(bed.tenant))
    bed.workers._list_pause_s = 3600.0
    bed.bucket.away = False
    bed.state.closed(bed.tenant, KEYS, 0.0)
    bed.until(lambda: ALL in bed.bucket.names_ and not bed.state.active)
    bed.workers._list_s = 0.0
    bed.settled()
    assert bed.tenant.has(ALL) and set(bed.bucket.names_) == {ALL}
    seen = bed.bucket.listings
    time.sleep(0.1)  # time for a superfluous listing
    assert bed.bucket.listings == seen


def test_a_stand_in_stays_until_what_it_spoke_of_is_noted(bed: Bed) -> None:
    """If the journal refuses after the listing, the line that condemned the object stays."""
    bed.bucket.names_ = {ALL: b""}
    first = Journal(bed.folder / "j")
    first.add(["t/" + name_of(KEYS[:1])])
    first.close()
    bed.bucket.away = True
    bed.start()
    journal: Any = bed.workers._journal
    add, journal.add = journal.add, _refuse
    bed.bucket.away = False
    bed.until(lambda: bed.tenant.is_seen)
    time.sleep(0.1)  # time for a worker to delete too early
    assert journal.names == {"t/" + name_of(KEYS[:1])} and set(bed.bucket.names_) == {ALL}
    journal.add = add
    bed.settled()
    assert not bed.bucket.names_ and not journal.names


@pytest.mark.parametrize("how", ["gone", "error"])
def test_a_put_that_failed_and_is_there_goes_with_its_chunk(bed: Bed, how: str) -> None:
    """The server keeps an object whose put it reports as failed. A delete of one chunk reaches it,
    and an upload that is given up is removed."""
    bed.start()
    bed.settled()
    bed.bucket.after = how
    bed.state.closed(bed.tenant, KEYS, 0.0)
    if how == "gone":
        bed.until(lambda: ALL in bed.bucket.names_)
        bed.state.deleting(bed.tenant, KEYS[:1])
        bed.bucket.after = ""
    else:
        bed.until(lambda: bed.tenant.counts["dropped"] == 4)
    bed.settled()
    assert set(bed.bucket.names_) == ({"t/" + name_of(KEYS[1:])} if how == "gone" else set())


def test_one_that_the_full_queue_pushes_out_is_taken_away() -> None:
    state, tenant = State(1, 4, 3), Tenant(0, "t/", KEY)
    state.uploads.append(Upload(tenant, KEYS[:2], name="t/" + name_of(KEYS[:2])))
    state.closed(tenant, KEYS[2:], 0.0)
    assert state.unnoted == [(tenant, "t/" + name_of(KEYS[:2]))] and len(state.uploads) == 1


def test_what_the_listing_finds_is_not_sent_and_a_delete_reaches_every_object() -> None:
    """A session closes before the listing; two objects have the same chunk."""
    state, tenant = State(9, 4, 3), Tenant(0, "t/", KEY)
    first, third = "t/" + name_of(KEYS[:2]), "t/" + name_of(KEYS[1:3])
    state.closed(tenant, KEYS, 0.0)
    state.listed(tenant, [first, third], set())
    assert [one.keys for one in state.uploads] == [KEYS[3:]]
    assert tenant.has(first) and tenant.has(third)
    state.deleting(tenant, KEYS[:1])
    assert tenant.known == dict.fromkeys(KEYS[1:3], third) and not tenant.others
    state.listed(tenant, [first, third], set())  # no journal has it yet
    assert not tenant.has(first)
    tenant.add(KEYS[1], first)
    state.deleting(tenant, KEYS[1:2])
    alone = "t/" + name_of(KEYS[:1])  # stays until two listings agree
    assert {name for _, name in state.unnoted} == {first, third, alone} and tenant.known == {}


def test_a_purge_is_noted_while_the_server_is_away(bed: Bed) -> None:
    """The chunks that a purge deletes leave the tables and enter the journal before it is
    acknowledged."""
    bed.bucket.names_ = {"t/" + name_of(KEYS[:2]): b"", "t/" + name_of(KEYS[2:]): b""}
    bed.start()
    bed.settled()
    bed.bucket.away = True
    bed.workers._until_s = time.monotonic() + 3600
    bed.store.there[KEYS[0]] = 0
    with bed.state.lock:
        bed.state.sweeps.append(bed.tenant)
        assert not bed.workers.noted(bed.tenant)
    bed.until(lambda: bed.workers.noted(bed.tenant))
    assert Journal(bed.folder / "j").names == {"t/" + name_of(KEYS[:2])}
    assert set(bed.tenant.known) == set(KEYS[2:])


def _purging(bed: Bed, chunks: list[int], more: list[int]) -> ArchivedDevice:
    """Return a device over the bed's state and workers. Its store deletes this many chunks with
    each call."""

    def purge(tenant: int, keep_blocks: int, again: bool) -> dict[str, int]:
        return {
            "chunks": chunks.pop(0) if chunks else 0,
            "more": more.pop(0) if more else 0,
            "marking": 0,
        }

    device = ArchivedDevice.__new__(ArchivedDevice)
    device._device = SimpleNamespace(tenant_purge=purge)
    device._tenants, device.state, device.workers = [bed.tenant], bed.state, bed.workers
    return device


@pytest.mark.parametrize(
    ("chunks", "more", "looks"),
    [([], [], 1), ([1], [], 1), ([5, 1], [1], 1), ([5, 0], [1], 1), ([1, 0, 1], [], 2)],
)
def test_a_purge_that_is_asked_again_ends(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, chunks: list[int], more: list[int], looks: int
) -> None:
    """The store is slow to scan, and the operator repeats the purge until nothing is left. The
    store is scanned once all that it deletes is gone, again if it deleted more meanwhile, and that
    ends."""
    bed.bucket.names_ = {"t/" + name_of([KEYS[0]]): b"", "t/" + name_of([KEYS[1]]): b""}
    bed.start()
    bed.settled()
    bed.store.there[KEYS[0]] = 0
    seen: list[list[int]] = []
    real = bed.store.look

    def look(tenant: int, keys: Sequence[bytes]) -> tuple[list[int], int]:
        seen.append(list(chunks))
        time.sleep(0.05)
        return real(tenant, keys)

    monkeypatch.setattr(bed.store, "look", look)
    device = _purging(bed, chunks, more)
    answer = device.tenant_purge(0, 7)
    until_s = time.monotonic() + WAIT_S
    while answer["more"] or answer["marking"]:
        assert time.monotonic() < until_s
        time.sleep(0.0 if answer["more"] else 0.01)
        answer = device.tenant_purge(0, 7, again=True)
    assert len(seen) == looks
    assert set(bed.tenant.known) == {KEYS[1]}


def test_a_purge_of_all_ends_before_the_listing(bed: Bed) -> None:
    """While nothing is known of the bucket, the purge ends and marks nothing when it is
    repeated."""
    bed.bucket.away = True
    bed.start()
    device = _purging(bed, [], [])
    assert device.tenant_purge(0, 0)["marking"]
    for _ in range(3):
        bed.until(lambda: bed.workers.noted(bed.tenant))
        assert not device.tenant_purge(0, 0, again=True)["marking"]


def test_an_upload_becomes_whole_and_never_less(bed: Bed) -> None:
    """The store cannot be read at first, then has one layer, all, two: the bucket has one, all,
    all."""

    def layers() -> int:
        _, blocks = unpack(SHAPE, KEY, name_of(KEYS), bed.bucket.names_[ALL])
        return len(blocks) // len(KEYS)

    bed.start()
    bed.settled()
    bed.store.rcs = [-errno.EIO]
    for there, has in ((1, 1), (3, 3), (2, 3)):
        bed.store.there = dict.fromkeys(KEYS, there)
        bed.state.closed(bed.tenant, KEYS, 0.0)
        bed.settled()
        assert layers() == has
    assert bed.tenant.counts["errors"] == 1 and bed.tenant.counts["dropped"] == 0


def test_two_answers_that_end_at_once_and_deleted_something() -> None:
    """Each is sent once, though the answer to a delete takes a turn of its own."""

    def look(*_: object) -> None:
        raise OffstageError("no reactor")

    device: Any = SimpleNamespace(wanted=[], look=look, wiped=lambda *_: (True, 1, 0))
    config: Any = SimpleNamespace(
        storage=SimpleNamespace(io_timeout_ns=10**9), archive=SimpleNamespace(wait_ns=10**12)
    )
    sent: list[bytes] = []
    log: Any = None
    held = Returns(config, device, lambda route, _: sent.append(route), log)
    coming = Return(Tenant(0, "t/", KEY), ALL)
    appended = p.Appended(id=1, keys=[], store_keys=[], stored_layers=[])
    for route in (b"a", b"b"):
        device.wanted = [Wanted(coming.tenant, KEYS, [coming])]
        held.answer(0, route, appended)
    held.turn()
    assert sent == []
    coming.ended = True
    held.turn()
    held.turn()
    assert sorted(sent) == [b"a", b"b"]


@pytest.mark.parametrize("stuck", [0, 3])
def test_a_journal_of_what_has_gone_stays_short(tmp_path: Path, stuck: int) -> None:
    """Deletes come and go endlessly, and some that the server refuses stay: the file is bounded,
    and after a start it holds those and no others."""
    file, names = tmp_path / "j", [f"{n:01000}" for n in range(500)]
    journal = Journal(file)
    stays = {f"stuck {n}" for n in range(stuck)}
    journal.add(stays)
    for _ in range(6):
        journal.add(names)
        for name in names:
            journal.done(name)
        assert file.stat().st_size < SIZE_BYTES_MAX + 2000
    journal.add(["a"])
    assert Journal(file).names == {"a"} | stays


def test_a_journal_that_cannot_be_begun_anew_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no new file can replace a journal that is too long, nothing is forgotten."""
    file, names = tmp_path / "j", [f"{n:01000}" for n in range(1500)]
    journal = Journal(file)
    journal.add(["stuck", *names])
    monkeypatch.setattr(Path, "replace", _refuse)
    for name in names:
        journal.done(name)
    journal.add(["a"])
    monkeypatch.undo()
    assert file.stat().st_size > SIZE_BYTES_MAX
    assert Journal(file).names == {"a", "stuck"}
