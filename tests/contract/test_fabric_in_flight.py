"""Does each of several calls in flight end with its own result, on every fabric?"""

import errno
from typing import Any

import numpy as np
import pytest
from fabric_sides import LAYER, PAYLOAD, Host
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import PutRequest


def test_several_in_flight_end_each_with_its_own(host: Host) -> None:
    """Eight fetches begun together and ended in reverse return the same as one by one."""
    assert not host.put(range(64)).any()
    begun = [(list(range(n, 64, 8)), *host.begin(list(range(n, 64, 8)))) for n in range(8)]
    for ordinals, fetch, target in reversed(begun):
        done = host.fabric.fetch_end(fetch)
        assert not done.rcs.any() and done.failed_count == 0
        assert np.array_equal(target, host.source[ordinals])
    assert host.fabric.stats()["fetches"] == 8


def test_poll_tells_each_once(host: Host) -> None:
    """Polling alone ends fetches, a put and a failing fetch, and reports each once."""
    assert not host.put(range(16)).any()
    wanted, source = np.arange(16, 24, dtype=np.uint32), host.source[16:24]
    calls: list[Any] = [host.begin([1, 2, 3])[0], host.begin([4, 90])[0], host.begin([])[0]]
    calls.append(host.fabric.put_begin(PutRequest(host.session.number, LAYER, wanted, source)))
    reported: list[Any] = []
    while len(reported) < 4:
        reported += host.fabric.poll(1_000_000 if len(reported) % 2 else 0)
    assert sorted(map(id, reported)) == sorted(map(id, calls))
    assert not host.fabric.fetch_end(calls[0]).rcs.any()
    assert host.fabric.fetch_end(calls[1]).rcs.tolist() == [0, -errno.ENOENT]
    assert len(host.fabric.fetch_end(calls[2]).rcs) == 0
    assert not host.fabric.put_end(calls[3]).any()
    assert host.fabric.poll() == []
    assert not host.fetch(list(range(16, 24)))[0].rcs.any()


def test_more_calls_than_there_may_be_are_told(host: Host) -> None:
    assert not host.put(range(1)).any()
    begun = [host.begin([0]) for _ in range(host.fabric.calls_max)]
    with pytest.raises(RunFailed) as caught:
        host.begin([0])
    assert caught.value.errno == errno.EAGAIN and caught.value.fix
    for fetch, target in begun:
        assert not host.fabric.fetch_end(fetch).rcs.any()
        assert np.array_equal(target[0], host.source[0])


def test_a_deadline_ends_its_own_call_only(host: Host) -> None:
    """Stored blocks do not arrive with a deadline of zero; those of a concurrent call do."""
    assert not host.put(range(4)).any()
    hasty, _ = host.begin([0, 1], timeout_ns=0)
    patient, target = host.begin([2, 3])
    late = host.fabric.fetch_end(hasty)
    assert set(late.rcs.tolist()) == {-errno.ETIMEDOUT} and late.failed_count == 2
    assert not host.fabric.fetch_end(patient).rcs.any()
    assert np.array_equal(target, host.source[2:4])
    assert not host.fetch([0, 1])[0].rcs.any()


def test_what_is_given_up_is_written_no_more(host: Host) -> None:
    """Calls are cancelled again and again with the limit in flight, some after they ended: their
    targets stay unchanged, none is reported, and concurrent and later calls succeed."""
    assert not host.put(range(48)).any()
    patient, target = host.begin(list(range(40, 48)), timeout_ns=60_000_000_000)
    left = []
    for first in range(4):
        calls = [host.begin([first, n]) for n in range(4, 3 + host.fabric.calls_max)]
        if first == 3:
            host.fabric.poll(10_000_000)
        for fetch, memory in calls:
            host.fabric.fetch_cancel(fetch)
            host.fabric.unregister(memory)
            memory[:] = 0x5A
            left.append(memory)
    begun = [host.begin([n], timeout_ns=60_000_000_000) for n in range(host.fabric.calls_max - 1)]
    for n, (fetch, memory) in enumerate(begun):
        assert not host.fabric.fetch_end(fetch).rcs.any()
        assert np.array_equal(memory[0], host.source[n])
    assert not host.fabric.fetch_end(patient).rcs.any()
    assert np.array_equal(target, host.source[40:48]) and host.fabric.poll() == []
    assert not host.fetch(list(range(48)), timeout_ns=60_000_000_000)[0].rcs.any()
    assert all((memory == 0x5A).all() for memory in left)


def test_a_closed_port_ends_all_in_flight(host: Host) -> None:
    assert not host.put(range(8)).any()
    host.device.detach()
    calls = [host.begin([n])[0] for n in range(3)]
    for fetch in calls:
        with pytest.raises(RunFailed):
            host.fabric.fetch_end(fetch)
    assert host.fabric.poll() == []


@settings(max_examples=25, deadline=None)
@given(
    calls=st.lists(
        st.lists(st.integers(0, 39), min_size=1, max_size=8, unique=True), min_size=1, max_size=6
    ),
    order=st.randoms(use_true_random=False),
    seed=st.integers(1, 1 << 30),
)
def test_together_brings_what_one_by_one_brings(
    calls: list[list[int]], order: Any, seed: int
) -> None:
    """Fetches in flight together, ended in any order, end like the same fetches in sequence.

    Blocks 32 to 39 were never put; answers are late and overtake each other.
    """
    config = BareConfig(payload_size_bytes=PAYLOAD, slot_count=64, block_max=40, demand_max=4)
    source = np.random.default_rng(7).integers(0, 256, (40, PAYLOAD), np.uint8)
    outcomes: list[list[Any]] = []
    for together in (False, True):
        with BareDevice(config, simulated=True) as device:
            with device.driver(seed=seed, delay_ns_max=50_000) as driver:
                host = Host(device, driver, device.session(40), source)
                assert not host.put(range(32)).any()
                if together:
                    begun = [(n, *host.begin(ordinals)) for n, ordinals in enumerate(calls)]
                    order.shuffle(begun)
                    ended = {n: (driver.fetch_end(one), target) for n, one, target in begun}
                    results = [ended[n] for n in range(len(calls))]
                else:
                    results = [host.fetch(ordinals) for ordinals in calls]
                for ordinals, (done, target) in zip(calls, results, strict=True):
                    came = done.rcs == 0
                    assert np.array_equal(target[came], source[np.array(ordinals)[came]])
                outcomes.append([done.rcs.tolist() for done, _ in results])
    assert outcomes[0] == outcomes[1]
