"""Summaries of blocks: the least and the greatest of each channel of their keys, or the mean key.

A row summarises one block, and lies in a table of the device (`Table`): bounds in the type of the
keys, which holds them exactly, or in 8 bits, rounded outwards as `offstage.host.model.outward`
says; or means, float32. Tokens appended to a block are the only ones read: the row says what was
before.
"""

from dataclasses import dataclass
from typing import Any

from offstage.host.gpu import compiled, constexpr
from offstage.host.model.outward import EXPONENTS, GROUP, MOST

__all__ = ["Table", "summarise"]

tl: Any = None
_TOKENS = 32
_CHANNELS_MAX = 128


@dataclass(frozen=True)
class Table:
    """`numbers`: `[rows, planes, kv_heads, head_dim]`, two planes for bounds and one for means.
    `exponents`: int8 `[rows, kv_heads, groups]` of the powers of two that numbers of 8 bits are
    multiplied by; for other numbers it is `numbers` itself, and is not read."""

    numbers: Any
    exponents: Any

    @classmethod
    def new(
        cls, rows: int, planes: int, kv_heads: int, head_dim: int, dtype: Any, device: str
    ) -> "Table":
        """Of zeros; torch.int8 makes bounds in 8 bits."""
        import torch

        numbers = torch.zeros((rows, planes, kv_heads, head_dim), dtype=dtype, device=device)
        if dtype != torch.int8:
            return cls(numbers, numbers)
        assert planes == 2, "means have no 8 bits"
        return cls(numbers, numbers.new_zeros((rows, kv_heads, -(-head_dim // GROUP))))

    @property
    def groups(self) -> int:
        """Powers of two of one head's bounds; 0 where there are none."""
        return 0 if self.exponents is self.numbers else int(self.exponents.shape[2])

    def twice(self) -> "Table":
        """The same rows, and as many of zeros behind them."""
        import torch

        parts = (self.numbers, self.exponents) if self.groups else (self.numbers,)
        made = [torch.cat([one, torch.zeros_like(one)]) for one in parts]
        return Table(made[0], made[-1])

    def copy(self, rows: Any, to: Any) -> None:
        """Rows to others; int64 indices."""
        self.numbers[to] = self.numbers[rows]
        if self.groups:
            self.exponents[to] = self.exponents[rows]


def summarise(keys: Any, table: Table, blocks: Any, rows: Any, first: Any, count: Any) -> None:
    """Bring the rows of `table` up to date with the tokens that blocks have gained.

    keys: `[blocks, kv_heads, block_tokens, head_dim]`, a view into the pool, its last axis dense.
    int32 `[n]` each: `blocks` in the pool and their `rows` in the table, each row once; `first` new
    token of each, 0 for one that is written anew, and the `count` of new ones, at least 1."""
    import triton

    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    channels = max(GROUP, min(_CHANNELS_MAX, triton.next_power_of_2(head_dim)))
    if not len(blocks):
        return
    compiled(_summarise, _unit, _widened, _steps_of)[
        len(blocks), kv_heads * triton.cdiv(head_dim, channels)
    ](
        keys,
        table.numbers,
        table.exponents,
        blocks,
        rows,
        first,
        count,
        *keys.stride()[:3],
        HEADS=kv_heads,
        HEAD_DIM=head_dim,
        CHANNELS=channels,
        TILE=_TOKENS,
        MEAN=table.numbers.shape[1] == 1,
        GROUPS=table.groups,
        GROUP=GROUP,
        MOST=MOST,
        FINEST=EXPONENTS[0],
        COARSEST=EXPONENTS[1],
        num_warps=4,
    )


def _summarise(
    keys,
    numbers,
    exponents,
    blocks,
    rows,
    first,
    count,
    key_block,
    key_head,
    key_token,
    HEADS: constexpr,
    HEAD_DIM: constexpr,
    CHANNELS: constexpr,
    TILE: constexpr,
    MEAN: constexpr,
    GROUPS: constexpr,
    GROUP: constexpr,
    MOST: constexpr,
    FINEST: constexpr,
    COARSEST: constexpr,
) -> None:
    """Some channels of one head of one block."""
    one = tl.program_id(0)
    chunks = (HEAD_DIM + CHANNELS - 1) // CHANNELS
    head = tl.program_id(1) // chunks
    channel_first = (tl.program_id(1) % chunks) * CHANNELS
    channel = channel_first + tl.arange(0, CHANNELS)
    real = channel < HEAD_DIM
    begin, added = tl.load(first + one), tl.load(count + one)
    block = tl.load(blocks + one).to(tl.int64)
    planes = 1 if MEAN else 2
    line = tl.load(rows + one).to(tl.int64) * HEADS
    row = (line * planes + head) * HEAD_DIM + channel
    shared = exponents + (line + head) * GROUPS
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
        before = tl.load(numbers + row, grown, other=0.0)
        mean = (before * begin + total) / (begin + added)
        tl.store(numbers + row, mean, real)
    else:
        high = row + HEADS * HEAD_DIM
        least, greatest = _widened(
            least, greatest, numbers + row, numbers + high, shared + channel // GROUP, grown, GROUPS
        )
        if GROUPS:
            tl.debug_barrier()  # all threads have read the row
            below, above, power = _steps_of(
                least, greatest, real, CHANNELS, GROUP, MOST, FINEST, COARSEST
            )
            group = channel_first // GROUP + tl.arange(0, CHANNELS // GROUP)
            tl.store(shared + group, power.to(tl.int8), group < GROUPS)
            tl.store(numbers + row, below.to(tl.int8), real)
            tl.store(numbers + high, above.to(tl.int8), real)
        else:
            tl.store(numbers + row, least.to(numbers.dtype.element_ty), real)
            tl.store(numbers + high, greatest.to(numbers.dtype.element_ty), real)


def _unit(power) -> Any:
    return ((power + 127) << 23).to(tl.float32, bitcast=True)


def _widened(least, greatest, low, high, shared, grown, GROUPS: constexpr) -> Any:
    """Bounds of the new tokens, and of those that the row stood for where it has grown."""
    low_before = tl.load(low, grown, other=0.0).to(tl.float32)
    high_before = tl.load(high, grown, other=0.0).to(tl.float32)
    if GROUPS:
        unit = _unit(tl.load(shared, grown, other=0).to(tl.int32))
        low_before, high_before = low_before * unit, high_before * unit
    least = tl.where(grown, tl.minimum(least, low_before), least)
    return least, tl.where(grown, tl.maximum(greatest, high_before), greatest)


def _steps_of(
    least,
    greatest,
    real,
    CHANNELS: constexpr,
    GROUP: constexpr,
    MOST: constexpr,
    FINEST: constexpr,
    COARSEST: constexpr,
) -> Any:
    """Bounds as counts of a power of two that a group of channels shares, rounded outwards, and
    each group's power."""
    most = tl.where(real, tl.maximum(tl.abs(least), tl.abs(greatest)), 0.0)
    most = tl.max(tl.reshape(most, [CHANNELS // GROUP, GROUP]), axis=1)
    bits = most.to(tl.int32, bitcast=True)
    # 127 steps reach as far as 2 ** 6 times 1 and 63/64.
    power = (bits >> 23) - 133 + ((bits & 0x7FFFFF) > 0x7E0000).to(tl.int32)
    power = tl.minimum(tl.maximum(power, FINEST), COARSEST)
    spread = tl.broadcast_to(power[:, None], [CHANNELS // GROUP, GROUP]).reshape(CHANNELS)
    unit, inverse = _unit(spread), _unit(-spread)
    # A product that has become 0 is on the wrong side of a tiny number.
    below = tl.floor(least * inverse)
    below = tl.where(below * unit > least, below - 1, below)
    above = tl.ceil(greatest * inverse)
    above = tl.where(above * unit < greatest, above + 1, above)
    return tl.clamp(below, -MOST, MOST), tl.clamp(above, -MOST, MOST), power
