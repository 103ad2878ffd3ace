"""Deferred replies to hosts whose chunks are being restored from the archive.

The reply to an append says what the tier has of each chunk; the host computes the rest. Where the
bucket has blocks that the store lacks, the reply waits until they are restored, at most
`archive.wait`, and then says what the store has. Blocks restored later serve the next session. In
all else as `control/deletes.py`. Belongs to the daemon's loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.archive.archived_device import ArchivedDevice, Wanted, check_archive
from offstage.dpu.config.derive import Derived
from offstage.dpu.config.values import Config
from offstage.dpu.control.deletes import LOOK_S, Deletes
from offstage.dpu.log import Log
from offstage.dpu.storage.device import Device

__all__ = ["Returns", "held_answers", "with_archive"]


def with_archive(
    open_device: Callable[[], Device],
    config: Config,
    derived: Derived,
    runtime_dir: Path,
    log: Log,
) -> Device:
    """The device, with an archive where one is configured; the bucket is tried first. BadInput."""
    if not config.archive.bucket:
        return open_device()
    bucket = check_archive(config, log)
    device = open_device()
    try:
        archived: Any = ArchivedDevice(device, config, derived, runtime_dir, log, bucket)
    except BaseException:
        device.close(drain=False)
        raise
    return cast(Device, archived)


def held_answers(
    config: Config, device: Device, send: Callable[[bytes, p.Reply], None], log: Log
) -> Deletes:
    """The deferred replies, with or without an archive."""
    archived: object = device
    kind = Returns if isinstance(archived, ArchivedDevice) else Deletes
    return kind(config, device, send, log)


@dataclass
class _Held:
    tenant: int | None
    route: bytes
    reply: p.Appended
    wanted: list[Wanted]
    until_s: float


class Returns(Deletes):
    """As deletes, and replies that wait for restores."""

    def __init__(
        self, config: Config, device: Device, send: Callable[[bytes, p.Reply], None], log: Log
    ) -> None:
        super().__init__(config, device, send, log)
        self._archived = cast(ArchivedDevice, device)
        self._wait_s = config.archive.wait_ns / 1e9
        self._returning: list[_Held] = []

    def pause_s(self, otherwise_s: float) -> float:
        """How long the loop may pause."""
        return LOOK_S if self._returning else super().pause_s(otherwise_s)

    def answer(self, tenant: int | None, route: bytes, reply: p.Reply) -> None:
        """As deletes; a reply about chunks being restored waits for them."""
        wanted, self._archived.wanted = self._archived.wanted, []
        if not wanted or not isinstance(reply, p.Appended):
            super().answer(tenant, route, reply)
            return
        until_s = time.monotonic() + self._wait_s
        self._returning.append(_Held(tenant, route, reply, wanted, until_s))

    def turn(self) -> None:
        """Send the replies that are due."""
        now_s = time.monotonic()
        waiting: list[_Held] = []
        ready: list[_Held] = []
        for one in self._returning:
            go = now_s >= one.until_s or all(each.ended for each in one.wanted)
            (ready if go else waiting).append(one)
        self._returning = waiting  # before any reply: one that deleted something re-enters
        for one in ready:
            self._fill(one)
            super().answer(one.tenant, one.route, one.reply)
        super().turn()

    def _fill(self, held: _Held) -> None:
        """What the store has now."""
        try:
            found = {
                key: count
                for one in held.wanted
                for key, count in zip(
                    one.keys, self._archived.look(one.tenant, one.keys), strict=True
                )
            }
        except OffstageError:
            return  # the reactor ends: the first figures stay valid
        reply = held.reply
        reply.stored_layers = [
            found.get(key, count)
            for key, count in zip(reply.store_keys, reply.stored_layers, strict=True)
        ]
