"""Scores of every block for a batch of queries, and the best of them, without sorting any.

A score is what `offstage.host.selection` gives: the upper bound of q.k over a block's keys, or q on
their mean, as the mean over all query heads. Both are linear in a vector that the heads of a query
make together, so that a session's rows are read once, whatever the number of its query heads.

The best k are found by their value: the bits of the k-th greatest score are decided from the
highest down, each by counting who reaches it. One program holds all scores of a session meanwhile.
What comes after the best k, up to k + runners_up, is found by the same counts: they go into the
hint, because they are the likeliest to be selected next.
"""

from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.gpu import compiled, constexpr
from offstage.host.gpu.bounds import Table
from offstage.host.model.outward import GROUP

__all__ = ["BLOCKS_MAX", "Best", "best", "score"]

tl: Any = None
BLOCKS_MAX = 32_768
"""Of a session: what the registers of one multiprocessor hold."""
_PROGRAMS_MIN = 1024
"""Fewer leave a large device idle: then a program takes fewer rows."""
_CHANNELS_MAX = 128


@dataclass(frozen=True)
class Best:
    """int32 on the device. `ordinals [batch, k + runners_up]`: the selected blocks, ascending, then
    the runners-up, ascending; -1 where there are fewer. `counts [batch, 2]`: how many of each.
    `levels`: uint16 `[batch, blocks]`, all scores as a hint carries them."""

    ordinals: Any
    counts: Any
    levels: Any


def score(queries: Any, table: Table, rows: Any, lengths: Any, key_scale: float = 1.0) -> Any:
    """float32 `[batch, blocks]`; of a session's entries the first `lengths`, others undefined.

    queries: float32 `[batch, q_heads, head_dim]`. table: as `summarise` keeps it. rows: int32
    `[batch, blocks]`, the row of each block; lengths: int32 `[batch]`."""
    import torch
    import triton

    batch, q_heads, head_dim = queries.shape
    planes, kv_heads = table.numbers.shape[1:3]
    scores = torch.empty(rows.shape, dtype=torch.float32, device=queries.device)
    channels = max(GROUP, min(_CHANNELS_MAX, triton.next_power_of_2(head_dim)))
    at_once = 32 if batch * rows.shape[1] >= 32 * _PROGRAMS_MIN else 8
    compiled(_score)[triton.cdiv(rows.shape[1], at_once), batch](
        queries,
        table.numbers,
        table.exponents,
        rows,
        lengths,
        scores,
        key_scale / q_heads,
        rows.shape[1],
        *queries.stride()[:2],
        PLANES=planes,
        HEADS=kv_heads,
        MEMBERS=q_heads // kv_heads,
        MEMBERS_WIDE=triton.next_power_of_2(q_heads // kv_heads),
        HEAD_DIM=head_dim,
        CHANNELS=channels,
        ROWS=at_once,
        GROUPS=table.groups,
        GROUP=GROUP,
        num_warps=4,
        num_stages=3,
    )
    return scores


def best(
    scores: Any,
    lengths: Any,
    k_blocks: int,
    runners_up: int,
    sink_blocks: int,
    window_blocks: int,
    centres: Any,
    spreads: Any,
) -> Best:
    """The first `sink_blocks`, the last `window_blocks` and the best of the rest, `k_blocks` in
    all, as `offstage.host.selection.select` takes them: of equal scores the lower ordinal, and
    never one that is NaN or minus infinity. `centres`, `spreads`: float32 `[batch]`, the scale of
    each session's levels."""
    import torch
    import triton

    batch, blocks = scores.shape
    if blocks > BLOCKS_MAX:
        raise BadInput(
            f"a session of {blocks} blocks",
            "selection on the GPU",
            f"use at most {BLOCKS_MAX}: larger blocks, or a shorter context",
        )
    new = {"dtype": torch.int32, "device": scores.device}
    ordinals = torch.empty((batch, k_blocks + runners_up), **new)
    counts = torch.empty((batch, 2), **new)
    levels = torch.empty((batch, blocks), dtype=torch.uint16, device=scores.device)
    width = max(16, triton.next_power_of_2(blocks))
    slots = max(1, triton.next_power_of_2(k_blocks + runners_up))
    compiled(_best)[(batch,)](
        scores,
        lengths,
        centres,
        spreads,
        ordinals,
        counts,
        levels,
        blocks,
        k_blocks,
        runners_up,
        sink_blocks,
        window_blocks,
        WIDTH=width,
        SLOTS=slots,
        num_warps=min(16, max(4, width // 1024)),
    )
    return Best(ordinals, counts, levels)


def _score(
    queries,
    numbers,
    exponents,
    rows,
    lengths,
    scores,
    scale,
    width,
    query_session,
    query_head,
    PLANES: constexpr,
    HEADS: constexpr,
    MEMBERS: constexpr,
    MEMBERS_WIDE: constexpr,
    HEAD_DIM: constexpr,
    CHANNELS: constexpr,
    ROWS: constexpr,
    GROUPS: constexpr,
    GROUP: constexpr,
) -> None:
    """Some rows of one session."""
    session = tl.program_id(1)
    entry = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = entry < tl.load(lengths + session)
    row = tl.load(rows + session * width + entry, there, other=0).to(tl.int64)
    member = tl.arange(0, MEMBERS_WIDE)
    chunks: tl.constexpr = (HEAD_DIM + CHANNELS - 1) // CHANNELS
    total = tl.zeros([ROWS], tl.float32)
    for part in range(HEADS * chunks):
        head = part // chunks
        channel = (part % chunks) * CHANNELS + tl.arange(0, CHANNELS)
        real = channel < HEAD_DIM
        place = queries + session * query_session + (head * MEMBERS + member)[:, None] * query_head
        wanted = (member < MEMBERS)[:, None] & real[None, :]
        query = tl.load(place + channel[None, :], wanted, other=0.0)
        low = numbers + ((row * PLANES) * HEADS + head)[:, None] * HEAD_DIM + channel[None, :]
        wanted = there[:, None] & real[None, :]
        values = tl.load(low, wanted, other=0.0).to(tl.float32)
        if PLANES == 1:
            total += tl.sum(values * tl.sum(query, axis=0)[None, :], axis=1)
        else:
            more = tl.load(low + HEADS * HEAD_DIM, wanted, other=0.0).to(tl.float32)
            negative = tl.sum(tl.minimum(query, 0.0), axis=0)[None, :]
            positive = tl.sum(tl.maximum(query, 0.0), axis=0)[None, :]
            products = values * negative + more * positive
            if GROUPS:
                # A group is multiplied by its power of two once.
                group = (part % chunks) * (CHANNELS // GROUP) + tl.arange(0, CHANNELS // GROUP)
                shared = exponents + (row * HEADS + head)[:, None] * GROUPS + group[None, :]
                wanted = there[:, None] & (group < GROUPS)[None, :]
                power = tl.load(shared, wanted, other=0).to(tl.int32)
                unit = ((power + 127) << 23).to(tl.float32, bitcast=True)
                sums = tl.sum(tl.reshape(products, [ROWS, CHANNELS // GROUP, GROUP]), axis=2)
                total += tl.sum(sums * unit, axis=1)
            else:
                total += tl.sum(products, axis=1)
    tl.store(scores + session * width + entry, total * scale, there)


def _best(
    scores,
    lengths,
    centres,
    spreads,
    ordinals,
    counts,
    levels,
    blocks,
    k_blocks,
    runners_up,
    sink_blocks,
    window_blocks,
    WIDTH: constexpr,
    SLOTS: constexpr,
) -> None:
    """One session: the bits of the k-th greatest score, and of the last runner-up's."""
    session = tl.program_id(0)
    length = tl.load(lengths + session)
    ordinal = tl.arange(0, WIDTH)
    there = ordinal < length
    value = tl.load(scores + session * blocks + ordinal, there, other=float("-inf"))
    never = (value != value) | (value == float("-inf"))
    level = (value - tl.load(centres + session)) * (4096.0 / tl.load(spreads + session)) + 32768.0
    level = tl.where(never, 0.0, tl.minimum(tl.maximum(level, 1.0), 65535.0))
    place = levels + session * blocks + ordinal
    tl.store(place, level.to(tl.int32).to(tl.uint16), ordinal < blocks)
    # As unsigned numbers in the order of the scores, 0 for what is never selected.
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    forced = (ordinal < sink_blocks) | (ordinal >= length - window_blocks)
    rank = tl.where(never, 0, tl.where(rank == 0, 1, rank)).to(tl.uint32)
    rank = tl.where(forced, 4294967295, rank).to(tl.uint32)
    rank = tl.where(there, rank, 0).to(tl.uint32)
    bar = tl.zeros([1], tl.uint32)
    far = tl.zeros([1], tl.uint32)
    for step in range(32):
        bit = (tl.full([1], 1, tl.uint32) << (31 - step)).to(tl.uint32)
        enough = tl.sum((rank >= (bar | bit)).to(tl.int32), axis=0) >= k_blocks
        bar = tl.where(enough, bar | bit, bar)
        enough = tl.sum((rank >= (far | bit)).to(tl.int32), axis=0) >= k_blocks + runners_up
        far = tl.where(enough, far | bit, far)
    equal = ((rank == bar) & (rank > 0)).to(tl.int32)
    open_places = k_blocks - tl.sum((rank > bar).to(tl.int32), axis=0)
    chosen = (rank > bar) | ((equal > 0) & (tl.cumsum(equal, axis=0) <= open_places))
    equal = ((rank == far) & (rank > 0)).to(tl.int32)
    open_places = k_blocks + runners_up - tl.sum((rank > far).to(tl.int32), axis=0)
    close = (rank > far) | ((equal > 0) & (tl.cumsum(equal, axis=0) <= open_places))
    close = close & (chosen == 0)
    width = k_blocks + runners_up
    chosen, close = chosen.to(tl.int32), close.to(tl.int32)
    slot = tl.cumsum(chosen, axis=0) - 1
    tl.store(ordinals + session * width + slot, ordinal, chosen > 0)
    slot = k_blocks + tl.cumsum(close, axis=0) - 1
    tl.store(ordinals + session * width + slot, ordinal, close > 0)
    selected, after = tl.sum(chosen, axis=0), tl.sum(close, axis=0)
    tl.store(counts + session * 2, selected)
    tl.store(counts + session * 2 + 1, after)
    slot = tl.arange(0, SLOTS)
    empty = ((slot >= selected) & (slot < k_blocks)) | (slot >= k_blocks + after)
    tl.store(ordinals + session * width + slot, -1, empty & (slot < width))
