"""LMCache on the tier: do its two interfaces store, find, verify and lose objects as expected?"""

import gc
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from live_daemon import PAYLOAD, Daemon, daemon, frozen, until
from lmcache_bed import params

from offstage.bindings.errors import BadInput
from offstage.host.connectors.lmcache import L2, NativeClient, client_of, key_of

FIX = "the environment of LMCache: OFFSTAGE_LMCACHE=its folder (docs/how-to/engines.md)"


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(
        tmp_path_factory.mktemp("lmcache"),
        limits__sessions="64",
        arena__size="4MiB",
        storage__size="64MiB",
    ) as running:
        yield running


def ready(fd: int) -> None:
    assert select.select([fd], [], [], 100.0)[0], "nothing ended"


class Bits(set[int]):
    """Stands in for LMCache's Bitmap."""

    def __init__(self, count: int) -> None:
        self.count = count

    def set(self, index: int) -> None:
        self.add(index)


class Interface:
    """Stands in for LMCache's L2AdapterInterface, and records its arguments."""

    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self.told: list[tuple[Any, ...]] = []

    def _notify_keys_stored(self, *told: Any) -> None:
        self.told.append(("stored", *told))

    def _notify_keys_accessed(self, *told: Any) -> None:
        self.told.append(("accessed", *told))

    def _notify_keys_deleted(self, *told: Any) -> None:
        self.told.append(("deleted", *told))


class Adapter(L2, Interface):
    """Made like OffstageL2, but over the stand-ins."""

    store_result = staticmethod(lambda done, size: (done, size))
    bitmap = Bits


def key(number: int, salt: str = "") -> Any:
    fields = (bytes([number]) * 16, "m/8b", 3, 1, salt)
    names = ("chunk_hash", "model_name", "kv_rank", "object_group_id", "cache_salt")
    return SimpleNamespace(**dict(zip(names, fields, strict=True)))


def memory(size: int, fill: int) -> Any:
    return SimpleNamespace(byte_array=memoryview(bytearray([fill]) * size))


def test_the_adapter_stores_looks_up_loads_and_deletes(tier: Daemon) -> None:
    """Each task ends once, on its own descriptor, with the bits of the objects that are there; a
    load of another size is a miss."""
    adapter, size = Adapter(params(tier)), 6 * PAYLOAD
    fds = (
        adapter.get_store_event_fd(),
        adapter.get_lookup_and_lock_event_fd(),
        adapter.get_load_event_fd(),
    )
    assert len(set(fds)) == 3
    keys = [SimpleHash(key(n)) for n in range(4)]
    task = adapter.submit_store_task(keys[:3], [memory(size, n) for n in range(3)])
    ready(fds[0])
    assert adapter.pop_completed_store_tasks() == {task: (True, 3 * size)}
    assert adapter.pop_completed_store_tasks() == {}
    task = adapter.submit_lookup_and_lock_task(keys, {1: "a layout of KV before it is coded"})
    ready(fds[1])
    assert adapter.query_lookup_and_lock_result(task) == {0, 1, 2}
    assert adapter.query_lookup_and_lock_result(task) is None
    for more, found in ((-PAYLOAD, set()), (0, {0, 1, 2})):
        targets = [memory(size + more, 99) for _ in keys]
        task = adapter.submit_load_task(keys, targets)
        ready(fds[2])
        os.eventfd_read(fds[2])
        assert adapter.query_load_result(task) == found
    for number, target in enumerate(targets[:3]):
        assert bytes(target.byte_array) == bytes([number]) * size
    adapter.submit_unlock(keys)
    adapter.delete(keys[:1])
    assert [one[0] for one in adapter.told] == ["stored", "accessed", "deleted"]
    assert adapter.told[2][2] == [size] and adapter.report_status()["is_healthy"]
    adapter.close()
    adapter.close()


def test_what_is_there_is_leased_without_a_layout(tier: Daemon) -> None:
    """A lookup without sizes leases what it finds, whichever adapter stored it."""
    adapter, own = Adapter(params(tier)), SimpleHash(key(20))
    for number in (20, 21):  # another adapter stores the second
        stores = adapter if number == 20 else Adapter(params(tier))
        stores.submit_store_task([SimpleHash(key(number))], [memory(2 * PAYLOAD, number)])
        ready(stores.get_store_event_fd())
        if stores is not adapter:
            stores.close()
    task = adapter.submit_lookup_and_lock_task([own, SimpleHash(key(21)), SimpleHash(key(22))], {})
    ready(adapter.get_lookup_and_lock_event_fd())
    assert adapter.query_lookup_and_lock_result(task) == {0, 1}
    values = adapter._client._mover._link.values
    assert values.held == 2
    adapter.submit_unlock([own, SimpleHash(key(21))])
    until(lambda: values.held == 0)
    adapter.close()


def test_what_another_adapter_deletes_is_a_miss_though_it_is_locked(tier: Daemon) -> None:
    """A load of an object that another adapter deletes between lookup and load is a miss, whose
    memory stays; the lock ends as any other."""
    adapter, other = Adapter(params(tier)), Adapter(params(tier))
    keys, size = [SimpleHash(key(n)) for n in (23, 24)], 2 * PAYLOAD
    adapter.submit_store_task(keys, [memory(size, n) for n in (23, 24)])
    ready(adapter.get_store_event_fd())
    look = adapter.submit_lookup_and_lock_task(keys, {})
    ready(adapter.get_lookup_and_lock_event_fd())
    assert adapter.query_lookup_and_lock_result(look) == {0, 1}
    other.delete(keys[:1])
    targets = [memory(size, 7) for _ in keys]
    load = adapter.submit_load_task(keys, targets)
    ready(adapter.get_load_event_fd())
    assert adapter.query_load_result(load) == {1}
    assert [bytes(one.byte_array) for one in targets] == [bytes([n]) * size for n in (7, 24)]
    adapter.submit_unlock(keys)
    until(lambda: adapter._client._mover._link.values.held == 0)
    for one in (adapter, other):
        one.close()


def test_a_frozen_daemon_holds_neither_interface_up(tier: Daemon) -> None:
    """While the daemon is frozen, lookups and loads end as misses at their bound and are counted;
    all of it is there again once the daemon resumes."""
    settings, size = params(tier) | {"timeout_s": 60.0, "patience_s": 0.3}, 4 * PAYLOAD
    adapter, native = Adapter(settings), NativeClient(**settings)
    keys, names = [SimpleHash(key(n)) for n in (30, 31)], ["m@1@2@30@", "m@1@2@31@"]
    adapter.submit_store_task(keys, [memory(size, n) for n in (30, 31)])
    native.submit_batch_set(names, [memoryview(bytes([n]) * size) for n in (30, 31)])
    ready(adapter.get_store_event_fd())
    ready(native.event_fd())
    assert native.drain_completions()[0][3] == [True] * 2
    targets = [memory(size, 1) for _ in keys]
    views = [memoryview(bytearray(size)) for _ in names]

    def found() -> list[Any]:
        fds = adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()
        look, load = (
            adapter.submit_lookup_and_lock_task(keys, {}),
            native.submit_batch_exists(names),
        )
        ready(fds[0])
        os.eventfd_read(fds[0])
        bits = [adapter.query_lookup_and_lock_result(look)]
        look = adapter.submit_load_task(keys, targets)
        ready(fds[1])
        os.eventfd_read(fds[1])
        bits.append(adapter.query_load_result(look))
        tickets = {load, native.submit_batch_get(names, views)}
        ended: list[Any] = []
        while len(ended) < len(tickets):
            ready(native.event_fd())
            ended += native.drain_completions()
        return bits + [one[3] for one in ended]

    with frozen(tier):
        assert found() == [set(), set(), [False] * 2, [False] * 2]
        status = adapter.report_status()
        assert status["look_late"] == status["get_late"] == 2 and status["is_healthy"]
    until(lambda: found() == [{0, 1}, {0, 1}, [True] * 2, [True] * 2])
    assert [bytes(one.byte_array) for one in targets] == [bytes([n]) * size for n in (30, 31)]
    assert [bytes(one) for one in views] == [bytes([n]) * size for n in (30, 31)]
    native.close()
    adapter.close()


def test_objects_are_kept_until_they_are_moved(tier: Daemon) -> None:
    """LMCache's `byte_array` does not own its memory, so the owner is kept alive until a task has
    ended."""
    adapter, gone = Adapter(params(tier)), []
    for submit in (adapter.submit_store_task, adapter.submit_load_task):
        alive = Alive(3 * PAYLOAD, gone)
        keys = [SimpleHash(key(9))]
        with frozen(tier):  # nothing ends meanwhile
            submit(keys, [alive])
            del alive
            gc.collect()
            assert not gone
        fd = (
            adapter.get_store_event_fd()
            if "store" in submit.__name__
            else (adapter.get_load_event_fd())
        )
        ready(fd)
        until(lambda: gc.collect() >= 0 and bool(gone))
        gone.clear()
    adapter.close()


class Alive:
    """Memory that reports its deletion."""

    def __init__(self, size: int, gone: list[int]) -> None:
        self.byte_array, self._gone = memoryview(bytearray(size)), gone

    def __del__(self) -> None:
        self._gone.append(1)


class SimpleHash(SimpleNamespace):
    """A hashable key, like LMCache's frozen one."""

    def __init__(self, fields: Any) -> None:
        super().__init__(**vars(fields))

    def __hash__(self) -> int:
        return hash(key_of(self))


def of_files(tier: Daemon, folder: Path, fill: int) -> dict[str, Any]:
    """Return parameters of a model by its files, which are stamped later than any before."""
    time.sleep(0.02)
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(bytes([fill]) * 50)
    more = {"model": str(folder), "layout": "bf16"}
    return {name: one for name, one in params(tier).items() if name != "weights_id"} | more


def test_objects_are_of_the_models_files(tier: Daemon, tmp_path: Path) -> None:
    """Objects of a model are found, but not with another `layout` or after its weights changed
    under the same path. If they change under a running adapter, nothing is kept or found."""

    def found(adapter: Any, own: Any) -> bool:
        task = adapter.submit_lookup_and_lock_task([own], {})
        ready(adapter.get_lookup_and_lock_event_fd())
        os.eventfd_read(adapter.get_lookup_and_lock_event_fd())
        adapter.submit_unlock([own])
        return adapter.query_lookup_and_lock_result(task) == {0}

    def stored(adapter: Any, own: Any) -> bool:
        task = adapter.submit_store_task([own], [memory(PAYLOAD, 1)])
        ready(adapter.get_store_event_fd())
        os.eventfd_read(adapter.get_store_event_fd())
        return bool(adapter.pop_completed_store_tasks()[task][0])

    folder, own = tmp_path / "m", SimpleHash(key(40))
    own.model_name = str(folder)
    first = Adapter(of_files(tier, folder, 1))
    assert stored(first, own) and found(first, own)
    assert not stored(first, SimpleHash(key(41))), "of another model"
    again = of_files(tier, folder, 1)
    assert not found(first, own) and not stored(first, own), "the file is another one"
    seen = {}
    for name, more in {"same": again, "layout": again | {"layout": "fp8"}}.items():
        adapter = Adapter(more)
        seen[name] = found(adapter, own)
        adapter.close()
    changed = Adapter(of_files(tier, folder, 2))
    native = NativeClient(**of_files(tier, folder, 2))
    native.submit_batch_set([f"{folder}@1"], [memoryview(b"x")])
    ready(native.event_fd())
    [(_, _, _, kept)] = native.drain_completions()
    native.submit_batch_set(["other@1"], [memoryview(b"x")])
    ready(native.event_fd())
    [(_, _, _, other)] = native.drain_completions()
    assert (kept, other) == ([True], [False])
    assert seen == {"same": True, "layout": False} and not found(changed, own)
    for one in (first, changed, native):
        one.close()


def test_what_kv_is_of_has_to_be_said(tier: Daemon) -> None:
    """An adapter without files or `weights_id`, or without `layout`, is refused."""
    for name, more in {"weights_id": {"model": "org/nowhere"}, "layout": {}}.items():
        given = {one: value for one, value in params(tier).items() if one != name}
        with pytest.raises(BadInput, match=name):
            client_of(given | more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("weights_id", "model", "layout")
            for value in (None, 0, ["m"])
        ],
        *[("max_capacity_gb", value) for value in (None, "10", -1, True, float("nan"), 1e300)],
    ],
)
def test_a_setting_of_another_kind_is_refused_in_one_line(
    tier: Daemon, name: str, value: Any
) -> None:
    """A `null` made text would name all weights alike, and "10" GiB would be a text 10 GiB long:
    is each refused by its name?"""
    with pytest.raises(BadInput, match=f"{name} is ") as told:
        Adapter(params(tier) | {name: value})
    assert "\n" not in str(told.value)


def test_a_listener_that_fails_costs_no_object(tier: Daemon) -> None:
    """LMCache's listeners hear of objects on the client's thread. One raises: does its task end all
    the same, is the daemon kept, and does the next object move?"""

    class Failing(Adapter):
        def _notify_keys_stored(self, *told: Any) -> None:
            raise ValueError("not mine")

        _notify_keys_accessed = _notify_keys_stored

    adapter = Failing(params(tier))
    for number in (20, 21):
        one = SimpleHash(key(number))
        task = adapter.submit_store_task([one], [memory(3 * PAYLOAD, number)])
        ready(adapter.get_store_event_fd())
        os.eventfd_read(adapter.get_store_event_fd())
        assert adapter.pop_completed_store_tasks() == {task: (True, 3 * PAYLOAD)}
        found = memory(3 * PAYLOAD, 0)
        task = adapter.submit_load_task([one], [found])
        ready(adapter.get_load_event_fd())
        os.eventfd_read(adapter.get_load_event_fd())
        assert adapter.query_load_result(task) == {0} and set(found.byte_array) == {number}
    assert "put_away" not in adapter.report_status() and adapter.report_status()["is_healthy"]
    adapter.close()
    assert adapter.submit_load_task([key(20)], [memory(3 * PAYLOAD, 0)]) > task  # and nothing waits
    adapter.delete([key(20)])
    assert not adapter.report_status()["is_healthy"]


def test_keys_that_differ_anywhere_are_other_objects() -> None:
    """Model, rank, group, hash and salt all count, also where texts run together."""
    keys = {key_of(key(1)), key_of(key(2)), key_of(key(1, "a")), key_of(key(1, "b"))}
    other = key(1)
    other.kv_rank = 4
    assert len(keys | {key_of(other)}) == 5


def test_what_the_native_client_finds_is_leased_until_it_is_read(tier: Daemon) -> None:
    """A lookup leases objects, whoever stored them, until they are read, replaced or deleted
    here."""
    client, other = NativeClient(**params(tier)), NativeClient(**params(tier))
    values = client._client._mover._link.values
    data, target = memoryview(np.random.default_rng(9).bytes(2 * PAYLOAD)), bytearray(2 * PAYLOAD)

    def end(ticket: int) -> list[bool]:
        ready(client.event_fd())
        [(number, _, _, each)] = client.drain_completions()
        assert number == ticket
        return each

    ends = {
        "got": lambda: client.submit_batch_get(["n"], [memoryview(target)]),
        "replaced": lambda: client.submit_batch_set(["n"], [memoryview(bytes(700))]),
        "deleted": lambda: client.submit_batch_delete(["n"]),
    }
    for how, ending in ends.items():
        other.submit_batch_set(["n"], [data])
        ready(other.event_fd())
        assert other.drain_completions()[0][3] == [True]
        assert end(client.submit_batch_exists(["n"])) == [True]
        assert values.held == 1, how
        assert end(ending()) == [True], how
        until(lambda: values.held == 0)
    assert target == data
    other.close()
    client.close()


def test_the_native_client_ends_batches_on_one_descriptor(tier: Daemon) -> None:
    """Set, exists, get and delete end with the result of each object."""
    client, size = NativeClient(**params(tier)), 3 * PAYLOAD + 7

    def end(ticket: int) -> tuple[bool, list[bool]]:
        ready(client.event_fd())
        [(number, ok, error, each)] = client.drain_completions()
        assert number == ticket and not error
        return ok, each

    data = [memoryview(np.random.default_rng(n).bytes(size)) for n in range(3)]
    assert end(client.submit_batch_set(["a", "b", "c"], data)) == (True, [True] * 3)
    assert end(client.submit_batch_exists(["a", "x", "c"])) == (True, [True, False, True])
    views = [memoryview(bytearray(size)) for _ in range(3)]
    assert end(client.submit_batch_get(["a", "b", "x"], views)) == (True, [True, True, False])
    assert views[0] == data[0] and views[1] == data[1]
    assert end(client.submit_batch_delete(["a", "x"])) == (True, [True, False])
    assert end(client.submit_batch_exists(["a"])) == (True, [False])
    client.close()
