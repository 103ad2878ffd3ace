"""The hosts of `offstage bench tenants`: one that fetches as a decode does, and those that flood.

Each runs in a separate process against a real daemon, over shared memory. A flood runs until its
event is set; refusals are not counted. In deployment hosts have their own cores; here they share
the daemon's. Floods therefore run at the lowest priority, so that they take only what the daemon
and the victim leave, and `compute`, which does not use the daemon, shows what that costs.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Protocol

import numpy as np

from offstage.bindings.driver import Driver
from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.shm import open_driver

__all__ = [
    "COLD",
    "COMPUTE",
    "FLOODS",
    "PAYLOAD_BYTES",
    "STORED",
    "Host",
    "Until",
    "flood",
]

PAYLOAD_BYTES = 32 << 10
STORED = 1024  # blocks of one tenant, few of which fit in its part of the arena
COLD = 16  # blocks of one fetch of the victim
FLOOD_BLOCKS, FLOOD_FETCHES = 64, 8
PUT_BLOCKS = 64
TIMEOUT_NS = 60_000_000_000


class Until(Protocol):
    """A flood checks it each turn to see whether to stop."""

    def is_set(self) -> bool: ...


class Host:
    """Logged in and attached, with one session of STORED chunks of one layer, all in the store."""

    def __init__(self, endpoint: Endpoint, seed: int = 1) -> None:
        name = f"{endpoint.tenant}-{os.getpid()}"
        self.control = replace(endpoint, name=name, timeout_s=60.0).control()
        self.driver: Driver = open_driver(self.control.attach("shm"), 60.0)
        self._rng = np.random.default_rng(seed)
        self.session, self.keys = self._open([i.to_bytes(16, "big") for i in range(STORED)])
        self._step = 0
        self._next = 0

    def fill(self, count: int = STORED) -> None:
        """Put the first `count` of the session's blocks."""
        source = self._rng.integers(0, 256, (PUT_BLOCKS, PAYLOAD_BYTES), np.uint8)
        for first in range(0, count, PUT_BLOCKS):
            ordinals = np.arange(first, first + PUT_BLOCKS, dtype=np.uint32)
            if self.driver.put(
                PutRequest(self.session, 0, ordinals, source, timeout_ns=TIMEOUT_NS)
            ).any():
                raise RunFailed("the blocks could not be written", "bench tenants", "see the log")

    def cold(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        """The next blocks, in a cycle longer than the arena."""
        ordinals = (self._next + np.arange(count)) % STORED
        self._next = int(self._next + count) % STORED
        return ordinals.astype(np.uint32)

    def begin(
        self, ordinals: "np.ndarray[tuple[int], np.dtype[np.uint32]]", scores: bool = False
    ) -> Fetch:
        """Submit a fetch of these blocks."""
        self._step += 1
        target = np.zeros((max(len(ordinals), 1), PAYLOAD_BYTES), np.uint8)
        said = np.arange(STORED, dtype=np.uint16) if scores else None
        keys = np.ascontiguousarray(self.keys[ordinals])
        return self.driver.fetch_begin(
            FetchRequest(
                self.session,
                self._step,
                0,
                ordinals,
                keys,
                target,
                scores=said,
                timeout_ns=TIMEOUT_NS,
            )
        )

    def ask(self, ordinals: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> tuple[int, int]:
        """Nanoseconds of a fetch, and its hits. RunFailed if a block did not come."""
        begun_ns = time.perf_counter_ns()
        got = self.driver.fetch_end(self.begin(ordinals))
        took_ns = time.perf_counter_ns() - begun_ns
        if got.rcs.any():
            raise RunFailed(
                "a block did not arrive",
                "bench tenants",
                "see the daemon's log",
                errno=-int(got.rcs.min()),
            )
        self.driver.release(self.session)
        return took_ns, int(got.hit_count)

    def _open(
        self, contents: list[bytes]
    ) -> "tuple[int, np.ndarray[tuple[int, int], np.dtype[np.uint64]]]":
        session = self.control.session_open(select_blocks=FLOOD_BLOCKS)
        appended = self.control.append(session, contents)
        return session, block_keys(appended.keys, 1)[0]

    def flood_demands(self, stop: Until) -> None:
        """As many demands as the port takes, of blocks that are never staged."""
        flying: list[Fetch] = []
        while not stop.is_set():
            with contextlib.suppress(OffstageError):
                while len(flying) < FLOOD_FETCHES:
                    flying.append(self.begin(self.cold(FLOOD_BLOCKS)))
            with contextlib.suppress(OffstageError):
                self.driver.fetch_end(flying.pop(0))
        for one in flying:
            self.driver.fetch_end(one)

    def flood_steps(self, stop: Until) -> None:
        """Steps without a demand, with scores of all blocks: work for the reactor alone."""
        none = np.zeros(0, np.uint32)
        while not stop.is_set():
            with contextlib.suppress(OffstageError):
                self.driver.fetch_end(self.begin(none, scores=True))

    def flood_puts(self, stop: Until) -> None:
        """Write new blocks and delete them again, until stopped."""
        source = self._rng.integers(0, 256, (PUT_BLOCKS, PAYLOAD_BYTES), np.uint8)
        ordinals = np.arange(PUT_BLOCKS, dtype=np.uint32)
        while not stop.is_set():
            with contextlib.suppress(OffstageError):
                session, _ = self._open([os.urandom(16) for _ in range(PUT_BLOCKS)])
                self.driver.put(PutRequest(session, 0, ordinals, source, timeout_ns=TIMEOUT_NS))
                self.control.session_close(session, keep=False)

    def flood_control(self, stop: Until) -> None:
        """Sessions opened, filled with names and closed, and queries."""
        while not stop.is_set():
            with contextlib.suppress(OffstageError):
                session, _ = self._open([os.urandom(16) for _ in range(STORED)])
                self.control.status()
                self.control.session_close(session, keep=False)

    def flood_nop(self, stop: Until) -> None:
        """Empty commands, one after another."""
        while not stop.is_set():
            self.driver.bench_nop(1000)

    def compute(self, stop: Until) -> None:
        """Keeps a core busy without using the daemon."""
        while not stop.is_set():
            self._rng.integers(0, 256, PAYLOAD_BYTES, np.uint8)

    def close(self) -> None:
        """Detach and log out."""
        self.driver.close()
        self.control.close()


FLOODS: dict[str, Callable[[Host, Until], None]] = {
    "demands": Host.flood_demands,
    "steps": Host.flood_steps,
    "puts": Host.flood_puts,
    "control": Host.flood_control,
    "nop": Host.flood_nop,
}
COMPUTE = "compute"
LIVES = {COMPUTE: Host.compute, **FLOODS}


def flood(endpoint: Endpoint, kind: str, ready: Event, stop: Event) -> None:
    """Runs a flooding process, or one that only computes."""
    os.nice(19)
    host = Host(endpoint)
    try:
        ready.set()
        LIVES[kind](host, stop)
    finally:
        host.close()
