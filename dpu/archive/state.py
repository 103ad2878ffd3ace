"""The archive's tables and queues: chunks in the bucket, uploads, restores, deletes.

Model: plain tables under one lock; nothing here waits for a drive or a server. The daemon's loop
queries and adds (`closed`, `deleting`, `wanted`); the archive's workers take jobs and report how
they ended. Every queue is bounded: what a full queue rejects is dropped and counted, since it can
be repeated: a chunk is archived when its next session ends, and a chunk that is not restored is
recomputed. A deleted chunk leaves the tables before the device is called, so that a reader who
checks the device first and the tables second never sees a chunk that was deleted in between.

Until the bucket has been listed, the objects that contain a deleted chunk are unknown, and one
listing may be incomplete. Listing repeats until one finds nothing that the earlier ones lacked.
Meanwhile a delete is also recorded as the delete of an object that contains only this chunk, and
the delete of all chunks as that of the tenant's folder. Each listing applies these to what it
newly finds, and they survive a restart.

A value is a chunk with a key of its own. Of a key the archive has one value, the device's: every
other is deleted when the device says so. A delete by key of a value that no listing has found yet
is recorded like that of a chunk, with the value's key in the place of a store key.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from offstage.bindings.archive import Value
from offstage.dpu.archive.format import keys_of, name_of, value_name, value_of

__all__ = ["COUNTS", "RETURNS_MAX", "Return", "State", "Tenant", "Upload"]

RETURNS_MAX = 1024
DOUBT_S = 60.0  # between the two looks at an object that is to go because of them
DOUBTS_MAX = 1024
COUNTS = (
    "bytes_up",
    "bytes_down",
    "chunks_up",
    "chunks_down",
    "chunks_left",
    "objects_deleted",
    "errors",
    "damaged",
    "dropped",
)
PACE_PART = 1 / 16  # that a new return weighs
PACE_S = 600.0  # after which what was measured is forgotten


@dataclass(eq=False)
class Tenant:
    """One tenant's part: its number in the device, its folder in the bucket, the key of its sums.

    `known`: the object that each store key is in; `layers`: how many it has of the chunk, where
    that was seen; `values`: by key; `others`: further objects with the chunk, which go with it;
    `is_seen`: of a listing; `is_listed`: whether another had no more; `sweep_due`: whether a purge
    has yet to look them up."""

    index: int
    folder: str
    key: bytes
    known: dict[bytes, str] = field(default_factory=dict)
    layers: dict[bytes, int] = field(default_factory=dict)
    others: dict[bytes, set[str]] = field(default_factory=dict)
    values: dict[bytes, list[Value]] = field(default_factory=dict)
    is_seen: bool = False
    is_listed: bool = False
    sweep_due: bool = False
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))

    def objects(self, key: bytes) -> set[str]:
        """All objects that have this chunk."""
        first = {self.known[key]} if key in self.known else set()
        return first | self.others.get(key, set())

    def has(self, name: str) -> bool:
        """Whether this object is present and will stay."""
        return all(name in self.objects(key) for key in keys_of(name[len(self.folder) :]))

    def add(self, key: bytes, name: str) -> None:
        """Restore the chunk from this object from now on."""
        rest = self.objects(key) - {name}
        self.known[key] = name
        if rest:
            self.others[key] = rest
        value = self.value(name)
        if value is not None and value not in self.values.get(value.key, []):
            self.values.setdefault(value.key, []).append(value)

    def value(self, name: str) -> Value | None:
        """The value that the object of this name has; None: it has chunks of sessions."""
        return value_of(self.key, name[len(self.folder) :])

    def remove(self, key: bytes, name: str) -> None:
        """This object no longer has the chunk; another may."""
        rest = self.objects(key) - {name}
        self.others.pop(key, None)
        if self.known.get(key) == name:
            del self.known[key]
            self.layers.pop(key, None)
            if rest:
                self.known[key] = min(rest)
        rest.discard(self.known.get(key, ""))
        if rest:
            self.others[key] = rest
        value = self.value(name)
        if value is not None and value in self.values.get(value.key, []):
            self.values[value.key].remove(value)
            if not self.values[value.key]:
                del self.values[value.key]


@dataclass(eq=False)
class Upload:
    """Consecutive chunks for one object, or the one of `value`. `name`: of an object that an
    attempt has sent, or is sending: whether the server has it is unknown."""

    tenant: Tenant
    keys: list[bytes]
    after_s: float = 0.0
    name: str = ""
    condemned: bool = False
    tries: int = 0
    value: Value | None = None


@dataclass(eq=False)
class Return:
    """An object being restored; `ended` after success or failure."""

    tenant: Tenant
    name: str
    ended: bool = False

    @property
    def value(self) -> Value | None:
        """Of whose object it is, if of a value's."""
        return self.tenant.value(self.name)


class State:
    """The tables. Hold `lock` to access a field that has no method here."""

    def __init__(self, queue_max: int, group: int, layers: int) -> None:
        """`queue_max` uploads may wait; an object has up to `group` chunks, of `layers` each."""
        self._queue_max, self._group, self._layers = queue_max, group, layers
        self.lock = threading.RLock()
        self.uploads: deque[Upload] = deque()
        self.active: set[Upload] = set()
        self.returns: deque[Return] = deque()
        self.returning: dict[str, Return] = {}
        self.leaving: set[str] = set()  # the journal's names
        self.unnoted: list[tuple[Tenant, str]] = []  # deletes that are not in the journal yet
        self.sweeps: deque[Tenant] = deque()
        self._doubts: dict[str, tuple[bytes, float]] = {}
        self._pace: tuple[float, float, float] | None = None  # seconds, chunks, when

    def listed(self, tenant: Tenant, names: Iterable[str], gone: set[str]) -> list[Value]:
        """What the bucket holds of a tenant, but for what is to be deleted: `gone`, the journal's,
        and what is not in it yet. Objects that only stand-ins of those speak of are noted here. Of
        a later listing what is known, or being sent, is what the tables say. Returns the values
        that it found, the latest last: the device is to know."""
        found: list[Value] = []
        with self.lock:
            leaving = set(gone) | {name for one, name in self.unnoted if one is tenant}
            spoken = leaving | {one.name for one in (*self.uploads, *self.active)}
            alone = [
                keys_of(name[len(tenant.folder) :])
                for name in leaving
                if name.startswith(tenant.folder)
            ]
            dead = {keys[0] for keys in alone if len(keys) == 1}
            fresh = False
            for name in names:
                keys = keys_of(name[len(tenant.folder) :])
                if not keys or name in spoken or tenant.has(name):
                    continue
                fresh = True
                value = tenant.value(name)
                dying = keys if value is None else [*keys, value.key]
                if tenant.folder in leaving or not dead.isdisjoint(dying):
                    self.unnoted.append((tenant, name))
                    continue
                if value is not None:
                    found.append(value)
                for key in keys:
                    tenant.add(key, name)
            tenant.is_seen, tenant.is_listed = True, tenant.is_seen and not fresh
            for upload in self.uploads:
                if upload.tenant is tenant:
                    upload.keys = [key for key in upload.keys if key not in tenant.known]
            self.uploads = deque(one for one in self.uploads if one.keys)
        return sorted(found, key=lambda value: value.generation)

    def closed(self, tenant: Tenant, keys: Sequence[bytes], after_s: float) -> None:
        """A session with these chunks, in order, has ended and keeps its blocks."""
        with self.lock:
            busy = {
                key
                for one in (*self.active, *self.uploads)
                if one.tenant is tenant
                for key in one.keys
            }
            for first in range(0, len(keys), self._group):
                fresh = [
                    key
                    for key in dict.fromkeys(keys[first : first + self._group])
                    if self._lacks(tenant, key) and key not in busy
                ]
                if not fresh:
                    continue
                if len(self.uploads) >= self._queue_max:
                    # No session that ends sends a value again.
                    oldest = next((one for one in self.uploads if one.value is None), None)
                    if oldest is None:
                        tenant.counts["dropped"] += len(fresh)
                        continue
                    self.uploads.remove(oldest)
                    self.give_up(oldest)
                self.uploads.append(Upload(tenant, fresh, after_s))

    def _lacks(self, tenant: Tenant, key: bytes) -> bool:
        """Whether the bucket has fewer than all layers, as far as known."""
        return key not in tenant.known or tenant.layers.get(key, self._layers) < self._layers

    def value_stored(self, tenant: Tenant, value: Value, after_s: float) -> None:
        """The device has a value that the bucket lacks."""
        with self.lock:
            self.uploads.append(Upload(tenant, [value.store_key], after_s, value=value))

    @property
    def room(self) -> int:
        """How many more uploads may wait."""
        with self.lock:
            return max(self._queue_max - len(self.uploads), 0)

    def value_gone(self, tenant: Tenant, value: Value, stays: bool) -> None:
        """All that the bucket has, or is being sent, of the value's key is to go, but for the value
        itself where it `stays`."""
        with self.lock:
            queued = [one.value for one in (*self.uploads, *self.active) if one.tenant is tenant]
            of_key = [one for one in queued if one is not None and one.key == value.key]
            of_key += tenant.values.get(value.key, [])
            gone = {one.store_key for one in of_key if not (stays and one == value)}
            if not stays:
                gone |= {value.key} if not tenant.is_listed else set()
            if gone:
                self.deleting(tenant, gone)

    def give_up(self, upload: Upload) -> None:
        """Cancel the upload until the next session with these chunks ends."""
        with self.lock:
            upload.tenant.counts["dropped"] += len(upload.keys)
            self._forget(upload)

    def _forget(self, upload: Upload) -> None:
        """Delete what an attempt may have left in the bucket, unless the tables name it: a delete
        reaches only what they know."""
        if upload.name and not upload.tenant.has(upload.name):
            self.unnoted.append((upload.tenant, upload.name))
        upload.name = ""

    def wanted(self, tenant: Tenant, missing: Iterable[tuple[bytes, int]]) -> list[Return]:
        """The restores of what the bucket has of (store key, layers in the store)."""
        found: dict[str, Return] = {}
        with self.lock:
            for key, there in missing:
                name = tenant.known.get(key)
                if name is None or tenant.layers.get(key, there + 1) <= there:
                    continue
                one = self.returning.get(name)
                if one is None and len(self.returning) < RETURNS_MAX:
                    one = self.returning[name] = Return(tenant, name)
                    self.returns.append(one)
                if one is not None:
                    found[name] = one
        return list(found.values())

    def value_wanted(self, tenant: Tenant, value: Value) -> Return | None:
        """The restore of a value; None: the bucket does not have it, or too many wait."""
        found = self.wanted(tenant, [(value.store_key, 0)])
        return found[0] if found else None

    def deleting(self, tenant: Tenant, keys: Iterable[bytes]) -> None:
        """These chunks are about to be deleted for good."""
        with self.lock:
            gone = set(keys)
            if not tenant.is_listed:
                self.unnoted += [(tenant, tenant.folder + name_of([key])) for key in gone]
            self._delete(tenant, gone)

    def deleting_all(self, tenant: Tenant) -> None:
        """Every chunk of the tenant is about to be deleted; repeated calls record it once."""
        with self.lock:
            queued = {
                key
                for one in (*self.uploads, *self.active)
                if one.tenant is tenant
                for key in one.keys
            }
            stand_in = tenant, tenant.folder
            if not (tenant.is_listed or tenant.folder in self.leaving or stand_in in self.unnoted):
                self.unnoted.append(stand_in)
            self._delete(tenant, {*tenant.known, *queued})

    def purged(self, tenant: Tenant, lost_some: bool, more: bool) -> None:
        """The store drops some of the tenant's chunks and keeps the rest; once there is no `more`,
        a worker looks up which remain."""
        with self.lock:
            tenant.sweep_due |= lost_some
            if tenant.sweep_due and not more:
                self.sweeps.append(tenant)
                tenant.sweep_due = False

    def _delete(self, tenant: Tenant, gone: set[bytes]) -> None:
        self.condemn(tenant, {name for key in gone for name in tenant.objects(key)})
        for upload in (*self.uploads, *self.active):
            if upload.tenant is tenant and gone & set(upload.keys):
                self._condemn_upload(upload, gone)
        self.uploads = deque(one for one in self.uploads if one.keys)

    def _condemn_upload(self, upload: Upload, gone: set[bytes]) -> None:
        if upload not in self.active:
            upload.keys = [key for key in upload.keys if key not in gone]
            self._forget(upload)
            return
        upload.condemned = True
        if upload.name:  # it may be in the bucket already, or soon
            self.unnoted.append((upload.tenant, upload.name))

    def condemn(self, tenant: Tenant, names: Iterable[str]) -> None:
        """Delete these objects; none of their chunks counts as present any more."""
        with self.lock:
            for name in names:
                for key in keys_of(name[len(tenant.folder) :]):
                    tenant.remove(key, name)
                self.unnoted.append((tenant, name))

    def sending(self, upload: Upload, keys: list[bytes]) -> str:
        """The name under which it is sent now; empty where it is not to be: no keys are left of
        it, it was deleted, or one of that name still has to go (it is archived when its next
        session ends)."""
        last = (
            name_of(keys) if upload.value is None else value_name(upload.tenant.key, upload.value)
        )
        name = upload.tenant.folder + last if keys else ""
        with self.lock:
            if upload.condemned:
                return ""
            if upload.name != name:
                self._forget(upload)
            if name in self.leaving or any(one == name for _, one in self.unnoted):
                upload.tenant.counts["dropped"] += len(keys)
                name = ""
            upload.name = name
            return name

    def sent(self, upload: Upload, layers: dict[bytes, int]) -> None:
        """The bucket has it, with `layers` layers of each chunk."""
        with self.lock:
            if not upload.condemned:
                for key, count in layers.items():
                    upload.tenant.add(key, upload.name)
                    upload.tenant.layers[key] = count

    def returned(self, seconds: float, chunks: int) -> None:
        """An object with that many chunks was restored, with its time since the request."""
        with self.lock:
            at_s = time.monotonic()
            if self._pace is None or at_s - self._pace[2] > PACE_S:
                self._pace = seconds, float(chunks), at_s
            old_s, old, _ = self._pace
            self._pace = (
                old_s + (seconds - old_s) * PACE_PART,
                old + (chunks - old) * PACE_PART,
                at_s,
            )

    def pace(self) -> tuple[float, float]:
        """Recent seconds of a restore and its chunks; zeros: unknown, or outdated."""
        with self.lock:
            if self._pace is None or time.monotonic() - self._pace[2] > PACE_S:
                return 0.0, 0.0
            return self._pace[:2]

    def doubt(self, name: str, seen: bytes) -> bool:
        """An object was not what it should be: `seen` names how. Whether it was that before too, so
        long ago that one fault of the way to the server is not both."""
        with self.lock:
            before, at_s = self._doubts.get(name, (b"", 0.0))
            if before == seen:
                return time.monotonic() - at_s >= DOUBT_S
            while len(self._doubts) >= DOUBTS_MAX:
                del self._doubts[next(iter(self._doubts))]
            self._doubts[name] = seen, time.monotonic()
            return False

    def trust(self, name: str) -> None:
        """The object was read intact."""
        with self.lock:
            self._doubts.pop(name, None)

    def end_return(self, one: Return) -> None:
        """The restore has ended, successfully or not."""
        with self.lock:
            one.ended = True
            self.returning.pop(one.name, None)

    def drop_returns(self) -> list[Return]:
        """The server does not answer: waiting restores end as they are. Which they were."""
        with self.lock:
            dropped = list(self.returns)
            self.returns.clear()
            for one in dropped:
                self.end_return(one)
            return dropped
