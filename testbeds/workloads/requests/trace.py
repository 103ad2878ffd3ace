"""A request trace on disk: the record of one request, and the lines it is read from.

Owns nothing but the open file of one iterator. Every way in which a file can be wrong is a
`BadInput` that names the file and the line, because a trace is user input; nothing is skipped or
repaired silently, since a missing request changes every hit rate that follows.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec

from offstage.bindings.errors import BadInput

__all__ = [
    "LINE_BYTES_MAX",
    "TRACE_BLOCK_TOKENS",
    "Request",
    "decoded",
    "lines",
    "opened",
]

Row = TypeVar("Row")

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one hash id in the Mooncake format (kvcache-ai/Mooncake, FAST25-release)."""

LINE_BYTES_MAX = 16 << 20
"""A longer line is refused before it is held in memory; 16 MiB is about a billion tokens."""

_GZIP_MAGIC = b"\x1f\x8b"


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request: when it came, how long it was, and which prefix blocks it holds.

    `index` counts requests from 0 in order of arrival. `block_ids` has one id per
    `trace_block_tokens` input tokens, in some formats one more for what remains; an id stands for
    the whole prefix up to and including its block, so two requests share a prefix exactly as long
    as their ids agree from the front. `session` names the conversation and `turn` counts its
    requests from 0; None where the format has no sessions. `gap_s` is the time since the session's
    last request, `think_s` the client's part of it; None where not known.
    """

    index: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str | None = None
    turn: int | None = None
    gap_s: float | None = None
    think_s: float | None = None
    trace_block_tokens: int = TRACE_BLOCK_TOKENS

    def block_tokens(self, ordinal: int) -> int:
        """Tokens in block `ordinal` (0-based): a whole block, or what remains in the last one."""
        assert 0 <= ordinal < len(self.block_ids)
        left = self.input_tokens - self.trace_block_tokens * ordinal
        return max(0, min(self.trace_block_tokens, left))


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, raw line with its end) of a plain or gzip file.

    Gzip is told by its magic bytes. Raises BadInput for a file that is missing, unreadable,
    named .gz without being gzip, cut short inside the gzip stream, or that has an endless line.
    """
    number = 0

    def where() -> str:
        return f"{path}:{number + 1}"

    with opened(path, where) as file:
        while raw := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(raw) > LINE_BYTES_MAX:
                raise BadInput(
                    f"line longer than {LINE_BYTES_MAX >> 20} MiB",
                    f"{path}:{number}",
                    "a trace has one JSON object per line",
                )
            yield number, raw


@contextmanager
def opened(path: Path, where: Callable[[], str] | None = None) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked where it is gzip; every defect of the container is a BadInput.

    `where` tells how far the reader has come, for the message.
    """
    place = where or (lambda: str(path))
    try:
        with _open(path) as file:
            yield file
    except FileNotFoundError:
        raise BadInput("no such file", str(path), "check the path of the trace") from None
    except EOFError:
        raise BadInput(
            "the gzip stream ends early: the file is torn",
            place(),
            "copy the file again, or check it with gzip -t",
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(
            f"damaged gzip stream ({error})",
            place(),
            "copy the file again, or check it with gzip -t",
        ) from None
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", str(path), "give a readable file"
        ) from None


def decoded(decoder: msgspec.json.Decoder[Row], raw: bytes, where: str, expected: str) -> Row:
    """One line of a trace. BadInput tells blank, torn, foreign and wrong lines apart."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), where, expected) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not raw.strip():
            raise BadInput("blank line", where, "remove it") from None
        if not raw.endswith(b"\n"):
            raise BadInput(
                "the last line is torn", where, "copy the file again, or delete that line"
            ) from None
        raise BadInput(f"not JSON ({error})", where, expected) from None


def _open(path: Path) -> IO[bytes]:
    file = path.open("rb")
    try:
        magic = file.read(len(_GZIP_MAGIC))
        file.seek(0)
    except BaseException:
        file.close()
        raise
    if magic == _GZIP_MAGIC:
        file.close()
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".gz" and magic:
        file.close()
        raise BadInput(
            "named .gz, but not a gzip file",
            str(path),
            "compress it with gzip, or drop .gz from its name",
        )
    return file
