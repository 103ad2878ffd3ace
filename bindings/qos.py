"""Scheduling between tenants that share a device: the scheduler of `qos.h`.

A `Qos` queues `Item`s and takes the time with each call; times are integer picoseconds and must not
decrease. `TenantShare` gives a tenant a weight and a token bucket. One thread owns a scheduler.

What can fail: `BadInput` for a configuration or an item out of range, or for a time that decreases.
A full queue is no failure: `put` returns a `Refusal`.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = ["NO_SESSION", "Item", "Qos", "QosConfig", "Refusal", "TenantShare"]

TIME_PS_MAX = (1 << 63) - 1
NO_SESSION = int(lib.OFS_QOS_NO_SESSION)
"""As an item's session: it has no separate entry and shares its tenant's."""


class Refusal(IntEnum):
    """Why an item does not wait: its tenant's queue is full, or its session's part of it."""

    QUEUE_FULL = errno.EAGAIN
    SESSION_FULL = errno.EDQUOT


@dataclass(frozen=True)
class TenantShare:
    """What one tenant gets: its weight, and the token bucket; a rate of 0 is no limit. With a floor
    it gets that rate first, while something of it waits."""

    weight: int = 1
    rate_bytes_per_s: int = 0
    burst_bytes: int = 0
    floor_bytes_per_s: int = 0


@dataclass(frozen=True)
class QosConfig:
    """Bounds of the queues and of the table of sessions, the quantum, which is also the largest
    cost, how far ahead a deadline counts, and what a session is served in a round of its tenant's
    sessions; 0: no rounds."""

    quantum_bytes: int
    session_count: int = 1
    queue_max: int = 1024
    session_max: int = 1024
    ahead_ps_max: int = 10**12
    session_quantum_bytes: int = 0


@dataclass(frozen=True)
class Item:
    """What waits. `put_ps` is set by the scheduler; `tag` is the caller's."""

    tag: int
    cost_bytes: int
    tenant: int = 0
    session: int = 0
    deadline_ps: int = 0
    put_ps: int = 0


class Qos:
    """One scheduler over `tenants`; its state lies in C."""

    def __init__(self, config: QosConfig, tenants: Sequence[TenantShare]) -> None:
        rows = [vars(one) for one in tenants]
        where = "qos"
        try:
            raw: Any = ffi.new("struct ofs_qos_config *", vars(config))
            shares: Any = ffi.new("struct ofs_qos_tenant[]", rows)
        except OverflowError as error:
            raise BadInput(str(error), where, "numbers from 0 that fit the field") from None
        raw.tenant_count = len(rows)
        out: Any = ffi.new("struct ofs_qos **")
        check_rc(
            lib.ofs_qos_open(out, raw, shares),
            "opening a scheduler",
            where,
            "weights from 1 to 65535, queues that hold something, a session's part no more than "
            "the queue, and a burst and a session's quantum of at least the quantum",
        )
        self.tenant_count, self.session_count = len(rows), config.session_count
        self._handle: Any = ffi.gc(out[0], lib.ofs_qos_close)
        self._item: Any = ffi.new("struct ofs_qos_item *")
        self._now_ps = 0

    def put(self, now_ps: int, item: Item) -> Refusal | None:
        """The item waits from now on; or why it does not."""
        self._advance(now_ps)
        try:
            raw: Any = ffi.new("struct ofs_qos_item *", vars(item))
        except OverflowError as error:
            raise BadInput(str(error), "qos", "numbers from 0 that fit the field") from None
        rc = lib.ofs_qos_put(self._handle, now_ps, raw)
        if rc in (-Refusal.QUEUE_FULL, -Refusal.SESSION_FULL):
            return Refusal(-rc)
        check_rc(rc, "putting an item", "qos", "a tenant and session there is, at most a quantum")
        return None

    def take(self, now_ps: int) -> Item | None:
        """What is served now; None: nothing may be, before `next_ps`."""
        self._advance(now_ps)
        raw = self._item
        if lib.ofs_qos_take(self._handle, now_ps, raw) == 0:
            return None
        return Item(raw.tag, raw.cost_bytes, raw.tenant, raw.session, raw.deadline_ps, raw.put_ps)

    def next_ps(self) -> int | None:
        """When a take gives something, if nothing more is put; None: nothing waits."""
        next_ps = int(lib.ofs_qos_next_ps(self._handle))
        return None if next_ps == lib.OFS_QOS_NEVER else next_ps

    def hold(self, now_ps: int, tenant: int, held: bool) -> None:
        """The tenant is not ready while it is held, whatever waits of it."""
        self._advance(now_ps)
        lib.ofs_qos_hold(self._handle, now_ps, tenant, held)

    def set(self, now_ps: int, tenant: int, share: TenantShare) -> None:
        """Another weight and another bucket from now on."""
        self._advance(now_ps)
        raw: Any = ffi.new("struct ofs_qos_tenant *", vars(share))
        check_rc(
            lib.ofs_qos_set(self._handle, now_ps, tenant, raw),
            "changing a share",
            "qos",
            "a weight from 1 to 65535, a burst of a quantum or more, and a floor within the rate",
        )

    @property
    def waiting(self) -> int:
        """Items that wait, of all tenants."""
        return int(lib.ofs_qos_waiting(self._handle))

    def stats(self, tenant: int) -> dict[str, int]:
        """The counters of one tenant, as `struct ofs_qos_stats` has them."""
        if not 0 <= tenant < self.tenant_count:
            raise BadInput(f"no tenant {tenant}", "qos", f"0 to {self.tenant_count - 1}")
        raw: Any = ffi.new("struct ofs_qos_stats *")
        lib.ofs_qos_stats(self._handle, tenant, raw)
        return {name: int(getattr(raw, name)) for name in dir(raw)}

    def session_stats(self, session: int, *, tenant: int | None = None) -> dict[str, int]:
        """The counters of a session, as `struct ofs_qos_session_stats` has them; with `tenant`, of
        those of its sessions that have no entry of their own."""
        entry = session if tenant is None else self.session_count + tenant
        raw: Any = ffi.new("struct ofs_qos_session_stats *")
        check_rc(
            lib.ofs_qos_session_stats(self._handle, entry, raw),
            "reading a session",
            "qos",
            "a session and tenant there is",
        )
        return {name: int(getattr(raw, name)) for name in dir(raw) if name != "reserved"}

    def reset(self) -> None:
        """As opened: empty, buckets full, time from 0."""
        lib.ofs_qos_reset(self._handle)
        self._now_ps = 0

    def _advance(self, now_ps: int) -> None:
        if not self._now_ps <= now_ps <= TIME_PS_MAX:
            raise BadInput(f"time {now_ps} ps after {self._now_ps}", "qos", "time does not go back")
        self._now_ps = now_ps
