"""Summaries of blocks: the least and the greatest of each channel of their keys, or the mean key.

A row summarises one block, and lies in a table of the device: `[rows, 2, kv_heads, head_dim]` of
bounds, in the type of the keys, which holds them exactly; or `[rows, 1, kv_heads, head_dim]` of
means, float32. Tokens appended to a block are the only ones read: the row says what was before.
"""

from typing import Any

from offstage.host.gpu import compiled, constexpr

__all__ = ["summarise"]

tl: Any = None
_TOKENS = 32
_CHANNELS_MAX = 128


def summarise(keys: Any, table: Any, blocks: Any, rows: Any, first: Any, count: Any) -> None:
    """Bring the rows of `table` up to date with the tokens that blocks have gained.

    keys: `[blocks, kv_heads, block_tokens, head_dim]`, a view into the pool, its last axis dense.
    int32 `[n]` each: `blocks` in the pool and their `rows` in the table, each row once; `first` new
    token of each, 0 for one that is written anew, and the `count` of new ones, at least 1."""
    import triton

    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    channels = min(_CHANNELS_MAX, triton.next_power_of_2(head_dim))
    if not len(blocks):
        return
    compiled(_summarise)[len(blocks), kv_heads * triton.cdiv(head_dim, channels)](
        keys, table, blocks, rows, first, count, *keys.stride()[:3],
        HEADS=kv_heads, HEAD_DIM=head_dim, CHANNELS=channels, TILE=_TOKENS,
        MEAN=table.shape[1] == 1, num_warps=4,
    )  # fmt: skip


def _summarise(
    keys, table, blocks, rows, first, count, key_block, key_head, key_token,
    HEADS: constexpr, HEAD_DIM: constexpr, CHANNELS: constexpr, TILE: constexpr, MEAN: constexpr,
) -> None:  # fmt: skip
    """Some channels of one head of one block."""
    one = tl.program_id(0)
    chunks = (HEAD_DIM + CHANNELS - 1) // CHANNELS
    head = tl.program_id(1) // chunks
    channel = (tl.program_id(1) % chunks) * CHANNELS + tl.arange(0, CHANNELS)
    real = channel < HEAD_DIM
    begin = tl.load(first + one)
    added = tl.load(count + one)
    block = tl.load(blocks + one).to(tl.int64)
    planes = 1 if MEAN else 2
    row = (tl.load(rows + one).to(tl.int64) * planes * HEADS + head) * HEAD_DIM + channel
    least = tl.full([CHANNELS], float("inf"), tl.float32)
    greatest = tl.full([CHANNELS], float("-inf"), tl.float32)
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, added, TILE):
        token = start + tl.arange(0, TILE)
        wanted = (token < added)[:, None] & real[None, :]
        place = keys + block * key_block + head * key_head + (begin + token)[:, None] * key_token
        key = tl.load(place + channel[None, :], wanted, other=0.0).to(tl.float32)
        if MEAN:
            total += tl.sum(key, axis=0)
        else:
            least = tl.minimum(least, tl.min(tl.where(wanted, key, float("inf")), axis=0))
            greatest = tl.maximum(greatest, tl.max(tl.where(wanted, key, float("-inf")), axis=0))
    grown = real & (begin > 0)
    if MEAN:
        before = tl.load(table + row, grown, other=0.0)
        mean = (before * begin + total) / (begin + added)
        tl.store(table + row, mean, real)
    else:
        high = row + HEADS * HEAD_DIM
        before = tl.load(table + row, grown, other=0.0).to(tl.float32)
        least = tl.where(grown, tl.minimum(least, before), least)
        before = tl.load(table + high, grown, other=0.0).to(tl.float32)
        greatest = tl.where(grown, tl.maximum(greatest, before), greatest)
        tl.store(table + row, least.to(table.dtype.element_ty), real)
        tl.store(table + high, greatest.to(table.dtype.element_ty), real)
