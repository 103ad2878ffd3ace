"""A real daemon in its own process, and hosts whose blocks can be checked.

The daemon uses io_uring over a file where the kernel allows it. The bytes of a block follow from
its text, its place in the text and its layer, so every reader knows the expected content.
"""

import contextlib
import errno
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offstage.bindings.driver import Driver
from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import Daemon, start

TENANT = "red"
PAYLOAD = 4096
LAYERS = 2
CHUNKS = 48  # of one text
WAIT_S = 120.0
CONFIG = {
    "daemon.endpoint": "tcp://127.0.0.1:*",
    "daemon.metrics_endpoint": "",
    "arena.size": "1MiB",
    "arena.payload": "4KiB",
    "arena.layers": str(LAYERS),
    "arena.block_tokens": "64",
    "storage.size": "512MiB",
    "store.segment": "256KiB",
    "limits.chunks": "32768",
    "limits.context_tokens": "8192",
    "limits.demands": "32",
    "limits.sessions": "8",
    "limits.ports": "4",
    "daemon.host_timeout": "1h",  # workers send no heartbeats, and a machine may be slow
}


@contextlib.contextmanager
def daemon(
    folder: Path, tenants: Sequence[str] | Mapping[str, Any] = (TENANT,), **changed: str
) -> Iterator[Daemon]:
    """`started` with CONFIG and the changes in `changed` (`section__key`)."""
    own = {name.replace("__", "."): value for name, value in changed.items()}
    with started(folder, CONFIG | own, tenants) as running:
        yield running


@contextlib.contextmanager
def started(
    folder: Path,
    options: Mapping[str, str],
    tenants: Sequence[str] | Mapping[str, Any] = (TENANT,),
    within: Sequence[str] = (),
) -> Iterator[Daemon]:
    """A daemon over the contents of `folder`; killed at the end if it still runs."""
    running = start(sections_of(folder, options, tenants), folder, within=within, append=True)
    try:
        yield running
    finally:
        running.kill()


def sections_of(
    folder: Path, options: Mapping[str, str], tenants: Sequence[str] | Mapping[str, Any]
) -> dict[str, Any]:
    """A daemon's configuration, `options` by `section.key`. `tenants`: their names, or their tables
    by name."""
    sections: dict[str, Any] = {"daemon": {"runtime_dir": str(folder / "run")}}
    sections["storage"] = {"path": str(folder / "store.ofs")}
    for name, value in options.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    tables = tenants if isinstance(tenants, Mapping) else {name: {} for name in tenants}
    sections["tenant"] = [{"name": name, **table} for name, table in tables.items()]
    return sections


@contextlib.contextmanager
def frozen(tier: Daemon) -> Iterator[None]:
    """Within it, all threads of the daemon are stopped; its sockets stay open."""
    tasks = Path(f"/proc/{tier.process.pid}/task")
    tier.process.send_signal(signal.SIGSTOP)
    try:
        until(
            lambda: all(
                one.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T"
                for one in tasks.iterdir()
            )
        )
        yield
    finally:
        tier.process.send_signal(signal.SIGCONT)


def block(text: int, ordinal: int, layer: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The bytes of one block [PAYLOAD], which differ from all others. Every other block has two
    values of one exponent, which a codec reduces to almost nothing."""
    rng = np.random.default_rng([text, ordinal, layer])
    low, high = (64, 66) if ordinal % 2 else (0, 256)
    return rng.integers(low, high, PAYLOAD, np.uint8)


@dataclass
class Text:
    """One text in a session of one host; `stored`: how many layers of each chunk the daemon had."""

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


def fetch(
    driver: Driver, text: Text, layer: int, ordinals: list[int], timeout_ns: int = 2 * 10**9
) -> list[int]:
    """Fetch blocks, check the bytes of those that arrived, return their rcs."""
    text.step += 1
    target = np.zeros((len(ordinals), PAYLOAD), np.uint8)
    keys = np.ascontiguousarray(text.keys[layer][ordinals])
    got = driver.fetch(
        FetchRequest(
            text.session,
            text.step,
            layer,
            np.array(ordinals, np.uint32),
            keys,
            target,
            timeout_ns=timeout_ns,
        )
    )
    for row, (ordinal, rc) in enumerate(zip(ordinals, got.rcs, strict=True)):
        if rc == 0:
            expected = block(text.number, ordinal, layer)
            assert np.array_equal(target[row], expected), (text.number, ordinal, layer)
    return [int(rc) for rc in got.rcs]


def put(driver: Driver, text: Text, layer: int, ordinals: list[int]) -> list[int]:
    """Put blocks; returns the acknowledged ones."""
    source = np.stack([block(text.number, ordinal, layer) for ordinal in ordinals])
    rcs = driver.put(PutRequest(text.session, layer, np.array(ordinals, np.uint32), source))
    return [ordinal for ordinal, rc in zip(ordinals, rcs, strict=True) if rc == 0]


@dataclass
class Worker:
    """A host that puts and fetches until the daemon is gone or the worker is stopped;
    `acknowledged`: the blocks whose puts were acknowledged."""

    tier: Daemon
    number: int
    seed: int
    acknowledged: set[tuple[int, int, int]]
    fetched: int = 0
    error: BaseException | None = None
    busy: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            with contextlib.suppress(RunFailed):
                self._work()
        except OffstageError as error:
            # The control connection may be the first to find the daemon gone.
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
                while not self.stop.is_set():
                    self._turn(rng, driver, text)
        finally:
            control._connection.close()  # no daemon is left to log out from

    def _turn(self, rng: random.Random, driver: Driver, text: Text) -> None:
        layer = rng.randrange(LAYERS)
        if rng.random() < 0.6:
            ordinals = sorted(rng.sample(range(CHUNKS), rng.randint(1, 8)))
            for ordinal in put(driver, text, layer, ordinals):
                self.acknowledged.add((text.number, ordinal, layer))
        else:
            all_known = self.acknowledged.copy()  # another worker adds to it meanwhile
            known = [o for t, o, at in all_known if t == text.number and at == layer]
            if known:
                ordinals = sorted(rng.sample(known, min(len(known), 8)))
                rcs = fetch(driver, text, layer, ordinals)
                assert set(rcs) <= {0, -errno.EPIPE}, rcs
                self.fetched += len(ordinals)
        self.busy.set()


def check_text(tier: Daemon, number: int, acknowledged: set[tuple[int, int, int]]) -> int:
    """Read a whole text: acknowledged blocks are there, the others are right or absent."""
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


def scrape(tier: Daemon, token: str) -> str:
    """The reply to a scrape with this token, of the operator or of a tenant."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{tier.metrics_port}/metrics",
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
        return str(reply.read().decode())


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
