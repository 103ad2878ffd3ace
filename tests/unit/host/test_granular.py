"""Does a host that reads granules get the same as with whole blocks, however it appends, writes,
closes and reopens?

Both run over a plain tier: a dictionary of whole blocks, and sessions whose chunks are named by
their whole prefix. Hosts act at random; the model is the bytes of each granule's identity.
"""

import errno
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import block_keys, checksum
from offstage.dpu import protocol
from offstage.host.link.granular import GranularSessions

GRANULES, BYTES, LAYERS = 4, 16, 2
TEXTS = 3


def granule(identity: bytes, layer: int) -> NDArray[np.uint8]:
    """Return the granule that this host computes."""
    made = hashlib.blake2b(identity, digest_size=BYTES, person=bytes([layer])).digest()
    return np.frombuffer(made, np.uint8)


def identity(text: int, ordinal: int) -> bytes:
    """Texts 0 and 1 share their first five granules."""
    return f"{text if text == 2 or ordinal >= 5 else 0}-{ordinal}".encode().ljust(16, b"\0")


class PlainTier(Driver):
    """Sessions and driver in one: blocks are whole, and are resident once their put has ended."""

    demand_max, calls_max, dilation, granule_count = 64, 4, 1, GRANULES
    hints = (0, 1, 16)

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, int], NDArray[np.uint8]] = {}
        self.chains: dict[int, list[bytes]] = {}
        self.refuses = self.fails = 0
        self.puts: dict[Put, tuple[NDArray[np.uint32], NDArray[np.uint8]]] = {}

    def session_open(self, **counts: int) -> int:
        self.opened = counts
        self.chains[len(self.chains)] = []
        return len(self.chains) - 1

    def session_close(self, session: int, *, keep: bool = True) -> None:
        self.chains[session] = []

    def append(self, session: int, contents: list[bytes]) -> protocol.Appended:
        keys = self.chains[session]
        before = len(keys)
        for content in contents:
            name = hashlib.blake2b(b"".join(keys[-1:]) + content, digest_size=16)
            keys.append(name.digest())
        stored = [
            sum((key, layer) in self.blocks for layer in range(LAYERS)) for key in keys[before:]
        ]
        return protocol.Appended(keys=keys[before:], store_keys=[], stored_layers=stored)

    def _fetch_begin(self, request: FetchRequest) -> Fetch:
        chain, layer, rows = self.chains[request.session], request.layer, iter(request.rows)
        ordinals, target, masks = request.ordinals, request.target, request.granules
        assert np.array_equal(np.unique(ordinals), ordinals), "a block is one demand"
        assert request.resident >= 0 and masks is not None
        assert request.scores is None or len(request.scores) == len(chain)
        fetch, sums = Fetch(request), []
        for at, (ordinal, mask) in enumerate(zip(ordinals.tolist(), masks.tolist(), strict=True)):
            key = block_keys([chain[ordinal]], LAYERS)[layer, 0]
            assert np.array_equal(request.keys[at], key)
            block = self.blocks.get((chain[ordinal], layer))
            fetch.rcs[at] = 0 if block is not None else -errno.ENOENT
            for i in (i for i in range(GRANULES) if mask >> i & 1):
                row = next(rows)
                sums.append(0)
                if block is not None:
                    target[row, :BYTES] = block[i * BYTES : (i + 1) * BYTES]
                    sums[-1] = checksum(np.ascontiguousarray(target[row, :BYTES]))
        fetch.lengths[:], fetch.checksums = GRANULES * BYTES, np.array(sums, np.uint64)
        return fetch

    def _fetch_end(self, fetch: Fetch) -> FetchResult:
        return fetch.result()

    def _put_begin(self, request: PutRequest) -> Put:
        if self.refuses:
            self.refuses -= 1
            raise RunFailed("4 calls are in flight", "fabric", "end one", errno=errno.EAGAIN)
        put = Put(request)
        self.puts[put] = request.ordinals.copy(), request.source.copy()
        return put

    def _put_end(self, put: Put) -> NDArray[np.int32]:
        ordinals, source = self.puts.pop(put)
        if self.fails:
            self.fails -= 1
            put.rcs[:] = -errno.EIO
            return put.rcs
        for ordinal, block in zip(ordinals.tolist(), source, strict=True):
            name = self.chains[put.request.session][ordinal]
            self.blocks[name, put.request.layer] = block
        return put.rcs


class Host:
    """A host that reads granules over the tier, and what it knows of its one session."""

    def __init__(self, tier: PlainTier) -> None:
        self.tier: Any = tier
        self.sessions = GranularSessions(self.tier, self.tier, GRANULES, LAYERS, BYTES)
        self.fabric = self.tier
        self.open(0)

    def open(self, text: int) -> None:
        self.text, self.number, self.length, self.step = text, self.session(), 0, 0
        self.stored: list[int] = []

    def session(self) -> int:
        return self.sessions.session_open(select_blocks=5, sink_blocks=1, window_blocks=4)

    def append(self, count: int, in_flight: bool) -> None:
        """Append granules, and write those that the tier lacks, layer by layer."""
        ordinals = np.arange(self.length, self.length + count, dtype=np.uint32)
        names = [identity(self.text, one) for one in ordinals.tolist()]
        self.length += count
        lacks = np.array(self.sessions.append(self.number, names).stored_layers) < LAYERS
        for layer in range(LAYERS):
            source = np.array([granule(name, layer) for name in names]).reshape(-1, BYTES)
            self.put(layer, ordinals[lacks], source[lacks], in_flight)

    def put(
        self, layer: int, ordinals: NDArray[np.uint32], source: NDArray[np.uint8], in_flight: bool
    ) -> None:
        while True:
            try:
                put = self.fabric.put_begin(PutRequest(self.number, layer, ordinals, source))
                break
            except RunFailed:
                pass
        if in_flight:
            self.read(layer, ordinals.tolist(), failed=0)
        assert len(self.fabric.put_end(put)) == len(ordinals)

    def read(self, layer: int, ordinals: list[int], failed: int) -> None:
        """Check that every granule that arrives is right, and that as many are missing as the model
        says."""
        rows = np.arange(len(ordinals), dtype=np.uint32)[::-1].copy()
        target = np.zeros((len(ordinals), BYTES + 3), np.uint8)
        self.step += 1
        done = self.fabric.fetch(
            FetchRequest(
                self.number,
                self.step,
                layer,
                np.array(ordinals, np.uint32),
                np.zeros((len(ordinals), 2), np.uint64),
                target,
                target_index=rows,
                selected_count=len(ordinals) + 2,
                scores=np.arange(self.length, dtype=np.uint16),
            )
        )
        for at, ordinal in enumerate(ordinals):
            expected = granule(identity(self.text, ordinal), layer)
            if done.rcs[at] == 0:
                assert np.array_equal(target[rows[at], :BYTES], expected), ordinal
                assert done.checksums[at] == checksum(expected)
                assert done.lengths[at] == BYTES
        assert np.count_nonzero(done.rcs) == failed


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, LAYERS - 1), st.randoms(use_true_random=False)),
        st.tuples(st.just("open"), st.integers(0, TEXTS - 1), st.none()),
        st.tuples(st.just("refuse"), st.integers(1, 2), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(OPS)
def test_granules_are_those_of_whole_blocks(ops: list[tuple[str, int, Any]]) -> None:
    """All written granules arrive, whether buffered, in flight, at the tier, or from an earlier
    session. A call that exceeds the fabric's room changes nothing."""
    tier = PlainTier()
    host = Host(tier)
    for what, number, more in ops:
        if what == "append":
            host.append(number, more)
        elif what == "read" and host.length:
            chosen = more.sample(range(host.length), more.randint(1, min(host.length, 12)))
            host.read(number, chosen, failed=0)
        elif what == "open":
            host.sessions.session_close(host.number)
            host.open(number)
        elif what == "refuse":
            tier.refuses = number
    for (_, layer), block in tier.blocks.items():
        known = {
            granule(identity(text, at), layer).tobytes()
            for text in range(TEXTS)
            for at in range(25 * 9)
        }
        assert all(part.tobytes() in known for part in block.reshape(GRANULES, BYTES))
    kept = host.sessions.granules.chains[host.number].kept
    last = host.length // GRANULES * GRANULES
    assert all(ordinal >= last for _, ordinal in kept), "nothing of a block that the tier has"


def test_a_put_that_fails_is_told_and_not_kept() -> None:
    """The caller that completes the block gets the error. An absent block is a miss, never other
    bytes."""
    tier = PlainTier()
    host = Host(tier)
    host.append(3, in_flight=False)
    tier.fails = 1
    host.append(1, in_flight=False)
    host.read(0, [0, 1, 2, 3], failed=4)
    host.read(1, [0, 1, 2, 3], failed=0)
    source = np.array([granule(identity(0, at), 0) for at in range(4)])
    assert not host.fabric.put(
        PutRequest(host.number, 0, np.arange(4, dtype=np.uint32), source)
    ).any()
    host.read(0, [3, 0], failed=0)


def test_counts_are_of_whole_blocks() -> None:
    """A session of granules has at least as many blocks as they touch. A daemon with another block
    size is refused."""
    tier: Any = PlainTier()
    Host(tier)
    assert tier.opened == {"select_blocks": 2, "sink_blocks": 1, "window_blocks": 1, "step_ns": 0}
    tier.granule_count = 2
    with pytest.raises(BadInput, match="into 4 granules, the daemon into 2"):
        Host(tier)
