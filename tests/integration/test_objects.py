"""Whole objects over a live daemon: is every byte right, and every failure named correctly?"""

import random
import select
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon, until
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, OffstageError
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint

OTHER = "blue"
SIZES = (1, 700, PAYLOAD, PAYLOAD + 1, 3 * PAYLOAD, (LAYERS + 1) * PAYLOAD - 5, 40 * PAYLOAD + 9)
DONE, ABSENT, UNREADABLE = State.DONE, State.ABSENT, State.UNREADABLE


def where(tier: Daemon, **more: Any) -> Endpoint:
    settings = {"endpoint": tier.endpoint, "tenant": TENANT, "runtime_dir": str(tier.runtime_dir)}
    return Endpoint.of_engine(settings | {"timeout_s": 30.0, "patience_s": 60.0} | more)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("objects")
    with daemon(folder, (TENANT, OTHER), limits__sessions="32", arena__size="4MiB") as running:
        yield running


@pytest.fixture
def client(tier: Daemon) -> Iterator[ObjectClient]:
    with ObjectClient(where(tier)) as found:
        yield found


def bytes_of(seed: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def put(client: ObjectClient, key: bytes, data: NDArray[np.uint8]) -> State:
    return client.wait(client.put, [key], [data]).states[0]


def get(client: ObjectClient, key: bytes, size: int) -> tuple[State, NDArray[np.uint8]]:
    target = np.full(size, 0xAA, np.uint8)
    return client.wait(client.get, [key], [target]).states[0], target


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
@pytest.mark.parametrize("seed", range(3))
def test_objects_are_what_a_dict_would_hold(tier: Daemon, seed: int, fabric: str) -> None:
    """Two clients of a tenant put, replace, read and delete at random sizes; every read returns the
    last put, whole and of the requested size."""
    rng, model = random.Random(seed), dict[bytes, NDArray[np.uint8]]()
    over = where(tier, fabric=fabric)
    with ObjectClient(over) as one, ObjectClient(where(tier)) as other:
        for turn in range(60):
            client = rng.choice((one, other))
            key = b"%s/%d/%d" % (fabric.encode(), seed, rng.randrange(6))
            action, size = rng.random(), rng.choice(SIZES)
            if action < 0.4:
                model[key] = bytes_of(1000 * seed + turn, size)
                assert put(client, key, model[key]) is DONE
            elif action < 0.5:
                state = client.wait(client.delete, [key]).states[0]
                assert state is (DONE if model.pop(key, None) is not None else ABSENT)
            else:
                held = model.get(key)
                size = size if held is None or action < 0.6 else len(held)
                state, data = get(client, key, size)
                whole = held is not None and len(held) == size
                assert state is (ABSENT if held is None else DONE if whole else UNREADABLE), turn
                assert state is not DONE or np.array_equal(data, held)
                found = client.wait(client.exists, [key], [size]).states[0]
                assert found is state or (found is DONE and not whole)  # in one block: its size
                assert client.wait(client.exists, [key]).done == [held is not None]


def test_a_batch_ends_on_one_descriptor(client: ObjectClient) -> None:
    """Each of several concurrent batches is reported once, through one descriptor, which then
    blocks."""
    data = [bytes_of(i, 5 * PAYLOAD) for i in range(24)]
    keys = [b"batch/%d" % i for i in range(24)]
    tickets = {client.put(keys[i : i + 8], data[i : i + 8]) for i in range(0, 24, 8)}
    ended = []
    while len(ended) < 3:
        assert select.select([client.fd], [], [], 100.0)[0]
        ended += client.drain()
    assert {one.ticket for one in ended} == tickets and all(all(one.done) for one in ended)
    assert not select.select([client.fd], [], [], 0.0)[0] and not client.drain()
    targets = [np.zeros(5 * PAYLOAD, np.uint8) for _ in keys]
    assert all(client.wait(client.get, keys, targets).done)
    assert all(map(np.array_equal, targets, data))


def sent(client: ObjectClient, count: int) -> bool:
    return client._mover._link.fabric.stats()["puts"] >= count


def test_a_stream_is_there_when_it_is_committed(tier: Daemon, client: ObjectClient) -> None:
    """An object that is filled in steps is sent before it is complete, absent until the commit and
    whole afterwards. One that was dropped, or left open when the client closes, is absent."""
    sizes = (700, 4 * PAYLOAD, 12 * PAYLOAD + 9)
    data = [bytes_of(20 + size, size) for size in sizes]
    keys, kept, dropped = ([b"%s/%d" % (name, i) for i in range(3)] for name in (b"s", b"k", b"d"))
    for names, ends in ((keys, DONE), (kept, ABSENT), (dropped, ABSENT)):
        one = ObjectClient(where(tier))
        buffers, ended = [np.zeros(size, np.uint8) for size in sizes], []
        streams = [
            one.stream([name], [buffer], tell=ended.append)
            for name, buffer in zip(names, buffers, strict=True)
        ]
        for at in range(0, sizes[-1], 3 * PAYLOAD):
            for stream, buffer, source in zip(streams, buffers, data, strict=True):
                buffer[at : at + 3 * PAYLOAD] = source[at : at + 3 * PAYLOAD]
                stream.fill(min(at + 3 * PAYLOAD, len(source)))
            until(partial(sent, one, at // PAYLOAD))
            assert client.wait(client.exists, names).states == (ABSENT,) * 3
        for stream in streams if names is not kept else ():
            stream.commit() if names is keys else stream.drop()
        one.close()
        assert [completion.states for completion in ended] == [(ends,)] * 3
        for name, source in zip(names, data, strict=True):
            state, found = get(client, name, len(source))
            assert state is ends and (ends is ABSENT or np.array_equal(found, source))


def test_parts_land_in_order_and_lost_objects_are_named(client: ObjectClient) -> None:
    """Each part of a batch is reported once, in order, when it is in all buffers. An absent object,
    and one that is a byte short, are named."""
    size, data = 9 * PAYLOAD + 100, bytes_of(6, 9 * PAYLOAD + 100)
    for key in (b"p/0", b"p/2"):
        assert put(client, key, data) is DONE
    assert put(client, b"p/3", data[:-1]) is DONE
    cuts, told = [100, 2 * PAYLOAD, 2 * PAYLOAD, 7 * PAYLOAD + 5, size], []
    targets = [np.zeros(size, np.uint8) for _ in range(4)]

    def landed(part: int, lost: frozenset[int]) -> None:
        whole = all(np.array_equal(targets[i][: cuts[part]], data[: cuts[part]]) for i in (0, 2))
        told.append((part, sorted(lost), whole))

    keys = [b"p/%d" % i for i in range(4)]
    ended = client.wait(client.get, keys, targets, cuts=cuts, landed=landed)
    assert ended.states == (DONE, ABSENT, DONE, UNREADABLE)
    until(lambda: len(told) == len(cuts))
    assert [(part, whole) for part, _, whole in told] == [(part, True) for part in range(5)]
    assert told[0][1] == told[4][1] == [1, 3]


def test_how_the_tier_had_an_object_is_counted(tmp_path: Path) -> None:
    """Objects prefetched in time are counted as on time, others as missing."""
    with daemon(tmp_path, storage__size="64MiB") as cold:
        with ObjectClient(where(cold)) as writer:
            for number in range(60):  # more than the staging arena holds
                assert put(writer, b"%d" % number, bytes_of(number, 8 * PAYLOAD)) is DONE
        with ObjectClient(where(cold)) as client:
            sizes = [8 * PAYLOAD] * 4
            assert (
                client.wait(
                    client.prefetch,
                    [b"%d" % i for i in range(4)],
                    sizes,
                    due_s=0.05,
                    lease_s=600.0,
                    chance=0.9,
                ).states
                == (DONE,) * 4
            )

            def staged() -> bool:
                return all(get(client, b"%d" % i, sizes[0])[0] is DONE for i in range(4)) and bool(
                    client.counts().get("objects_on_time", 0) >= 4
                )

            until(staged)
            before = client.counts().get("objects_missing", 0)
            assert get(client, b"30", sizes[0])[0] is DONE
            assert client.counts()["objects_missing"] == before + 1


def test_a_key_of_another_tenant_reads_nothing(tier: Daemon) -> None:
    """The same key, model and layout under another tenant's secret find nothing."""
    data = bytes_of(1, 3 * PAYLOAD)
    with ObjectClient(where(tier)) as red, ObjectClient(where(tier, tenant=OTHER)) as blue:
        assert put(red, b"mine", data) is DONE
        state, target = get(blue, b"mine", len(data))
        assert state is ABSENT and (target == 0xAA).all()
        assert blue.wait(blue.delete, [b"mine"]).states == (ABSENT,)
        assert get(red, b"mine", len(data))[0] is DONE
        assert put(blue, b"mine", data[::-1].copy()) is DONE
        assert np.array_equal(get(red, b"mine", len(data))[1], data)


def test_a_model_of_another_layout_finds_nothing_and_says_so(
    tier: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed dtype or model under the same name logs one line, and misses."""
    data = bytes_of(2, 3 * PAYLOAD)
    with ObjectClient(where(tier), model="m", layout="bf16 16x64") as before:
        assert put(before, b"k", data) is DONE
    assert not caplog.records
    with ObjectClient(where(tier), model="m", layout="fp16 16x64") as after:
        assert [one.getMessage() for one in caplog.records] == [
            "objects of m were of the layout 'bf16 16x64' and are now of 'fp16 16x64': what is "
            "stored of the former is not used"
        ]
        assert get(after, b"k", len(data))[0] is ABSENT


def test_another_size_is_unreadable_and_one_line(
    client: ObjectClient, caplog: pytest.LogCaptureFixture
) -> None:
    """An object shorter or longer than requested is distinguished from an absent one, and logged
    once."""
    assert put(client, b"sized", bytes_of(3, 4 * PAYLOAD)) is DONE
    for size in (4 * PAYLOAD - 1, 3 * PAYLOAD, 5 * PAYLOAD, 4 * PAYLOAD + 1):
        assert get(client, b"sized", size)[0] is UNREADABLE
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == 1 and "the engine computes it" in lines[0]
    assert get(client, b"none", PAYLOAD)[0] is ABSENT


def test_a_lease_is_no_protection_from_a_delete(tier: Daemon) -> None:
    """An object that one client leases, and another deletes, is absent for both, and a new one
    under its key is the new one for both."""
    data, size = bytes_of(4, 6 * PAYLOAD), 6 * PAYLOAD
    with ObjectClient(where(tier)) as one, ObjectClient(where(tier)) as other:
        assert put(one, b"held", data) is DONE
        assert one.wait(one.prefetch, [b"held"], [size], lease_s=600.0).states == (DONE,)
        assert one._mover._link.values.held == 1 and one.counts()["look_done"] == 1
        assert other.wait(other.delete, [b"held"]).states == (DONE,)
        assert [get(client, b"held", size)[0] for client in (one, other)] == [ABSENT] * 2
        assert put(other, b"held", data[::-1].copy()) is DONE
        for client in (one, other):
            assert np.array_equal(get(client, b"held", size)[1], data[::-1])


PUTTER = """
import sys, numpy as np
from pathlib import Path
from offstage.host.connectors.objects import ObjectClient
from offstage.host.endpoint import Endpoint
with ObjectClient(Endpoint(sys.argv[1], sys.argv[2], runtime_dir=Path(sys.argv[3]))) as client:
    data = np.random.default_rng(5).integers(0, 256, 99_999, np.uint8)
    print(client.wait(client.put, [b"theirs"], [data]).states[0].value)
"""


def test_processes_share_a_daemon(tier: Daemon, client: ObjectClient) -> None:
    """One process reads what another put."""
    run = subprocess.run(
        [sys.executable, "-c", PUTTER, tier.endpoint, TENANT, str(tier.runtime_dir)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert run.stdout.strip() == "done"
    state, data = get(client, b"theirs", 99_999)
    assert state is DONE and np.array_equal(data, bytes_of(5, 99_999))


def test_settings_that_are_none_are_refused(tier: Daemon) -> None:
    """A connector reports a wrong setting, tenant or address at its start."""
    with pytest.raises(BadInput, match="unknown setting 'endpont'"):
        Endpoint.of_engine({"endpont": "tcp://x"})
    with pytest.raises(BadInput, match="write it as text"):
        Endpoint.of_engine({"endpoint": 7})
    with pytest.raises(BadInput, match="'sim' does not carry objects"):
        ObjectClient(where(tier, fabric="sim"))
    with pytest.raises(OffstageError):
        ObjectClient(where(tier, endpoint="tcp://127.0.0.1:9", timeout_s=0.5))


def test_a_full_store_makes_room(tmp_path: Path) -> None:
    """With more objects than the store holds, none is refused, the last one is there, and every
    other is whole or absent."""
    with daemon(tmp_path, storage__size="4MiB") as small, ObjectClient(where(small)) as client:
        size, count = 19 * PAYLOAD, 80  # 20 blocks
        for number in range(count):
            assert put(client, b"%d" % number, bytes_of(number, size)) is DONE
        found = []
        for number in range(count):
            state, data = get(client, b"%d" % number, size)
            assert state in (DONE, ABSENT)
            assert state is ABSENT or np.array_equal(data, bytes_of(number, size))
            found.append(state is DONE)
        assert found[-1] and 5 < sum(found) < count


def test_leases_give_way(tier: Daemon) -> None:
    """If every session of a client is a lease, a large batch is done all the same; half of the
    leases stay, and every object is still there."""
    count, size = 16, 2 * PAYLOAD
    keys = [b"way%d" % i for i in range(count)]
    with ObjectClient(where(tier)) as client:
        for key in keys:
            assert put(client, key, bytes_of(len(key), size)) is DONE
        link = client._mover._link
        assert count == link.sessions_max
        leased = client.wait(client.exists, keys, [size] * count, lease_s=600.0)
        assert leased.states == (DONE,) * count
        until(lambda: link.values.held >= count // 2)
        others = [b"other%d" % i for i in range(3 * count)]
        buffers = [bytes_of(i, size) for i in range(3 * count)]
        assert client.wait(client.put, others, buffers).states == (DONE,) * len(others)
        assert link.values.held >= count // 2
        for key in keys:
            assert get(client, key, size)[0] is DONE
        client.release(keys)
        until(lambda: link.values.held == 0)


def test_a_client_may_lease_half_of_all_sessions(tmp_path: Path) -> None:
    """An engine that looks up a long prompt's objects before it loads the first leases them all."""
    keys = [b"%d" % i for i in range(100)]
    with daemon(tmp_path, limits__sessions="256") as wide, ObjectClient(where(wide)) as client:
        assert client.wait(client.put, keys, [bytes_of(1, 700)] * 100).states == (DONE,) * 100
        assert client.wait(client.exists, keys, lease_s=600.0).states == (DONE,) * 100
        assert client._mover._link.values.held == 100


def test_what_cannot_be_leased_is_looked_up(tmp_path: Path) -> None:
    """If leases of others have all sessions of the daemon, a lookup ends without a lease."""
    keys, size = [b"1", b"2"], 2 * PAYLOAD
    with (
        daemon(tmp_path, limits__sessions="4") as few,
        ObjectClient(where(few)) as one,
        ObjectClient(where(few)) as other,
        ObjectClient(where(few)) as third,
    ):
        assert one.wait(one.put, keys, [bytes_of(1, size)] * 2).states == (DONE,) * 2
        for client in (one, other, third):
            leased = client.wait(client.exists, keys, [size, size + 1], lease_s=600.0)
            assert leased.states == (DONE, UNREADABLE)
            assert client.wait(client.exists, keys, lease_s=600.0).states == (DONE,) * 2
        assert third._mover._link.values.held == 0


def test_what_is_leased_keeps_its_room(tmp_path: Path) -> None:
    """A leased object fills half of the store. One of the same size is refused, with the fix, and
    the first stays intact; once the lease is released, it is accepted."""
    with daemon(tmp_path, storage__size="4MiB") as small, ObjectClient(where(small)) as client:
        size = 220 * PAYLOAD
        assert put(client, b"one", bytes_of(1, size)) is DONE
        lease = client.wait(client.exists, [b"one"], [size], lease_s=3600.0)
        assert lease.states == (DONE,)
        ended = client.wait(client.put, [b"two"], [bytes_of(2, size)])
        assert ended.states == (State.REFUSED,) and "raise storage.size" in ended.reasons[0]
        state, data = get(client, b"one", size)
        assert state is DONE and np.array_equal(data, bytes_of(1, size))
        assert get(client, b"two", size)[0] is ABSENT
        client.release([b"one"])
        assert put(client, b"two", bytes_of(2, size)) is DONE


def test_an_expired_object_is_replaced_where_it_is_still_staged(tmp_path: Path) -> None:
    """A read returns the last put, not the copy that the arena still has under that name."""
    size = 5 * PAYLOAD
    with daemon(tmp_path, store__ttl="1s") as brief, ObjectClient(where(brief)) as client:
        assert put(client, b"k", bytes_of(1, size)) is DONE
        get(client, b"k", size)
        until(lambda: not client.wait(client.exists, [b"k"]).done[0])
        for seed in (2, 3):
            assert put(client, b"k", bytes_of(seed, size)) is DONE
            state, data = get(client, b"k", size)
            assert state is not DONE or np.array_equal(data, bytes_of(seed, size))


def test_no_task_is_under_way_when_an_engine_learns_of_a_failure(tier: Daemon) -> None:
    """If the mover fails, a read ends as AWAY when nothing can be written into its buffer."""
    with ObjectClient(where(tier)) as client:
        assert put(client, b"k", bytes_of(1, PAYLOAD)) is DONE
        values, told = client._mover._link.values, list[Any]()

        def fail(timeout_s: float) -> Any:
            until(lambda: bool(client._mover._live))
            raise ValueError(timeout_s)

        values.serve = fail  # type: ignore[method-assign]
        values.wake()
        client.get(
            [b"k"],
            [np.zeros(PAYLOAD, np.uint8)],
            tell=lambda ended: told.append((ended.states, values.closed)),
        )
        until(lambda: bool(told))
        assert told == [((State.AWAY,), True)]


def test_a_daemon_that_is_killed_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every put ends when the daemon is killed, the same client finds all acknowledged objects
    whole after the restart, and a block damaged meanwhile is reported as unreadable."""
    address, size, keys = f"ipc://{tmp_path}/d", 9 * PAYLOAD, [b"%d" % i for i in range(64)]
    data = {key: bytes_of(100 + i, size) for i, key in enumerate(keys)}
    with daemon(tmp_path, daemon__endpoint=address) as first:
        client = ObjectClient(where(first, timeout_s=5.0))
        states = dict(
            zip(
                keys[:8],
                client.wait(client.put, keys[:8], [data[k] for k in keys[:8]]).states,
                strict=True,
            )
        )
        # What is written last is checked at a start, after which keys[3] would be ABSENT.
        more = [b"more%d" % i for i in range(64)]
        assert client.wait(client.put, more, [data[keys[0]] for _ in more]).states == (DONE,) * 64
        for key in keys[8:]:
            client.put([key], [data[key]])
        first.process.kill()
        ended: list[State] = []
        while len(ended) < 56:
            assert select.select([client.fd], [], [], 100.0)[0]
            ended += [state for one in client.drain() for state in one.states]
        assert set(ended) <= {DONE, State.AWAY} and State.AWAY in ended
        assert get(client, keys[0], size)[0] is State.AWAY
        lines = [one.getMessage() for one in caplog.records]
        assert len([one for one in lines if "the tier is away" in one]) == 1
    rotten = data[keys[3]][5 * PAYLOAD : 6 * PAYLOAD].tobytes()
    image = bytearray((tmp_path / "store.ofs").read_bytes())
    image[image.index(rotten) + 17] ^= 4
    (tmp_path / "store.ofs").write_bytes(image)
    with daemon(tmp_path, daemon__endpoint=address):
        until(lambda: not client.away)  # though nobody asks for anything
        assert get(client, keys[0], size)[0] is DONE
        for key, before in states.items():
            state, found = get(client, key, size)
            assert before is DONE and state is (UNREADABLE if key == keys[3] else DONE)
            assert state is not DONE or np.array_equal(found, data[key])
        assert put(client, keys[3], data[keys[3]]) is DONE
        assert np.array_equal(get(client, keys[3], size)[1], data[keys[3]])
        client.close()
    assert any("the tier is back" in one.getMessage() for one in caplog.records)


def test_a_client_that_begins_before_its_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no daemon answers yet, all that a late client asks for is AWAY, until one does; each
    change is one line. A daemon that refuses is no reason to wait."""
    settings = {
        "endpoint": f"ipc://{tmp_path}/d",
        "tenant": TENANT,
        "runtime_dir": str(tmp_path / "run"),
        "timeout_s": 5.0,
    }
    place, data = Endpoint.of_engine(settings), bytes_of(1, 3 * PAYLOAD)
    target = np.zeros(data.size, np.uint8)
    with ObjectClient(place, model="m", layout="one", late=True) as early:
        assert put(early, b"key", data) is State.AWAY
        early.register(target)
        with daemon(tmp_path, daemon__endpoint=settings["endpoint"]):
            until(lambda: put(early, b"key", data) is DONE)
            assert early.wait(early.get, [b"key"], [target]).states == (DONE,)
            assert np.array_equal(target, data)
            with pytest.raises(BadInput, match=r"tenant|secret"):
                other = settings | {"tenant": "nobody", "timeout_s": 60.0}
                ObjectClient(Endpoint.of_engine(other), late=True)
            told = [one.getMessage() for one in caplog.records if "the tier is" in one.getMessage()]
    assert len(told) == 2 and "no daemon answers" in told[0] and "is back" in told[1]
