"""One layer of one decode step: query, selection, fetch, check, attention.

This is the path that the whole project is about. A query scores every block through the summaries;
sinks, window and the best of the rest are read; what the HBM pool lacks is demanded of the DPU,
together with the scores of all blocks, selected or not: the hint for the next step. Every block
that arrives is held against the checksum of what was written, and sampled outputs against dense
attention over the same selection.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.driver import FetchResult
from offstage.bindings.errors import RunFailed
from offstage.host.attention import Decode, kernel
from offstage.host.attention.reference import decode as dense_decode
from offstage.host.fabrics import Fabric
from offstage.host.pool import HbmPool
from offstage.host.prefill import put_blocks
from offstage.host.record import AgentRecord, Token
from offstage.host.selection import select
from offstage.host.session import HostSession
from offstage.host.synthetic_kv import SyntheticKv

__all__ = ["Decoder", "DemandObserver", "SelectionRule"]

UNKNOWN_END = 255

DemandObserver = Callable[[HostSession, int, NDArray[np.uint32], NDArray[np.uint16]], None]
"""Sees (session, layer, demanded ordinals, scores of all stored blocks) of every fetch."""


@dataclass(frozen=True)
class SelectionRule:
    """Blocks one layer reads in a step: `sink_blocks` first ones, `window_blocks` last ones and
    the best of the rest, `select_blocks` in all."""

    selector: str = "quest"
    select_blocks: int = 32
    sink_blocks: int = 1
    window_blocks: int = 4

    @property
    def top_blocks(self) -> int:
        """How many are chosen by score."""
        return self.select_blocks - self.sink_blocks - self.window_blocks


@dataclass
class Decoder:
    """The decode path over one fabric and one HBM pool; one thread owns it."""

    driver: Fabric
    pool: HbmPool
    synthetic_kv: SyntheticKv
    rule: SelectionRule
    kernel_name: str = "numpy"
    check_every: int = 50
    """One layer output in so many is compared with dense attention."""
    timeout_ns: int = 10_000_000_000
    observe: DemandObserver | None = None

    def __post_init__(self) -> None:
        self._decode: Decode = kernel(self.kernel_name)
        self._outputs = 0

    def layer(self, session: HostSession, layer: int, token: Token, record: AgentRecord) -> None:
        """Decode one layer of the session's current step. The token's own KV is already in."""
        geometry = self.synthetic_kv.geometry
        length = session.block_count(geometry)
        query = session.queries[layer].next(session.step, length)
        scores = session.context.selectors[layer].scores(query)
        ordinals = select(
            scores,
            self.rule.top_blocks,
            self.rule.sink_blocks,
            self.rule.window_blocks,
            length,
        )
        indices = self.pool.hold(session.number, layer, ordinals)
        missing = np.flatnonzero(indices < 0)
        if missing.size:
            indices[missing] = self.pool.allocate(session.number, layer, ordinals[missing])
        result = self._fetch(session, layer, ordinals, indices, missing, scores)
        self._account(result, ordinals.size, token, record)
        self._check(session, layer, ordinals[missing], indices[missing], result, record)
        self._attend(session, layer, query, ordinals, indices, record)

    def _fetch(
        self,
        session: HostSession,
        layer: int,
        ordinals: NDArray[np.int32],
        indices: NDArray[np.int32],
        missing: NDArray[np.intp],
        scores: NDArray[np.float32],
    ) -> FetchResult:
        """Demand the missing blocks, with the hint. The block being filled is never missing."""
        demanded = ordinals[missing].astype(np.uint32)
        hint = session.quantizers[layer](scores[: session.keys.shape[1]])
        if self.observe is not None:
            self.observe(session, layer, demanded, hint)
        return self.driver.fetch(
            session.handle,
            session.step,
            layer,
            demanded,
            np.ascontiguousarray(session.keys[layer, demanded]),
            self.pool.storage,
            target_index=indices[missing].astype(np.uint32),
            selected_count=ordinals.size,
            scores=hint,
            timeout_ns=self.timeout_ns,
        )

    @staticmethod
    def _account(result: FetchResult, selected: int, token: Token, record: AgentRecord) -> None:
        token.selected += selected
        token.demands += result.ends.size
        token.stall_ns += result.stall_ns
        token.copy_ns += result.copy_ns
        known = result.ends[result.ends != UNKNOWN_END]
        token.ends += np.bincount(known, minlength=token.ends.size)
        record.torn_reads += result.torn_count
        record.retries += result.retry_count

    def _check(
        self,
        session: HostSession,
        layer: int,
        ordinals: NDArray[np.int32],
        indices: NDArray[np.int32],
        result: FetchResult,
        record: AgentRecord,
    ) -> None:
        """Hold every fetched block against what prefill wrote; compute again what failed."""
        good = result.rcs == 0
        expected = session.context.checksums[layer, ordinals]
        corrupt = int(np.count_nonzero(good & (result.checksums != expected)))
        record.blocks_verified += int(np.count_nonzero(good)) - corrupt
        record.blocks_corrupt += corrupt
        for place in np.flatnonzero(~good):
            self._recompute(session, layer, int(ordinals[place]), int(indices[place]), record)

    def _recompute(
        self, session: HostSession, layer: int, ordinal: int, index: int, record: AgentRecord
    ) -> None:
        """The tier has lost a block: compute it again, use it, and write it again."""
        where = np.array([ordinal], np.uint32)
        identities = [session.context.identities[ordinal]]
        block = self.synthetic_kv.blocks_at(layer, where, identities)
        self.pool.storage[index, : block.shape[1]] = block[0]
        put_blocks(self.driver, session.handle, layer, where, block)
        record.blocks_recomputed += 1

    def _attend(
        self,
        session: HostSession,
        layer: int,
        query: NDArray[np.float32],
        ordinals: NDArray[np.int32],
        indices: NDArray[np.int32],
        record: AgentRecord,
    ) -> None:
        geometry = self.synthetic_kv.geometry
        counts = session.token_counts(geometry, ordinals)
        output = self._decode(query, self.pool.storage, indices, counts, geometry)
        if not np.isfinite(output).all():
            raise RunFailed(
                "attention gave a number that is not finite",
                f"session {session.name}, layer {layer}, step {session.step}",
                "report this with the seed: blocks were checked before they were read",
            )
        self._outputs += 1
        if self._outputs % self.check_every == 0:
            dense = dense_decode(query, self.pool.storage, indices, counts, geometry)
            scale = float(np.abs(dense).max()) or 1.0
            error = float(np.abs(output - dense).max()) / scale
            record.attention_checked += 1
            record.attention_error_max = max(record.attention_error_max, error)
