"""The honest hosts of `offstage bench soak`: each writes texts, reads them and checks every byte.

All tenants use the same chunk names with different bytes, so a leak from one to another is
detected. Hosts of one tenant share some texts. Between texts a host may log out and in again.
Refusals are counted, not raised.
"""

import collections
import contextlib
import errno
import time
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.driver import Driver
from offstage.bindings.errors import OffstageError
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.bindings.layouts import ENDS
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control
from offstage.testbeds.bench.soak_board import Board
from offstage.testbeds.bench.tenants_hosts import PAYLOAD_BYTES

__all__ = ["LAYERS", "Honest", "HostSaw", "honest"]

LAYERS = 2
CHUNKS = 32  # of one text
SELECT = 12
STEPS = 12
STEP_S = 0.002  # time of a host's work
COMMON = 4  # texts that all hosts of a tenant have
LAST = 12  # its earlier texts that it may choose again
TEXTS_PER_LOGIN = 20
RETRIES_MAX = 2000
RETRY_S = 0.002
TIMEOUT_S = 60.0


def block(tenant: str, text: int, ordinal: int, layer: int) -> NDArray[np.uint8]:
    """The bytes of one block of one tenant, which no other tenant writes. Every other one has
    few distinct values."""
    rng = np.random.default_rng([*tenant.encode(), text, ordinal, layer])
    words = rng.integers(0, 2**64, PAYLOAD_BYTES // 8, np.uint64)
    return (words & np.uint64(0x0101010101010101) if ordinal % 2 else words).view(np.uint8)


class HostSaw(msgspec.Struct, frozen=True):
    """One host's counts. `refused` by message; `lost`: acknowledged blocks of its open session
    that did not come; `ends` in the order of `ENDS`."""

    name: str
    tenant: str
    checked: int
    wrong: int
    lost: int
    retried: int
    texts: int
    logins: int
    ends: list[int]
    refused: dict[str, int]


@dataclass
class Honest:
    """One host at work; its counts are the fields of `HostSaw`."""

    where: Endpoint
    name: str
    number: int
    seed: int
    checked: int = 0
    wrong: int = 0
    lost: int = 0
    retried: int = 0
    texts: int = 0
    logins: int = 0
    ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))
    refused: collections.Counter[str] = field(default_factory=collections.Counter)

    def run(self, board: Board) -> HostSaw:
        """Run until it is stopped, and for one text at least; returns its counts."""
        rng = np.random.default_rng([self.seed, self.number])
        while self.texts == 0 or not board.stopped():
            try:
                self._log_in(rng, board)
            except OffstageError as error:
                self.refused[str(error)] += 1
                time.sleep(RETRY_S)
        return HostSaw(
            name=self.name,
            tenant=self.where.tenant,
            checked=self.checked,
            wrong=self.wrong,
            lost=self.lost,
            retried=self.retried,
            texts=self.texts,
            logins=self.logins,
            ends=self.ends.tolist(),
            refused=dict(self.refused),
        )

    def _log_in(self, rng: np.random.Generator, board: Board) -> None:
        with (
            replace(self.where, name=self.name, timeout_s=TIMEOUT_S).control() as control,
            contextlib.closing(open_driver(control.attach("shm"), TIMEOUT_S)) as driver,
        ):
            self.logins += 1
            for _ in range(TEXTS_PER_LOGIN):
                if self.texts and board.stopped():
                    break
                before = self.checked
                _Text(self, control, driver, rng).live(self._choose(rng))
                self.texts += 1
                board.add(self.name, self.checked - before)

    def _choose(self, rng: np.random.Generator) -> int:
        """A shared text, one of its earlier ones, or a new one."""
        drawn = int(rng.integers(10))
        if drawn < 3:
            return int(rng.integers(COMMON))
        back = int(rng.integers(1, LAST)) if drawn < 6 else 0
        return (1 + self.number << 32) + max(self.texts - back, 0)


@dataclass
class _Text:
    """One text in one session: its missing blocks written, all read, closed."""

    host: Honest
    control: Control
    driver: Driver
    rng: np.random.Generator

    def live(self, text: int) -> None:
        """Run one session from open to close; refusals are in the host's counts."""
        names = [b"text" + text.to_bytes(8, "big") + i.to_bytes(4, "big") for i in range(CHUNKS)]
        session = self.control.session_open(select_blocks=SELECT)
        try:
            appended = self.control.append(session, names)
            keys = block_keys(appended.keys, LAYERS)
            there = [
                self._write(session, text, layer, appended.stored_layers) for layer in range(LAYERS)
            ]
            for step in range(STEPS):
                for layer in range(LAYERS):
                    self._read(session, text, step, layer, keys[layer], there[layer])
                self.driver.release(session)
                time.sleep(STEP_S)
        finally:
            # Every tenth is deleted: chunks that another session names must stay.
            self.control.session_close(session, keep=bool(self.rng.random() < 0.9))

    def _write(self, session: int, text: int, layer: int, stored: list[int]) -> NDArray[np.uint32]:
        """Put what is not stored in each layer; the ordinals that are there."""
        lacks = np.array([i for i in range(CHUNKS) if stored[i] < LAYERS], np.uint32)
        there = set(range(CHUNKS)) - set(lacks.tolist())
        if len(lacks):
            source = np.stack([block(self.host.where.tenant, text, int(i), layer) for i in lacks])
            rcs = self.driver.put(
                PutRequest(session, layer, lacks, source, timeout_ns=int(TIMEOUT_S * 1e9))
            )
            there |= set(lacks[rcs == 0].tolist())
            self.host.refused.update(f"put: {errno.errorcode[-rc]}" for rc in rcs if rc)
        return np.array(sorted(there), np.uint32)

    def _read(
        self,
        session: int,
        text: int,
        step: int,
        layer: int,
        keys: NDArray[np.uint64],
        there: NDArray[np.uint32],
    ) -> None:
        if not len(there):
            return
        wanted = self.rng.choice(there, min(SELECT, len(there)), replace=False)
        for _ in range(RETRIES_MAX):
            target = np.zeros((len(wanted), PAYLOAD_BYTES), np.uint8)
            scores = self.rng.integers(0, 1 << 16, CHUNKS, np.uint16)
            got = self.driver.fetch(
                FetchRequest(
                    session,
                    step,
                    layer,
                    wanted,
                    np.ascontiguousarray(keys[wanted]),
                    target,
                    scores=scores,
                    timeout_ns=int(TIMEOUT_S * 1e9),
                )
            )
            known = got.ends[got.ends < len(ENDS)]
            self.host.ends += np.bincount(known, minlength=len(ENDS))
            for row in np.flatnonzero(got.rcs == 0):
                right = block(self.host.where.tenant, text, int(wanted[row]), layer)
                self.host.checked += 1
                self.host.wrong += not np.array_equal(target[row], right)
            again = np.isin(got.rcs, (-errno.EAGAIN, -errno.ESTALE))
            late = got.rcs == -errno.ETIMEDOUT
            self.host.refused.update(["fetch: ETIMEDOUT"] * int(np.count_nonzero(late)))
            self.host.lost += int(np.count_nonzero((got.rcs != 0) & ~again & ~late))
            self.host.retried += int(np.count_nonzero(again))
            wanted = wanted[again]
            if not len(wanted):
                return
            time.sleep(RETRY_S)
        self.host.lost += len(wanted)


def honest(where: Endpoint, name: str, number: int, seed: int, board: Board) -> object:
    """Runs one process; returns its counts in JSON types."""
    return msgspec.to_builtins(Honest(where, name, number, seed).run(board))
