"""Sessions that decode over a fake fabric: what tests of the decode path drive."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import checksum
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.decode.layer import Decoder, SelectionRule
from offstage.host.decode.pool import HbmPool
from offstage.host.decode.prefill import compute_context
from offstage.host.decode.record import AgentRecord, Token
from offstage.host.decode.session import HostSession
from offstage.host.decode.tail_block import TailBlock, write_tokens
from offstage.host.gpu.selector import selectors_of
from offstage.host.model.drawn_kv import ProcessParams, SyntheticKv
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.models import geometry
from offstage.host.selection import ScoreQuantizer

__all__ = ["KV", "LAYERS", "RETAINED", "RULE", "SELECT", "SHAPE", "FakeFabric", "World"]

SHAPE = geometry("tiny")
LAYERS, CHUNKS, SELECT = SHAPE.layer_count, 24, 8
RULE = SelectionRule("quest", SELECT, 1, 2)
PROCESS = ProcessParams(1.0, 40.0, 0.8, 3.0, 0.01, 1.0, 2.0, 0.3)
KV = SyntheticKv(5, SHAPE, [PROCESS] * LAYERS)
RETAINED = 4  # enum ofs_end


@dataclass
class FakeFabric(Fabric):
    """Blocks by their keys. A fetch lands as late as possible: when it is reported.

    `last_first`: the newest fetch in flight ends first. `spoil` and `lose`: fetches, in the order
    in which they begin, whose first block arrives damaged but with a matching checksum, or not at
    all. `refuse`: the error that every put ends with. `calls`: the calls, in order.
    """

    calls_max: int = 8
    last_first: bool = False
    spoil: int = -1
    lose: int = -1
    refuse: int = 0
    stall_ns: int = 0
    blocks: dict[bytes, npt.NDArray[np.uint8]] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    demands: list[tuple[int, int, int, list[int]]] = field(default_factory=list)
    flying: list[Fetch] = field(default_factory=list)
    begun: int = 0
    payload_size_bytes: int = SHAPE.block_bytes(0)

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        assert len(self.flying) < self.calls_max, "more calls than the fabric has room for"
        assert request.resident >= 0
        scores, ordinals = request.scores, request.ordinals.tolist()
        assert scores is None or len(scores) > max(ordinals, default=0)
        fetch = Fetch(request, self.begun)
        self.begun += 1
        self.flying.append(fetch)
        self.calls.append(("begin", request.session))
        self.demands.append((request.session, request.step, request.layer, ordinals))
        return fetch

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        fetch = self.flying.pop(-1 if self.last_first else 0)
        call, number = fetch.request, fetch.work
        for at, (key, row) in enumerate(zip(call.keys, call.rows, strict=True)):
            block = self.blocks[key.tobytes()].copy()
            if at == 0 and number == self.spoil:
                block[17] ^= 4
            if at == 0 and number == self.lose:
                fetch.rcs[at] = -errno.EIO
                continue
            call.target[row] = block
            fetch.ends[at], fetch.checksums[at] = RETAINED, checksum(block)
        return [fetch]

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        assert fetch not in self.flying
        self.calls.append(("end", fetch.request.session))
        return fetch.result(stall_ns=self.stall_ns, copy_ns=7)

    def put_begin(self, request: PutRequest) -> Put:
        assert not self.flying, "a put waits for its answer, and fetches wait meanwhile"
        assert request.session is not None
        self.calls.append(("put", request.session))
        for ordinal, block in zip(request.ordinals, request.source, strict=True):
            key = key_of(request.session, request.layer, ordinal)
            self.blocks[key.tobytes()] = block.copy()
        return Put(request)

    def put_end(self, put: Put) -> Any:
        put.rcs[:] = -self.refuse
        return put.rcs


def key_of(session: int, layer: int, ordinal: int) -> npt.NDArray[np.uint64]:
    return np.array([session * 1000 + layer, ordinal], np.uint64)


class World:
    """Sessions whose blocks are in a fake fabric, and a decoder over them."""

    def __init__(
        self,
        fabric: FakeFabric,
        arrays: Arrays | None = None,
        sessions: Sequence[int] = (0, 1, 2),
        landing_rows: int = 3 * SELECT,
        kernel: str = "",
        shape: KvGeometry = SHAPE,
        selector: str = "quest",
        room: int = SELECT + 4,
    ) -> None:
        self.fabric, self.shape, self.selector = fabric, shape, selector
        self.kv = SyntheticKv(5, shape, [PROCESS] * shape.layer_count)
        arrays = arrays or open_arrays()
        # Room for all selections of a step, so that evictions do not depend on other sessions.
        self.pool = HbmPool(shape, 3 * shape.layer_count * room, arrays, landing_rows)
        kernel = kernel or ("torch" if arrays.name == "torch" else "numpy")
        self._make = selectors_of(kernel, "cpu")
        driver: Any = fabric  # it has every call that decoding makes
        self.decoder = Decoder(driver, self.pool, self.kv, RULE, kernel, check_every=1)
        self.sessions = [self._session(number) for number in sessions]
        self.record = AgentRecord()
        self.attended = 0
        self.slots: Any = None
        self._kernel, self.decoder._decode = self.decoder._decode, self._watched

    def _session(self, number: int) -> HostSession:
        # Different lengths make the batch ragged and put the tails in different columns.
        identities = [number << 64 | chunk for chunk in range(CHUNKS - 7 * number)]

        def write(layer: int, first: int, blocks: npt.NDArray[np.uint8]) -> None:
            for at, block in enumerate(blocks):
                key = key_of(number, layer, first + at)
                self.fabric.blocks[key.tobytes()] = block.copy()

        context = compute_context(self.kv, identities, self.selector, write, self._make)
        layers = range(self.shape.layer_count)
        keys = [[key_of(number, layer, o) for o in range(len(identities))] for layer in layers]
        return HostSession(
            number,
            f"s{number}",
            number,
            context,
            np.array(keys),
            len(identities) * 16,
            9,
            [self.kv.queries(number, layer) for layer in layers],
            [ScoreQuantizer() for _ in layers],
        )

    def run(self, steps: int = 3, ahead: bool = False) -> AgentRecord:
        """Decode, one new token of each session per step, as the agent does."""
        control: Any = None  # no block is filled within a run
        tails = [TailBlock(control, self.decoder, lambda o: 7 << 96 | o) for _ in self.sessions]
        for step in range(steps):
            tokens = [Token(session.number, step) for session in self.sessions]
            active = list(zip(self.sessions, tails, strict=True))
            for session, tail in active:
                tail.begin_token(session)
            batch = list(zip(self.sessions, tokens, strict=True))
            coming = None
            for layer in range(self.shape.layer_count):
                if coming is None:
                    write_tokens(self.pool, active, layer)
                    coming = self.decoder.begin(batch, layer, self.record)
                now, coming = coming, None
                if ahead and layer + 1 < self.shape.layer_count:
                    self.decoder.settle(now, self.record)
                    write_tokens(self.pool, active, layer + 1)
                    coming = self.decoder.begin(batch, layer + 1, self.record, early=True)
                self.decoder.attend(now, self.record)
            self.decoder.end_tick(self.record)
            for session in self.sessions:
                session.step += 1
            self.record.tokens.extend(tokens)
        return self.record

    def _watched(
        self,
        queries: Any,
        storage: Any,
        tables: Any,
        counts: Any,
        kind: Any,
        layer: int,
        slots: Any,
        sink_logits: Any = None,
    ) -> Any:
        """Run the kernel after checking every token that it is given."""
        rows = self.pool.arrays.to_host(storage)
        assert len(tables) == len(self.sessions), "one call for all sessions of the layer"
        begins = np.zeros_like(tables) if slots is None else slots
        for session, table, count, begin in zip(self.sessions, tables, counts, begins, strict=True):
            known = np.arange(session.block_count(self.shape))
            index = self.pool.lookup(session.number, layer, known)
            grown = [*session.context.identities, 7 << 96 | int(known[-1])]
            expected = self.kv.blocks_at(layer, known, grown)
            shape = len(known), *self.shape.block_shape(layer)
            for column in np.flatnonzero(count):
                ordinal = int(np.flatnonzero(index == table[column])[0])
                got = rows[table[column]].view(np.float16).reshape(shape[1:])
                want = expected[ordinal].view(np.float16).reshape(shape[1:])
                read = slice(begin[column], begin[column] + count[column])
                assert (got[:, :, read] == want[:, :, read]).all(), "not what prefill wrote"
                self.attended += 1
        self.slots = slots
        given = queries, storage, tables, counts, kind, layer, slots, sink_logits
        return self._kernel(*given)
