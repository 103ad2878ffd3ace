"""Does `kill -9` of the daemon, or of a host, at any moment lose acknowledged blocks?

The daemon is the real one, on io_uring over a file where the kernel allows it. A host puts and
fetches without pause; the daemon is killed at a random moment and restarted on the same store.
Every acknowledged put must be there with its bytes, and no other bytes may be served.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from offstage.dpu.storage.storefile import inspect
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))  # for a script

from live_daemon import (
    CHUNKS,
    LAYERS,
    TENANT,
    WAIT_S,
    Worker,
    check_text,
    daemon,
    fetch,
    open_text,
    put,
    until,
)


def kill_loop(folder: Path, kills: int, seed: int, **changed: str) -> dict[str, float]:
    """Start and kill the daemon `kills` times on one store; returns figures of the run."""
    rng = random.Random(seed)
    acknowledged: set[tuple[int, int, int]] = set()
    figures = {"kills": 0.0, "fetched": 0.0, "checked": 0.0}
    began = time.monotonic()
    for life in range(kills):
        with daemon(folder, **changed) as tier:
            for number in {life - 1, rng.randrange(life)} if life else ():
                figures["checked"] += check_text(tier, number, acknowledged)
            worker = Worker(tier, life, seed * 1000 + life, acknowledged)
            thread = threading.Thread(target=worker.run)
            thread.start()
            assert worker.busy.wait(WAIT_S)
            time.sleep(rng.uniform(0, 0.15))
            tier.process.kill()
            thread.join(WAIT_S)
            assert not thread.is_alive(), "the host did not hear that the daemon is gone"
        if worker.error is not None:
            raise worker.error
        figures["kills"] += 1
        figures["fetched"] += worker.fetched
    with daemon(folder, **changed) as tier:
        for life in range(kills):
            figures["checked"] += check_text(tier, life, acknowledged)
    figures["acknowledged"] = len(acknowledged)
    figures["elapsed_s"] = time.monotonic() - began
    return figures


CODED = {"store__codec": "fp8_e4m3", "storage__lba": "512"}
"""What makes a block of 4 KiB worth coding."""


@pytest.mark.parametrize(
    ("kills", "changed"),
    [(12, {}), pytest.param(4, CODED, marks=pytest.mark.slow)],
    ids=["plain", "coded"],
)
def test_a_dozen_kills_of_the_daemon(tmp_path: Path, kills: int, changed: dict[str, str]) -> None:
    """Every acknowledged write-through block is there after each of a dozen kills."""
    figures = kill_loop(tmp_path, kills, 1, **changed)
    assert bool(inspect(tmp_path / "store.ofs")["coded"]) == bool(changed)
    assert figures["acknowledged"] >= kills and figures["checked"] >= figures["acknowledged"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    "OFFSTAGE_SLOW" not in os.environ, reason="takes minutes; set OFFSTAGE_SLOW=1 to run it"
)
def test_two_hundred_kills_of_the_daemon(tmp_path: Path) -> None:
    """As above, 200 times."""
    figures = kill_loop(tmp_path, 200, 2)
    print({name: round(value, 1) for name, value in figures.items()})
    assert figures["kills"] == 200 and figures["acknowledged"] >= 200


@pytest.mark.parametrize(
    ("write", "changed"),
    [("through", {}), ("back", {}), pytest.param("back", CODED, marks=pytest.mark.slow)],
    ids=["through", "back", "back-coded"],
)
def test_kills_of_a_host(tmp_path: Path, write: str, changed: dict[str, str]) -> None:
    """The daemon reclaims a killed host's resources and keeps serving the others."""
    rng = random.Random(3)
    acknowledged: set[tuple[int, int, int]] = set()
    with daemon(tmp_path, store__write=write, store__dirty_max="32", **changed) as tier:
        with tier.control("operator") as operator:
            for life in range(4):
                where = [tier.endpoint, str(tier.runtime_dir), str(life)]
                command = [sys.executable, __file__, *where]
                with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
                    assert host.stdout is not None
                    lines = [host.stdout.readline() for _ in range(3)]
                    time.sleep(rng.uniform(0, 0.1))
                    host.send_signal(signal.SIGKILL)
                    lines += host.stdout.readlines()
                for line in lines:
                    if line.endswith(b"\n"):
                        ordinal, layer = line.split()
                        acknowledged.add((life, int(ordinal), int(layer)))
                until(lambda: operator.status()["device"]["ports"] == 0)
                status = operator.status()
                assert status["device"]["sessions"] == 0 and len(status["hosts"]) == 1
                until(lambda: operator.status()["device"]["dirty_blocks"] == 0)
                assert check_text(tier, life, acknowledged) > 0
            until(lambda: operator.status()["device"]["reads_in_flight"] == 0)
        assert tier.process.poll() is None


def test_an_idle_daemon_sleeps(tmp_path: Path) -> None:
    """An idle daemon's reactor sleeps rather than spins."""
    with daemon(tmp_path) as tier, tier.control("operator") as operator, tier.control() as host:
        with open_driver(host.attach("shm")):
            before = operator.status()["device"]
            while True:
                time.sleep(0.3)
                after = operator.status()["device"]
                sleeps = after["sleeps"] - before["sleeps"]
                if sleeps >= 8:
                    break
            # A status or a heartbeat costs a busy turn and some spinning; a reactor that
            # never slept would take a million turns in this time.
            assert after["loops"] - before["loops"] < 2_000 * (sleeps + 8)
            assert after["sleep_ns"] - before["sleep_ns"] > after["idle_ns"] - before["idle_ns"]
            # And a sleep lasts: a bell that is never silenced would end each at once.
            assert after["sleep_ns"] - before["sleep_ns"] > 1_000_000 * sleeps


def host_main(endpoint: str, runtime_dir: str, number: str) -> None:
    """The host to be killed: it prints its acknowledged puts to stdout."""
    rng = random.Random(int(number))
    control = Control(endpoint, tenant=TENANT, runtime_dir=Path(runtime_dir))
    driver = open_driver(control.attach("shm"))
    text = open_text(control, int(number))
    control.set_generating(text.session, True)
    while True:
        layer = rng.randrange(LAYERS)
        ordinals = sorted(rng.sample(range(CHUNKS), 4))
        done = put(driver, text, layer, ordinals)
        os.write(1, "".join(f"{ordinal} {layer}\n" for ordinal in done).encode())
        fetch(driver, text, layer, ordinals)


if __name__ == "__main__":
    host_main(*sys.argv[1:])
