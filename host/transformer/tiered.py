"""Attention over blocks in the tier, for one session of a real model: a `LayerAttention`.

In each layer the token's K and V go into the tail block in the HBM pool; the query scores all
blocks, selected blocks that the pool lacks are fetched, and the kernel reads them: the decode path
of every other session (`host.decode.layer`), with a batch of one. Between layers nothing stays
pinned, so the pool may be smaller than the selections of all layers. One thread.

A prediction for the next layer is used once this layer's demands are in flight, since those have
priority: as guesses from which the tier stages blocks (`hint`), and in addition as a fetch into the
HBM pool that this layer's attention and MLP hide (`fetch`). Where later layers read the tokens that
this layer's indexer selected (IndexShare), nothing is predicted: their guesses are certain.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.certain import whole
from offstage.host.decode.layer import Coming, Decoder
from offstage.host.decode.predicted import Predicted, as_guesses
from offstage.host.decode.record import AgentRecord, Token
from offstage.host.decode.session import Context, HostSession
from offstage.host.decode.tail_block import TailBlock, write_tokens
from offstage.host.link.tier_sessions import Sessions, append_chunks
from offstage.host.model.quantized_rows import Quantizer
from offstage.host.selection import ScoreQuantizer
from offstage.host.transformer.index_keys import NewKeys, keys_in

__all__ = ["Ahead", "TieredAttention", "fetched_ahead", "index_keys"]

Ahead = Literal["none", "hint", "fetch"]
"""Uses of a prediction for the next layer, or of a selection that later layers share."""


class _Given:
    """`Queries` that returns the query that the model has just computed."""

    def __init__(self) -> None:
        self.query: NDArray[np.float32] = np.empty(0, np.float32)

    def next(self, step: int, length_blocks: int) -> NDArray[np.float32]:
        return self.query


class _Tail(TailBlock):
    """The tail block, filled with the model's K and V."""

    given: NDArray[np.float32]
    quantizer: Quantizer | None = None

    def _open(self, ordinal: int) -> None:
        pass  # no tokens are known in advance

    def _values(self, layer: int, slot: int) -> NDArray[Any]:
        return self.given

    def _full(self, session: HostSession, layer: int, block: NDArray[Any]) -> NDArray[np.uint8]:
        """Coded; attention and selector read from now on what a later fetch would bring."""
        if self.quantizer is None:
            room = self._decoder.pool.block_bytes - block.shape[1]
            return np.pad(block, ((0, 0), (0, room)))
        quantized = self.quantizer.filled(layer, block)
        where = np.array(self._indices[layer : layer + 1], np.int32)
        self._decoder.pool.memory.write(where, quantized)
        if self._decoder.pool.geometry.is_scored(layer):
            keys = self.quantizer.keys(quantized)
            session.context.selectors[layer].write(self._ordinals[layer], keys)
        return quantized


class TieredAttention:
    """One session, from its context on. `identity` returns the name of the full block at an
    ordinal; it is called once the block's last token is known. `quantizer`: of the tier's blocks,
    where they are not the model's own; the decoder's pool then takes quantized blocks. `buffer`:
    blocks in the tier's buffer, and the budget of reads over LRU's for guesses (`foretold`).
    `begun`: of a layer that compresses, the block that its context has begun. `number`: its own in
    the decoder's pool."""

    def __init__(
        self,
        control: Sessions,
        decoder: Decoder,
        context: Context,
        identity: Callable[[int], int],
        token_time_s: float,
        quantizer: Quantizer | None = None,
        buffer: tuple[int, float] = (0, 1.0),
        begun: Callable[[int], NDArray[np.uint8]] | None = None,
        number: int = 0,
    ) -> None:
        rule, self._geometry = decoder.rule, decoder.pool.geometry
        layers = self._geometry.layer_count
        self._control, self._decoder = control, decoder
        self._queries = [_Given() for _ in range(layers)]
        handle = control.session_open(
            sink_blocks=rule.sink_blocks,
            window_blocks=rule.window_blocks,
            select_blocks=rule.select_blocks,
            step_ns=int(token_time_s * 1e9),
        )
        decoder.driver.limit_scores(*control.hints)
        own = context.fork()
        self.session = HostSession(
            number=number,
            name=f"model {number}" if number else "model",
            handle=handle,
            context=own,
            keys=append_chunks(control, handle, own.identities, layers).keys,
            length_tokens=len(own.identities) * self._geometry.block_tokens,
            step_count=0,
            queries=self._queries,
            quantizers=[ScoreQuantizer() for _ in range(layers)],
        )
        self._tail = _Tail(control, decoder, identity)
        self._tail.quantizer = quantizer
        if begun is not None:
            self._tail.resume(self.session, begun)
        self._new_keys = NewKeys(self._geometry)
        self.record = AgentRecord()
        self.predicted = Predicted(layers, rule, *buffer)
        """Measures how well selections are predicted, and guesses, if `told` is called."""
        self.ahead: Ahead = "none"
        self._predicting = False
        self._told: dict[int, NDArray[np.float32]] = {}
        self._coming: Coming | None = None
        self.token = Token(number, 0)
        """The one that is decoded."""
        control.set_generating(handle, True)

    def begin_token(self) -> None:
        """One more token; its layers follow."""
        now_ns = self._decoder.clock.now_ns()
        self.token = Token(self.session.number, self.session.step, begun_ns=now_ns)
        self._tail.begin_token(self.session)

    def told(self, layer: int, query: Any) -> None:
        """Take a layer's query as predicted by an earlier layer, `[q_heads, head_dim]`."""
        self._predicting = True
        self._told[layer] = _floats(query)

    def _look_ahead(self, layer: int, running: Coming | None) -> None:
        """Use the prediction for a layer, while the fetches of `running` are in flight."""
        if layer not in self._told:
            return
        scores = self._scores(layer, self._told.pop(layer))
        self.predicted.told(layer, scores)
        if self.ahead == "none" or running is None:
            return
        session, hint = self.session, self._decoder.driver.hint
        hint(session.handle, self.predicted.guesses(layer, ~self._held(layer)))
        if layer == self._geometry.layer_count - 1:
            hint(session.handle, self.predicted.first_guesses(~self._held(0)))
        if self.ahead == "fetch":
            self._fetch_ahead(layer, self._decoder.chosen(scores, scores.size), running)

    def share(self, layer: int) -> NDArray[np.int32]:
        """Tell the tier what layers that share this one's selection read. Returns the blocks of the
        next layer that are to be fetched ahead."""
        source = self._geometry.selection_source
        later = range(layer + 1, self._geometry.layer_count)
        sharing = [one for one in later if source(one) == source(layer)]
        none = np.empty(0, np.int32)
        if self.ahead == "none" or not sharing:
            return none
        tokens = self.session.tokens[layer]
        ordinals = np.unique(tokens // self._geometry.block_tokens).astype(np.int32)
        if layer == source(layer):
            stored = ordinals[ordinals < self.session.keys.shape[1]]
            for one in sharing:
                absent = self._decoder.pool.lookup(self.session.number, one, stored) < 0
                guesses = as_guesses(one, 0, stored[absent], 1.0)
                self._decoder.driver.hint(self.session.handle, guesses)
        return ordinals if self.ahead == "fetch" and sharing[0] == layer + 1 else none

    def _fetch_ahead(self, layer: int, ordinals: NDArray[np.int32], running: Coming) -> None:
        self._coming = fetched_ahead([self], layer, [ordinals], running)

    def _held(self, layer: int) -> NDArray[np.bool_]:
        """Which of the tier's blocks the HBM pool has."""
        stored = np.arange(self.session.keys.shape[1], dtype=np.int32)
        return self._decoder.pool.lookup(self.session.number, layer, stored) >= 0

    def _scores(self, layer: int, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores of the blocks that the tier has; with the layer's own query this is the hint."""
        found = self.session.context.selectors[layer].scores(query)
        return found[: self.session.keys.shape[1]]

    def take(
        self, layer: int, query: Any, entry: Any, tokens: NDArray[np.int32] | None = None
    ) -> tuple[HostSession, TailBlock]:
        """Hold what a layer gives of the token, as `LayerAttention` has it, for `write_tokens` and
        the decoder's `begin`."""
        parts = self._geometry.parts[layer]
        for part in parts:
            self._queries[part].query = _floats(query)
        if tokens is not None:
            self.session.tokens[parts[-1]] = tokens
        return self.hold(entry)

    def hold(self, entry: Any) -> tuple[HostSession, TailBlock]:
        """Hold an entry, `[planes, kv_heads, head_dim]`, for `write_tokens`."""
        self._tail.given = _floats(entry)
        return self.session, self._tail

    def hold_key(self, layer: int, key: Any) -> tuple[HostSession, TailBlock]:
        """Hold a key of a layer's indexer, `[1, 1, dim]`, for `write_tokens`."""
        self._tail.given = self._new_keys.add(layer, key)
        return self.session, self._tail

    def attend(
        self,
        layer: int,
        query: Any,
        entry: Any,
        tokens: NDArray[np.int32] | None = None,
        closed: Any = None,
    ) -> Any:
        """See `LayerAttention`."""
        import torch

        parts = self._geometry.parts[layer]
        new = self.take(layer, query, entry, tokens)
        layer, last = parts[0], parts[-1]  # the same, unless entries lie beside a window
        if layer == 0:
            self._look_ahead(0, None)
        if self._predicting:  # score the same blocks as the prediction: without the new token
            scores = self._scores(layer, self._queries[layer].query)
            self.predicted.ran(layer, scores, self._held(layer))
        pool = self._decoder.pool
        write_tokens(pool, [new], layer)
        if closed is not None and closed.shape[2]:
            write_tokens(pool, [self.hold(closed[:, :, 0])], last)
        if self._coming is not None:
            self._decoder.end_predicted(self._coming, self.record)
            self._coming = None
        running = self._decoder.begin([(self.session, self.token)], layer, self.record)
        self._look_ahead(layer + 1, running)
        if tokens is not None and (ahead := self.share(last)).size:
            self._fetch_ahead(layer + 1, ahead, running)
        found = self._decoder.attend(running, self.record)[0]
        self._decoder.end_tick(self.record)
        for part in parts:
            pool.release(self.session.number, part)
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        return found.to(query.device)

    def index_keys(self, layer: int, key: Any) -> Any:
        """As `index_keys` below, of this session."""
        return index_keys([self], layer, key)

    def keys_of(self, place: tuple[int, int], every: NDArray[np.int32]) -> Any:
        """All keys at a place in the tier's blocks, `[1, tokens, dim]`. `every`: the blocks, of
        which the HBM pool has those that the tier had; the others are made again."""
        session, decoder, pool = self.session, self._decoder, self._decoder.pool
        number, geometry = place[0], self._geometry
        lost = every[pool.lookup(session.number, number, every) < 0]
        if lost.size:
            pool.allocate(session.number, number, lost)
            decoder.recompute(session, number, lost, self.record)
        indices = pool.lookup(session.number, number, every)
        found = keys_in(pool.memory.storage, indices, geometry, place)
        pool.release(session.number, number)
        return found[:, : geometry.entries(number, session.length_tokens)]

    def end_token(self) -> None:
        """All layers have run; put the tail block to the tier if it is full."""
        self.token.put_ns = self._tail.end_token(self.session, self.record)
        self.token.ended_ns = self._decoder.clock.now_ns()
        self.session.step += 1
        self.record.tokens.append(self.token)

    def close(self) -> None:
        """End the session at the tier; its blocks stay in the store."""
        self._control.set_generating(self.session.handle, False)
        self._control.session_close(self.session.handle, keep=True)
        self._decoder.pool.close(self.session.number)


def fetched_ahead(
    sessions: Sequence[TieredAttention],
    layer: int,
    ordinals: Sequence[NDArray[np.int32]],
    running: Coming,
) -> Coming:
    """Begin to fetch these blocks of a layer of each session into the HBM pool, once `running` has
    what it demanded."""
    decoder, record = sessions[0]._decoder, sessions[0].record
    decoder.settle(running, record)
    pairs = zip(sessions, ordinals, strict=True)
    batch = [(one.session, one.token, (None, own)) for one, own in pairs]
    return decoder.begin_predicted(batch, layer, record)


def index_keys(sessions: Sequence[TieredAttention], layer: int, keys: Any) -> Any:
    """All keys of a layer's indexer, `[sessions, tokens, dim]`: the newest tokens' `keys`,
    `[sessions, 1, dim]`, and those before from the tier, where the HBM pool lacks their blocks, in
    flight together. Of compressed entries: `keys` are of those that the token completes, one or
    none of each."""
    import torch

    decoder, record = sessions[0]._decoder, sessions[0].record
    geometry = decoder.pool.geometry
    number, _ = place = sessions[0]._new_keys.places[layer]
    if keys.shape[1]:
        each = zip(sessions, keys.split(1), strict=True)
        write_tokens(decoder.pool, [one.hold_key(layer, key) for one, key in each], number)
    read = [whole(geometry, one.session, number) for one in sessions]
    batch = [(one.session, one.token, own) for one, own in zip(sessions, read, strict=True)]
    decoder.end_predicted(decoder.begin_predicted(batch, number, record), record)
    pairs = zip(sessions, read, strict=True)
    return torch.cat([one.keys_of(place, every) for one, (_, every) in pairs]).to(keys)


def _floats(tensor: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.float().cpu().numpy()
    return found
