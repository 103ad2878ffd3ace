"""The identity of KV, by content: `identity_of` computes it for every engine and the host.

KV depends on tokens, which are its key, on weights, and on the code that computes it. Weights are
identified by a digest of all their files and the configuration next to them; never by a path, a
revision or a modification time. The caller names everything else that changes bits.

Files are read once, in pieces, by several threads. The digests of the pieces are kept in the user's
cache, under attributes that a user cannot set and a copy does not preserve: device, inode, size,
mtime and ctime, which only the kernel sets. At each start one random piece of every file is read
again; if it differs, the whole file is. A file that has just changed is read but not cached, since
the clock's resolution could hide a second change. Any thread may call.

What can fail: there are no files (`BadInput`, or nothing shared), or they change while they are
read. A cache that cannot be read or written only costs time.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import random
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput

__all__ = ["Adapters", "Weights", "digest_of", "files_of", "identity_of", "process_began_ns"]

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
BESIDE = ("config.json", "adapter_config.json", "*.index.json", "*quant*.json", "*.py")
PIECE_BYTES = 16 << 20
THREADS_MAX = 8
SETTLED_NS = 2_000_000_000  # minimum age of a change before its digest is cached
ADAPTERS_MAX = 1 << 16  # of one engine; KV of those beyond is not shared
TRIES = 3  # to read files that change meanwhile
ENTRY_BYTES_MAX = 64 << 20
ENTRIES_MAX = 4096  # cached files; beyond it the older half is deleted
log = logging.getLogger("offstage.identity")

Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Weights:
    """Files as they were read: their digest, what it cost, and when the last one changed."""

    digest: str
    stamps: tuple[tuple[Path, Stamp], ...]
    size_bytes: int
    read_bytes: int
    seconds: float

    def changed_ns(self, *, blobs: bool = True) -> int:
        """When the last of them changed, or what leads to them did, by the kernel, on the clock of
        `time.time_ns`. Not `blobs`: without files of a Hub's cache, which are named by what they
        hold and replaced whole."""
        paths = [path for path, _ in self.stamps if blobs or not _is_blob(path)]
        return max(map(_led_ns, paths), default=0)

    def unchanged(self) -> bool:
        """Whether the files are still those that were read; as quick as a stat of each."""
        try:
            same = all(_stamp(path.stat()) == stamp for path, stamp in self.stamps)
            folder = self.stamps[0][0].parent
            return same and (len(self.stamps) < 2 or _listed(folder) == [p for p, _ in self.stamps])
        except OSError:
            return False

    def cost(self) -> str:
        """A description of how much was read, and how long that took."""
        how = "digested" if self.read_bytes == self.size_bytes else "digest known, checked by"
        read = "" if self.read_bytes == self.size_bytes else f" {self.read_bytes / 1e6:,.0f} MB"
        return (
            f"{len(self.stamps)} files, {self.size_bytes / 1e6:,.0f} MB, {how}{read} "
            f"in {self.seconds:.2f} s"
        )


def identity_of(
    model: "str | Weights",
    computed: Mapping[str, object],
    *,
    revision: str | None = None,
    cache: str | None = None,
    weights_id: str = "",
    since_ns: int | None = None,
    where: str = "weights",
) -> str:
    """One line that is equal for two programs exactly when they can share KV: the digest of the
    model's weights, and everything in `computed`, by name. `model`: a folder, a file or a Hub's
    name (at `revision`, in the folder `cache`), or the result of an earlier read. `weights_id`, if
    given, replaces the digest; its user is responsible for it. `since_ns`: start of the program
    that loaded the weights; files that changed later may differ from what it loaded.

    BadInput: the weights are missing, or changed since then, or while they were read."""
    if isinstance(model, Weights):
        weights = model.digest[:32]
    elif weights_id:
        weights = f"called {_escaped(weights_id)}"
        log.warning(
            "the weights of %s are called %r, as set: their files are not looked at",
            model,
            weights_id,
        )
    else:
        found = digest_of(files_of(model, revision, cache), where)
        log.warning("KV is of the weights %s (%s: %s)", found.digest[:16], model, found.cost())
        if since_ns is not None and found.changed_ns(blobs=False) >= since_ns:
            raise BadInput(
                f"weights of {model} changed after this program began, and it may have "
                "loaded others",
                where,
                "start it again",
            )
        weights = found.digest[:32]
    named = (f"{_escaped(name)} {_escaped(one)}" for name, one in computed.items())
    return "; ".join([f"weights {weights}", *named])


def _escaped(part: object) -> str:
    """A part of the line that cannot be taken for two."""
    return str(part).replace("\\", "\\\\").replace(";", "\\;")


def digest_of(files: Sequence[Path], where: str = "weights") -> Weights:
    """The digest of these files' bytes, independent of their order and names. BadInput: there are
    none, or they change while they are read."""
    if not any(_matches(path.name, WEIGHTS) for path in files):
        raise BadInput(
            "no weight files were found to identify the KV",
            where,
            'set "weights_id" to a text that changes with the weights',
        )
    since_s, read = time.monotonic(), 0
    with _locked(_cache(), files) as cache:
        found = [_file(path, cache, where) for path in files]
    read = sum(one[2] for one in found)
    digest = hashlib.sha256("\n".join(sorted(one[0] for one in found)).encode()).hexdigest()
    stamps = tuple(zip(files, (one[1] for one in found), strict=True))
    size = sum(stamp[2] for _, stamp in stamps)
    return Weights(digest, stamps, size, read, time.monotonic() - since_s)


def files_of(model: str, revision: str | None = None, cache: str | None = None) -> list[Path]:
    """The files that define a model or adapter: its weights and the configuration next to them,
    without tokenizers. Empty if they are not on this machine."""
    place = Path(model).expanduser().absolute()
    if place.is_file():
        return [place]
    if not place.is_dir():
        snapshot = _snapshot(model, revision, cache)
        if snapshot is None:
            return []
        place = snapshot
    return _listed(place)


def process_began_ns() -> int:
    """When this process began, on the clock of `time.time_ns`."""
    text = Path("/proc/self/stat").read_text()
    ticks = int(text[text.rindex(")") + 2 :].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_s * 1e9)


class Adapters:
    """The adapter that an engine has loaded under each of its numbers, if that is certain.

    An engine does not report when it loads an adapter, and keeps it loaded. An adapter is therefore
    certain while its files are unchanged since before the engine started; KV of one whose files
    changed later is not shared until the engine is restarted."""

    def __init__(self, since_ns: int) -> None:
        """`since_ns`: when the engine began."""
        self._since_ns = since_ns
        self._known: dict[int, tuple[str, Weights | None]] = {}

    def of(self, adapter: Any) -> Weights | None:
        """The adapter's files; None where what the engine holds may be something else. As quick as
        a stat of each file, but for the first time. `adapter`: vLLM's LoRARequest."""
        number, path = adapter.lora_int_id, adapter.lora_path
        before, known = self._known.get(number, ("", None))
        if before and known is None:
            return None
        if not before and len(self._known) >= ADAPTERS_MAX:
            return None
        try:
            why = ""
            if getattr(adapter, "load_inplace", False):
                why = "the engine reads it anew in every step (load_inplace)"
            elif before and before != path:
                why = f"its number {number} was that of {before}"
            elif known is None:
                known = digest_of(files_of(path), path)
                if known.changed_ns() >= self._since_ns:
                    why = "its files changed after the engine began"
            elif not known.unchanged():
                why = "its files changed since"
        except (BadInput, OSError) as error:
            why = str(error)
        if why:
            known = None
            log.warning(
                "requests with the adapter %s are computed without the tier until the "
                "engine is started again: %s",
                path,
                why,
            )
        self._known[number] = (path, known)
        return known


def _snapshot(model: str, revision: str | None, cache: str | None) -> Path | None:
    """The folder of a Hub's model on this machine, also of `name:quantization`."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache/huggingface")
    place = Path(cache or os.environ.get("HF_HUB_CACHE") or f"{home}/hub")
    for name in (model, model.rpartition(":")[0]):
        folder = place / f"models--{name.replace('/', '--')}"
        try:
            commit = (folder / "refs" / (revision or "main")).read_text().strip()
        except (OSError, ValueError):
            commit = revision or ""
        if name and commit and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    return None


def _listed(folder: Path) -> list[Path]:
    with os.scandir(folder) as found:
        return sorted(
            Path(one.path)
            for one in found
            if _matches(one.name, WEIGHTS + BESIDE) and one.is_file()
        )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _led_ns(path: Path) -> int:
    """When a file changed, or its folder, or a link on the way to it; a folder further up counts
    where it was renamed, which sets its ctime alone."""
    ends, seen = [path.absolute(), path.resolve()], set[Path]()
    changed, near, waiting = path.stat().st_ctime_ns, {one.parent for one in ends}, ends
    while waiting:
        one = waiting.pop().absolute()  # links stay links
        for part in {one, *one.parents} - seen:
            seen.add(part)
            found = part.lstat()
            link = stat.S_ISLNK(found.st_mode)
            if link:
                waiting.append(part.parent / part.readlink())
            if link or part in near or found.st_ctime_ns != found.st_mtime_ns:
                changed = max(changed, found.st_ctime_ns)
    return changed


def _is_blob(path: Path) -> bool:
    return path.is_symlink() and path.resolve().parent.name == "blobs"


def _stamp(found: os.stat_result) -> Stamp:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


# ---- one file ----


def _file(path: Path, cache: Path | None, where: str) -> tuple[str, Stamp, int]:
    """Digest of a file, what it was stamped, and how many bytes were read for it."""
    try:
        for _ in range(TRIES):
            now_ns = time.time_ns()
            with path.open("rb", buffering=0) as file:
                stamp = _stamp(os.fstat(file.fileno()))
                entry = cache and cache / hashlib.sha256(json.dumps(stamp).encode()).hexdigest()
                pieces, read = _known_pieces(file.fileno(), stamp[2], entry), PIECE_BYTES
                if not pieces:
                    pieces, read = _hash(file.fileno(), stamp[2]), stamp[2]
                    settled = now_ns - max(stamp[3:]) > SETTLED_NS
                    if entry and settled and _stamp(path.stat()) == stamp:
                        _keep(entry, pieces)
                if _stamp(os.fstat(file.fileno())) == stamp == _stamp(path.stat()):
                    digest = hashlib.sha256("".join(pieces).encode()).hexdigest()
                    return digest, stamp, min(read, stamp[2])
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}", where, "make it readable"
        ) from None
    raise BadInput(f"{path} changed while it was read", where, "start again when it is complete")


def _hash(fd: int, size: int, places: Sequence[int] | None = None) -> list[str]:
    """Digests of a file's pieces, or of those at these places."""

    def piece(place: int) -> str:
        rest = memoryview(os.pread(fd, PIECE_BYTES, place * PIECE_BYTES))
        return hashlib.sha256(rest).hexdigest()

    chosen = range(-(-size // PIECE_BYTES) or 1) if places is None else places
    if len(chosen) == 1:
        return [piece(chosen[0])]
    with ThreadPoolExecutor(min(THREADS_MAX, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(piece, chosen))


def _known_pieces(fd: int, size: int, entry: Path | None) -> list[str]:
    """Digests that were kept, if one of them, chosen by chance, is still right; else nothing."""
    try:
        if entry is None or entry.stat().st_size > ENTRY_BYTES_MAX:
            return []
        first, *pieces = entry.read_text("ascii").split()
    except (OSError, ValueError):
        return []
    whole = hashlib.sha256("".join(pieces).encode()).hexdigest() == first
    if not whole or len(pieces) != (-(-size // PIECE_BYTES) or 1):
        return []
    place = random.SystemRandom().randrange(len(pieces))
    return pieces if _hash(fd, size, [place]) == [pieces[place]] else []


def _keep(entry: Path, pieces: list[str]) -> None:
    first = hashlib.sha256("".join(pieces).encode()).hexdigest()
    part = entry.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        part.write_text("\n".join([first, *pieces]), "ascii")
        part.replace(entry)
        kept = [one for one in entry.parent.iterdir() if not one.name.startswith("lock")]
        if len(kept) > ENTRIES_MAX:
            for one in sorted(kept, key=lambda one: one.stat().st_mtime_ns)[: len(kept) // 2]:
                one.unlink()


# ---- the cache ----


def _cache() -> Path | None:
    """The folder of what is known of files; None where it is not this user's alone."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "offstage" / "weights"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return folder if ours and not found.st_mode & 0o022 else None


@contextlib.contextmanager
def _locked(cache: Path | None, files: Sequence[Path]) -> Iterator[Path | None]:
    """One process reads these files at a time: the others then find what it kept."""
    if cache is None:
        yield None
        return
    try:
        name = hashlib.sha256("\n".join(map(str, files)).encode()).hexdigest()[0]
        lock = os.open(cache / f"lock-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache
    finally:
        os.close(lock)
