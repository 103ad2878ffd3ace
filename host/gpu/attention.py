"""Decode attention over scattered blocks of a pool, in one pass over the selected blocks.

A program takes the query heads that read one KV head of one session, and a share of the session's
tokens: position p of the selection is token p % block_tokens of the block that the table names at
p // block_tokens, so that a tile of tokens may span blocks of any size. With slots an entry is one
token, that of its block at its slot, and a tile reads tokens from as many blocks. It keeps maximum,
sum and output of the softmax as it goes (arXiv:1805.02867). Where sessions and heads alone would
leave the device idle, the tokens of a session are split between programs, and a second kernel
combines what they found, weighted by their sums (arXiv:2311.01282).

A latent (MLA) is stored once: its first `value_dim` numbers are the value, all of them the key, and
it is read once. Keys and values stored in 8 bits have one scale each, by which a stored number is
multiplied, or are FP8 rows with scales of their own, which become bfloat16. A query whose numbers
are beyond half precision is halved until they are inside, and its
logits are doubled as often. A head's sink logit counts in the first split as a token that has been
read and has no value. What a table does not name, and tokens beyond a block's count, are
never read.
"""

from dataclasses import dataclass
from typing import Any

from offstage.host.gpu import compiled, constexpr, product_type

__all__ = ["Tiling", "attend", "tiling_of"]

tl: Any = None
_SPLITS_MAX = 32
_PROGRAMS_PER_MULTIPROCESSOR = 4


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: tokens of a tile, query heads of a program at most, into how many parts
    a session's tokens are split (0: as the device asks for), warps, and pipeline stages, of which
    one goes to the table, one to the blocks on their way, and one to those being used."""

    tokens: int = 64
    heads: int = 64
    splits: int = 0
    warps: int = 4
    stages: int = 4


def attend(
    queries: Any,
    keys: Any,
    values: Any,
    tables: Any,
    counts: Any,
    lengths: Any,
    *,
    slots: Any = None,
    sink_logits: Any = None,
    scale: float | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    scale_values: int = 0,
    tiling: Tiling | None = None,
) -> Any:
    """float32 `[batch, q_heads, value_dim]`, zeros for a session without tokens.

    queries: `[batch, q_heads, head_dim]`. keys and values: `[blocks, kv_heads, block_tokens, dim]`,
    views into the pool, their last axis dense; for a latent `values` is None or begins where
    `keys` does. tables, counts: int32 `[batch, width]`, the block of each entry and its tokens;
    lengths: int32 `[batch]`, how many entries count; slots: None, or int32 `[batch, width]`: an
    entry is the one token at this slot of its block, its count 0 or 1. sink_logits: None, or
    float32 `[q_heads]`, in the softmax's sum alone. `scale`: of q.k, head_dim
    ** -0.5 unless given. scale_values: 0, or of FP8 rows (`model/rows.py`) how many values share a
    scale; keys and values are views of a row's values. All on one device; nothing waits for it."""
    import torch
    import triton

    (batch, q_heads, head_dim), value_dim = queries.shape, values.shape[3]
    tiling = tiling or tiling_of(head_dim, keys.element_size())
    known = _known(queries, keys, values, tiling, slots is None, sink_logits is not None)
    known |= _known_of_rows(scale_values) if scale_values else {}
    head_tiles = keys.shape[1] * triton.cdiv(known["GROUP"], known["HEADS"])
    splits = tiling.splits or _splits(
        batch * head_tiles, tables.shape[1] * known["ENTRY_TOKENS"], tiling, keys.device
    )
    new = {"dtype": torch.float32, "device": queries.device}
    output = torch.empty((batch, q_heads, value_dim), **new)
    parts = output if splits == 1 else torch.empty((batch, q_heads, splits, value_dim), **new)
    sums = output if splits == 1 else torch.empty((batch, q_heads, splits), **new)
    parts_of = _share, _begin, _find_heads, _read_query, _find_tokens, _read_rows, _weigh, _store
    kernel = compiled(_attend, *parts_of, _read_rest)
    kernel[head_tiles, splits, batch](
        queries,
        keys,
        values,
        tables,
        counts,
        tables if slots is None else slots,
        queries if sink_logits is None else sink_logits,
        lengths,
        parts,
        sums,
        (head_dim**-0.5 if scale is None else scale) * key_scale * 1.4426950408889634,
        value_scale,
        tables.shape[1],
        *queries.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        **known,
        SPLITS=splits,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if splits > 1:
        sizes = {"VALUE_DIM": value_dim, "MAIN": known["MAIN"], "SPLITS": splits, "num_warps": 4}
        wide = triton.next_power_of_2(splits)
        compiled(_combine)[batch, q_heads](parts, sums, output, SPLITS_WIDE=wide, **sizes)
    return output


def _known(
    queries: Any, keys: Any, values: Any, tiling: Tiling, whole_blocks: bool, sinks: bool
) -> dict[str, Any]:
    """What the kernel is compiled for: the model's sizes and types, and a program's tile."""
    import torch
    import triton

    head_dim, value_dim = queries.shape[2], values.shape[3]
    group = queries.shape[1] // keys.shape[1]
    rest = max(16, triton.next_power_of_2(head_dim - value_dim)) if head_dim > value_dim else 0
    rounded, held = product_type(keys.dtype)
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "ENTRY_TOKENS": keys.shape[2] if whole_blocks else 1,
        "SLOTS": not whole_blocks,
        "SINKS": sinks,
        "Q_HEADS": queries.shape[1],
        "HEADS": min(tiling.heads, max(16, triton.next_power_of_2(group))),
        "TILE": tiling.tokens,
        "MAIN": max(16, triton.next_power_of_2(value_dim)),
        "REST": rest,
        "SCALE_VALUES": 0,
        "LATENT": values.data_ptr() == keys.data_ptr(),
        "ROUNDED": rounded,
        "HELD": held,
        "PRECISION": "ieee" if keys.dtype == torch.float32 else "tf32",
    }


def _known_of_rows(scale_values: int) -> dict[str, Any]:
    """What is other than `_known` says where vectors are FP8 rows: they become bfloat16."""
    import torch

    rounded, held = product_type(torch.bfloat16)
    return {"SCALE_VALUES": scale_values, "ROUNDED": rounded, "HELD": held}


def tiling_of(head_dim: int, element_bytes: int, splits: int = 0) -> Tiling:
    """Bounded by a multiprocessor's shared memory: about 96 KiB for a program."""
    if head_dim > 256:
        return Tiling(tokens=32, heads=32, splits=splits, warps=8, stages=3)
    return Tiling(tokens=64 if head_dim * element_bytes <= 256 else 32, splits=splits)


def _splits(programs: int, tokens: int, tiling: Tiling, device: Any) -> int:
    """Parts of a session's tokens, so that every multiprocessor has some programs, each with two
    tiles at least."""
    import torch

    if device.type != "cuda":
        return min(3, max(1, tokens // (2 * tiling.tokens)))  # the interpreter: to be tried at all
    there: int = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = -(-_PROGRAMS_PER_MULTIPROCESSOR * there // max(1, programs))
    return max(1, min(wanted, tokens // (2 * tiling.tokens), _SPLITS_MAX))


def _attend(
    queries,
    keys,
    values,
    tables,
    counts,
    slots,
    sink_logits,
    lengths,
    parts,
    sums,
    scale,
    value_scale,
    width,
    query_session,
    query_head,
    key_block,
    key_head,
    key_token,
    value_block,
    value_head,
    value_token,
    GROUP: constexpr,
    HEAD_DIM: constexpr,
    VALUE_DIM: constexpr,
    ENTRY_TOKENS: constexpr,
    SLOTS: constexpr,
    SINKS: constexpr,
    Q_HEADS: constexpr,
    HEADS: constexpr,
    TILE: constexpr,
    MAIN: constexpr,
    REST: constexpr,
    LATENT: constexpr,
    SCALE_VALUES: constexpr,
    SPLITS: constexpr,
    ROUNDED: constexpr,
    HELD: constexpr,
    PRECISION: constexpr,
) -> None:
    """One tile of query heads over one share of one session's tokens."""
    session, split = tl.program_id(2), tl.program_id(1)
    kv_head, head, of_heads = _find_heads(GROUP, HEADS)
    main, rest = tl.arange(0, MAIN), VALUE_DIM + tl.arange(0, REST if REST else 1)
    query = queries + session * query_session + head * query_head
    q_main, q_rest, unit = _read_query(
        query, main, rest, of_heads, VALUE_DIM, HEAD_DIM, REST, ROUNDED, HELD
    )
    used = tl.load(lengths + session)
    begin, end = _share(tl.cdiv(used * ENTRY_TOKENS, TILE), split, SPLITS)
    top, total, output = _begin(sink_logits + head, of_heads & (split == 0), HEADS, MAIN, SINKS)
    for tile in range(begin, end):
        there, block, token = _find_tokens(
            tables, counts, slots, session * width, tile, used, ENTRY_TOKENS, SLOTS, TILE
        )
        row = keys + kv_head * key_head + block * key_block + token * key_token
        key = _read_rows(row, there, main, VALUE_DIM, SCALE_VALUES, ROUNDED, HELD)
        logits = tl.dot(q_main, tl.trans(key), input_precision=PRECISION)
        if REST:
            more = _read_rest(row, there, rest, VALUE_DIM, HEAD_DIM, SCALE_VALUES, ROUNDED, HELD)
            logits = tl.dot(q_rest, tl.trans(more), logits, input_precision=PRECISION)
        logits = tl.where(there[None, :], logits * (unit * scale), float("-inf"))
        weights, keep, top, total = _weigh(logits, top, total, ROUNDED, HELD)
        value = key
        if not LATENT:
            row = values + kv_head * value_head + block * value_block + token * value_token
            value = _read_rows(row, there, main, VALUE_DIM, SCALE_VALUES, ROUNDED, HELD)
        output = tl.dot(weights, value, output * keep[:, None], input_precision=PRECISION)
    place = ((session * Q_HEADS + head) * SPLITS + split).to(tl.int64)
    _store(parts, sums, place, main, of_heads, output, value_scale, top, total, VALUE_DIM, SPLITS)


def _share(tiles, split, SPLITS: constexpr) -> Any:
    """The first of a program's tiles, and the one behind its last."""
    share = tl.cdiv(tiles, SPLITS)
    return split * share, tl.minimum((split + 1) * share, tiles)


def _begin(sink, first, HEADS: constexpr, MAIN: constexpr, SINKS: constexpr) -> Any:
    """The greatest logit, the sum and the output before any token: of no token, or of the sink
    logits, in a session's first program."""
    top, total = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
    if SINKS:
        top = tl.load(sink, first, other=float("-inf")) * 1.4426950408889634
        total = tl.where(first, 1.0, 0.0)
    return top, total, tl.zeros([HEADS, MAIN], tl.float32)


def _find_heads(GROUP: constexpr, HEADS: constexpr) -> Any:
    """A program's KV head, the query heads that read it, and which of them exist."""
    tiles_of_group = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(0) // tiles_of_group
    in_group = (tl.program_id(0) % tiles_of_group) * HEADS + tl.arange(0, HEADS)
    return kv_head, kv_head * GROUP + in_group, in_group < GROUP


def _read_query(
    query,
    main,
    rest,
    of_heads,
    VALUE_DIM: constexpr,
    HEAD_DIM: constexpr,
    REST: constexpr,
    ROUNDED: constexpr,
    HELD: constexpr,
) -> Any:
    """The query heads in two parts, each number halved until all are inside half precision, and
    what that divided them by."""
    wanted = of_heads[:, None] & (main < VALUE_DIM)[None, :]
    q_main = tl.load(query[:, None] + main[None, :], wanted, other=0.0)
    q_rest = q_main
    peak = tl.max(tl.abs(q_main.to(tl.float32)), axis=1)
    if REST:
        wanted = of_heads[:, None] & (rest < HEAD_DIM)[None, :]
        q_rest = tl.load(query[:, None] + rest[None, :], wanted, other=0.0)
        peak = tl.maximum(peak, tl.max(tl.abs(q_rest.to(tl.float32)), axis=1))
    halvings = tl.maximum(tl.ceil(tl.log2(tl.maximum(peak, 1.0))) - 15.0, 0.0)
    unit = tl.exp2(halvings)[:, None]
    return (q_main / unit).to(ROUNDED).to(HELD), (q_rest / unit).to(ROUNDED).to(HELD), unit


def _find_tokens(
    tables,
    counts,
    slots,
    row,
    tile,
    used,
    ENTRY_TOKENS: constexpr,
    SLOTS: constexpr,
    TILE: constexpr,
) -> Any:
    """Which of a tile's positions hold a token, in which block of the pool, and where in it."""
    position = tile * TILE + tl.arange(0, TILE)
    entry = row + position // ENTRY_TOKENS
    listed = position < used * ENTRY_TOKENS
    token = position % ENTRY_TOKENS
    there = listed & (token < tl.load(counts + entry, listed, other=0))
    if SLOTS:
        token = tl.load(slots + entry, there, other=0)
    return there, tl.load(tables + entry, listed, other=0).to(tl.int64), token


def _read_rows(
    row,
    there,
    column,
    COLUMNS: constexpr,
    SCALE_VALUES: constexpr,
    ROUNDED: constexpr,
    HELD: constexpr,
) -> Any:
    """Stored numbers, times the scales behind them, in the type that they are multiplied in."""
    wanted = there[:, None] & (column < COLUMNS)[None, :]
    found = tl.load(row[:, None] + column[None, :], wanted, other=0.0)
    if SCALE_VALUES:
        scales = (row + COLUMNS).to(tl.pointer_type(tl.float32))
        each = tl.load(scales[:, None] + (column // SCALE_VALUES)[None, :], wanted, other=0.0)
        found = found.to(tl.float16).to(tl.float32) * each
    return found.to(ROUNDED).to(HELD)


def _read_rest(
    row,
    there,
    column,
    VALUE_DIM: constexpr,
    HEAD_DIM: constexpr,
    SCALE_VALUES: constexpr,
    ROUNDED: constexpr,
    HELD: constexpr,
) -> Any:
    """A latent's numbers behind its value; of a row its rotary values, behind the scales."""
    if SCALE_VALUES:
        scales: constexpr = (VALUE_DIM + SCALE_VALUES - 1) // SCALE_VALUES
        behind = (row + VALUE_DIM + 4 * scales).to(tl.pointer_type(tl.bfloat16))
        return _read_rows(behind, there, column - VALUE_DIM, HEAD_DIM - VALUE_DIM, 0, ROUNDED, HELD)
    else:
        return _read_rows(row, there, column, HEAD_DIM, 0, ROUNDED, HELD)


def _weigh(logits, top, total, ROUNDED: constexpr, HELD: constexpr) -> Any:
    """Weights of a tile's tokens, what is kept of all before, the greatest logit and the sum."""
    raised = tl.maximum(top, tl.max(logits, axis=1))
    level = tl.where(raised == float("-inf"), 0.0, raised)
    weights = tl.exp2(logits - level[:, None])
    keep = tl.exp2(top - level)
    total = total * keep + tl.sum(weights, axis=1)
    return weights.to(ROUNDED).to(HELD), keep, raised, total


def _store(
    parts,
    sums,
    place,
    main,
    of_heads,
    output,
    value_scale,
    top,
    total,
    VALUE_DIM: constexpr,
    SPLITS: constexpr,
) -> None:
    """A program's part of the output, and the sum that it is weighted by."""
    found = tl.where(total == 0.0, 1.0, total)
    wanted = of_heads[:, None] & (main < VALUE_DIM)[None, :]
    part = parts + place[:, None] * VALUE_DIM + main[None, :]
    tl.store(part, output / found[:, None] * value_scale, wanted)
    if SPLITS > 1:
        tl.store(sums + place, top + tl.log2(found), of_heads)


def _combine(
    parts,
    sums,
    output,
    VALUE_DIM: constexpr,
    MAIN: constexpr,
    SPLITS: constexpr,
    SPLITS_WIDE: constexpr,
) -> None:
    """One query head of one session: its parts, weighted by their sums."""
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    split, main = tl.arange(0, SPLITS_WIDE), tl.arange(0, MAIN)
    total = tl.load(sums + place * SPLITS + split, split < SPLITS, other=float("-inf"))
    top = tl.max(total, axis=0)
    weights = tl.exp2(total - tl.where(top == float("-inf"), 0.0, top))
    of_part = parts + (place * SPLITS + split)[:, None] * VALUE_DIM + main[None, :]
    wanted = (weights > 0.0)[:, None] & (main < VALUE_DIM)[None, :]
    found = tl.load(of_part, wanted, other=0.0)
    whole = tl.sum(weights, axis=0)
    mixed = tl.sum(found * weights[:, None], axis=0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(output + place * VALUE_DIM + main, mixed, main < VALUE_DIM)
