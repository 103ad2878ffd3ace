"""The chip's index of known prefixes: what a log's append finds in it, and what is written again.

Model: an entry is the key of a chunk, and names where the chunk is. A session looks its chunks up,
then all that it has named is refreshed from its end to its front, and the entries that were used
longest ago leave: so a prefix loses its end first, and what follows a chunk that is not found is
not found either. A chunk that the log knew and the index does not gets another key
here: the core makes another chunk of it, whose blocks are written, staged and read beside those
that are there already. So the numbers of chunks differ from the log's, and both are kept.

What the log itself found is what an endless index would have. One thread; nothing here fails.
"""

import hashlib
from collections import OrderedDict

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.asic_model.trace import Trace
from offstage.bindings.core import CHUNK_KEYS, INFO
from offstage.bindings.replay import Event

__all__ = ["KnownPrefixes", "Prefixes", "room"]

KEY_BYTES = 16
Name = tuple[int, bytes]


class KnownPrefixes(msgspec.Struct, kw_only=True, frozen=True):
    """What the chip's index of prefixes found of all chunks that sessions named. `entries`: null
    for software, which stores as many as memory allows. `known`: found in it; `known_unlimited`:
    in one without a limit. `bytes_written_again`: of chunks that were there and not found."""

    entries: int | None
    named: int
    known: int
    known_unlimited: int
    bytes_written_again: int


def room(trace: Trace, entries: int | None) -> int:
    """Chunks that a core must have room for: the log's, and each once more if it may be lost."""
    has = trace.config.chunk_max
    return has if entries is None or entries >= trace.named else has + 2 * trace.named


class Prefixes:
    """The index in one closed loop, and the chunks of both sides by number."""

    def __init__(self, entries: int | None) -> None:
        self._entries = entries
        self._index: OrderedDict[Name, bytes] = OrderedDict()
        self._seen: set[Name] = set()
        self._tenants: dict[int, int] = {}
        self._sessions: dict[int, list[Name]] = {}  # what each has named, from its front
        self._own: dict[int, tuple[bytes, int]] = {}  # the log's chunk: its key, our chunk
        self._logged: dict[int, int] = {}  # our chunk: the log's
        self._named = self._known = self._unlimited = self._blocks = 0

    def opened(self, session: int, tenant: int) -> None:
        """A session of the log begins; its number may have been another's."""
        self._tenants[session] = tenant
        self._sessions[session] = []

    def keys(self, event: Event) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
        """The keys of an append here, and which chunks the log knew and the index does not."""
        session = int(np.frombuffer(event.input, np.uint32, 1)[0])
        tenant = self._tenants.get(session, 0)
        keys = np.frombuffer(event.input[8:], CHUNK_KEYS).copy()
        missed = np.zeros(len(keys), np.bool_)
        names = [(tenant, one["store_key"].tobytes()) for one in keys]
        found: list[bytes] = []
        for at, name in enumerate(names):
            before = name in self._seen
            known = before and name in self._index
            missed[at] = before and not known
            found.append(self._index[name] if known else self._fresh(name, before))
            if missed[at] or known:
                shared = keys[at]["key"] == keys[at]["store_key"]
                key = np.frombuffer(found[-1], keys.dtype["store_key"])[0]
                keys[at]["store_key"] = key
                if shared:
                    keys[at]["key"] = key
            self._known += known
            self._unlimited += before
        self._named += len(keys)
        self._index.update(zip(names, found, strict=True))
        self._refresh(self._sessions.setdefault(session, []), names)
        return keys, missed

    def _fresh(self, name: Name, again: bool) -> bytes:
        """The key under which a chunk that is not found is made: its own, the first time."""
        self._seen.add(name)
        if not again:
            return name[1]
        told = name[1] + self._named.to_bytes(8, "little")
        return hashlib.blake2b(told, digest_size=KEY_BYTES).digest()

    def _refresh(self, session: list[Name], names: list[Name]) -> None:
        """The session goes on by these, and has been used; the oldest entries leave."""
        if self._entries is None:
            return  # none leaves
        session += names
        for name in reversed(session):
            if name in self._index:
                self._index.move_to_end(name)
        while len(self._index) > self._entries:
            self._index.popitem(last=False)

    def placed(
        self, event: Event, infos: npt.NDArray[np.void], missed: npt.NDArray[np.bool_]
    ) -> list[int]:
        """After the append: our chunks by the log's; those of them that are written again."""
        logged = np.frombuffer(event.answer, INFO)
        for one, own in zip(logged, infos, strict=True):
            key, chunk = one["key"].tobytes(), int(one["chunk"])
            if self._own.get(chunk, (b"", 0))[0] != key:
                self._own[chunk] = (key, int(own["chunk"]))
            self._logged[int(own["chunk"])] = chunk
        return [int(chunk) for chunk in infos["chunk"][missed]]

    def own(self, chunk: int) -> int:
        """Our number of the log's chunk."""
        return self._own.get(chunk, (b"", chunk))[1]

    def logged(self, chunk: int) -> int:
        """The log's number of our chunk."""
        return self._logged.get(chunk, chunk)

    def written_again(self, blocks: int) -> None:
        """Count blocks of chunks that were there already."""
        self._blocks += blocks

    def figures(self, block_bytes: int) -> KnownPrefixes:
        """The counts at the end of the run."""
        return KnownPrefixes(
            entries=self._entries,
            named=self._named,
            known=self._known,
            known_unlimited=self._unlimited,
            bytes_written_again=self._blocks * block_bytes,
        )
