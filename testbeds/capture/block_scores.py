"""Block scores of one query, from a layer's keys, by three definitions.

A `Layer` owns the summaries of one layer's blocks, on the device of the keys; the keys belong to
the cache. Everything is computed in float32 from the stored keys, in pieces of `PIECE_TOKENS`, so
that memory in addition to the cache does not grow with the context, except for the logits of one
query. Nothing here can fail.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HALF_MAX", "PIECE_TOKENS", "Layer"]


PIECE_TOKENS = 8192

HALF_MAX = 65504.0


class Layer:
    """Block summaries of one layer, and scores from them and from the keys.

    Shapes: keys `[groups, tokens, head_dim]`, a query `[heads, head_dim]`, where head h reads
    group h // (heads / groups).
    """

    def __init__(self, block_tokens: int, blocks_max: int) -> None:
        self.block_tokens = block_tokens
        self._blocks_max = blocks_max
        self._low: Any = None  # minimum and maximum key of each block, [groups, blocks, head_dim]
        self._high: Any = None
        self._mean: Any = None  # float32

    def extend(self, keys: Any, first_token: int) -> None:
        """Add tokens from `first_token` on; `keys` are all up to now.

        The block that contains `first_token` is summarised again, so that a result does not depend
        on the pieces in which tokens came, nor on what was truncated before.
        """
        import torch

        groups, tokens, head_dim = keys.shape
        if self._low is None:
            shape = (groups, self._blocks_max, head_dim)
            self._low = torch.empty(shape, dtype=keys.dtype, device=keys.device)
            self._high = torch.empty_like(self._low)
            self._mean = torch.empty(shape, dtype=torch.float32, device=keys.device)
        size = self.block_tokens
        for begin in range(first_token // size * size, tokens, PIECE_TOKENS // size * size or size):
            end = min(tokens, begin + (PIECE_TOKENS // size * size or size))
            first, full = begin // size, (end - begin) // size
            if full:
                whole = keys[:, begin : begin + full * size].unflatten(1, (full, size))
                self._summarise(slice(first, first + full), whole)
            if begin + full * size < end:
                part = keys[:, begin + full * size : end].unsqueeze(1)
                self._summarise(slice(first + full, first + full + 1), part)

    def scores(self, query: Any, keys: Any, scaling: float) -> dict[str, npt.NDArray[np.float16]]:
        """Scores of every block for one query, float16 `[groups, blocks]` by name.

        mass: the softmax of q.k over all keys, summed in the block; mean over the group's heads.
        quest: the sum over channels of max(q * min, q * max), an upper bound of q.k (Tang et al.
        2024, arXiv:2406.10774); mean_key: q . mean key. Both times `scaling`, as logits are, and
        the maximum over the group's heads; values outside float16 are clamped to its bounds.
        """
        import torch

        groups, tokens, head_dim = keys.shape
        grouped = query.float().reshape(groups, -1, head_dim) * scaling
        blocks = -(-tokens // self.block_tokens)
        low, high = self._low[:, :blocks].float(), self._high[:, :blocks].float()
        quest = grouped.clamp(min=0) @ high.transpose(1, 2)
        quest += grouped.clamp(max=0) @ low.transpose(1, 2)
        mean_key = grouped @ self._mean[:, :blocks].transpose(1, 2)
        found = {
            "mass": self._mass(grouped, keys, blocks),
            "quest": quest.amax(dim=1).clamp(-HALF_MAX, HALF_MAX),
            "mean_key": mean_key.amax(dim=1).clamp(-HALF_MAX, HALF_MAX),
        }
        return {name: value.to(torch.float16).cpu().numpy() for name, value in found.items()}

    def _mass(self, grouped: Any, keys: Any, blocks: int) -> Any:
        """`[groups, blocks]`: attention of the query on each block; 1 over all blocks."""
        import torch

        groups, tokens, _ = keys.shape
        padded = blocks * self.block_tokens
        logits = grouped.new_full((groups, grouped.shape[1], padded), -torch.inf)
        for begin in range(0, tokens, PIECE_TOKENS):
            piece = keys[:, begin : begin + PIECE_TOKENS].float()
            logits[:, :, begin : begin + piece.shape[1]] = grouped @ piece.transpose(1, 2)
        weights = torch.softmax(logits, dim=-1)
        return weights.unflatten(2, (blocks, self.block_tokens)).sum(dim=-1).mean(dim=1)

    def _summarise(self, where: slice, keys: Any) -> None:
        self._low[:, where] = keys.amin(dim=2)
        self._high[:, where] = keys.amax(dim=2)
        self._mean[:, where] = keys.float().mean(dim=2)
