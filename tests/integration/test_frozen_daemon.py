"""If the daemon freezes during a read, does the waiting host learn of it in time, and are its
buffers left alone from then on?"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import PAYLOAD, TENANT, Daemon, daemon, frozen, until

from offstage.bindings.errors import Unreachable
from offstage.dpu.protocol import OPERATOR
from offstage.host.connectors.late import counters
from offstage.host.connectors.objects import Completion, ObjectClient, State
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.stats import COUNTERS
from offstage.host.connectors.vllm.steps import Step
from offstage.host.endpoint import Endpoint

RULES = Path(__file__).resolve().parents[2] / "testbeds/presets/prometheus/offstage.rules.yml"


def reached(tier: Daemon, **more: Any) -> Endpoint:
    return Endpoint(tier.endpoint, TENANT, runtime_dir=tier.runtime_dir, timeout_s=60.0, **more)


@pytest.mark.parametrize("tenant", [OPERATOR, TENANT])
def test_a_frozen_daemon_is_not_taken_for_one_that_requires_a_key(
    tmp_path: Path, tenant: str
) -> None:
    """The kernel accepts the connection, on either socket, and nobody says a word: exit code 3."""
    with daemon(tmp_path) as tier:
        where = Endpoint(tier.endpoint, tenant, runtime_dir=tier.runtime_dir, timeout_s=1.0)
        with frozen(tier), pytest.raises(Unreachable, match="does not answer"):
            where.control(heartbeat=False)
        where.control(heartbeat=False).close()


def step(worker: Copies, one: Step) -> None:
    worker.load(one)
    for layer in range(2):
        worker.wait_for(layer)
    worker.end(one)


def test_a_step_does_not_wait_for_a_frozen_daemon(tmp_path: Path) -> None:
    """The engine is given the failed blocks while the daemon is still frozen, they are not written
    when it resumes, and later loads are right."""
    torch = pytest.importorskip("torch")
    with daemon(tmp_path) as tier:
        where = reached(tier, patience_s=60.0)
        with ObjectClient(where) as client:
            layers: list[Any] = [torch.zeros((4, 4 * PAYLOAD), dtype=torch.uint8) for _ in "ab"]
            worker = Copies(client, 8 * PAYLOAD)
            worker.register(layers, 4)
            for layer in layers:
                layer[0] = torch.randint(0, 256, (4 * PAYLOAD,), dtype=torch.uint8)
            data = torch.cat([layer[0] for layer in layers]).numpy()
            assert client.wait(client.put, [b"k"], [data]).states == (State.DONE,)
            with frozen(tier):
                step(worker, Step(loads=[(b"k", 2)], patience_s=0.3))
                assert worker.failed() == {2} and worker.counts["load_late_blocks"] == 1
                until(lambda: client.counts().get("get_late") == 1)
            assert client.wait(client.exists, [b"k"], [data.nbytes]).states == (State.DONE,)
            assert not any(layer[2].any() for layer in layers)
            step(worker, Step(loads=[(b"k", 3)], patience_s=60.0))
            assert worker.failed() == set()
            assert all(torch.equal(layer[3], layer[0]) for layer in layers)


def told(begin: Any, *given: Any, **more: Any) -> Completion:
    """Like `ObjectClient.wait`, but fails if there is no notification."""
    found: list[Completion] = []
    begin(*given, **more, tell=found.append)
    until(lambda: bool(found))
    return found[0]


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_nothing_is_written_after_late_is_told(tmp_path: Path, fabric: str, leased: bool) -> None:
    """The daemon freezes before the object has its session, or (leased) with its blocks in flight:
    read and lookup are LATE. Once it resumes, their buffer is unchanged, nothing is leased, no
    session is left, a concurrent put is done and the key is readable."""
    size = 300 * PAYLOAD  # more than the arena holds
    data = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    with daemon(tmp_path, limits__sessions="64", limits__context_tokens="32768") as tier:
        where = reached(tier, fabric=fabric)
        with ObjectClient(where) as client, tier.control(OPERATOR, timeout_s=60.0) as operator:
            assert told(client.put, [b"a", b"b"], [data, data]).states == (State.DONE,) * 2
            if leased:
                lease = told(client.exists, [b"a"], [size], lease_s=3600.0, within_s=60.0)
                assert lease.states == (State.DONE,)
            buffer, lost, put = np.zeros(size, np.uint8), [], list[Completion]()
            with frozen(tier):
                late = told(
                    client.get,
                    [b"a"],
                    [buffer],
                    within_s=0.3,
                    cuts=[PAYLOAD, size],
                    landed=lambda part, of: lost.append(of),
                )
                buffer[:] = 0xA5
                look = told(client.exists, [b"b"], [size], lease_s=3600.0, within_s=0.3)
                assert late.states == look.states == (State.LATE,)
                assert "did not come within 0.3 s" in late.reasons[0]
                until(lambda: len(lost) == 2)
                assert lost[1] == frozenset({0})
                client.put([b"c"], [data], tell=put.append)
            again = np.zeros(size, np.uint8)
            until(lambda: bool(put))
            for name in (b"a", b"c"):
                assert told(client.get, [name], [again], within_s=60.0).states == (State.DONE,)
                assert np.array_equal(again, data)
            assert (buffer == 0xA5).all(), "written after its end"
            assert put[0].states == (State.DONE,) and not client.away
            assert told(client.delete, [b"b"]).states == (State.DONE,), "leased all the same"
            until(lambda: operator.status()["device"]["sessions"] == leased)
            assert client.counts()["get_late"] == client.counts()["look_late"] == 1


def test_what_was_late_is_in_the_metrics_that_the_alert_asks_for(tmp_path: Path) -> None:
    """The registry that LMCache and SGLang serve counts late reads and lookups, and the alert
    queries its counters and each of vLLM's by name."""
    registry = pytest.importorskip("prometheus_client").REGISTRY
    names = [f"offstage_{kind}_late_total" for kind in ("get", "look")]
    counters()
    before = [registry.get_sample_value(name) for name in names]
    with daemon(tmp_path) as tier:
        where = reached(tier, patience_s=0.2)
        with ObjectClient(where) as client, frozen(tier):
            late = told(client.get, [b"x", b"y"], [bytearray(9), bytearray(9)])
            past = told(client.exists, [b"x", b"y"], within_s=-1.0)  # already past
            assert late.states == past.states == (State.LATE,) * 2
    after = [registry.get_sample_value(name) for name in names]
    assert [now - was for now, was in zip(after, before, strict=True)] == [2, 2]
    found = re.search(r"\{__name__=~\"([^\"]*late[^\"]*)\"\}", RULES.read_text())
    assert found is not None
    of_vllm = [
        name
        for name in COUNTERS
        if name in ("load_late_blocks", "lookup_late")
        or (name.endswith("_late") and not name.startswith("objects"))
    ]
    assert len(of_vllm) == 4
    for name in [*names, *(f"vllm:offstage_{name}_total" for name in of_vllm)]:
        assert re.fullmatch(found[1], name), name
    assert not re.fullmatch(found[1], "vllm:offstage_objects_late_total")
