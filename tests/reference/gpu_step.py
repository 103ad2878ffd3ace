"""A decode step of graphs over a pool of blocks, with the model's own work omitted or replaced.

Layers of keys and values are drawn from a seed; the step runs each layer's selection, its check for
missing blocks, and its attention, as the agent of a GPU node would. Every block exists; the case
decides which of them count as in the pool.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_cases import relative_error

from offstage.host.gpu.attention import attend
from offstage.host.gpu.bounds import Table, summarise
from offstage.host.gpu.step import Layer, Selected, Step
from offstage.host.selection import SelectionRule

__all__ = ["StepCase"]


class StepCase:
    """`sessions` with `blocks` each, the second one shorter by two. `model`: the rest of a layer,
    done after its attention; `bounds`: the type in which bounds are stored."""

    def __init__(
        self,
        sessions: int,
        blocks: int,
        layers: int,
        select_blocks: int,
        device: str,
        *,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 16,
        block_tokens: int = 16,
        model: Callable[[], None] = lambda: None,
        bounds: Any = torch.bfloat16,
    ) -> None:
        self.block_tokens = block_tokens
        self.rule = SelectionRule(select_blocks=select_blocks, sink_blocks=1, window_blocks=1)
        self._drawn = torch.Generator(device).manual_seed(3)
        self._device = device
        pool = sessions * blocks
        size = (pool, kv_heads, block_tokens, head_dim)
        self.keys = [self._draw(*size).bfloat16() for _ in range(layers)]
        self.values = [self._draw(*size).bfloat16() for _ in range(layers)]
        self.queries = [self._draw(sessions, kv_heads * group, head_dim) for _ in range(layers)]
        self._rows = torch.arange(pool, dtype=torch.int32, device=device)
        self.outputs: list[Any] = [None] * layers
        self.selected = []
        tables = []
        for layer in range(layers):
            chosen = Selected(sessions, blocks, block_tokens, self.rule, 4, device)
            chosen.slots.copy_(self._rows.view(sessions, blocks))
            chosen.tokens.fill_(blocks * block_tokens - 3)
            if sessions > 1:
                chosen.tokens[1] -= 2 * block_tokens
            table = Table.new(pool, 2, kv_heads, head_dim, bounds, device)
            fresh = torch.zeros_like(self._rows)
            summarise(self.keys[layer], table, self._rows, self._rows, fresh, fresh + block_tokens)
            self.selected.append(chosen)
            tables.append(table)
        self.layers = [
            Layer(self._select(layer, tables[layer]), self._attend(layer, model))
            for layer in range(layers)
        ]
        self.step = Step(self.layers, device)

    def _draw(self, *size: int) -> Any:
        return torch.randn(size, generator=self._drawn, device=self._device)

    def _select(self, layer: int, table: Any) -> Callable[[], None]:
        rows = self._rows.view(self.selected[layer].slots.shape)
        return lambda: self.selected[layer].find(self.queries[layer], table, rows)

    def _attend(self, layer: int, model: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            one = self.selected[layer]
            self.outputs[layer] = attend(
                self.queries[layer],
                self.keys[layer],
                self.values[layer],
                one.tables,
                one.counts,
                one.lengths,
            )
            model()

        return work

    def forget(self, layer: int, session: int) -> None:
        """Remove all blocks of a session from the pool."""
        self.selected[layer].slots[session] = -1

    def run(self) -> list[tuple[int, Any]]:
        """Run one step; returns the blocks that each layer's hook found missing and inserted."""
        lacking = []

        def hook(layer: int) -> None:
            chosen = self.selected[layer]
            missing = chosen.missing()
            if missing:
                lacking.append((layer, missing))
            for session, ordinals in missing:
                first = session * chosen.slots.shape[1]
                chosen.place(session, ordinals, (first + ordinals).astype(np.int32))

        self.step.run(hook)
        return lacking

    def error(self, layer: int) -> float:
        """The last output's error against dense attention over the host's own selection."""
        from gpu_cases import AttentionCase

        from offstage.host.selection import select

        chosen = self.selected[layer]
        sessions, blocks = chosen.slots.shape
        tokens = chosen.tokens.cpu().numpy()
        tables = np.zeros((sessions, self.rule.select_blocks), np.int32)
        counts = np.zeros_like(tables)
        for session in range(sessions):
            length = -(-int(tokens[session]) // self.block_tokens)
            keys = self.keys[layer].view(sessions, blocks, *self.keys[layer].shape[1:])[session]
            low, high = (one(2).cpu().float() for one in (keys.amin, keys.amax))
            query = self.queries[layer][session].cpu()
            grouped = query.view(low.shape[1], -1, low.shape[2])
            scores = torch.einsum("hd,nhd->n", grouped.clamp(max=0).sum(1), low)
            scores += torch.einsum("hd,nhd->n", grouped.clamp(min=0).sum(1), high)
            own = select(scores.numpy(), self.rule.top_blocks, 1, 1, length)
            tables[session, : own.size] = session * blocks + own
            left = tokens[session] - own * self.block_tokens
            counts[session, : own.size] = np.minimum(left, self.block_tokens)
        case = AttentionCase(
            self.queries[layer].cpu(),
            self.keys[layer].cpu(),
            self.values[layer].cpu(),
            torch.from_numpy(tables),
            torch.from_numpy(counts),
            torch.full((sessions,), self.rule.select_blocks, dtype=torch.int32),
            (1.0, 1.0),
        )
        return relative_error(self.outputs[layer].cpu(), case.expected())
