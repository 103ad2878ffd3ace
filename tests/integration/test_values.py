"""Are values under keys, over a live daemon, what a dict would hold: for two processes at once, and
after the daemon was killed?"""

import contextlib
import errno
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon
from smallest_fabric import SmallestFabric

import offstage
from offstage.bindings.errors import BadInput, OffstageError, StoreFull
from offstage.bindings.value_io import ValueTask
from offstage.host.endpoint import Endpoint
from offstage.host.values import Values

SIZES = (1, 700, PAYLOAD, PAYLOAD + 1, (LAYERS - 1) * PAYLOAD + 9, 5 * LAYERS * PAYLOAD + 7)
OTHER = "blue"


@contextlib.contextmanager
def values(tier: Daemon, tenant: str = TENANT, fabric: str = "shm") -> Iterator[Values]:
    if fabric == "shm":
        with offstage.values(tier.endpoint, tenant=tenant, runtime_dir=tier.runtime_dir) as found:
            yield found
        return
    control, opened = Endpoint(
        tier.endpoint, tenant, fabric, runtime_dir=tier.runtime_dir, timeout_s=30.0
    ).connect()
    try:
        yield Values(opened)
    finally:
        opened.close()
        control.close()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Daemon]:
    with daemon(folder, (TENANT, OTHER), limits__values="256", limits__sessions="16") as tier:
        yield tier


def longest(tier: Daemon, tenant: str) -> int:
    """What the daemon tells a process without a login."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(tier.runtime_dir / f"host-{(TENANT, OTHER).index(tenant)}.sock"))
        door.sendall(f"volume {'0' * 32}\n".encode())
        return int(door.recv(256).split()[1])


def key(number: int) -> bytes:
    return hashlib.blake2b(bytes([number]), digest_size=16).digest()


def data(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, SIZES[seed % len(SIZES)], np.uint8).tobytes()


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_values_are_what_a_dict_would_hold(tmp_path: Path, fabric: str) -> None:
    """Of two tenants, and after a kill: everything that was committed is there."""
    model: dict[tuple[str, int], int] = {}
    choice = random.Random(1)
    for _ in range(3):
        with (
            running(tmp_path) as tier,
            values(tier, fabric=fabric) as red,
            values(tier, OTHER, fabric) as blue,
        ):
            sides = {TENANT: red, OTHER: blue}
            for tenant, side in sides.items():
                found = side.lengths([key(number) for number in range(12)])
                held = [model.get((tenant, number)) for number in range(12)]
                assert found == [-1 if one is None else len(data(one)) for one in held]
            for step in range(60):
                at = (choice.choice([TENANT, OTHER]), choice.randrange(12))
                side, name = sides[at[0]], key(at[1])
                kind = choice.randrange(4)
                if kind == 0:
                    assert side.store(name, data(step)) and not side.store(name, b"x", keep=True)
                    model[at] = step
                elif kind == 1:
                    assert side.store(name, data(step), over=True) == (at in model)
                    model = {**model, at: step} if at in model else model
                elif kind == 2:
                    assert side.delete([name]) == [model.pop(at, None) is not None]
                else:
                    expected = data(model[at]) if at in model else None
                    assert side.retrieve(name) == expected
            tier.process.kill()


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(":")
from test_values import data, key, values
from types import SimpleNamespace
tier = SimpleNamespace(endpoint=sys.argv[2], runtime_dir=Path(sys.argv[3]))
with values(tier) as mine:
    for seed in range(150):
        mine.store(key(1), data(seed))
"""


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_keys_are_those_of_all_values_that_were_stored_with_one(
    tmp_path: Path, fabric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """List by list and from any start, also after a kill; a value without a key, as releases before
    lists stored it, serves, is left out and counted."""
    old, keys = b"old", {key(number)[: 1 + number % 16] for number in range(40)}
    monkeypatch.setattr("offstage.host.values.LIST_BYTES", 100)
    with running(tmp_path) as tier, values(tier, fabric=fabric) as mine:
        assert all(mine.store(name, data(number)) for number, name in enumerate(keys))
        before = np.frombuffer(b"before", np.uint8)
        assert mine._done([ValueTask("store", mine.name(old), before)])[0].rc == 0
        order = list(mine.keys())
        assert sorted(order) == sorted(keys) and mine.retrieve(old) == b"before"
        assert list(mine.keys(order[7])) == order[7:]
        assert mine.delete([order[7]]) == [True] and list(mine.keys(order[7])) == order[8:]
        tier.process.kill()
    with running(tmp_path) as tier, values(tier, fabric=fabric) as mine:
        assert list(mine.keys()) == order[:7] + order[8:] and mine.retrieve(old) == b"before"
        told = [json.loads(line) for line in tier.log.read_text().splitlines()]
        assert [one["count"] for one in told if one["event"] == "values_unnamed"] == [1]
        assert mine.store(old, b"anew") and old in mine.keys()


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_a_reader_beside_a_writer_gets_one_store_whole(tmp_path: Path, fabric: str) -> None:
    """A second process replaces a value 150 times; what is read meanwhile is one of its values."""
    stores = {data(seed) for seed in range(150)}
    with running(tmp_path) as tier, values(tier, fabric=fabric) as mine:
        assert mine.store(key(1), data(0))
        place = ":".join([str(Path(__file__).parent), *filter(None, sys.path)])
        words = [sys.executable, "-c", WRITER, place, tier.endpoint, str(tier.runtime_dir)]
        with subprocess.Popen(words, env=os.environ) as writer:
            seen = set()
            while writer.poll() is None:
                found = mine.retrieve(key(1))
                assert found in stores
                seen.add(found)
        assert writer.returncode == 0 and len(seen) > 3
        assert mine.retrieve(key(1)) == data(149)


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_a_tenant_leaves_the_other_its_sessions(tmp_path: Path, fabric: str) -> None:
    """Whoever leaves every session open that the daemon gives it: the other tenant has its part of
    `limits.sessions`, and what is left open counts as any session does."""
    with running(tmp_path) as tier, values(tier) as red, values(tier, OTHER) as blue:
        assert red.store(key(1), data(0)) and blue.store(key(1), data(1))
        control, opened = Endpoint(
            tier.endpoint, TENANT, fabric, runtime_dir=tier.runtime_dir
        ).connect()
        holder = opened.value_io(64, 10.0)
        holds = [ValueTask("retrieve", red.name(key(1)), hold_s=600.0) for _ in range(16)]
        holder.submit(holds)
        while holder.count:
            holder.run(1.0)
        assert Counter(one.rc for one in holds) == {0: 8, -errno.EBUSY: 8} and holder.held == 8
        assert blue.retrieve(key(1)) == data(1) and blue.store(key(2), data(2))
        with control, opened, pytest.raises(OffstageError, match="its 8 sessions"):
            control.session_open(select_blocks=1)


def test_a_smaller_limit_costs_no_value(tmp_path: Path) -> None:
    """Values for which a restarted daemon has no room keep it from starting, unless the table takes
    them all the same; nothing is lost either way."""
    stored = {key(number): data(number) for number in range(20)}
    with running(tmp_path) as tier, values(tier) as mine:
        for name, value in stored.items():
            mine.store(name, value)
    for limit, small in (("context_tokens", "16"), ("values", "4")):
        with (
            pytest.raises(OffstageError, match=rf"limits\.{limit}: .*raise it") as error,
            daemon(tmp_path, (TENANT, OTHER), **{f"limits__{limit}": small}),
        ):
            pass
        assert "Traceback" not in str(error.value)
    few = daemon(tmp_path, (TENANT, OTHER), limits__chunks="16", limits__context_tokens="512")
    with few as tier, values(tier) as mine:
        assert 0 < mine.lengths(list(stored)).count(-1) < len(stored)
        assert '"event": "values_left_out"' in tier.log.read_text()
    with daemon(tmp_path, (TENANT, OTHER), limits__values="16") as tier, values(tier) as mine:
        with pytest.raises(StoreFull):
            mine.store(key(99), b"x")
        for name, value in stored.items():
            assert mine.retrieve(name) == value


def test_what_can_never_fit_costs_no_other_value(tmp_path: Path) -> None:
    """A value that is longer than the store or the tenant's quota is refused before others are
    deleted for it; the longest that is told fits."""
    own = {"limits__values": "64", "limits__context_tokens": "65536", "storage__size": "4MiB"}
    tenants = {TENANT: {}, OTHER: {"store_max": "1MiB"}}
    with (
        daemon(tmp_path, tenants, **own) as tier,
        values(tier) as mine,
        values(tier, OTHER) as quota,
    ):
        for volume in (mine, quota):
            volume.store(key(1), data(1))
            with pytest.raises(StoreFull):
                volume.store(key(2), bytes(5 << 20))
            assert volume.retrieve(key(1)) == data(1)
        for tenant, volume in ((OTHER, quota), (TENANT, mine)):
            volume.delete([key(1)])
            most = bytes(longest(tier, tenant))
            assert 0 < len(most) < 5 << 20
            assert volume.store(key(3), most) and volume.retrieve(key(3)) == most
            with pytest.raises(StoreFull):
                volume.store(key(2), most + b"x")
            volume.delete([key(3)])


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, fabric: str) -> None:
    """A fabric without commands on values, and a daemon without values, say so."""
    with running(tmp_path) as tier, values(tier, fabric=fabric) as mine:
        for wrong, says in (
            (lambda: mine.store(bytes(17), b"x"), "a key of 17 bytes"),
            (lambda: mine.lengths([b"k", b""]), "a key of 0 bytes"),
            (lambda: Values(mine._fabric, b"v"), "a volume of 1 bytes"),
            (lambda: mine.store(key(1), b""), "is empty"),
            (lambda: mine.store(key(1), bytes(129 * LAYERS * PAYLOAD)), "longer than a session"),
        ):
            with pytest.raises(BadInput, match=says) as error:
                wrong()
            assert "\n" not in str(error.value)
        with pytest.raises(BadInput, match="carries no values; use shm, verbs, nixl or zmq"):
            Values(SmallestFabric())
        assert mine.store(key(1), b"x") and mine.retrieve(key(1)) == b"x"
    without = daemon(tmp_path, (TENANT, OTHER), limits__values="0")
    with without as tier, values(tier, fabric=fabric) as none:
        with pytest.raises(OffstageError, match=r"limits\.values"):
            none.retrieve(key(1))
