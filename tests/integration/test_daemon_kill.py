"""Does `kill -9` of the daemon, or of a host, at any moment lose what was acknowledged?

The daemon is the real one, on io_uring over a file where the kernel allows it. A host puts and
fetches without a pause; the daemon is killed at a random moment and started again on the same
store. Every put that was acknowledged must be there with its bytes, and nothing else may be served.
"""

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.driver import Driver
from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.keys import block_keys
from offstage.dpu.storefile import inspect
from offstage.host.control import Control
from offstage.host.fabrics.shm import open_driver

ENTRY = [sys.executable, "-c", "from offstage.testbeds.cli import main; main()"]
TENANT = "red"
PAYLOAD = 4096
LAYERS = 2
CHUNKS = 48  # of one text
WAIT_S = 120.0
CONFIG = {
    "daemon.endpoint": "tcp://127.0.0.1:*", "daemon.metrics_endpoint": "", "arena.size": "1MiB",
    "arena.payload": "4KiB", "arena.layers": str(LAYERS), "arena.block_tokens": "64",
    "storage.size": "512MiB", "store.segment": "256KiB", "limits.chunks": "32768",
    "limits.context_tokens": "8192", "limits.demands": "32", "limits.sessions": "8",
    "limits.ports": "4",
}  # fmt: skip


@dataclass
class Tier:
    """A running daemon: its process, where it answers, and where its secrets are."""

    process: "subprocess.Popen[bytes]"
    endpoint: str
    runtime_dir: Path
    storage: str

    def control(self, tenant: str = TENANT, **more: Any) -> Control:
        return Control(self.endpoint, tenant=tenant, runtime_dir=self.runtime_dir, **more)


@contextlib.contextmanager
def daemon(folder: Path, **changed: str) -> Iterator[Tier]:
    """Started on what `folder` holds; killed on the way out, if it still runs."""
    chosen = CONFIG | {"daemon.runtime_dir": str(folder / "run")}
    chosen |= {"storage.path": str(folder / "store.ofs")}
    chosen |= {name.replace("__", "."): value for name, value in changed.items()}
    (folder / "daemon.toml").write_text(f'[[tenant]]\nname = "{TENANT}"\n')
    sets = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    command = [*ENTRY, "dpu", "serve", "--config", str(folder / "daemon.toml"), *sets]
    log = folder / "daemon.log"
    with log.open("ab") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        ready = json.loads(line)
        yield Tier(process, ready["endpoint"], Path(ready["runtime_dir"]), ready["storage"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def block(text: int, ordinal: int, layer: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The bytes of one block [PAYLOAD]: nobody else writes them. Every other one has two values of
    one exponent, of which a codec leaves next to nothing."""
    rng = np.random.default_rng([text, ordinal, layer])
    low, high = (64, 66) if ordinal % 2 else (0, 256)
    return rng.integers(low, high, PAYLOAD, np.uint8)


@dataclass
class Text:
    """One text in a session of one host; `stored` counts the layers the daemon had of a chunk."""

    number: int
    session: int
    keys: Any
    stored: list[int]
    step: int = 0


def open_text(control: Control, number: int) -> Text:
    session = control.session_open(select_blocks=8)
    contents = [(number * CHUNKS + i).to_bytes(16, "big") for i in range(CHUNKS)]
    appended = control.append(session, contents)
    return Text(number, session, block_keys(appended.keys, LAYERS), appended.stored_layers)


def fetch(driver: Driver, text: Text, layer: int, ordinals: list[int]) -> list[int]:
    """Fetch blocks, check the bytes of those that came, return their rcs."""
    text.step += 1
    target = np.zeros((len(ordinals), PAYLOAD), np.uint8)
    keys = np.ascontiguousarray(text.keys[layer][ordinals])
    got = driver.fetch(
        text.session, text.step, layer, np.array(ordinals, np.uint32), keys, target,
    )  # fmt: skip
    for row, (ordinal, rc) in enumerate(zip(ordinals, got.rcs, strict=True)):
        if rc == 0:
            expected = block(text.number, ordinal, layer)
            assert np.array_equal(target[row], expected), (text.number, ordinal, layer)
    return [int(rc) for rc in got.rcs]


def put(driver: Driver, text: Text, layer: int, ordinals: list[int]) -> list[int]:
    """Put blocks; those that were acknowledged."""
    source = np.stack([block(text.number, ordinal, layer) for ordinal in ordinals])
    rcs = driver.put(text.session, layer, np.array(ordinals, np.uint32), source)
    return [ordinal for ordinal, rc in zip(ordinals, rcs, strict=True) if rc == 0]


@dataclass
class Worker:
    """A host that puts and fetches until the daemon is gone; `acknowledged` is what it knows."""

    tier: Tier
    number: int
    seed: int
    acknowledged: set[tuple[int, int, int]]
    fetched: int = 0
    error: BaseException | None = None
    busy: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            with contextlib.suppress(RunFailed):
                self._work()
        except OffstageError as error:
            # The control connection may be the first to find that nobody answers.
            if self.tier.process.poll() is None:
                self.error = error
        except BaseException as error:
            self.error = error
        finally:
            self.busy.set()

    def _work(self) -> None:
        rng = random.Random(self.seed)
        control = self.tier.control(timeout_s=2.0, heartbeat=False)
        try:
            with open_driver(control.attach("shm")) as driver:
                text = open_text(control, self.number)
                while True:
                    self._turn(rng, driver, text)
        finally:
            control._context.destroy(linger=0)  # nobody is there to say goodbye to

    def _turn(self, rng: random.Random, driver: Driver, text: Text) -> None:
        layer = rng.randrange(LAYERS)
        if rng.random() < 0.6:
            ordinals = sorted(rng.sample(range(CHUNKS), rng.randint(1, 8)))
            for ordinal in put(driver, text, layer, ordinals):
                self.acknowledged.add((text.number, ordinal, layer))
        else:
            known = [o for t, o, at in self.acknowledged if t == text.number and at == layer]
            if known:
                ordinals = sorted(rng.sample(known, min(len(known), 8)))
                rcs = fetch(driver, text, layer, ordinals)
                assert set(rcs) <= {0, -errno.EPIPE}, rcs
                self.fetched += len(ordinals)
        self.busy.set()


def check_text(tier: Tier, number: int, acknowledged: set[tuple[int, int, int]]) -> int:
    """Read one text whole: what was acknowledged is there, the rest is right or absent."""
    with tier.control() as control, open_driver(control.attach("shm")) as driver:
        text = open_text(control, number)
        there = 0
        for layer in range(LAYERS):
            for first in range(0, CHUNKS, 16):
                ordinals = list(range(first, first + 16))
                rcs = fetch(driver, text, layer, ordinals)
                for ordinal, rc in zip(ordinals, rcs, strict=True):
                    if (number, ordinal, layer) in acknowledged:
                        assert rc == 0, f"lost: text {number} chunk {ordinal} layer {layer}: {rc}"
                    assert rc in (0, -errno.ENOENT)
                    there += rc == 0
        assert sum(text.stored) == there
    return there


def kill_loop(folder: Path, kills: int, seed: int, **changed: str) -> dict[str, float]:
    """So many lives of a daemon on one store; figures of the run."""
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


@pytest.mark.parametrize(("kills", "changed"), [(12, {}), (4, CODED)], ids=["plain", "coded"])
def test_a_dozen_kills_of_the_daemon(tmp_path: Path, kills: int, changed: dict[str, str]) -> None:
    """Is every acknowledged write-through block there after each of so many kills?"""
    figures = kill_loop(tmp_path, kills, 1, **changed)
    assert bool(inspect(tmp_path / "store.ofs")["coded"]) == bool(changed)
    assert figures["acknowledged"] >= kills and figures["checked"] >= figures["acknowledged"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    "OFFSTAGE_SLOW" not in os.environ, reason="takes minutes; set OFFSTAGE_SLOW=1 to run it"
)
def test_two_hundred_kills_of_the_daemon(tmp_path: Path) -> None:
    """The same, 200 times."""
    figures = kill_loop(tmp_path, 200, 2)
    print({name: round(value, 1) for name, value in figures.items()})
    assert figures["kills"] == 200 and figures["acknowledged"] >= 200


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("write", "changed"),
    [("through", {}), ("back", {}), ("back", CODED)],
    ids=["through", "back", "back-coded"],
)
def test_kills_of_a_host(tmp_path: Path, write: str, changed: dict[str, str]) -> None:
    """Does the daemon take back what a killed host held, and go on for the others?"""
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
    """Do turns of the reactor belong to sleeps, and not to spinning, while nobody asks anything?"""
    with daemon(tmp_path) as tier, tier.control("operator") as operator, tier.control() as host:
        with open_driver(host.attach("shm")):
            before = operator.status()["device"]
            while True:
                time.sleep(0.3)
                after = operator.status()["device"]
                sleeps = after["sleeps"] - before["sleeps"]
                if sleeps >= 8:
                    break
            # A status or a heartbeat is a busy turn and the spinning after it; a reactor that
            # never slept would take a million turns in this time.
            assert after["loops"] - before["loops"] < 2_000 * (sleeps + 8)
            assert after["sleep_ns"] - before["sleep_ns"] > after["idle_ns"] - before["idle_ns"]
            # And a sleep is one: a bell that nobody silences would end each at once.
            assert after["sleep_ns"] - before["sleep_ns"] > 1_000_000 * sleeps


def host_main(endpoint: str, runtime_dir: str, number: str) -> None:
    """The host that will be killed: says on stdout what was acknowledged."""
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
