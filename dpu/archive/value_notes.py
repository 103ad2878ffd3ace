"""What the archive and the device tell each other of values.

Model: the device has a table of values, in which one may be known as archived, or be in the archive
alone. One thread takes its notes: a value that is stored is uploaded, one that is wanted is
restored, and one that was replaced or deleted is deleted from the bucket; who deletes it waits
until that is in the journal. The workers say what a listing found and how uploads and restores
ended. A note that cannot be served now stays in the device: uploads are taken while there is room
and the server answers. What the device has in its table and the bucket has lost is forgotten when
it is next asked for.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from offstage.bindings.archive import NOTES_MAX, Value, ValueNotes
from offstage.bindings.errors import OffstageError
from offstage.dpu.archive.state import Return, State, Tenant
from offstage.dpu.log import Log

__all__ = ["ArchivedValues", "has"]

LOOK_S = 0.5


class ArchivedValues:
    """The values of all tenants; `serve` is the thread's, any thread may call the rest, but not
    under the lock of the tables."""

    def __init__(
        self,
        state: State,
        notes: ValueNotes,
        log: Log,
        wants: Callable[[], bool],
        flush_s: float,
    ) -> None:
        """`wants`: whether anything is to be restored; `flush_s`: after which a value that was
        stored is on the drive."""
        self._state, self._notes, self._log = state, notes, log
        self._wants, self._flush_s = wants, flush_s
        self._tenants: list[Tenant] = []
        self._is_full = self._is_taking = False

    # ---- the thread of notes ----

    def serve(
        self,
        tenants: list[Tenant],
        wake: threading.Condition,
        stopping: Callable[[], bool],
        away: Callable[[], bool],
    ) -> None:
        """Take notes until `stopping`. `wake`: of the workers, over the tables' lock."""
        self._tenants = tenants
        while not stopping():
            try:
                stored = not away() and self._state.room > 0
                if self._notes.wait(stored, LOOK_S):
                    self._take(stored, wake, stopping, away())
            except OffstageError as error:  # the reactor ends, or is stuck
                self._log.warning("archive_notes_failed", error=str(error))
                time.sleep(LOOK_S)
            finally:
                self._is_taking = False

    def _take(
        self, stored: bool, wake: threading.Condition, stopping: Callable[[], bool], is_away: bool
    ) -> None:
        self._is_taking = True
        most = min(NOTES_MAX, self._state.room) if stored else NOTES_MAX
        gone: list[tuple[Tenant, Value]] = []
        for kind, index, value in self._notes.take(stored and most > 0, max(most, 1)):
            tenant = self._tenants[index]
            if kind == "stored":
                self._state.value_stored(tenant, value, time.monotonic() + self._flush_s)
            elif kind == "wanted":
                self._want(tenant, value, is_away)
            else:
                self._state.value_gone(tenant, value, stays=kind == "replaced")
                gone += [(tenant, value)] if kind == "gone" else []
        with wake:
            wake.notify_all()
            while gone and self._state.unnoted and not stopping():
                wake.wait(LOOK_S)
            if self._state.unnoted:
                return
        for tenant, value in gone:
            self._notes.end(tenant.index, [value], gone=True)

    def _want(self, tenant: Tenant, value: Value, is_away: bool) -> None:
        if not self._wants():
            tenant.counts["chunks_left"] += 1
        elif not is_away and self._state.value_wanted(tenant, value) is not None:
            return
        self._settle(tenant, value)

    # ---- what the workers say ----

    def found(self, tenant: Tenant, values: Sequence[Value]) -> None:
        """The bucket has these, of which the later ones come last. What the device has otherwise
        is deleted from the bucket."""
        newest: dict[bytes, Value] = {}
        for first in range(0, len(values), NOTES_MAX):
            some = values[first : first + NOTES_MAX]
            for value, rc in zip(some, self._notes.archived(tenant.index, some), strict=True):
                self._is_full |= rc == -errno.ENOSPC
                if rc == 0:
                    newest[value.key] = value
                elif rc == -errno.ESTALE:
                    self._state.deleting(tenant, [value.store_key])
        for value in newest.values():
            self._state.value_gone(tenant, value, stays=True)
        for first in range(0, len(values), NOTES_MAX):
            some = values[first : first + NOTES_MAX]
            # What was deleted since the tables were read is not to come back.
            self._notes.end(tenant.index, [one for one in some if not has(tenant, one)], gone=True)

    def all_found(self) -> None:
        """The device knows of every value in the bucket, if its table had room."""
        if not self._is_full:
            self._notes.listed()

    def settled(self, returns: Iterable[Return]) -> None:
        """These restores have ended, successfully or not."""
        for one in returns:
            value = one.value
            if value is not None:
                self._settle(one.tenant, value)

    def gone(self, tenant: Tenant, values: Sequence[Value]) -> None:
        """The bucket loses these, and the store does not have them."""
        self._notes.end(tenant.index, values, gone=True)

    def _settle(self, tenant: Tenant, value: Value) -> None:
        try:
            self._notes.end(tenant.index, [value], gone=not has(tenant, value))
        except OffstageError as error:  # the reactor ends
            self._log.warning("archive_notes_failed", error=str(error))

    @property
    def waiting(self) -> int:
        """Notes that have not been taken, and whether some are in hand."""
        return self._notes.waiting + self._is_taking


def has(tenant: Tenant, value: Value) -> bool:
    """Whether the bucket has it, and keeps it."""
    return value in tenant.values.get(value.key, [])
