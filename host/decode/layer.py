"""One layer of a decode step of a batch of sessions: query, selection, fetch, check, attention.

This is the project's main path. A query scores every block through the summaries; sinks, window and
the best of the rest are selected. Blocks that the HBM pool lacks are demanded from the DPU,
together with the scores of all blocks, selected or not: the hint for the next step. A layer with a
window selects nothing: it reads its window, and what lies behind leaves the pool. Where a model's
own indexer has selected tokens, their blocks are demanded, and no query scores any (`certain`). A
window and the compressed entries beside it are demanded and read together. Every block that arrives
is checked against the checksum of what was written, and sampled outputs against dense attention
over the same selection. The fetches of all sessions are in flight together, so that one is copied
and checked while the others wait; attention is one call per layer for all sessions.

A layer has two phases, `begin` and `attend`. A caller that knows the next layer's selection early
begins that layer before it attends the current one, so that its blocks arrive during the
computation. A caller that knows it without the query, or can only predict it, prefetches with
`begin_predicted`; the layer's own `begin` then fetches the rest.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, FetchResult
from offstage.host.attention import Decode, arrays_of, block_tables, kernel
from offstage.host.attention.reference import decode as dense_decode
from offstage.host.decode.attended import Attended, attended, slots_of, together
from offstage.host.decode.certain import indexed, whole
from offstage.host.decode.pool import HbmPool
from offstage.host.decode.prefill import put_blocks
from offstage.host.decode.record import AgentRecord, Token
from offstage.host.decode.session import HostSession, KvSource
from offstage.host.decode.timeline import Clock, merged
from offstage.host.fabrics import Fabric
from offstage.host.gpu.selector import BatchBest, DeviceSelector, Found, on_device
from offstage.host.selection import SelectionRule, select

__all__ = ["Coming", "Decoder", "DemandObserver", "SelectionRule"]

ROOM_BLOCKS = 64
"""Headroom for growing sessions before a selection on a device is allocated again."""

DemandObserver = Callable[[HostSession, int, NDArray[np.uint32], NDArray[np.uint16]], None]
"""Gets (session, layer, demanded ordinals, scores of all stored blocks) of every fetch."""

Foretold = tuple[HostSession, Token, tuple[NDArray[np.uint16] | None, NDArray[np.int32]]]
"""A session and its token, scores of all stored blocks for the tier, and the ordinals to fetch."""


def _stored_scores(
    session: HostSession, blocks: DeviceSelector, query: NDArray[np.float32]
) -> NDArray[np.float32]:
    return blocks.scores(query)[: session.keys.shape[1]]


@dataclass(slots=True)
class _Member:
    """One session in one `layer` of the batch. `missing`: indices into `ordinals` to fetch;
    `indices`: the pool index of each ordinal, writable for the missing ones; `rows`: landing rows
    of the missing ones; `failed`: ordinals whose demand failed; `hint`: scores of all stored
    blocks, None for a predicted layer, which is prefetched and not attended."""

    session: HostSession
    token: Token
    layer: int
    query: NDArray[np.float32]
    hint: NDArray[np.uint16] | None
    ordinals: NDArray[np.int32]
    indices: NDArray[np.int32]
    missing: NDArray[np.intp]
    rows: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    failed: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    begun_ns: int = 0


@dataclass
class Coming:
    """A layer of a batch, then entries beside it, with fetches in flight. `early`: it was begun
    while another layer was computed, so that only waits at its own turn count as stall."""

    layer: int
    members: list[_Member]
    early: bool
    flying: dict[Fetch, _Member] = field(default_factory=dict)
    waits: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Decoder:
    """The decode path over one fabric and one HBM pool; one thread owns it."""

    driver: Fabric
    pool: HbmPool
    kv: KvSource
    rule: SelectionRule
    kernel_name: str = "numpy"
    check_every: int = 50
    """One layer output in `check_every` is compared with dense attention."""
    timeout_ns: int = 10_000_000_000
    observe: DemandObserver | None = None
    sink_logits: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    """By layer, as a kernel takes them; of those that have some."""

    def __post_init__(self) -> None:
        if arrays_of(self.kernel_name) != self.pool.arrays.name:
            raise BadInput(
                f"the {self.kernel_name} kernel does not read blocks in {self.pool.arrays.name}",
                "kernel",
                f"open the HBM pool on {arrays_of(self.kernel_name)}",
            )
        self._decode: Decode = kernel(self.kernel_name)
        self._outputs = 0
        self.clock = Clock(self.driver.dilation)
        """The tier's clock, for waits and token times."""
        self._stamps = self.pool.arrays.stamps()
        self._kernel_bytes = 0
        self._finders: dict[int, BatchBest] = {}
        self._marked: list[tuple[str, Coming, Any, Any]] = []

    def layer(
        self, batch: Sequence[tuple[HostSession, Token]], layer: int, record: AgentRecord
    ) -> Any:
        """Decode one layer of every session's current step; the pool has the KV of their tokens.

        Returns the attention output, float32 `[batch, q_heads, value_dim]`, on the pool's device.
        """
        output = self.attend(self.begin(batch, layer, record), record)
        self.end_tick(record)
        return output

    def begin(
        self,
        batch: Sequence[tuple[HostSession, Token]],
        layer: int,
        record: AgentRecord,
        *,
        early: bool = False,
    ) -> Coming:
        """Select a layer's blocks and start fetching the missing ones: in the order of the
        sessions, as many in flight as there is room for. `early`: see `Coming`."""
        members = self._select(batch, layer)
        if (entries := self.pool.geometry.beside(layer)) is not None:
            members += self._select(batch, entries)
        coming = Coming(layer, members, early)
        for member in members:
            self._send(coming, member, record)
        return coming

    def begin_predicted(self, batch: Sequence[Foretold], layer: int, record: AgentRecord) -> Coming:
        """Start fetching blocks of each session for a later layer, or of one that is not attended.
        Pass the result to `end_predicted` before the layer's `begin`."""
        none = np.empty(0, np.float32)
        for session, _, (_, ordinals) in batch:  # first, or room for one is made of another's
            self.pool.hold(session.number, layer, ordinals)
        members = [
            self._member(session, token, layer, none, hint, ordinals)
            for session, token, (hint, ordinals) in batch
        ]
        coming = Coming(layer, members, early=True)
        for member in members:
            if member.missing.size:
                self._send(coming, member, record)
        return coming

    def end_predicted(self, coming: Coming, record: AgentRecord) -> None:
        """Wait for the fetches in flight, once the layer is due. A failed block leaves the pool, so
        that the layer's own `begin` demands it again if it is selected."""
        self._wait(coming, record)
        for member in coming.members:
            if member.failed.size:
                self.pool.drop(member.session.number, member.layer, member.failed)

    def _send(self, coming: Coming, member: _Member, record: AgentRecord) -> None:
        while not self._has_room(member, len(coming.flying)):
            self._end_some(coming, record)
        begun_ns = self.clock.now_ns()
        coming.flying[self._begin(member)] = member
        record.timeline.add("copy", coming.layer, begun_ns, self.clock.now_ns())

    def tend(self, coming: Coming, until_ns: int, record: AgentRecord) -> None:
        """Process completions until `until_ns`, while another layer is computed; adds no stall."""
        assert coming.early, "its layer is due"
        while coming.flying and (left_ns := until_ns - self.clock.now_ns()) > 0:
            self._end_some(coming, record, timeout_ns=left_ns)

    def settle(self, coming: Coming, record: AgentRecord) -> None:
        """Wait for the remaining blocks of a layer that is due."""
        if not coming.flying:
            return
        due_ns, begun = self.clock.now_ns() if coming.early else 0, self._mark()
        while coming.flying:
            self._end_some(coming, record, due_ns=due_ns)
        self._marked.append(("stall", coming, begun, self._mark()))

    def attend(self, coming: Coming, record: AgentRecord) -> Any:
        """Compute the layer's attention once its blocks are there; returns the same as `layer`."""
        self._wait(coming, record)
        for member in coming.members:
            if member.failed.size:
                self.recompute(member.session, member.layer, member.failed, record)
        members, read = self._read(coming)
        begun = self._mark()
        output = self._attend(members, read, coming.layer, record)
        self._marked.append(("compute", coming, begun, self._mark()))
        return output

    def _read(self, coming: Coming) -> tuple[list[_Member], list[Attended]]:
        """What is read of each session, and where: of a window and its entries as of one layer."""
        own = [one for one in coming.members if one.layer == coming.layer]
        entries, read = coming.members[len(own) :], self._attended(own)
        if not entries:
            return own, read
        offsets = [one.indices.size for one in own]
        read = list(map(together, read, self._attended(entries), offsets))
        pairs = zip(own, entries, strict=True)
        return [replace(a, indices=np.concatenate([a.indices, b.indices])) for a, b in pairs], read

    def _attended(self, members: Sequence[_Member]) -> list[Attended]:
        batch = [(one.session, one.query, one.ordinals) for one in members]
        return attended(self.pool.geometry, members[0].layer, batch)

    def _wait(self, coming: Coming, record: AgentRecord) -> None:
        self.settle(coming, record)
        if self._stamps is None:
            for begin_ns, end_ns in merged(coming.waits):
                self._stalled(coming, begin_ns, end_ns, record)

    def end_tick(self, record: AgentRecord) -> None:
        """All layers of a token are submitted: record wait and compute times, from the device's
        stamps if it has any."""
        if self._stamps is not None:
            record.timeline.source = f"{self._stamps.source}; copies and fetches: the host's clock"
        for lane, coming, begun, ended in self._marked:
            begin_ns, end_ns = (
                (begun, ended)
                if self._stamps is None
                else (self._stamps.ns(begun), self._stamps.ns(ended))
            )
            if lane == "compute":
                record.kernel_ns += end_ns - begin_ns
                record.timeline.add(lane, coming.layer, begin_ns, end_ns)
            elif self._stamps is not None:
                self._stalled(coming, begin_ns, end_ns, record)
        self._marked.clear()
        record.kernel_bytes, self._kernel_bytes = record.kernel_bytes + self._kernel_bytes, 0

    def _mark(self) -> Any:
        return self.clock.now_ns() if self._stamps is None else self._stamps.mark()

    def _is_index(self, layer: int) -> bool:
        return self.pool.geometry.layers[layer].form == "index"

    def _stalled(self, coming: Coming, begin_ns: int, end_ns: int, record: AgentRecord) -> None:
        record.timeline.add("stall", coming.layer, begin_ns, end_ns)
        for member in coming.members:
            if member.layer == coming.layer:  # entries beside it are of the same tokens
                member.token.stall_ns += end_ns - begin_ns
                member.token.index_stall_ns += (end_ns - begin_ns) * self._is_index(coming.layer)

    def _select(self, batch: Sequence[tuple[HostSession, Token]], layer: int) -> list[_Member]:
        """Select each session's blocks, with their indices in the pool."""
        geometry = self.pool.geometry
        for session, _ in batch:
            if (behind := geometry.first_block(layer, session.length_tokens) - 1) >= 0:
                self.pool.drop(session.number, layer, [behind])
        queries = [
            session.queries[layer].next(session.step, session.block_count(geometry, layer))
            for session, _ in batch
        ]
        picked = all(layer in session.tokens for session, _ in batch)
        if picked or geometry.is_read_whole(layer):
            known = indexed if picked else whole
            return [
                self._member(session, token, layer, query, *known(geometry, session, layer))
                for (session, token), query in zip(batch, queries, strict=True)
            ]
        selectors = [session.context.selectors[layer] for session, _ in batch]
        if on_device(selectors):
            best = self._best(batch, layer, selectors, queries)
            return [
                self._member(*one, layer, query, found.hint, found.ordinals)
                for one, query, found in zip(batch, queries, best, strict=True)
            ]
        members = []
        for (session, token), query in zip(batch, queries, strict=True):
            scores = session.context.selectors[layer].scores(query)
            hint = session.quantizers[layer](scores[: session.keys.shape[1]])
            ordinals = self.chosen(scores, session.block_count(geometry))
            members.append(self._member(session, token, layer, query, hint, ordinals))
        return members

    def _best(
        self,
        batch: Sequence[tuple[HostSession, Token]],
        layer: int,
        selectors: Sequence[DeviceSelector],
        queries: Sequence[NDArray[np.float32]],
    ) -> list[Found]:
        """The same, scored and selected on the device for all sessions together."""
        blocks = max(len(one.rows) for one in selectors)
        finder = self._finders.get(layer)
        if finder is None or not finder.fits(selectors[0].summaries, len(batch), blocks):
            rule = self.rule
            finder = self._finders[layer] = BatchBest(
                selectors[0].summaries,
                len(batch),
                blocks + ROOM_BLOCKS,
                rule.select_blocks,
                rule.sink_blocks,
                rule.window_blocks,
            )
        scales = [
            session.quantizers[layer].scale(partial(_stored_scores, session, one, query))
            for (session, _), one, query in zip(batch, selectors, queries, strict=True)
        ]
        found = finder.find(selectors, queries, scales)
        return [
            Found(one.ordinals, one.hint[: session.keys.shape[1]])
            for one, (session, _) in zip(found, batch, strict=True)
        ]

    def chosen(self, scores: NDArray[np.float32], length: int) -> NDArray[np.int32]:
        """What the rule selects of the first `length` blocks, ascending."""
        rule = self.rule
        return select(scores, rule.top_blocks, rule.sink_blocks, rule.window_blocks, length)

    def _member(
        self,
        session: HostSession,
        token: Token,
        layer: int,
        query: NDArray[np.float32],
        hint: NDArray[np.uint16] | None,
        ordinals: NDArray[np.int32],
    ) -> _Member:
        indices = self.pool.hold(session.number, layer, ordinals)
        missing = np.flatnonzero(indices < 0)
        if missing.size:
            indices[missing] = self.pool.allocate(session.number, layer, ordinals[missing])
        return _Member(session, token, layer, query, hint, ordinals, indices, missing)

    def _has_room(self, member: _Member, flying: int) -> bool:
        """Whether one more fetch may begin: a free call of the fabric, and landing rows."""
        if flying == self.driver.calls_max:
            return False
        rows = self.pool.memory.land(member.indices[member.missing])
        if rows is not None:
            member.rows = rows
        elif flying == 0:
            raise RunFailed(
                f"{member.missing.size} blocks do not fit into {len(self.pool.memory.landing)} "
                "landing rows",
                "hbm pool",
                "give the pool one landing row per selected block",
            )
        return rows is not None

    def _begin(self, member: _Member) -> Fetch:
        """Demand the missing blocks and send the hint. The tail block is never missing."""
        session, layer = member.session, member.layer
        member.begun_ns = self.clock.now_ns()
        demanded = self._demanded(member).astype(np.uint32)
        if self.observe is not None and member.hint is not None:
            self.observe(session, layer, demanded, member.hint)
        return self.driver.fetch_begin(
            FetchRequest(
                session.handle,
                session.step,
                layer,
                demanded,
                np.ascontiguousarray(session.keys[layer, demanded]),
                self.pool.memory.landing,
                target_index=member.rows,
                selected_count=demanded.size if member.hint is None else member.ordinals.size,
                scores=member.hint,
                timeout_ns=self.timeout_ns,
            )
        )

    def _demanded(self, member: _Member) -> NDArray[np.int64]:
        """The chunks that name the blocks demanded."""
        return self.pool.geometry.chunks_of(member.layer, member.ordinals[member.missing])

    def _end_some(
        self,
        coming: Coming,
        record: AgentRecord,
        *,
        due_ns: int = 0,
        timeout_ns: int | None = None,
    ) -> None:
        """Wait for a completion, then process all that are there. Adds the wait, from `due_ns` on,
        to the stall; with a timeout it adds none, and there may be no completion."""
        polled = self.driver.poll(self.timeout_ns if timeout_ns is None else timeout_ns)
        ended = [one for one in polled if isinstance(one, Fetch)]
        seen_ns = self.clock.now_ns()
        for fetch in ended or list(coming.flying)[: int(timeout_ns is None)]:
            member = coming.flying.pop(fetch)
            result = self.driver.fetch_end(fetch)
            self.pool.memory.commit(member.indices[member.missing], member.rows)
            if member.missing.size:
                record.fetch_ns.append(seen_ns - member.begun_ns)
                spent_ns = result.copy_ns + result.stall_ns
                record.fabric_ns.append(spent_ns or seen_ns - member.begun_ns)
                record.timeline.add("fetch", member.layer, member.begun_ns, seen_ns)
            if timeout_ns is None:
                coming.waits.append((max(seen_ns - result.stall_ns, due_ns), seen_ns))
            selected = 0 if member.hint is None else member.ordinals.size
            index = self._is_index(member.layer)
            record.account(member.token, result, selected, index=index)
            self._check(member, result, record)
        if ended:
            record.timeline.add("copy", coming.layer, seen_ns, self.clock.now_ns())

    def _check(self, member: _Member, result: FetchResult, record: AgentRecord) -> None:
        """Check every fetched block against what prefill wrote, and note the failed ones."""
        demanded = member.ordinals[member.missing]
        good = result.rcs == 0
        expected = member.session.context.checksums[member.layer, self._demanded(member)]
        corrupt = int(np.count_nonzero(good & (result.checksums != expected)))
        record.blocks_verified += int(np.count_nonzero(good)) - corrupt
        record.blocks_corrupt += corrupt
        member.failed = demanded[~good]
        member.token.unreadable += corrupt + member.failed.size

    def recompute(
        self, session: HostSession, layer: int, ordinals: NDArray[np.int32], record: AgentRecord
    ) -> None:
        """Recompute blocks that the tier has lost, use them, and put them again. If no member of a
        pod takes them, the session goes on, and the next demand recomputes them again."""
        chunks = self.pool.geometry.chunks_of(layer, ordinals)
        identities = [session.context.identities[chunk] for chunk in chunks]
        blocks = self.kv.blocks_at(layer, ordinals, identities)
        self.pool.memory.write(self.pool.lookup(session.number, layer, ordinals), blocks)
        try:
            put_blocks(self.driver, session.handle, [(layer, chunks.astype(np.uint32), blocks)])
        except RunFailed as error:
            if error.errno != errno.EHOSTDOWN:
                raise
        record.blocks_recomputed += ordinals.size

    def _attend(
        self,
        members: Sequence[_Member],
        read: Sequence[Attended],
        layer: int,
        record: AgentRecord,
    ) -> Any:
        """One kernel call for the batch; the output stays on the pool's device."""
        geometry, arrays, storage = self.pool.geometry, self.pool.arrays, self.pool.memory.storage
        tokens = sum(int(one.counts.sum()) for one in read)
        self._kernel_bytes += tokens * geometry.entry_bytes(layer)
        tables = block_tables(
            [member.indices[one.entries] for member, one in zip(members, read, strict=True)]
        )
        counts, slots = block_tables([one.counts for one in read]), slots_of(read)
        queries = arrays.from_host(np.stack([member.query for member in members]))
        sinks = self.sink_logits.get(layer)
        output = self._decode(queries, storage, tables, counts, geometry, layer, slots, sinks)
        if not arrays.all_finite(output):
            at = (f"{one.session.name} at step {one.session.step}" for one in members)
            names = ", ".join(at)
            raise RunFailed(
                "attention returned a number that is not finite",
                f"layer {layer} of sessions {names}",
                "report this with the seed: blocks were checked before they were read",
            )
        for index, member in enumerate(members):
            self._outputs += 1
            if self._outputs % self.check_every == 0:
                self._compare(member, read[index], layer, arrays.to_host(output[index]), record)
        return output

    def _compare(
        self,
        member: _Member,
        read: Attended,
        layer: int,
        output: NDArray[np.float32],
        record: AgentRecord,
    ) -> None:
        """Compare one session's output with dense attention over the same tokens, in float64."""
        blocks = self.pool.memory.read(member.indices)
        table, counts = read.entries[None].astype(np.int32), read.counts[None]
        given = member.query[None], blocks, table, counts, self.pool.geometry, layer
        dense = dense_decode(*given, slots_of([read]), self.sink_logits.get(layer))[0]
        scale = float(np.abs(dense).max()) or 1.0
        error = float(np.abs(output - dense).max()) / scale
        record.attention_checked += 1
        record.attention_error_max = max(record.attention_error_max, error)
