"""Read a store file without the store: for `offstage dpu store FILE`, and the tests' oracle.

The reader shares only checksum (XXH3-64) and codec with the firmware. It implements the layout a
second time, from docs/reference/store-format.md, so that the two can disagree. The file is only
read; if a daemon has the store open, it may change meanwhile, and blocks in flight look torn.
Only `recover` runs the firmware.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

import numpy as np

from offstage.bindings.codec import decode
from offstage.bindings.errors import BadInput, Corrupt
from offstage.bindings.keys import checksum
from offstage.bindings.layouts import constant, layout, numbered, offset_of
from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig

__all__ = [
    "Block",
    "Forward",
    "Segment",
    "StoreFile",
    "Superblock",
    "check",
    "inspect",
    "recover",
    "tenants_stored",
]

STORE_MAGIC = b"OFSTORE1"
SEGMENT_MAGIC = b"OFSEGMG1"
TRAILER_MAGIC = b"OFSR"
VERSION_CODED = constant("OFS_STORE_VERSION_CODED")
VERSIONS = (constant("OFS_STORE_VERSION"), VERSION_CODED)
FORWARD_MAGIC = b"OFSMOVE1"
FORWARD_OFFSET = constant("OFS_STORE_FORWARD_OFFSET")
FORWARD = layout("struct ofs_store_forward")
COPY_OFFSET = constant("OFS_STORE_COPY_OFFSET")
SEGMENTS_OFFSET = constant("OFS_STORE_SEGMENTS_OFFSET")
SUPERBLOCK = layout("struct ofs_superblock")
HEADER = layout("struct ofs_segment_header")
TRAILER = layout("struct ofs_trailer")
TRAILER_BYTES = offset_of(TRAILER, "key")
"""The fields of a trailer that are on the medium and under its checksum; the rest is in memory."""
STATES = numbered("enum ofs_header_state", "OFS_HEADER_")


@dataclass(frozen=True)
class Superblock:
    """Sizes in bytes; `created_s` Unix time; `openings` counts the times it was opened."""

    version: int
    lba_size_bytes: int
    uuid: bytes
    size_bytes: int
    payload_size_bytes: int
    segment_size_bytes: int
    segment_count: int
    records_per_segment: int
    layer_count: int
    tenant_max: int
    openings: int
    created_s: int

    @property
    def record_size_bytes(self) -> int:
        """A payload and its trailer's logical block."""
        return self.payload_size_bytes + self.lba_size_bytes

    @property
    def consistent(self) -> bool:
        """Whether records fit their segments, and segments the store."""
        record_bytes = self.records_per_segment * self.record_size_bytes
        segment_bytes = self.segment_count * self.segment_size_bytes
        return (
            min(self.lba_size_bytes, self.payload_size_bytes, self.records_per_segment) > 0
            and self.lba_size_bytes + record_bytes <= self.segment_size_bytes
            and SEGMENTS_OFFSET + segment_bytes <= self.size_bytes
        )


@dataclass(frozen=True)
class Segment:
    """A segment whose header is whole; `state` "used" or "free"."""

    index: int
    state: str
    sequence: int
    tenant: int
    layer: int


@dataclass(frozen=True)
class Block:
    """A record whose trailer matches its position. `whole`: its payload matches too."""

    key: int
    layer: int
    tenant: int
    sequence: int
    expire_s: int
    length: int
    segment: int
    index: int
    whole: bool
    coded_bytes: int  # of its payload in the file; 0 where that is as it is


@dataclass(frozen=True)
class Forward:
    """The new place of a store that moved: the storage as the configuration names it, and
    the uuid of the store on it."""

    next: bytes
    backend: str
    inner: str
    path: str
    size_bytes: int
    moved_s: int


class StoreFile:
    """An open store file; a context manager. `BadInput` if it is not one, or not readable."""

    def __init__(self, path: Path | str, file: BinaryIO | None = None) -> None:
        self.path = Path(path)  # of messages alone, where `file` is given
        try:
            self._file: BinaryIO = self.path.open("rb") if file is None else file
        except OSError as error:
            raise BadInput(
                error.strerror or "cannot be opened", str(path), "give the path of a store"
            ) from None
        try:
            self.superblocks_whole, self.superblock = self._superblock()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "StoreFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def forward(self) -> Forward | None:
        """Where its blocks are now; None: here."""
        data = self._read(FORWARD_OFFSET, FORWARD.itemsize)
        if not data.startswith(FORWARD_MAGIC) or not _sealed(data):
            return None
        found = np.frombuffer(data, FORWARD)[0]
        if found["uuid"].tobytes() != self.superblock.uuid:
            return None
        backend, inner, path = (
            found[name].tobytes().split(b"\0")[0].decode(errors="surrogateescape")
            for name in ("backend", "inner", "path")
        )
        return Forward(
            found["next"].tobytes(),
            backend,
            inner,
            path,
            int(found["size_bytes"]),
            int(found["moved_s"]),
        )

    def _read(self, offset: int, size_bytes: int) -> bytes:
        """Exactly `size_bytes` bytes; zeros past the end, like a sparse device."""
        self._file.seek(offset)
        return self._file.read(size_bytes).ljust(size_bytes, b"\0")

    def _superblock(self) -> tuple[int, Superblock]:
        """The number of intact superblocks, and the later one."""
        where = str(self.path)
        copies = [self._read(at, SUPERBLOCK.itemsize) for at in (0, COPY_OFFSET)]
        whole = [one for one in copies if _sealed(one) and one.startswith(STORE_MAGIC)]
        found = [one for one in map(_parse_superblock, whole) if one.version in VERSIONS]
        if not found:
            for one in copies:
                if one.startswith(STORE_MAGIC) and (version := _version(one)) not in VERSIONS:
                    raise BadInput(
                        f"a store of format version {version}; this release reads "
                        + " and ".join(map(str, VERSIONS)),
                        where,
                        "use the release that made it",
                    )
            if any(one.startswith(STORE_MAGIC) for one in copies):
                raise BadInput(
                    "both superblocks of the store are damaged", where, "restore it from a copy"
                )
            raise BadInput("this is not a store", where, "give the path of a store file")
        latest = max(found, key=lambda one: one.openings)
        if not latest.consistent:
            raise BadInput(
                "the superblock contradicts itself", where, "this was made by other code"
            )
        self._file.seek(0, 2)
        size_bytes = self._file.tell()
        if size_bytes < latest.size_bytes:
            raise BadInput(
                f"cut short: {size_bytes} B of {latest.size_bytes} B",
                where,
                "restore it from a copy, or let the daemon recover what is left",
            )
        return len(found), latest

    def _offset(self, segment: int) -> int:
        return SEGMENTS_OFFSET + segment * self.superblock.segment_size_bytes

    def segments(self) -> Iterator[Segment]:
        """Every segment with a whole header of this store."""
        for index in range(self.superblock.segment_count):
            data = self._read(self._offset(index), HEADER.itemsize)
            head = np.frombuffer(data, HEADER)[0]
            state = int(head["state"])
            if (
                data.startswith(SEGMENT_MAGIC)
                and _sealed(data)
                and head["index"] == index
                and state in STATES
                and head["uuid"].tobytes() == self.superblock.uuid
            ):
                tenant, layer = int(head["tenant"]), int(head["layer"])
                yield Segment(index, STATES[state], int(head["sequence"]), tenant, layer)

    def blocks(self, segment: Segment) -> Iterator[Block]:
        """Every record of a used segment with a valid trailer of the segment's present sequence."""
        head = self.superblock
        for index in range(head.records_per_segment):
            start = self._offset(segment.index) + head.lba_size_bytes
            data = self._read(start + index * head.record_size_bytes, head.record_size_bytes)
            raw = data[head.payload_size_bytes :][: TRAILER.itemsize].ljust(TRAILER.itemsize, b"\0")
            found = np.frombuffer(raw, TRAILER)[0]
            length, sequence = int(found["length"]), int(found["sequence"])
            store, life, place = map(int, found["reserved"])
            coded_bytes, at = divmod(place, 1 << 32)
            if (
                raw.startswith(TRAILER_MAGIC)
                and int(found["crc"]) == checksum(raw[8:TRAILER_BYTES]) & 0xFFFFFFFF
                and 0 < length <= head.payload_size_bytes
                and store == int.from_bytes(head.uuid[:8], "little")
                and life == segment.sequence < sequence
                and at == segment.index * head.records_per_segment + index
                and (coded_bytes == 0 or self._may_be_coded(coded_bytes))
                and (int(found["layer"]), int(found["tenant"])) == (segment.layer, segment.tenant)
            ):
                payload = self._plain(data, length, coded_bytes)
                yield Block(
                    int.from_bytes(found["store_key"].tobytes(), "little"),
                    segment.layer,
                    segment.tenant,
                    sequence,
                    int(found["expire_s"]),
                    length,
                    segment.index,
                    index,
                    payload is not None and int(found["checksum"]) == checksum(payload),
                    coded_bytes,
                )

    def _may_be_coded(self, coded_bytes: int) -> bool:
        head = self.superblock
        room = head.payload_size_bytes - head.lba_size_bytes
        return head.version == VERSION_CODED and coded_bytes <= room

    def _plain(self, data: bytes, length: int, coded_bytes: int) -> bytes | None:
        """The payload of a record; None where it is coded and cannot be decoded."""
        if coded_bytes == 0:
            return data[:length]
        head = self.superblock
        span = -(-coded_bytes // head.lba_size_bytes) * head.lba_size_bytes
        begin = head.payload_size_bytes - span
        try:
            plain = decode(data[begin : begin + coded_bytes], length)
        except Corrupt:
            return None
        return plain if len(plain) == length else None

    def newest(self) -> dict[tuple[int, int], Block]:
        """By (key, layer): of the whole records of each block, the latest."""
        found: dict[tuple[int, int], Block] = {}
        for segment in self.segments():
            if segment.state == "used":
                for block in self.blocks(segment):
                    name = (block.key, block.layer)
                    if block.whole and (name not in found or found[name].sequence < block.sequence):
                        found[name] = block
        return found

    def offset(self, block: Block) -> int:
        """The offset of its record in the file, the payload first."""
        head = self.superblock
        start = self._offset(block.segment) + head.lba_size_bytes
        return start + block.index * head.record_size_bytes

    def payload(self, block: Block) -> bytes:
        """Its bytes; `Corrupt` where they are coded and damaged."""
        data = self._read(self.offset(block), self.superblock.record_size_bytes)
        found = self._plain(data, block.length, block.coded_bytes)
        if found is None:
            raise Corrupt("a block cannot be decoded", str(self.path), "it is lost")
        return found


def tenants_stored(path: str) -> set[int]:
    """The numbers of the tenants that have a segment in the store; none if there is no readable
    store: opening it reports the reason."""
    if not path or not Path(path).exists():
        return set()
    try:
        with StoreFile(path) as file:
            return {one.tenant for one in file.segments() if one.state == "used"}
    except (BadInput, OSError):
        return set()


def inspect(path: Path | str) -> dict[str, object]:
    """The contents of a store: its geometry, segments by state, blocks by layer; payloads are read.

    `blocks` counts those a recovery could serve, `superseded` older copies of them, `torn` records
    with a sound trailer over another payload, `coded` whole ones whose payload is coded.
    `BadInput` for what is no store of a version that is known.
    """
    with StoreFile(path) as file:
        head = file.superblock
        segments = list(file.segments())
        found = [block for one in segments if one.state == "used" for block in file.blocks(one)]
        served = {(one.key, one.layer) for one in found if one.whole}
        layers: dict[int, int] = {}
        for _, layer in served:
            layers[layer] = layers.get(layer, 0) + 1
        return {
            "path": str(file.path),
            "moved_to": forward.path if (forward := file.forward()) else "",
            "version": head.version,
            "uuid": head.uuid.hex(),
            "superblocks_whole": file.superblocks_whole,
            "openings": head.openings,
            "created_s": head.created_s,
            "size_bytes": head.size_bytes,
            "lba_size_bytes": head.lba_size_bytes,
            "payload_size_bytes": head.payload_size_bytes,
            "segment_size_bytes": head.segment_size_bytes,
            "segment_count": head.segment_count,
            "records_per_segment": head.records_per_segment,
            "layer_count": head.layer_count,
            "tenant_max": head.tenant_max,
            "segments_used": sum(one.state == "used" for one in segments),
            "segments_free": head.segment_count - sum(one.state == "used" for one in segments),
            "blocks": len(served),
            "superseded": sum(one.whole for one in found) - len(served),
            "torn": sum(not one.whole for one in found),
            "coded": sum(one.whole and one.coded_bytes > 0 for one in found),
            "payload_bytes": sum(one.length for one in found if one.whole),
            "blocks_by_layer": {str(layer): layers[layer] for layer in sorted(layers)},
        }


def check(path: Path | str) -> list[str]:
    """One line for each defect; empty for an intact store."""
    wrong: list[str] = []
    with StoreFile(path) as file:
        if file.superblocks_whole < 2:
            wrong.append("one of the two superblocks is damaged; the next open repairs it")
        for segment in file.segments():
            if segment.state == "used":
                wrong += [
                    f"segment {block.segment} index {block.index}: the payload of block "
                    f"{block.key:032x} layer {block.layer} does not match its checksum"
                    for block in file.blocks(segment)
                    if not block.whole
                ]
    return wrong


def recover(path: Path | str) -> dict[str, int]:
    """Open the store as a daemon would, close it again, and report what it holds and how fast.

    Counts are those of `struct ofs_store_stats`, plus `recovery_us`. The store then counts one
    opening more; a torn superblock is repaired. `BadInput` if a daemon has it open, or would
    refuse it.
    """
    with StoreFile(path) as file:
        head = file.superblock
    config = StoreConfig(
        head.payload_size_bytes,
        head.layer_count,
        head.segment_size_bytes,
        head.tenant_max,
        format=False,
    )
    device = StorageConfig(
        backend="posix",
        path=str(path),
        size_bytes=head.size_bytes,
        lba_size_bytes=head.lba_size_bytes,
        thread_count=16,
    )
    with Storage(device) as storage:
        began_ns = time.monotonic_ns()
        with Store(storage, config, str(path), int(time.time())) as store:
            took_ns = time.monotonic_ns() - began_ns
            return {**store.stats(), "recovery_us": took_ns // 1_000}


def _sealed(data: bytes) -> bool:
    """Whether the last eight bytes are the checksum of those before."""
    return int.from_bytes(data[-8:], "little") == checksum(data[:-8])


def _version(data: bytes) -> int:
    return int.from_bytes(data[8:12], "little")


def _parse_superblock(data: bytes) -> Superblock:
    found = np.frombuffer(data, SUPERBLOCK)[0]
    numbers = {one.name: int(found[one.name]) for one in fields(Superblock) if one.name != "uuid"}
    return Superblock(uuid=found["uuid"].tobytes(), **numbers)
