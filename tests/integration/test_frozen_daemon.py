"""A daemon that is frozen while a step loads from it: does the step end at its deadline?"""

import signal
from pathlib import Path
from typing import Any

import pytest
from live_daemon import PAYLOAD, TENANT, daemon

from offstage.host.connectors.objects import ObjectClient, State, Where
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.plans import Step


def step(worker: Copies, one: Step) -> None:
    worker.load(one)
    for layer in range(2):
        worker.wait_for(layer)
    worker.end(one)


def test_a_step_does_not_wait_for_a_frozen_daemon(tmp_path: Path) -> None:
    """Are the blocks named to the engine while the daemon is still frozen, none of them written by
    what comes when it goes on, and is what is loaded then right again?"""
    torch = pytest.importorskip("torch")
    with daemon(tmp_path) as tier:
        where = Where(endpoint=tier.endpoint, tenant=TENANT, runtime_dir=str(tier.runtime_dir),
                      timeout_s=60.0)  # fmt: skip
        with ObjectClient(where) as client:
            layers: list[Any] = [torch.zeros((4, 4 * PAYLOAD), dtype=torch.uint8) for _ in "ab"]
            worker = Copies(client, 8 * PAYLOAD)
            worker.register(layers, 4)
            for layer in layers:
                layer[0] = torch.randint(0, 256, (4 * PAYLOAD,), dtype=torch.uint8)
            data = torch.cat([layer[0] for layer in layers]).numpy()
            assert client.wait(client.put, [b"k"], [data]).states == (State.DONE,)
            tier.process.send_signal(signal.SIGSTOP)
            try:
                step(worker, Step(loads=[(b"k", 2)], patience_s=0.3))
                assert worker.failed() == {2} and worker.counts["load_late_blocks"] == 1
            finally:
                tier.process.send_signal(signal.SIGCONT)
            assert client.wait(client.exists, [b"k"], [data.nbytes]).states == (State.DONE,)
            assert not any(layer[2].any() for layer in layers)
            step(worker, Step(loads=[(b"k", 3)], patience_s=60.0))
            assert worker.failed() == set()
            assert all(torch.equal(layer[3], layer[0]) for layer in layers)
