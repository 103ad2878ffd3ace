"""The archive's threads: `archive.connections` workers, one that writes the journal, and one that
takes notes on values (value_notes.py).

A worker takes the most urgent job: the listing at the start, then lookups of a purge that keeps
some chunks, since its reply waits, then restores that hosts wait for, further listings until two
agree, deletes, which wait for that, and uploads. A server that does not respond, is full or refuses
is given a pause, one second at first and one minute at most: uploads and deletes wait, and chunks
to be restored become misses immediately. The queues are bounded; a failure here never touches the
store.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from offstage.bindings.archive import Places
from offstage.bindings.errors import OffstageError
from offstage.dpu.archive.format import Shape, keys_of
from offstage.dpu.archive.journal import Journal
from offstage.dpu.archive.object_moves import bring_back, look, send_up
from offstage.dpu.archive.s3 import NAMES_MAX, Bucket, Failed
from offstage.dpu.archive.state import Return, State, Tenant, Upload
from offstage.dpu.archive.value_notes import ArchivedValues, has
from offstage.dpu.log import Log

__all__ = ["Workers"]

AWAY_S, AWAY_S_MAX = 1.0, 60.0
LOOK_S = 0.5
AGAIN_S = 1.0  # where the store could not be read
TRIES = 5  # of an object that the server answers an error to
Job = Callable[[Places], None]


class Workers:
    """Call `start` once all tenants are known; `close` waits for calls in flight."""

    def __init__(
        self,
        state: State,
        bucket: Bucket,
        shape: Shape,
        journal: Path,
        ttl_s: int,
        log: Log,
        values: ArchivedValues | None = None,
    ) -> None:
        """Opens the journal. `ttl_s`: how long blocks stay in the store; 0: for ever. `values`:
        None: the device keeps none."""
        self._state, self._bucket, self._shape, self._log = state, bucket, shape, log
        self._ttl_s, self._values = ttl_s, values
        self._journal = Journal(journal)
        state.leaving = self._journal.names
        self._tenants: list[Tenant] = []
        self._deletes: deque[tuple[Tenant, str]] = deque()
        self._listing = self._listed = self._sweeping = False
        self._stopping = False
        self._away_s, self._until_s, self._sweep_s = AWAY_S, 0.0, 0.0
        self._list_s, self._list_pause_s = 0.0, AWAY_S
        self._wake = threading.Condition(state.lock)
        self._threads: list[threading.Thread] = []

    def start(self, tenants: list[Tenant], places: list[Places]) -> None:
        """List the bucket, and serve."""
        self._tenants = tenants
        folders = {one.folder: one for one in tenants}
        for name in self._journal.names:
            tenant = folders.get(name[: name.rfind("/") + 1])
            if tenant is not None:
                self._deletes.append((tenant, name))
        self._threads = [threading.Thread(target=self._note_on, name="ofs-archive-notes")]
        self._threads += [
            threading.Thread(target=self._run, args=(one,), name="ofs-archive") for one in places
        ]
        if self._values is not None:
            words = tenants, self._wake, lambda: self._stopping, lambda: self.away
            self._threads.append(
                threading.Thread(target=self._values.serve, args=words, name="ofs-archive-values")
            )
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def away(self) -> bool:
        """Whether the server is paused, or has not been listed yet."""
        return not self._listed or time.monotonic() < self._until_s

    @property
    def deletes_waiting(self) -> int:
        """Objects whose delete is pending."""
        with self._state.lock:
            return len(self._journal.names) + len(self._state.unnoted)

    def noted(self, tenant: Tenant) -> bool:
        """Whether the tenant's deletes are in the journal, and their objects are all known."""
        state = self._state
        with state.lock:
            return tenant not in state.sweeps and not any(one is tenant for one, _ in state.unnoted)

    @property
    def _busy(self) -> bool:
        state = self._state
        return bool(state.uploads or state.active or self._deletes or state.unnoted)

    def wake(self) -> None:
        """Wake the workers."""
        with self._wake:
            self._wake.notify_all()

    def close(self, patience_s: float) -> None:
        """Stop when the queues are empty, the server is paused, or the time limit has passed; then
        wait for the calls in flight, which are bounded in time."""
        until_s = time.monotonic() + patience_s
        with self._wake:
            for one in self._state.uploads:
                one.after_s = 0.0
            while self._busy and not self.away and time.monotonic() < until_s:
                self._wake.wait(LOOK_S)
            self._stopping = True
            self._wake.notify_all()
        self._bucket.stop()
        for thread in self._threads:
            thread.join()
        self._note()
        self._journal.close()

    # ---- the journal's thread ----

    def _note_on(self) -> None:
        while True:
            with self._wake:
                while not self._state.unnoted and not self._stopping:
                    self._wake.wait(LOOK_S)
                if self._stopping:
                    return
            if not self._note():
                time.sleep(LOOK_S)

    def _note(self) -> bool:
        """Write the pending deletes to the disk. False if that fails: retried."""
        with self._state.lock:
            some = list(self._state.unnoted)
        if not some:
            return True
        try:
            self._journal.add(name for _, name in some)
        except OSError as error:
            self._log.error(
                "archive_journal_failed", path=str(self._journal.path), error=error.strerror
            )
            return False
        with self._wake:
            del self._state.unnoted[: len(some)]
            self._deletes.extend(dict.fromkeys(some))
            self._wake.notify_all()
        return True

    # ---- workers ----

    def _run(self, places: Places) -> None:
        while True:
            with self._wake:
                job = self._next()
                while job is None and not self._stopping:
                    self._wake.wait(LOOK_S)
                    job = self._next()
                if self._stopping:
                    return
            assert job is not None
            try:
                job(places)
            except Exception as error:  # a bug: retry later
                self._log.error("archive_job_failed", error=repr(error))
                self._failed(None, Failed("error", repr(error)))

    def _next(self) -> Job | None:
        """The most urgent job that can run now. Under the lock."""
        state, now_s = self._state, time.monotonic()
        swept = next((one for one in state.sweeps if one.is_listed), None)
        if swept is not None:  # asks no server; returns wait, which it may forbid
            if self._sweeping or now_s < self._sweep_s:
                return None
            self._sweeping = True
            return lambda places: self._sweep(places, swept)
        if now_s < self._until_s:
            return None
        if not self._listed:
            if self._listing:
                return None
            self._listing = True
            return self._list
        if state.returns:
            one = state.returns.popleft()
            return lambda places: self._return(places, one)
        listed = all(one.is_listed for one in self._tenants)
        if not (listed or self._listing or now_s < self._list_s):
            self._listing = True
            return self._list
        sending = {one.name for one in state.active}
        for entry in self._deletes:
            if entry[0].is_listed and entry[1] not in sending:  # else once what sends it has ended
                self._deletes.remove(entry)
                return lambda places: self._delete(*entry)
        for upload in state.uploads:
            if upload.after_s <= now_s:
                state.uploads.remove(upload)
                state.active.add(upload)
                return lambda places: self._upload(places, upload)
        return None

    def _list(self, places: Places) -> None:
        try:
            for tenant in self._tenants:
                if not tenant.is_listed:
                    names = _ours(tenant, self._bucket.names(tenant.folder))
                    values = self._state.listed(tenant, names, self._journal.names)
                    if self._values is not None:
                        self._values.found(tenant, values)
            self._await_notes()
            if self._values is not None and all(one.is_listed for one in self._tenants):
                self._values.all_found()
            self._listed = True
            self._list_s = time.monotonic() + self._list_pause_s
            self._list_pause_s = min(2 * self._list_pause_s, AWAY_S_MAX)
            self._log.info(
                "archive_listed",
                chunks=sum(len(one.known) for one in self._tenants),
                whole=all(one.is_listed for one in self._tenants),
            )
        except Failed as failed:
            self._failed(None, failed)
        finally:
            self._listing = False
            self.wake()

    def _await_notes(self) -> None:
        """What the listing condemned is noted before the stand-ins that spoke of it may go."""
        with self._wake:
            while self._state.unnoted and not self._stopping:
                self._wake.wait(LOOK_S)

    def _return(self, places: Places, one: Return) -> None:
        try:
            bring_back(self._state, self._bucket, places, self._shape, one, self._ttl_s)
            self._well()
        except Failed as failed:
            self._failed(one.tenant, failed)
        except OffstageError as error:
            one.tenant.counts["errors"] += 1
            self._log.warning("archive_return_failed", error=str(error))
        finally:
            self._state.end_return(one)
            if self._values is not None:
                self._values.settled([one])
            self.wake()

    def _delete(self, tenant: Tenant, name: str) -> None:
        try:
            if name != tenant.folder:  # which was for the listings alone
                self._bucket.delete(name)
        except Failed as failed:
            with self._state.lock:
                self._deletes.append((tenant, name))  # behind what this one may wait for
            self._failed(tenant, failed)
            return
        self._journal.done(name)
        tenant.counts["objects_deleted"] += 1
        self._well()

    def _sweep(self, places: Places, tenant: Tenant) -> None:
        """What a purge left in the store is what stays here too, and of what is being sent."""
        state = self._state
        try:
            with state.lock:
                sending = {key for one in state.active if one.tenant is tenant for key in one.keys}
                keys = list(sending.union(tenant.known))
            there = look(places, self._shape, tenant, keys)
            with state.lock:
                gone = [key for key, count in zip(keys, there, strict=True) if count == 0]
                found = [tenant.value(tenant.known[key]) for key in gone if key in tenant.known]
                state.deleting(tenant, gone)
            if self._values is not None:
                self._values.gone(tenant, [one for one in found if one is not None])
            with state.lock:
                state.sweeps.remove(tenant)
        except OffstageError as error:  # the store moves, or is being closed
            self._log.warning("archive_sweep_failed", error=str(error))
            self._sweep_s = time.monotonic() + LOOK_S
        finally:
            self._sweeping = False
            self.wake()

    def _upload(self, places: Places, upload: Upload) -> None:
        ended = again = False
        try:
            send_up(self._state, self._bucket, places, self._shape, upload)
            ended = True
            self._well()
            if upload.value is not None and self._values is not None:
                if has(upload.tenant, upload.value):
                    self._values.found(upload.tenant, [upload.value])
        except Failed as failed:
            upload.tries += 1
            again = failed.kind in ("gone", "refused") or upload.tries < TRIES
            self._failed(upload.tenant, failed)
        except OffstageError as error:  # the store moves, or is being closed
            upload.tries += 1
            again = upload.tries < TRIES
            upload.after_s = time.monotonic() + AGAIN_S
            upload.tenant.counts["errors"] += 1
            self._log.warning("archive_upload_failed", error=str(error))
        finally:
            with self._wake:
                self._state.active.discard(upload)
                if again and not upload.condemned:
                    self._state.uploads.appendleft(upload)
                elif not ended and not upload.condemned:
                    self._state.give_up(upload)
                self._wake.notify_all()

    # ---- state of the server ----

    def _well(self) -> None:
        self._away_s = AWAY_S

    def _failed(self, tenant: Tenant | None, failed: Failed) -> None:
        """Pause calls to the server for a while."""
        if tenant is not None:
            tenant.counts["errors"] += 1
        with self._wake:
            if time.monotonic() >= self._until_s:
                self._until_s = time.monotonic() + self._away_s
                self._away_s = min(2 * self._away_s, AWAY_S_MAX)
                self._log.warning("archive_away", why=str(failed), kind=failed.kind)
            dropped = self._state.drop_returns()
        if self._values is not None:
            self._values.settled(dropped)


def _ours(tenant: Tenant, names: Iterable[str]) -> list[str]:
    """The names of objects in a complete listing, within a bound. Failed: there are more, or the
    listing was incomplete; a partial listing is not used."""
    found: list[str] = []
    for name in names:
        if not keys_of(name[len(tenant.folder) :]):
            continue
        if len(found) >= NAMES_MAX:
            raise Failed("error", f"more than {NAMES_MAX:,} objects below {tenant.folder}")
        found.append(name)
    return found
