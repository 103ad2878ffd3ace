"""Replies to deletes, deferred until the delete is durable.

Model: the firmware forgets a block immediately and then overwrites every copy of it on the drive.
The reply waits for that with a ticket of the tenant, which the loop presents in each turn until
the device reports completion. If nothing more completes for `storage.io_timeout`, the drive refuses
the writes (some failed) or is busy: the reply says which, and that the delete may not survive a
restart; the device keeps trying. Belongs to the daemon's loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.config.values import Config
from offstage.dpu.log import Log
from offstage.dpu.storage.device import Device

__all__ = ["Deletes"]

LOOK_S = 0.001


@dataclass
class _Held:
    route: bytes
    reply: p.Reply
    tenant: int
    ticket: int
    left: int
    until_s: float
    errors: int | None = None  # of the drive, when it began to wait


class Deletes:
    """The deferred replies."""

    def __init__(
        self, config: Config, device: Device, send: Callable[[bytes, p.Reply], None], log: Log
    ) -> None:
        self._patience_s = config.storage.io_timeout_ns / 1e9
        self._device, self._send, self._log = device, send, log
        self._held: list[_Held] = []

    def pause_s(self, otherwise_s: float) -> float:
        """How long the loop may pause."""
        return LOOK_S if self._held else otherwise_s

    def answer(self, tenant: int | None, route: bytes, reply: p.Reply) -> None:
        """Send the answer: that of a request that deleted blocks of `tenant` when it is true."""
        if tenant is None or isinstance(reply, p.Error):
            self._send(route, reply)
            return
        until_s = time.monotonic() + self._patience_s
        self._held.append(_Held(route, reply, tenant, 0, 0, until_s))
        self.turn()

    def turn(self) -> None:
        """Send the replies that are due."""
        now_s = time.monotonic()
        for one in list(self._held):
            done, one.ticket, left = self._asked(one)
            if left < one.left:
                one.until_s = now_s + self._patience_s
            one.left = left
            if done or now_s >= one.until_s:
                self._held.remove(one)
                self._send(one.route, one.reply if done else self._late(one))
            elif one.errors is None:
                one.errors = self._errors()

    def _asked(self, one: _Held) -> tuple[bool, int, int]:
        try:
            return self._device.wiped(one.tenant, one.ticket)
        except OffstageError:  # the reactor is stuck or ending: the state is unknown
            return False, one.ticket, one.left

    def _errors(self) -> int:
        """I/O that the drive ended with an error; -1 where nothing is known."""
        try:
            return self._device.status().store.io_errors
        except OffstageError:
            return -1

    def _late(self, one: _Held) -> p.Reply:
        refused = one.errors is not None and self._errors() > one.errors >= 0
        self._log.error("delete_not_on_drive", tenant=one.tenant, left=one.left, refused=refused)
        return p.Error(
            id=one.reply.id,
            code="io",
            where=f"{one.left} writes",
            what="the blocks may come back at a restart: "
            + (
                "the drive refuses the writes"
                if refused
                else "the drive is busy or does not answer"
            ),
            fix="look at dmesg and the drive; they are tried again by themselves"
            if refused
            else "wait, or raise storage.io_timeout; they are written as the drive takes them",
        )
