"""Upload or restore of one object: from the store to the bucket, or back. Runs on a worker.

Neither direction removes anything from the local store: an upload only reads it, and a restore
writes payloads checked against the object's keyed sum, under the keys on which its name and its
header agree.
"""

import errno
import hashlib
import time
from collections.abc import Sequence

from offstage.bindings.archive import LOOK_MAX, Places
from offstage.bindings.errors import Corrupt, OffstageError
from offstage.dpu.archive.format import Block, Shape, keys_of, pack, unpack
from offstage.dpu.archive.s3 import Bucket, Failed
from offstage.dpu.archive.state import Return, State, Tenant, Upload

__all__ = ["bring_back", "look", "send_up"]

TRIES = 3
LOOKUPS_MAX = 4096  # of one call to the reactor
OVERHEAD_BYTES = 1 << 20  # header of an object


def send_up(state: State, bucket: Bucket, places: Places, shape: Shape, upload: Upload) -> None:
    """Archive what the store has of the chunks, or a whole value. Failed where the bucket does not
    take it; OffstageError where the store cannot be read now."""
    tenant, value = upload.tenant, upload.value
    count = shape.layers if value is None else shape.pieces(value)
    names = [(key, layer) for key in upload.keys for layer in range(count)]
    places_of = names if value is None else [shape.place(*one) for one in names]
    blocks = _read(places, tenant, names, places_of)
    if value is not None and len(blocks) < count and not upload.condemned:
        raise OffstageError("a piece of a value is not in the store", value.key.hex())
    layers = {key: sum(1 for one, _, _ in blocks if one == key) for key in upload.keys}
    with state.lock:  # what the bucket has of a chunk is not replaced by less
        had = {
            key: tenant.layers.get(key, shape.layers) for key in upload.keys if key in tenant.known
        }
    keys = [key for key in upload.keys if layers[key] > had.get(key, 0)]
    blocks = [block for block in blocks if block[0] in keys]
    name = state.sending(upload, keys)
    if not name:
        return
    data = pack(shape, tenant.key, int(time.time()), keys, blocks, value)
    bucket.put(name, data)
    state.sent(upload, {key: layers[key] for key in keys})
    tenant.counts["bytes_up"] += len(data)
    tenant.counts["chunks_up"] += len(keys)


def _read(
    places: Places,
    tenant: Tenant,
    names: Sequence[tuple[bytes, int]],
    at: Sequence[tuple[bytes, int]],
) -> list[Block]:
    """What the store has of them, `at` these places. OffstageError where it has some and cannot
    read it now."""
    blocks: list[Block] = []
    for first in range(0, len(names), places.count):
        some = at[first : first + places.count]
        read = places.read(tenant.index, some)
        for (key, layer), (rc, payload) in zip(names[first:], read, strict=False):
            if rc == 0:
                blocks.append((key, layer, bytes(payload)))
            elif rc not in (-errno.ENOENT, -errno.EBADMSG):
                raise OffstageError("a block cannot be read now", key.hex(), errno=-rc)
    return blocks


def bring_back(
    state: State, bucket: Bucket, places: Places, shape: Shape, one: Return, ttl_s: int
) -> None:
    """Store what the object has. Failed where it does not come; one that fails its check, or is
    older than blocks live, is deleted: of the first only what two reads, apart in time, and a HEAD
    agree on."""
    tenant = one.tenant
    begun_s = time.monotonic()
    value = tenant.value(one.name)
    size_max = OVERHEAD_BYTES + 16 * shape.layers * shape.payload_bytes
    if value is not None:
        size_max = OVERHEAD_BYTES + value.length
    try:
        data = bucket.get(one.name, size_max)
    except Failed as failed:
        if failed.kind != "missing":
            raise
        # Another client deleted it, or another server answered.
        if state.doubt(one.name, b"missing") and bucket.holds(one.name, None):
            state.condemn(tenant, [one.name])
        return
    tenant.counts["bytes_down"] += len(data)
    name = one.name.rpartition("/")[2]
    try:
        written_s, blocks = unpack(shape, tenant.key, name, data)
    except Corrupt:
        tenant.counts["damaged"] += 1
        seen = hashlib.blake2b(data, digest_size=16).digest()
        if state.doubt(one.name, seen) and bucket.holds(one.name, data):
            state.condemn(tenant, [one.name])
        raise
    state.trust(one.name)
    if ttl_s and time.time() > written_s + ttl_s:
        state.condemn(tenant, [one.name])
        return
    written = blocks
    if value is not None:
        written = [(*shape.place(key, piece), payload) for key, piece, payload in blocks]
    for _ in range(TRIES):
        if _write(state, places, tenant, one.name, written):
            break
    with state.lock:
        for key in keys_of(name):
            if tenant.known.get(key) == one.name:
                tenant.layers[key] = sum(1 for owner, _, _ in blocks if owner == key)
    tenant.counts["chunks_down"] += len(keys_of(name))
    state.returned(time.monotonic() - begun_s, len(keys_of(name)))


def _write(
    state: State, places: Places, tenant: Tenant, name: str, blocks: Sequence[Block]
) -> bool:
    """False where some of the tenant's blocks were deleted meanwhile: look again whether these
    were. The device is looked at first, the tables second (state.py)."""
    deletes = places.look(tenant.index, [])[1]
    with state.lock:
        if not tenant.has(name):
            return True
    for first in range(0, len(blocks), places.count):
        some = blocks[first : first + places.count]
        rcs = places.write(tenant.index, deletes, some, tenant.value(name))
        if -errno.ECANCELED in rcs:
            return False
        bad = next((rc for rc in rcs if rc != 0), 0)
        if bad:
            raise OffstageError("the store does not take a block back", name, errno=-bad)
    return True


def look(places: Places, shape: Shape, tenant: Tenant, keys: Sequence[bytes]) -> list[int]:
    """How many layers of each key the store has; a few keys a call, whatever there are."""
    step = max(1, min(LOOK_MAX, LOOKUPS_MAX // shape.layers))
    found: list[int] = []
    for first in range(0, len(keys), step):
        found += places.look(tenant.index, keys[first : first + step])[0]
    return found
