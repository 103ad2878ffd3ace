"""Inputs of the GPU kernels, drawn from a seed, and their expected results in float64.

Everything that a kernel must not read is NaN: blocks that are not selected, tokens beyond a block's
count, memory that is allocated and not yet written (`poisoned`).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

__all__ = [
    "ERROR_MAX",
    "AttentionCase",
    "Shape",
    "attention_case",
    "by_token",
    "numbers_of",
    "poisoned",
    "relative_error",
    "with_sinks",
]

ERROR_MAX = {
    "float32": 1e-5,
    "float16": 1e-2,
    "bfloat16": 1e-2,
    "float8_e4m3fn": 3e-2,
}


@dataclass(frozen=True)
class Shape:
    """Heads and sizes of one layer; a latent is key in all of its numbers and value in the first
    `value_dim` of them."""

    kv_heads: int
    group: int
    head_dim: int
    block_tokens: int
    value_dim: int = 0

    @property
    def latent(self) -> bool:
        """Whether K and V share one plane."""
        return self.value_dim > 0


@dataclass(frozen=True)
class AttentionCase:
    """The arguments of `attend`; the scales are those of keys and values."""

    queries: Any
    keys: Any
    values: Any
    tables: Any
    counts: Any
    lengths: Any
    scales: tuple[float, float]
    slots: Any = None
    sink_logits: Any = None

    def run(self, device: str, **options: Any) -> Any:
        """The kernel's output, brought to host memory."""
        from offstage.host.gpu.attention import attend

        pool = self.keys.to(device)
        values = pool[..., : self.values.shape[3]] if self.latent else self.values.to(device)
        moved = (one.to(device) for one in (self.tables, self.counts, self.lengths))
        options |= {"key_scale": self.scales[0], "value_scale": self.scales[1]}
        if self.slots is not None:
            options["slots"] = self.slots.to(device)
        if self.sink_logits is not None:
            options["sink_logits"] = self.sink_logits.to(device)
        return attend(self.queries.to(device), pool, values, *moved, **options).cpu()

    @property
    def latent(self) -> bool:
        return bool(self.keys.data_ptr() == self.values.data_ptr())

    def expected(self) -> Any:
        """Dense softmax attention over the same tokens, head by head."""
        batch, q_heads, head_dim = self.queries.shape
        group = q_heads // self.keys.shape[1]
        output = torch.zeros(batch, q_heads, self.values.shape[3], dtype=torch.float64)
        begins = torch.zeros_like(self.tables) if self.slots is None else self.slots
        for session in range(batch):
            rows = (one[session].tolist() for one in (self.tables, begins, self.counts))
            entries = [
                (block, slice(begin, begin + count))
                for block, begin, count in list(zip(*rows, strict=True))[: self.lengths[session]]
                if count
            ]
            if not entries:
                continue
            keys, values = (
                torch.cat([pool[block, :, tokens] for block, tokens in entries], 1).double()
                for pool in (self.keys.float(), self.values.float())
            )
            for head in range(q_heads):
                logits = keys[head // group] @ self.queries[session, head].double()
                logits = logits * self.scales[0] * head_dim**-0.5
                if self.sink_logits is not None:
                    logits = torch.cat([logits, self.sink_logits[head : head + 1].double()])
                weights = torch.softmax(logits, 0)[: keys.shape[1]]
                output[session, head] = weights @ values[head // group] * self.scales[1]
        return output


def by_token(case: AttentionCase, tokens: int, seed: int) -> AttentionCase:
    """The same with up to so many of each session's tokens, one an entry and in any order; some
    entries have none. What is not selected any more is NaN."""
    random = np.random.default_rng(seed)
    tables = torch.full((len(case.tables), max(1, tokens)), 1 << 30, dtype=torch.int32)
    slots, counts = torch.full_like(tables, 1 << 30), torch.zeros_like(tables)
    lengths = torch.zeros_like(case.lengths)
    read = torch.zeros((len(case.keys), case.keys.shape[2]), dtype=torch.bool)
    for session, used in enumerate(case.lengths.tolist()):
        entries = zip(case.tables[session].tolist(), case.counts[session].tolist(), strict=True)
        there = [(block, slot) for block, n in list(entries)[:used] for slot in range(n)]
        for at, place in enumerate(random.permutation(len(there))[:tokens]):
            lengths[session] = at + 1
            if random.random() < 0.1:
                continue
            tables[session, at], slots[session, at] = there[place]
            counts[session, at] = 1
            read[there[place]] = True
    pools = []
    for pool in (case.keys,) if case.latent else (case.keys, case.values):
        spoiled = torch.where(read[:, None, :, None], pool.float(), torch.nan)
        pools.append(spoiled.to(pool.dtype))
    values = pools[-1][..., : case.values.shape[3]]
    return AttentionCase(
        case.queries,
        pools[0],
        values,
        tables,
        counts,
        lengths,
        case.scales,
        slots,
        case.sink_logits,
    )


def with_sinks(case: AttentionCase, seed: int) -> AttentionCase:
    """The same with a logit for each head in the denominator, some above every key's."""
    drawn = np.random.default_rng(seed).standard_normal(case.queries.shape[1])
    return replace(case, sink_logits=torch.from_numpy((8 * drawn).astype(np.float32)))


def attention_case(
    shape: Shape, value_type: str, widths: list[int], seed: int, spare_blocks: int = 3
) -> AttentionCase:
    """`widths`: entries of each session's table, of which some are partly filled or empty."""
    random = np.random.default_rng(seed)
    width, blocks = max(*widths, 1), max(*widths, 1) + spare_blocks
    size = (blocks, shape.kv_heads, shape.block_tokens, shape.head_dim)
    dtype = getattr(torch, value_type)
    pools = [
        torch.from_numpy(random.standard_normal(size, np.float32)).to(dtype)
        for _ in range(1 if shape.latent else 2)
    ]
    tables = np.full((len(widths), width), 1 << 30, np.int32)
    counts = np.zeros((len(widths), width), np.int32)
    for session, used in enumerate(widths):
        tables[session, :used] = random.permutation(blocks)[:used]
        full = random.random(used) < 0.7
        partly = random.integers(0, shape.block_tokens + 1, used)
        counts[session, :used] = np.where(full, shape.block_tokens, partly)
    most = np.zeros(blocks, np.int32)
    np.maximum.at(most, tables[counts > 0], counts[counts > 0])
    for pool in pools:
        absent = torch.arange(shape.block_tokens) >= torch.from_numpy(most)[:, None]
        spoiled = torch.where(absent[:, None, :, None], torch.nan, pool.float())
        pool.copy_(spoiled.to(dtype))
    keys = pools[0]
    values = keys[..., : shape.value_dim] if shape.latent else pools[1]
    q_heads = shape.kv_heads * shape.group
    queries = 2 * random.standard_normal((len(widths), q_heads, shape.head_dim), np.float32)
    return AttentionCase(
        torch.from_numpy(queries),
        keys,
        values,
        torch.from_numpy(tables),
        torch.from_numpy(counts),
        torch.tensor(widths, dtype=torch.int32),
        (0.75, 1.5) if dtype.itemsize == 1 else (1.0, 1.0),
    )


def relative_error(found: Any, expected: Any) -> float:
    """The greatest difference over the greatest number expected; infinite where one is NaN."""
    error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return float(error) if bool(torch.isfinite(error)) else float("inf")


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Within it, torch allocates memory full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def numbers_of(table: Any) -> Any:
    """The summaries that a `Table` holds, float64 `[rows, planes, kv_heads, head_dim]`."""
    held = table.numbers.cpu().double().numpy()
    if not table.groups:
        return held
    exponents = table.exponents.cpu().numpy().astype(np.int32).repeat(32, -1)
    return np.ldexp(held, exponents[:, None, :, : held.shape[3]])
