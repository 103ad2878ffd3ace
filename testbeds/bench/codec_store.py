"""Cost and savings of `store.codec`: one store on an emulated drive, plain and coded, in turns.

Blocks of KV are put and read back through the whole store, checks and decoding included, by one
thread, as the reactor does it. Bytes are those transferred to and from the drive. The drive's
own times are a model's, so the figures are `emulated`; the codec's are real.
"""

import statistics
import time

import msgspec

from offstage.bindings.codec import DTYPES
from offstage.bindings.errors import RunFailed
from offstage.bindings.storage import Storage, StorageConfig, preset
from offstage.bindings.store import Store, StoreConfig

__all__ = ["StoreFigures", "StoreSide", "store_row"]

LBA_BYTES = 4096
DEPTH = 16
SEGMENT_RECORDS = 16


class StoreSide(msgspec.Struct, frozen=True):
    """A store with or without the codec: bytes that crossed to the drive, gets alone and many."""

    written_bytes_per_block: float
    read_bytes_per_block: float
    get_s: float
    gets_per_s: float


class StoreFigures(msgspec.Struct, frozen=True):
    """Medians of the rounds of both sides."""

    dtype: str
    drive: str
    block_bytes: int
    plain: StoreSide
    coded: StoreSide
    provenance: str = "emulated"


def store_row(dtype: str, blocks: list[bytes], drive: str, rounds: int) -> StoreFigures:
    """Reads of all blocks, one at a time and 16 at a time: medians of the rounds."""
    taken: dict[str, list[StoreSide]] = {"plain": [], "coded": []}
    for turn in range(rounds):
        for side in ("plain", "coded") if turn % 2 == 0 else ("coded", "plain"):
            codec = DTYPES.index(dtype) + 1 if side == "coded" else 0
            taken[side].append(_round(codec, blocks, drive, turn + 1))
    plain, coded = (_median(taken[side]) for side in ("plain", "coded"))
    return StoreFigures(dtype, drive, len(blocks[0]), plain, coded)


def _median(found: list[StoreSide]) -> StoreSide:
    columns = zip(*map(msgspec.structs.astuple, found), strict=True)
    return StoreSide(*map(statistics.median, columns))


def _round(codec: int, blocks: list[bytes], drive: str, seed: int) -> StoreSide:
    record_bytes = len(blocks[0]) + LBA_BYTES
    config = StoreConfig(
        payload_size_bytes=len(blocks[0]),
        layer_count=1,
        io_max=DEPTH,
        codec=codec,
        segment_size_bytes=LBA_BYTES + SEGMENT_RECORDS * record_bytes,
    )
    segments = len(blocks) // SEGMENT_RECORDS + 4
    device = StorageConfig(
        backend="emulated",
        size_bytes=(1 << 17) + segments * config.segment_size_bytes,
        lba_size_bytes=LBA_BYTES,
        busy_spin=True,
        nvme=preset(drive).params,
        seed=seed,
    )
    with Storage(device) as storage, Store(storage, config) as store:
        began = storage.stats()
        for key, block in enumerate(blocks):
            if store.put_wait(key, 0, block) != 0:
                raise RunFailed("a put failed", "bench codec", "see the errno")
        written = storage.stats()
        alone = time.perf_counter()
        for key, block in enumerate(blocks):
            if store.get_wait(key, 0).payload != block:
                raise RunFailed("a block could not be read back", "bench codec", "run the tests")
        read = storage.stats()
        together = time.perf_counter()
        _read_together(store, len(blocks))
        ended = time.perf_counter()
    count = len(blocks)
    return StoreSide(
        written_bytes_per_block=(written["bytes_written"] - began["bytes_written"]) / count,
        read_bytes_per_block=(read["bytes_read"] - written["bytes_read"]) / count,
        get_s=(together - alone) / count,
        gets_per_s=count / (ended - together),
    )


def _read_together(store: Store, count: int) -> None:
    """All blocks, with as many in flight as the store allows."""
    key = done = 0
    while done < count:
        while key < count and store.get(key, 0) == 0:
            key += 1
        done += len(store.poll())
