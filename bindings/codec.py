"""The firmware's lossless KV codec: bytes in, bytes out. The format: docs/reference/codec.md."""

import errno
from typing import Any

from offstage.bindings.errors import BadInput, Corrupt
from offstage.bindings.firmware import ffi, lib
from offstage.bindings.layouts import constant, names

__all__ = ["DTYPES", "PIECE_BYTES", "decode", "decode_into", "encode", "encode_into", "size_max"]

DTYPES = names("enum ofs_codec_dtype", "OFS_CODEC_")[1:]
"""What values can be; the first of the enumeration is `off`."""
PIECE_BYTES = constant("OFS_CODEC_PIECE_BYTES")


def size_max(length: int) -> int:
    """The most that `length` bytes become."""
    return int(lib.ofs_codec_size_max(length))


def encode_into(dtype: str, data: Any, out: Any) -> int:
    """The coded form of contiguous bytes, written to `out`, and its size. `BadInput` for a dtype
    that is none, and where `out` is too small."""
    if dtype not in DTYPES:
        raise BadInput(f"no dtype {dtype!r}", "codec", f"choose one of {', '.join(DTYPES)}")
    source: Any = ffi.from_buffer(data)
    target: Any = ffi.from_buffer(out, require_writable=True)
    number = DTYPES.index(dtype) + 1
    size = int(lib.ofs_codec_encode(number, source, len(source), target, len(target)))
    if size < 0:
        raise BadInput(f"{len(target)} B are too few", "codec", "give room for size_max(length)")
    return size


def decode_into(coded: Any, out: Any) -> int:
    """The reverse, and its length. `Corrupt` for what no encoder wrote, and for more than `out`
    holds."""
    source: Any = ffi.from_buffer(coded)
    target: Any = ffi.from_buffer(out, require_writable=True)
    length = int(lib.ofs_codec_decode(source, len(source), target, len(target)))
    if length < 0:
        what = "longer than it may be" if length == -errno.ENOSPC else "no encoder wrote it"
        raise Corrupt(what, "codec", "the bytes were damaged, or coded by something else")
    return length


def encode(dtype: str, data: Any) -> bytes:
    """The coded form of contiguous bytes. `BadInput` for a dtype that is none."""
    out = bytearray(size_max(memoryview(data).nbytes))
    return bytes(memoryview(out)[: encode_into(dtype, data, out)])


def decode(coded: Any, length_max: int) -> bytes:
    """The reverse. `Corrupt` for what no encoder wrote, and for more than `length_max` bytes."""
    out = bytearray(length_max)
    return bytes(memoryview(out)[: decode_into(coded, out)])
