"""Attention over blocks in the tier, for one session of a real model: a `LayerAttention`.

In each layer the token's K and V go into the block being filled, in the HBM pool; the query scores
all blocks, what is selected and not in the pool is fetched, and the kernel reads it: the decode
path of every other session (`host.decode.layer`), with a batch of one. Between layers nothing stays
pinned, so the pool may be smaller than what all layers select. One thread.

What is foretold of the next layer is acted on when this one's demands are on their way, because
those come first: as guesses that the tier stages by (`hint`), and beyond that as a fetch into the
HBM pool that this layer's attention and MLP hide (`fetch`).
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.foretold import Foretold
from offstage.host.decode.layer import Coming, Decoder
from offstage.host.decode.record import AgentRecord, Token
from offstage.host.decode.session import Context, HostSession
from offstage.host.decode.tail_block import TailBlock, write_tokens
from offstage.host.link.tier_sessions import Sessions, append_chunks
from offstage.host.selection import ScoreQuantizer

__all__ = ["Ahead", "TieredAttention"]

Ahead = Literal["none", "hint", "fetch"]
"""What is done with what a query foretells of the next layer."""


class _Given:
    """The query that the model has just computed: `Queries`."""

    def __init__(self) -> None:
        self.query: NDArray[np.float32] = np.empty(0, np.float32)

    def next(self, step: int, length_blocks: int) -> NDArray[np.float32]:
        return self.query


class _Tail(TailBlock):
    """The block that decoding fills with what the model computes."""

    given: NDArray[np.float32]

    def _open(self, ordinal: int) -> None:
        pass  # nothing of it is known ahead

    def _values(self, layer: int, slot: int) -> NDArray[Any]:
        return self.given


class TieredAttention:
    """One session from its context on. `identity` names the full block at an ordinal by its tokens,
    and is asked when the last of them is in."""

    def __init__(
        self,
        control: Sessions,
        decoder: Decoder,
        context: Context,
        identity: Callable[[int], int],
        token_time_s: float,
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
            number=0,
            name="model",
            handle=handle,
            context=own,
            keys=append_chunks(control, handle, own.identities, layers).keys,
            length_tokens=len(own.identities) * self._geometry.block_tokens,
            step_count=0,
            queries=self._queries,
            quantizers=[ScoreQuantizer() for _ in range(layers)],
        )
        self._tail = _Tail(control, decoder, identity)
        self.record = AgentRecord()
        self.foretold = Foretold(layers, rule)
        """Counts how well selections are foretold, where somebody `told` them."""
        self.ahead: Ahead = "none"
        self._foretelling = False
        self._told: dict[int, NDArray[np.float32]] = {}
        self._coming: Coming | None = None
        self._token = Token(0, 0)
        control.set_generating(handle, True)

    def begin_token(self) -> None:
        """One more token; its layers follow."""
        now_ns = self._decoder.clock.now_ns()
        self._token = Token(0, self.session.step, begun_ns=now_ns)
        self._tail.begin_token(self.session)

    def told(self, layer: int, query: Any) -> None:
        """A layer's query as an earlier one foretells it, `[q_heads, head_dim]`."""
        self._foretelling = True
        self._told[layer] = _floats(query)

    def _look_ahead(self, layer: int, running: Coming | None) -> None:
        """Act on what was told of a layer, while `running` is on its way."""
        if layer not in self._told:
            return
        scores = self._scores(layer, self._told.pop(layer))
        self.foretold.told(layer, scores)
        if self.ahead == "none" or running is None:
            return
        pool, session = self._decoder.pool, self.session
        absent = np.arange(scores.size, dtype=np.int32)
        absent = absent[pool.lookup(session.number, layer, absent) < 0]
        self._decoder.driver.hint(session.handle, self.foretold.guesses(layer, absent))
        if self.ahead == "fetch":
            self._decoder.settle(running, self.record)
            self._coming = self._decoder.begin_foretold(
                session, self._token, layer, scores, self.record
            )

    def _scores(self, layer: int, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of the blocks that the tier has: the hint, if the query were the layer's own."""
        found = self.session.context.selectors[layer].scores(query)
        return found[: self.session.keys.shape[1]]

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """See `LayerAttention`."""
        import torch

        self._queries[layer].query = _floats(query)
        if layer == 0:
            self._look_ahead(0, None)
        if self._foretelling:  # of the same blocks as what was told: the token is not among them
            self.foretold.ran(layer, self._scores(layer, self._queries[layer].query))
        self._tail.given = np.stack([_floats(key), _floats(value)])
        pool = self._decoder.pool
        write_tokens(pool, [(self.session, self._tail)], layer)
        if self._coming is not None:
            self._decoder.end_foretold(self._coming, self.record)
            self._coming = None
        running = self._decoder.begin([(self.session, self._token)], layer, self.record)
        self._look_ahead(layer + 1, running)
        found = self._decoder.attend(running, self.record)[0]
        self._decoder.end_tick(self.record)
        pool.release(self.session.number, layer)
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        return found.to(query.device)

    def end_token(self) -> None:
        """All layers have run; a full block goes to the tier."""
        self._token.put_ns = self._tail.end_token(self.session, self.record)
        self._token.ended_ns = self._decoder.clock.now_ns()
        self.session.step += 1
        self.record.tokens.append(self._token)

    def close(self) -> None:
        """End the session at the tier; its blocks stay in the store."""
        self._control.set_generating(self.session.handle, False)
        self._control.session_close(self.session.handle, archive=True)
        self._decoder.pool.close(self.session.number)


def _floats(tensor: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.float().cpu().numpy()
    return found
