"""The containers of a trace: compression, tar archives, byte-order marks, pipes.

Everything is recognized by its first bytes, never by the file's name, and unpacked while reading:
gzip, bzip2, xz, Zstandard and LZ4, also nested, and a tar archive with one file. A pipe is first
copied to an unnamed file, since readers read more than once. Every defect of a container, and every
unsupported container, is a `BadInput` that names it. Owns only the open file and the copies of
pipes, which end with the process.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import select
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self, cast

from offstage.bindings.errors import BadInput, needs

__all__ = ["RATES_END", "holds_rates", "members", "on_disk", "opened"]

RATES_END = "-trace.csv"
"""Pattern of the file names in a ServeGen archive, which is a separate format."""

PIPE_BYTES_MAX = 8 << 30
"""Limit for a pipe, which is copied whole."""

PIPE_WAIT_S = 10.0
"""How long to wait for a pipe's first writer."""

UNPACKED_BYTES_MAX = 64 << 30
"""Limit for one unpacked file: a few megabytes can expand without end."""

HEADER_BYTES_MAX = 1 << 20
"""Limit for a name or record of a tar archive, which is held in memory."""

_DEPTH_MAX = 4
_BUFFER_BYTES = 1 << 16
_IN_MEMORY = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_BOM = b"\xef\xbb\xbf"
_WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}
_NOT_READ = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x1f\x9d": "packed with compress",
    b"Rar!\x1a\x07": "a RAR archive",
}
_AGAIN = "copy the file again"


@dataclass(frozen=True)
class _Packing:
    """A compression: its first bytes, its decompressor, and the command that tests a file."""

    name: str
    magic: bytes
    unpacked: Callable[[IO[bytes]], Any]
    tested_by: str


def _arrow(codec: str) -> Callable[[IO[bytes]], Any]:
    def unpacked(file: IO[bytes]) -> Any:
        needs("pyarrow", "parquet", f"a trace packed with {codec}")
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)

    return unpacked


_PACKINGS = (
    _Packing("gzip", b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file), "gzip -t"),
    _Packing("bzip2", b"BZh", bz2.BZ2File, "bzip2 -t"),
    _Packing("xz", b"\xfd7zXZ\x00", lzma.LZMAFile, "xz -t"),
    _Packing("Zstandard", b"\x28\xb5\x2f\xfd", _arrow("zstd"), "zstd -t"),
    _Packing("LZ4", b"\x04\x22\x4d\x18", _arrow("lz4"), "lz4 -t"),
)


class _Stream(io.RawIOBase):
    """The bytes of one layer; an error below it becomes a BadInput that names the layer."""

    def __init__(self, inner: Any, packing: _Packing, where: Callable[[], str]) -> None:
        self._inner, self._packing, self._where = inner, packing, where
        self._error: Exception | None = None
        self._left = UNPACKED_BYTES_MAX
        # In parts: the data before a torn end is a valid trace up to there.
        self._read = getattr(inner, "read1", inner.read)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        view, filled = memoryview(into).cast("B"), 0
        try:
            while filled < len(view) and self._error is None:
                some = self._read(len(view) - filled)
                if not some:
                    break
                view[filled : filled + len(some)] = some
                filled += len(some)
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
            self._error = error
        self._left -= filled
        if self._left < 0:
            raise BadInput(
                f"unpacks to more than {UNPACKED_BYTES_MAX:,} bytes",
                self._where(),
                "unpack it, and give it in parts",
            )
        if self._error is None or filled:  # the data before the error is returned first
            return filled
        name, fix = self._packing.name, f"{_AGAIN}, or check it with {self._packing.tested_by}"
        what = f"damaged {name} stream ({self._error})"
        if isinstance(self._error, EOFError):
            what = f"the {name} stream ends early: the file is torn"
        raise BadInput(what, self._where(), fix)


@contextmanager
def opened(
    path: Path,
    where: Callable[[], str] | None = None,
    counted: Callable[[int], None] | None = None,
) -> Iterator[IO[bytes]]:
    """The bytes of the trace in a file, unpacked and without a byte-order mark.

    `where` gives the reader's position, for the message; `counted` gets the number of bytes of each
    read from disk.
    """
    with ExitStack() as held:
        file = _layers(path, where or (lambda: str(path)), held, counted)
        if _is_tar(file):
            file = _only_member(path, where or (lambda: str(path)), held)
        begin = file.peek(len(_BOM))
        for mark, name in _WIDE.items():
            if begin.startswith(mark):
                raise BadInput(
                    f"is {name} text", str(path), f"write it as UTF-8: iconv -f {name} -t UTF-8"
                )
        if begin.startswith(_BOM):
            file.read(len(_BOM))
        try:
            yield cast(IO[bytes], file)
        except OSError as error:
            raise BadInput(
                f"cannot be read ({error.strerror or error})", str(path), "give a readable file"
            ) from None


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]] | None:
    """Name and bytes of each file in a tar archive, in order; read each before the next. None if
    the file is not an archive."""
    with ExitStack() as held:
        if not _is_tar(_layers(path, lambda: str(path), held)):
            return None
    return _members(path)


def holds_rates(path: Path) -> bool:
    """Whether it is a tar archive of ServeGen rates."""
    found = members(path)
    return found is not None and any(name.endswith(RATES_END) for name, _ in found)


_copies: dict[tuple[str, int, int], IO[bytes]] = {}


def on_disk(path: Path) -> Path:
    """The file itself, or a copy of a pipe's content. BadInput if it cannot be read."""
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            return path
        key = str(path), found.st_dev, found.st_ino
        if key not in _copies:
            _copies[key] = _copied(path)
        return Path(f"/proc/self/fd/{_copies[key].fileno()}")
    except FileNotFoundError:
        raise BadInput("no such file", str(path), "check the path of the trace") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be read ({reason})", str(path), "give a readable file") from None


def _copied(path: Path) -> IO[bytes]:
    copy = cast(IO[bytes], tempfile.TemporaryFile())
    size = 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", 0) as pipe:
            copy.write(_begun(pipe, path))
            os.set_blocking(fd, True)
            while some := pipe.read(1 << 20):
                size += len(some)
                if size > PIPE_BYTES_MAX:
                    raise BadInput(
                        f"a pipe of more than {PIPE_BYTES_MAX >> 30} GiB",
                        str(path),
                        "write it to a file first",
                    )
                copy.write(some)
            copy.flush()
    except BaseException:
        copy.close()
        raise
    return copy


def _begun(pipe: IO[bytes], path: Path) -> bytes:
    """The bytes read while waiting for a pipe's first writer, usually none. BadInput if there is no
    writer, since reading would block forever."""
    while stat.S_ISFIFO(os.fstat(pipe.fileno()).st_mode):
        if select.select([pipe], [], [], PIPE_WAIT_S)[0]:
            break
        with contextlib.suppress(BlockingIOError):  # a writer is connected, without data yet
            if some := os.read(pipe.fileno(), _BUFFER_BYTES):
                return some
            raise BadInput(
                f"a pipe without a writer for {PIPE_WAIT_S:.0f} s",
                str(path),
                "start the writer, or give a file",
            )
    return b""


class _Counted(io.FileIO):
    """A file that reports the number of bytes of each read."""

    counted: Callable[[int], None] | None = None

    def readinto(self, into: Any) -> int | None:
        count = super().readinto(into)
        if self.counted and count:
            self.counted(count)
        return count


def _layers(
    path: Path,
    where: Callable[[], str],
    held: ExitStack,
    counted: Callable[[int], None] | None = None,
) -> "io.BufferedReader[Any]":
    """The file with all layers of compression removed."""
    real = on_disk(path)
    try:
        raw = held.enter_context(_Counted(real, "rb"))
        raw.counted = counted
        file: io.BufferedReader[Any] = io.BufferedReader(cast(io.RawIOBase, raw), _BUFFER_BYTES)
        begin = file.peek(512)
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", str(path), "give a readable file"
        ) from None
    if path.suffix == ".gz" and begin and not begin.startswith(_PACKINGS[0].magic):
        raise BadInput(
            "named .gz, but not a gzip file",
            str(path),
            "compress it with gzip, or drop .gz from its name",
        )
    return _unpack(file, path, where)


def _unpack(
    file: "io.BufferedReader[Any]", path: Path, where: Callable[[], str]
) -> "io.BufferedReader[Any]":
    for _ in range(_DEPTH_MAX):
        begin = file.peek(512)
        packing = next((one for one in _PACKINGS if begin.startswith(one.magic)), None)
        if packing is None:
            for magic, name in _NOT_READ.items():
                if begin.startswith(magic):
                    raise BadInput(f"is {name}", str(path), "unpack it, and give the file inside")
            return file
        file = io.BufferedReader(
            _Stream(_unpacked(packing, file, path), packing, where), _BUFFER_BYTES
        )
    raise BadInput(f"packed more than {_DEPTH_MAX} times", str(path), "unpack it")


def _unpacked(packing: _Packing, file: "io.BufferedReader[Any]", path: Path) -> Any:
    try:
        return packing.unpacked(cast(IO[bytes], file))
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        raise BadInput(
            f"is packed with {packing.name}, which this pyarrow cannot unpack ({error})",
            str(path),
            "unpack it first",
        ) from None


def _is_tar(file: "io.BufferedReader[Any]") -> bool:
    return file.peek(512)[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC)


class _Header(tarfile.TarInfo):
    """Refuses long names and records, which tarfile would read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _IN_MEMORY and found.size > HEADER_BYTES_MAX:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes")
        return found


def _members(path: Path) -> Generator[tuple[str, IO[bytes]]]:
    with ExitStack() as held:
        file = _layers(path, lambda: str(path), held)
        try:
            with tarfile.open(fileobj=cast(IO[bytes], file), mode="r|", tarinfo=_Header) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]
                    name = PurePosixPath(member.name).name
                    if member.isfile() and not name.startswith("."):  # "._x": of macOS
                        inner = archive.extractfile(member)
                        assert inner is not None  # a regular file has contents
                        yield member.name, inner
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            raise BadInput(f"damaged or torn archive ({error})", str(path), _AGAIN) from None


def _only_member(path: Path, where: Callable[[], str], held: ExitStack) -> "io.BufferedReader[Any]":
    count = sum(1 for _ in _members(path))
    if count != 1:
        raise BadInput(
            f"is a tar archive of {count} files",
            str(path),
            "unpack it, and give the trace inside",
        )
    found = _members(path)
    held.callback(found.close)
    inner = next(found)[1]
    tar = _Packing("tar", b"", lambda file: file, "tar -t")
    file: io.BufferedReader[Any] = io.BufferedReader(_Stream(inner, tar, where), _BUFFER_BYTES)
    return _unpack(file, path, where)
