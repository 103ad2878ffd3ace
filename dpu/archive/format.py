"""One archived object: the blocks of a few consecutive chunks or of a value, and a keyed checksum.

```text
OFSARC1\\n | u32 header bytes | header (msgpack) | payloads in its order | BLAKE2b, 32 bytes
```

The key of the checksum is derived from the tenant's secret: neither the server nor anyone else who
can write to the bucket can forge or change an object, nor pass one tenant's object off as
another's. The name lists the chunks in it by their store keys, which are keyed hashes of the
tokens. A value is one chunk: its object's name goes on with its key, masked for the tenant, its
generation and length, so that a listing says which values there are. Every number in the header is
checked against the actual size before it is used.
"""

import hashlib
import hmac
import re
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from offstage.bindings import codec
from offstage.bindings.archive import Value
from offstage.bindings.errors import Corrupt
from offstage.bindings.keys import fold_key

__all__ = [
    "CHUNKS_MAX",
    "Block",
    "Shape",
    "keys_of",
    "name_of",
    "object_key",
    "pack",
    "unpack",
    "value_name",
    "value_of",
]

MAGIC = b"OFSARC1\n"
SUM_BYTES = 32
VALUE_NAME = re.compile("[0-9a-f]{32}-[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-(?!0{16})[0-9a-f]{16}")
CHUNKS_MAX = 16
"""Chunks of one object: their keys are its name, of which S3 takes 1,024 bytes."""

Block = tuple[bytes, int, Any]
"""Store key, layer, payload; of a value the key of its first chunk, and the piece's number."""


class Shape(msgspec.Struct, frozen=True):
    """What the blocks are of: they fit into no other store. `dtype` as `store.codec`, or off."""

    payload_bytes: int
    layers: int
    block_tokens: int
    dtype: str = "off"

    def pieces(self, value: Value) -> int:
        """Blocks of a value."""
        return -(-value.length // self.payload_bytes)

    def place(self, first: bytes, piece: int) -> tuple[bytes, int]:
        """Store key and layer of a value's piece."""
        return fold_key(first, piece // self.layers), piece % self.layers


class _Head(msgspec.Struct, array_like=True):
    payload_bytes: int
    layers: int
    block_tokens: int
    dtype: str
    written_s: int
    keys: list[bytes]
    blocks: list[tuple[int, int, int, int]]  # chunk, layer, length, bytes here
    value: tuple[bytes, int, int] | None = None  # key, generation, length


def object_key(index_key: bytes) -> bytes:
    """The key of the sums, from that of the tenant's prefix hashes, which it does not give away."""
    return hmac.new(index_key, b"offstage archive", hashlib.sha256).digest()


def name_of(keys: Sequence[bytes]) -> str:
    """The last part of the name of an object with these chunks."""
    return b"".join(keys).hex()


def keys_of(name: str) -> list[bytes]:
    """The chunks of an object by its name's last part; none where it is no name of ours."""
    if VALUE_NAME.fullmatch(name):
        return [bytes.fromhex(name[:32])]
    try:
        joined = bytes.fromhex(name)
    except ValueError:
        return []
    if not joined or len(joined) % 16 or len(joined) > 16 * CHUNKS_MAX or name != joined.hex():
        return []
    return [joined[i : i + 16] for i in range(0, len(joined), 16)]


def value_name(key: bytes, value: Value) -> str:
    """The last part of the name of a value's object. `key`: of the tenant, from `object_key`: who
    guesses the key of a value cannot tell whether the bucket has one."""
    masked = _masked(key, value.store_key, value.key)
    return f"{value.store_key.hex()}-{masked.hex()}-{value.generation:016x}-{value.length:016x}"


def value_of(key: bytes, name: str) -> Value | None:
    """The value of an object by its name's last part; None where it is of none."""
    if VALUE_NAME.fullmatch(name) is None:
        return None
    store_key, masked, generation, length = map(bytes.fromhex, name.split("-"))
    return Value(
        _masked(key, store_key, masked),
        store_key,
        int.from_bytes(generation, "big"),
        int.from_bytes(length, "big"),
    )


def _masked(key: bytes, store_key: bytes, word: bytes) -> bytes:
    """16 bytes masked, or masked ones back: by a hash of the store key, which no two share."""
    mask = hashlib.blake2b(store_key, digest_size=16, key=key, person=b"value key").digest()
    return bytes(a ^ b for a, b in zip(word, mask, strict=True))


def pack(
    shape: Shape,
    key: bytes,
    written_s: int,
    keys: Sequence[bytes],
    blocks: Sequence[Block],
    value: Value | None = None,
) -> bytes:
    """The object of these chunks, or of this value, whose chunk they are. `key`: of the tenant,
    from `object_key`; `written_s`: Unix time. A payload is coded where the shape has a dtype and
    that makes it smaller."""
    numbers = {one: number for number, one in enumerate(keys)}
    entries, parts = [], []
    for store_key, layer, payload in blocks:
        part = bytes(payload)
        length = len(part)
        if shape.dtype != "off":
            coded = codec.encode(shape.dtype, part)
            part = coded if len(coded) < length else part
        entries.append((numbers[store_key], layer, length, len(part)))
        parts.append(part)
    head = msgspec.msgpack.encode(
        _Head(
            shape.payload_bytes,
            shape.layers,
            shape.block_tokens,
            shape.dtype,
            written_s,
            list(keys),
            entries,
            None if value is None else (value.key, value.generation, value.length),
        )
    )
    whole = b"".join([MAGIC, struct.pack("<I", len(head)), head, *parts])
    return whole + _sum(key, whole)


def unpack(shape: Shape, key: bytes, name: str, data: bytes) -> tuple[int, list[Block]]:
    """When it was written (Unix time), and its blocks. Corrupt: another object than its name says,
    of another shape, damaged, or not made under this key."""
    body, head = _head(key, name, data)
    if (head.payload_bytes, head.layers, head.block_tokens) != (
        shape.payload_bytes,
        shape.layers,
        shape.block_tokens,
    ):
        raise Corrupt("holds blocks of another shape", name, "give each model its own prefix")
    value = value_of(key, name)
    most = shape.layers if value is None else shape.pieces(value)
    blocks: list[Block] = []
    at = 0
    for chunk, layer, length, size in head.blocks:
        part = body[at : at + size]
        at += size
        if not (0 <= chunk < len(head.keys) and 0 <= layer < most) or (
            not 0 < size <= length <= shape.payload_bytes
        ):
            raise _damaged(name)
        if size < length:
            part = memoryview(codec.decode(part, length))
        if len(part) != length:
            raise _damaged(name)
        blocks.append((head.keys[chunk], layer, part))
    if at != len(body) or (
        value is not None
        and [(layer, len(part)) for _, layer, part in blocks] != _pieces(shape, value)
    ):
        raise _damaged(name)
    return head.written_s, blocks


def _pieces(shape: Shape, value: Value) -> list[tuple[int, int]]:
    """The layer and length of each block of a value, in order."""
    size = shape.payload_bytes
    return [(i, min(size, value.length - i * size)) for i in range(shape.pieces(value))]


def _head(key: bytes, name: str, data: bytes) -> tuple[memoryview, _Head]:
    view = memoryview(data)
    start = len(MAGIC) + 4
    if len(data) < start + SUM_BYTES or data[: len(MAGIC)] != MAGIC:
        raise _damaged(name)
    if not hmac.compare_digest(_sum(key, view[:-SUM_BYTES]), data[-SUM_BYTES:]):
        raise _damaged(name)
    (size,) = struct.unpack_from("<I", data, len(MAGIC))
    if start + size > len(data) - SUM_BYTES:
        raise _damaged(name)
    try:
        head = msgspec.msgpack.decode(view[start : start + size], type=_Head)
    except msgspec.MsgspecError:
        raise _damaged(name) from None
    value = value_of(key, name)
    said = None if value is None else (value.key, value.generation, value.length)
    if head.keys != keys_of(name) or head.value != said:
        raise Corrupt("is another object than its name says", name, "the server mixed them up")
    return view[start + size : -SUM_BYTES], head


def _sum(key: bytes, data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=SUM_BYTES, key=key).digest()


def _damaged(name: str) -> Corrupt:
    return Corrupt("failed its check", name, "it is dropped; the host computes its blocks again")
