"""Pools of SGLang's host memory: their pages as bytes, and the prefixes that all of them have.

Beside the KV SGLang keeps other pools: KV of sliding windows, recurrent states, the keys of an
indexer, compressed KV, KV of a draft model. Each has pages of its own size under the hashes of the
KV's pages. A pool says how much of it a prefix needs: a page for each of the KV's, or the last few.
"""

from collections.abc import Sequence
from typing import Any

from offstage.bindings.errors import BadInput

__all__ = ["Pool", "bytes_of", "covered", "lengths"]

ALL_PAGES, TRAILING_PAGES = "all_pages", "trailing_pages"  # SGLang's PoolHitPolicy
SHAPE = (
    "dtype",
    "layout",
    "page_size",
    "layer_num",
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "num_mamba_layers",
    "temporal_state_shape",
    "temporal_dtype",
    "conv_state_shapes",
    "conv_dtype",
    "indexer_dtype",
    "indexer_page_stride_size",
    "item_bytes",
    "state_page_bytes",
    "storage_format_tag",
)
"""Attributes of SGLang's host pools that say how the bytes of a page are laid out."""


class Pool:
    """One pool, `memory`, by SGLang's name. `rank` is the part of it that is here, where the ranks
    of tensor parallelism have different parts of a pool in a model whose KV they all have."""

    def __init__(self, memory: Any, name: str = "", rank: str = "") -> None:
        """BadInput: SGLang gives no whole pages of this pool."""
        self.memory = memory
        try:
            self.size = len(bytes_of(memory.get_dummy_flat_data_page()))
        except RuntimeError as error:
            raise BadInput(
                f"SGLang gives no pages of {type(memory).__name__} to a storage backend: {error}",
                name or "kv",
                "start it without --hicache-storage-backend, or with another KV type",
            ) from error
        shape = " ".join(
            f"{one} {getattr(memory, one)}"
            for one in SHAPE
            if getattr(memory, one, None) is not None
        )
        self.shape = f"{type(memory).__name__} {shape} {self.size} bytes"
        of_rank = rank if name == "mamba" or hasattr(memory, "head_num") else ""
        self._of = f"@{name} {of_rank} {self.shape}" if name else ""

    def key(self, page: str) -> bytes:
        """The object of a page, named by the hash of the tokens up to its end."""
        return (page + self._of).encode()

    def places(self, count: int, host_indices: Any) -> list[int] | None:
        """Where `count` pages lie in the memory; None: `host_indices`, one for each token, are of
        another number of pages."""
        step = int(getattr(self.memory, "page_size", 1) or 1)
        if host_indices is None or len(host_indices) != count * step:
            return None
        return [int(host_indices[i * step]) for i in range(count)]


def covered(has: Sequence[bool], policy: str, last: int) -> list[int]:
    """The lengths of a prefix, in pages and ascending, for which a pool has what it needs: every
    page (`all_pages`), or the last `last` ones (`trailing_pages`). `has`: whether it has each page.
    ValueError: another policy."""
    if policy not in (ALL_PAGES, TRAILING_PAGES):
        raise ValueError(f"Unsupported pool hit policy: {policy}")
    found, run = [], 0
    for length, one in enumerate(has, 1):
        run = run + 1 if one else 0
        if run >= (length if policy == ALL_PAGES else min(length, max(1, last))):
            found.append(length)
    return found


def lengths(kv: int, pools: Sequence[Sequence[int]]) -> list[int]:
    """The lengths up to `kv` pages of KV that every pool covers, ascending."""
    every = [set(one) for one in pools]
    return [length for length in range(1, kv + 1) if all(length in one for one in every)]


def bytes_of(page: Any) -> Any:
    """A page's memory, flat, as bytes; of one that is not contiguous a copy, to read from."""
    import torch

    return page.detach().contiguous().view(-1).view(torch.uint8).numpy()
