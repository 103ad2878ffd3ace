"""Keys, values and queries that behave like a model's: a score process turned into tensors.

A key is its block's embedding plus token noise; a query is a vector that moves from step to step;
and since the embedding of block i has coordinates in disjoint channels, their product is the
process (`score_process.py`)

    score_t(i) = w_static * static_i + slow_t(i) + w_fast * fast_t(i) + recency * r_t(i) + sink_i

- static: one channel, |Student t, 4 degrees of freedom| * 0.6 per block: some blocks are heavy;
- slow, fast: the block has a standard normal per channel and the query a unit vector whose
  coordinates are AR(1) in t, so that scores are normal over blocks and correlate over steps as
  exp(-1 / tau). A topic burst draws three quarters of the variance of slow anew;
- recency: r = exp(-distance to the newest block / 2,048 tokens), an exact product of a key's
  channel exp(position) and a query's exp(-position); a channel serves a segment of 16 such lengths,
  because float16 could not hold more;
- sink: one channel that only block 0 has.

Queries are scaled by sqrt(head_dim), which attention divides out: the score is the logit. KV heads
hold the same embedding, each in its own order of channels, and query heads differ from each other
by deviations with zero mean: pooled over heads, the process is the one above. A latent is a
key and nothing else. What differs from the process: rounding to float16, Quest's bound instead of
the product, and the token noise.

Everything is drawn from a counter-based generator (Philox, Salmon et al. 2011) at the counter
(chunk identity, layer) or (session, layer, step): the same chunk has the same bytes in every
session, in any order of calls. `KvPools` may be shared by readers of one thread; a
`QueryStream` belongs to one (session, layer). Raises `BadInput` where a geometry has too few
channels, or a context too many tokens, for the construction.

`SyntheticKv` takes the place of a model: it gives the KV of any chunk, and the queries of any
session. The same seed, chunk and layer give the same bytes, so a block that the tier has lost can
be recomputed, and every block that is read can be compared with what was written. One thread uses
it. It owns only the pools of `KvPools`.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.score_process import (
    BURST_SHARE,
    STATIC_SCALE,
    ProcessParams,
    blend,
    kept,
    moved,
)

__all__ = ["CONTEXT_TOKENS_MAX", "KvPools", "QueryStream", "SyntheticKv"]

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_RECENCY_TOKENS = 2048
_SEGMENT_LENGTHS = 16
_SEGMENTS = 5
CONTEXT_TOKENS_MAX = _SEGMENTS * _SEGMENT_LENGTHS * _RECENCY_TOKENS
"""Longest context whose positions the recency channels distinguish: 163,840 tokens."""

# Standard deviation of a token's key from its block's embedding, per channel of static, slow and
# fast. Large enough that tokens of a block differ, small enough that selections follow the process:
# at 2,048 blocks and k = 32, 94 % of Quest's selection and 98 % of the mean key's are those of the
# exact scores; at a noise of 0.5 it is 89 and 96 %, at 1.0 it is 78 and 93 %.
_TOKEN_NOISE = 0.25
_NOISE_ROWS = 4096
# How far query heads are apart, against a shared slow component of length 1.
_HEAD_SPREAD = 0.5
_VALUE_WORDS = 1 << 20
# Values are +-[1/8, 1/4): sign and mantissa are random bits, the exponent is fixed.
_VALUE_EXPONENT = 0x3000
_VALUE_MANTISSA = 0x03FF
_VALUE_RANDOM = 0x8000 | _VALUE_MANTISSA

# Draws for different purposes must not meet: each is a half of the generator's key.
_DOMAIN_BLOCK, _DOMAIN_POOL, _DOMAIN_QUERY = 1, 2, 3


class _Channels:
    """Which channels of a head hold what: static, sink, recency, then slow (two thirds) and fast.

    A KV head stores them rotated by its share of head_dim."""

    STATIC, SINK, RECENCY = 0, 1, 2

    def __init__(self, geometry: KvGeometry, layer: int) -> None:
        _, self.kv_heads, self.tokens, self.head_dim = geometry.block_shape(layer)
        first = self.RECENCY + _SEGMENTS
        if self.head_dim < first + 4:
            raise BadInput(
                f"head_dim {self.head_dim} has too few channels for the score process",
                f"geometry {geometry.name!r}",
                f"use a geometry with head_dim of at least {first + 4}",
            )
        middle = first + math.ceil((self.head_dim - first) * 2 / 3)
        self.slow = slice(first, middle)
        self.fast = slice(middle, self.head_dim)
        self.recency = slice(self.RECENCY, first)
        self.group = geometry.q_heads // self.kv_heads

    def rotated(self, vectors: Floats, kv_head: int) -> Floats:
        """`vectors` `[..., head_dim]` in the order in which `kv_head` stores channels."""
        return np.roll(vectors, kv_head * self.head_dim // self.kv_heads, axis=-1)


class KvPools:
    """Keys and values of any chunk of one model. `seed` takes the place of the model's weights: two
    pools with the same seed and geometry give the same bytes for the same chunk."""

    def __init__(self, seed: int, geometry: KvGeometry) -> None:
        self.geometry = geometry
        self._seed = seed % 2**64
        self._channels = channels = _Channels(geometry, 0)
        for layer in range(geometry.layer_count):
            assert geometry.block_shape(layer) == geometry.block_shape(0), "layers of one shape"
        pool = np.random.Generator(np.random.Philox(key=[self._seed, _DOMAIN_POOL << 32]))
        rows = _NOISE_ROWS + channels.tokens
        noise = _TOKEN_NOISE * pool.standard_normal(
            (channels.kv_heads, rows, channels.head_dim), dtype=np.float32
        )
        # The large coordinates of recency and sink are positions, not content: no noise on them.
        noise[:, :, channels.SINK : channels.recency.stop] = 0.0
        self._noise = np.stack([channels.rotated(head, h) for h, head in enumerate(noise)])
        words = _VALUE_WORDS + channels.kv_heads * channels.tokens * channels.head_dim
        bits = pool.integers(0, 1 << 16, words, dtype=np.uint16)
        self._values = bits & np.uint16(_VALUE_RANDOM) | np.uint16(_VALUE_EXPONENT)
        self._bits = np.random.Philox(key=[self._seed, 0])
        self._state: Any = self._bits.state
        self._normal_words = (channels.head_dim - channels.slow.start + 1) // 2

    def embeddings(self, layer: int, identities: Sequence[int], ordinals: npt.ArrayLike) -> Floats:
        """Block embeddings, float32 `[blocks, head_dim]`, in the order of channels of KV head 0.

        identities: 128-bit chunk identities; ordinals: their positions in the context, which an
        identity implies, as it is a hash of all that comes before. Raises `BadInput` for a position
        beyond `CONTEXT_TOKENS_MAX`."""
        return self._embed(self._draw(layer, identities), np.asarray(ordinals, np.int64))

    def keys(self, layer: int, identities: Sequence[int], ordinals: npt.ArrayLike) -> Halves:
        """Keys, float16 `[blocks, kv_heads, block_tokens, head_dim]`; see `embeddings`."""
        out = np.empty((len(identities), *self.geometry.block_shape(layer)[1:]), np.float16)
        self._fill_keys(self._draw(layer, identities), np.asarray(ordinals, np.int64), out)
        return out

    def values(self, layer: int, identities: Sequence[int]) -> Halves:
        """Values, float16 `[blocks, kv_heads, block_tokens, head_dim]`: +-[1/8, 1/4)."""
        out = np.empty((len(identities), *self.geometry.block_shape(layer)[1:]), np.float16)
        self._fill_values(self._draw(layer, identities), out)
        return out

    def blocks(
        self,
        layer: int,
        identities: Sequence[int],
        ordinals: npt.ArrayLike,
        out: Halves | None = None,
    ) -> Halves:
        """Whole blocks as a pool stores them, float16 `[blocks, planes, kv_heads, block_tokens,
        head_dim]`, written into `out` where given; see `embeddings`."""
        if out is None:
            out = np.empty((len(identities), *self.geometry.block_shape(layer)), np.float16)
        draw = self._draw(layer, identities)
        self._fill_keys(draw, np.asarray(ordinals, np.int64), out[:, 0])
        if out.shape[1] == 2:
            self._fill_values(draw, out[:, 1])
        return out

    def _draw(self, layer: int, identities: Sequence[int]) -> Words:
        """Random words of each block, `[blocks, normals / 2 + 3]`: for the normals, for the static
        coordinate (two), and for its offsets in the pools of noise and values."""
        words = np.empty((len(identities), self._normal_words + 3), np.uint64)
        self._state["state"]["key"][:] = self._seed, (_DOMAIN_BLOCK << 32) | layer
        counter = self._state["state"]["counter"]
        for row, identity in enumerate(identities):
            counter[:] = 0, identity & (2**64 - 1), identity >> 64, 0
            self._bits.state = self._state
            words[row] = self._bits.random_raw(words.shape[1])
        return words

    def _embed(self, words: Words, ordinals: npt.NDArray[np.int64]) -> Floats:
        channels, normal_words = self._channels, self._normal_words
        result = np.zeros((len(words), channels.head_dim), np.float32)
        width = channels.head_dim - channels.slow.start
        result[:, channels.slow.start :] = _normals(words[:, :normal_words])[:, :width]
        # Student t with 4 degrees of freedom: normal / sqrt(chi-square(4) / 4), and a chi-square
        # of 4 is minus twice the logarithm of a product of two uniforms.
        uniforms = _uniforms(words[:, normal_words : normal_words + 1])
        spread = np.sqrt(-np.log(uniforms[:, 0] * uniforms[:, 1]) / 2)
        normal = _normals(words[:, normal_words + 1 : normal_words + 2])[:, 0]
        result[:, channels.STATIC] = STATIC_SCALE * np.abs(normal) / spread
        result[ordinals == 0, channels.SINK] = 1.0
        segment, depth = _position(ordinals, channels.tokens)
        result[np.arange(len(words)), channels.RECENCY + segment] = np.exp(depth)
        return result

    def _fill_keys(self, words: Words, ordinals: npt.NDArray[np.int64], out: Halves) -> None:
        channels = self._channels
        plain = self._embed(words, ordinals)
        heads = [channels.rotated(plain, head) for head in range(channels.kv_heads)]
        embedded = np.stack(heads, axis=1)[:, :, None]
        rows = words[:, -1] % np.uint64(_NOISE_ROWS)
        scratch = np.empty(out.shape[1:], np.float32)
        for block, row in enumerate(rows.tolist()):
            noise = self._noise[:, row : row + channels.tokens]
            np.add(noise, embedded[block], out=scratch)
            out[block] = scratch

    def _fill_values(self, words: Words, out: Halves) -> None:
        """A block is a piece of the pool with its own pattern on the mantissas: two blocks whose
        pieces overlap or even coincide still differ."""
        starts = (words[:, -1] >> np.uint64(16)) % np.uint64(_VALUE_WORDS)
        salts = (words[:, -1] >> np.uint64(48)).astype(np.uint16) & np.uint16(_VALUE_MANTISSA)
        size = int(np.prod(out.shape[1:]))
        bits = out.view(np.uint16)
        for block, start in enumerate(starts.tolist()):
            piece = self._values[start : start + size].reshape(out.shape[1:])
            np.bitwise_xor(piece, salts[block], out=bits[block])


class QueryStream:
    """The queries of one (session, layer), one per decode step from step 0 on."""

    def __init__(
        self, seed: int, session: int | str, layer: int, params: ProcessParams, geometry: KvGeometry
    ) -> None:
        self._params = params
        self._channels = _Channels(geometry, layer)
        self._heads = geometry.q_heads
        digest = hashlib.blake2b(repr(session).encode(), digest_size=16).digest()
        self._session = np.frombuffer(digest, np.uint64)
        self._bits = np.random.Philox(key=[seed % 2**64, (_DOMAIN_QUERY << 32) | layer])
        self._state: Any = self._bits.state
        self._random = np.random.Generator(self._bits)
        self._step = -1
        slow, fast = self._channels.slow, self._channels.fast
        # Row 0 is shared by all heads, the others are the heads' own.
        self._slow = np.zeros((1 + self._heads, slow.stop - slow.start))
        self._fast = np.zeros(fast.stop - fast.start)

    def next(self, step: int, length_blocks: int) -> Floats:
        """The queries of `step`, float32 `[q_heads, head_dim]`, over a context of `length_blocks`
        blocks. Call it for each step in order. Raises `BadInput` for a context beyond
        `CONTEXT_TOKENS_MAX`."""
        assert step == self._step + 1, "a stream gives its steps in turn"
        self._step = step
        self._seek(step)
        return self._query(self._advance(), length_blocks)

    def windows(self, count: int, length_blocks: int) -> Floats:
        """The last query of each of the last `count` blocks of a context of `length_blocks`, oldest
        first, float32 `[count, q_heads, head_dim]`: the queries of a prefill, one per block, up to
        the token before step 0. The stream cannot be used afterwards.

        Drawn backwards from step 0: this stationary process has the same law in both directions,
        so decode's queries do not depend on whether this was called."""
        self.next(0, length_blocks)
        found = []
        for ahead in range(count):
            self._seek(2**64 - 1 - ahead)
            white = self._back(self._channels.tokens if ahead else 1)
            found.append(self._query(white, length_blocks - ahead))
        return np.stack(found[::-1])

    def _seek(self, counter: int) -> None:
        self._state["state"]["counter"][:] = 0, counter, *self._session
        self._bits.state = self._state

    def _query(self, white: Doubles, length_blocks: int) -> Floats:
        params, channels = self._params, self._channels
        shared = np.zeros(channels.head_dim)
        shared[channels.STATIC] = params.w_static
        shared[channels.SINK] = params.sink
        segments, depths = _position(np.array([length_blocks - 1]), channels.tokens)
        centres = depths + _SEGMENT_LENGTHS * (segments - np.arange(_SEGMENTS))
        # A segment that has not begun holds no key, and its factor would be a huge number.
        begun = np.arange(_SEGMENTS) <= segments
        shared[channels.recency] = params.recency * np.exp(-np.where(begun, centres, np.inf))
        shared[channels.slow] = _unit(self._slow[0])
        shared[channels.fast] = params.w_fast * _unit(self._fast) + params.noise * _unit(white)
        return self._spread(shared)

    def _advance(self) -> Doubles:
        """One step of both AR(1) processes; returns fast channels that are new at every step."""
        fresh = self._random.standard_normal(self._slow.shape)
        fresh_fast = self._random.standard_normal(self._fast.shape)
        white = self._random.standard_normal(self._fast.shape)
        if self._step == 0:
            self._slow, self._fast = fresh, fresh_fast
            return white
        for component, tau, new in (
            (self._slow, self._params.tau_slow, fresh),
            (self._fast, self._params.tau_fast, fresh_fast),
        ):
            keep = kept(tau)
            blend(component, keep, new, moved(keep))
        if self._random.random() < self._params.burst:
            topic = self._random.standard_normal(self._slow.shape)
            keep = math.sqrt(1 - BURST_SHARE)
            blend(self._slow, keep, topic, moved(keep))
        return white

    def _back(self, steps: int) -> Doubles:
        """Go `steps` steps back in one draw; returns the same as `_advance`."""
        params = self._params
        fresh = self._random.standard_normal(self._slow.shape)
        fresh_fast = self._random.standard_normal(self._fast.shape)
        white = self._random.standard_normal(self._fast.shape)
        bursts = self._random.binomial(steps, params.burst)
        keep = kept(params.tau_slow) ** steps * (1 - BURST_SHARE) ** (bursts / 2)
        blend(self._slow, keep, fresh, moved(keep))
        keep = kept(params.tau_fast) ** steps
        blend(self._fast, keep, fresh_fast, moved(keep))
        return white

    def _spread(self, shared: Doubles) -> Floats:
        """Each head's own query around the shared one, in its KV head's order of channels."""
        channels = self._channels
        queries = np.repeat(shared[None], self._heads, axis=0)
        own = self._slow[1:] - self._slow[1:].mean(axis=0)
        queries[:, channels.slow] += _HEAD_SPREAD * own / math.sqrt(own.shape[1])
        queries *= math.sqrt(channels.head_dim)
        result = queries.astype(np.float32)
        for kv_head in range(channels.kv_heads):
            mine = slice(kv_head * channels.group, (kv_head + 1) * channels.group)
            result[mine] = channels.rotated(result[mine], kv_head)
        return result


def _position(
    ordinals: npt.NDArray[np.int64], block_tokens: int
) -> tuple[npt.NDArray[np.int64], Doubles]:
    """The segment of each block, and its distance from the segment's middle in lengths, +-8."""
    if ordinals.size and ordinals.max() * block_tokens >= CONTEXT_TOKENS_MAX:
        raise BadInput(
            f"a context of more than {CONTEXT_TOKENS_MAX:,} tokens",
            "workload",
            "lower the context length, or cap it",
        )
    lengths = ordinals * (block_tokens / _RECENCY_TOKENS)
    segments = (lengths // _SEGMENT_LENGTHS).astype(np.int64)
    return segments, lengths - (segments + 0.5) * _SEGMENT_LENGTHS


def _uniforms(words: Words) -> Doubles:
    """Two uniforms in (0, 1) from each word, `[rows, 2 * words]`."""
    halves = np.ascontiguousarray(words).view(np.uint32).astype(np.float64)
    return (halves + 0.5) * 2.0**-32


def _normals(words: Words) -> Floats:
    """Two standard normals from each word, `[rows, 2 * words]` (Box and Muller 1958)."""
    uniforms = _uniforms(words).astype(np.float32)
    # Rounding to float32 may give 1, whose logarithm is 0 and fits; it never gives 0.
    radius = np.sqrt(-2 * np.log(uniforms[:, 0::2]))
    angle = np.float32(2 * math.pi) * uniforms[:, 1::2]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _unit(vector: Doubles) -> Doubles:
    result: Doubles = vector / math.sqrt(vector @ vector)
    return result


class SyntheticKv:
    """KV bytes and queries of one model. `processes`: the score process of each layer."""

    def __init__(self, seed: int, geometry: KvGeometry, processes: Sequence[ProcessParams]) -> None:
        assert len(processes) == geometry.layer_count, "one process per layer"
        self.geometry = geometry
        self._seed = seed
        self._processes = list(processes)
        self._kv = KvPools(seed, geometry)

    def blocks(
        self, layer: int, first_ordinal: int, identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Consecutive blocks of one layer, uint8 `[blocks, block_bytes]`."""
        ordinals = np.arange(first_ordinal, first_ordinal + len(identities))
        return self.blocks_at(layer, ordinals, identities)

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Blocks at any ordinals of the context, uint8 `[blocks, block_bytes]`."""
        halves = self._kv.blocks(layer, identities, ordinals)
        return halves.reshape(len(identities), -1).view(np.uint8)

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[np.float16]:
        """The keys inside blocks, a view: float16 `[blocks, kv_heads, block_tokens, head_dim]`."""
        shape = self.geometry.block_shape(layer)
        return blocks.view(np.float16).reshape(len(blocks), *shape)[:, 0]

    def windows(self, session: int, layer: int, count: int, blocks: int) -> NDArray[np.float32]:
        """The queries of one (session, layer) before step 0, as `QueryStream.windows`."""
        return self.queries(session, layer).windows(count, blocks)

    def queries(self, session: int, layer: int) -> QueryStream:
        """The queries of one (session, layer), from step 0 on."""
        return QueryStream(self._seed, session, layer, self._processes[layer], self.geometry)
