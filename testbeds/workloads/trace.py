"""A request trace on disk: one record of what was asked, and the lines it is read from.

Owns nothing but the open file of one iterator. Every way in which a file can be wrong is a
`BadInput` that names the file and the line, because a trace is user input; nothing is skipped or
repaired silently, since a missing request changes every hit rate that follows.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from offstage.bindings.errors import BadInput

__all__ = ["LINE_BYTES_MAX", "TRACE_BLOCK_TOKENS", "Request", "lines"]

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one hash id in the Mooncake format (kvcache-ai/Mooncake, FAST25-release)."""

LINE_BYTES_MAX = 16 << 20
"""A longer line is refused before it is held in memory; 16 MiB is about a billion tokens."""

_GZIP_MAGIC = b"\x1f\x8b"


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request: when it came, how long it was, and which prefix blocks it holds.

    `index` counts requests from 0 in file order. `block_ids` has one id per 512 input tokens, the
    last one for what remains; an id stands for the whole prefix up to and including its block, so
    two requests share a prefix exactly as long as their ids agree from the front.
    """

    index: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]

    def block_tokens(self, ordinal: int) -> int:
        """Tokens in block `ordinal` (0-based): 512, or what remains in the last one."""
        assert 0 <= ordinal < len(self.block_ids)
        return min(TRACE_BLOCK_TOKENS, self.input_tokens - TRACE_BLOCK_TOKENS * ordinal)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, raw line with its end) of a plain or gzip file.

    Gzip is told by its magic bytes. Raises BadInput for a file that is missing, unreadable,
    named .gz without being gzip, cut short inside the gzip stream, or that has an endless line.
    """
    number = 0
    try:
        with _open(path) as file:
            while raw := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(raw) > LINE_BYTES_MAX:
                    raise BadInput(
                        f"line longer than {LINE_BYTES_MAX >> 20} MiB",
                        f"{path}:{number}",
                        "a trace has one JSON object per line",
                    )
                yield number, raw
    except FileNotFoundError:
        raise BadInput("no such file", str(path), "check the path of the trace") from None
    except EOFError:
        raise BadInput(
            "the gzip stream ends early: the file is torn",
            f"{path}:{number + 1}",
            "copy the file again, or check it with gzip -t",
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(
            f"damaged gzip stream ({error})",
            f"{path}:{number + 1}",
            "copy the file again, or check it with gzip -t",
        ) from None
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", str(path), "give a readable file"
        ) from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    file = path.open("rb")
    try:
        magic = file.read(len(_GZIP_MAGIC))
        file.seek(0)
    except BaseException:
        file.close()
        raise
    if magic == _GZIP_MAGIC:
        file.close()
        return gzip.open(path, "rb")
    if path.suffix == ".gz" and magic:
        file.close()
        raise BadInput(
            "named .gz, but not a gzip file",
            str(path),
            "compress it with gzip, or drop .gz from its name",
        )
    return file
