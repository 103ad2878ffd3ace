"""Can a host reach a real daemon over each fabric, and does it notice the daemon's death?"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live_daemon import started

from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.fabrics import Fabric, open_fabric
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import Daemon

PAYLOAD, COUNT, LAYERS = 4096, 40, 2
SETTINGS = {
    "daemon.endpoint": "tcp://127.0.0.1:*",
    "daemon.metrics_endpoint": "",
    "arena.size": "1MiB",
    "arena.payload": "4KiB",
    "arena.layers": "2",
    "storage.backend": "emulated",
    "storage.size": "32MiB",
    "store.segment": "256KiB",
    "limits.demands": "16",
    "limits.put_slots": "8",
    "limits.sessions": "4",
    "limits.ports": "2",
    "limits.context_tokens": "4096",
    "limits.chunks": "256",
}


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[tuple[Daemon, Control]]:
    with started(folder, SETTINGS, ("default",)) as tier, tier.control() as control:
        yield tier, control


def write_and_read(control: Control, fabric: Fabric) -> tuple[int, np.ndarray]:
    """Put and fetch more blocks than a window or a step holds; returns session and keys."""
    session = control.session_open(select_blocks=16)
    reply = control.append(session, [i.to_bytes(16, "little") for i in range(COUNT)])
    keys = block_keys(reply.keys, LAYERS)
    source = np.random.default_rng(5).integers(0, 256, (COUNT, PAYLOAD), np.uint8)
    ordinals = np.arange(COUNT, dtype=np.uint32)
    assert not fabric.put(PutRequest(session, 1, ordinals, source)).any()
    target = np.zeros_like(source)
    for step in range(2):
        target[:] = 0
        done = fabric.fetch(FetchRequest(session, step, 1, ordinals, keys[1], target))
        assert not done.rcs.any() and np.array_equal(target, source)
    assert done.hit_count == COUNT
    return session, keys


@pytest.mark.parametrize("name", ["shm", "zmq"])
def test_blocks_go_there_and_back(tmp_path: Path, name: str) -> None:
    """Blocks come back right. With its session a host learns how many of its scores the policy
    accepts; it sends no more, and the ledger counts what it sent."""
    with daemon(tmp_path) as (tier, control):
        fabric = open_fabric(control, name)
        session, keys = write_and_read(control, fabric)
        assert control.hints == (0, 1, 16)
        with tier.control("operator") as operator:
            operator.policy_set({"hint_scores_max": 5, "hint_score_bits": 8})
        control.session_close(control.session_open(select_blocks=4))
        assert control.hints == (5, 1, 8), "a session's answer says what is taken in"
        before = control.ledger().hint_bytes
        fabric.limit_scores(*control.hints)
        none = np.empty(0, np.uint32)
        fabric.fetch(
            FetchRequest(
                session,
                2,
                1,
                none,
                keys[1, :0],
                np.zeros((1, PAYLOAD), np.uint8),
                scores=np.arange(300, 300 + COUNT, dtype=np.uint16),
            )
        )
        assert control.ledger().hint_bytes - before == 5 * 3
        fabric.release(session)
        control.session_close(session)
        fabric.close()


def test_a_killed_daemon_is_noticed_at_once(tmp_path: Path) -> None:
    """The broken wake descriptor reveals it: the timeout of this fetch would exceed the test's."""
    with daemon(tmp_path) as (tier, control):
        fabric = open_fabric(control)
        session, keys = write_and_read(control, fabric)
        tier.kill()
        ordinals = np.zeros(1, np.uint32)
        with pytest.raises(RunFailed, match="start the host again"):
            fabric.fetch(
                FetchRequest(
                    session,
                    9,
                    0,
                    ordinals,
                    np.ascontiguousarray(keys[0, :1]),
                    np.zeros((1, PAYLOAD), np.uint8),
                    timeout_ns=3_600_000_000_000,
                )
            )
        fabric.close()


def test_a_token_works_once(tmp_path: Path) -> None:
    with daemon(tmp_path) as (_, control):
        attached = control.attach("shm")
        open_driver(attached).close()
        with pytest.raises(RunFailed, match="no such token"):
            open_driver(attached)
