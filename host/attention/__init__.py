"""Paged block-sparse decode attention: one function shape, several kernels, one registry.

A kernel attends from one token of each session of a batch to the tokens of that session's selected
blocks, read in place from the pool's storage through a block table, and leaves its output where
the storage is. Softmax of q.k / sqrt(head_dim); query head h reads KV head
h // (q_heads / kv_heads). The order of the blocks in a table does not matter. A latent is the key,
and its first `value_dim` numbers are the value; the code that projects a query into the latent's
space also scales it as the model requires.

The interface is that of other paged decode kernels (vLLM's block tables, FlashInfer's page tables)
with one difference: a selection is sparse, so a partly filled block may be anywhere in it. The
tokens of each block are therefore given, instead of one length per sequence. Where a model selects
single tokens (DSA, arXiv:2512.02556), and where a window begins within a block, an entry of the
table is one token: a block, and its slot.

To add a kernel: write a module with a `decode` of this shape and enter it in `_LOADERS`; the tests
over all kernels then compare it with the reference. `kernels()` reports a kernel whose library is
missing; only `kernel` raises `Missing` for it.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, Missing
from offstage.host.model.geometry import KvGeometry

__all__ = ["Decode", "KernelInfo", "arrays_of", "block_tables", "kernel", "kernels"]


class Decode(Protocol):
    """Contract: a pure function of its arguments; changes none of them. It reads only blocks that a
    table names with at least one token, and no token at or beyond a block's count. Entries without
    tokens, the padding of a shorter table, are never read. A pool's other tokens, selected or not,
    never reach the output."""

    def __call__(
        self,
        queries: Any,
        storage: Any,
        block_tables: npt.NDArray[np.int32],
        token_counts: npt.NDArray[np.int32],
        geometry: KvGeometry,
        layer: int = 0,
        slots: npt.NDArray[np.int32] | None = None,
        sink_logits: npt.NDArray[np.float32] | None = None,
    ) -> Any:
        """float32 `[batch, q_heads, value_dim]`, zeros for a session without tokens.

        queries: float32 `[batch, q_heads, head_dim]`; storage: uint8 `[pool_blocks, block_bytes]`;
        both, and what is returned, are arrays of the kernel's library on one device. In host
        memory: block_tables `[batch, max_blocks]`, the pool indices of each session's blocks, and
        token_counts `[batch, max_blocks]`, the tokens of each. `layer` says whose block shape.
        slots: None, or of the tables' shape: each entry is then the one token at this slot of its
        block, with a count of 1, or of 0 for padding; a block may stand in many entries.
        sink_logits: None, or float32 `[q_heads]` in host memory, a logit of each head that counts
        in the softmax's sum and has no value (gpt-oss)."""
        ...


@dataclass(frozen=True)
class KernelInfo:
    """One kernel: `arrays` is the library of its arrays (`offstage.host.arrays`), `available`
    whether it can run here, or else the pip `extra` that brings it."""

    name: str
    arrays: str
    available: bool
    extra: str = ""


# name: module, library of its arrays, libraries it needs, pip extra that brings them
_LOADERS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "reference": ("offstage.host.attention.reference", "numpy", ("numpy",), ""),
    "numpy": ("offstage.host.attention.numpy_kernel", "numpy", ("numpy",), ""),
    "torch": ("offstage.host.attention.torch_kernel", "torch", ("torch",), "host"),
    "triton": ("offstage.host.attention.triton_kernel", "torch", ("torch", "triton"), "triton"),
}


def kernels() -> tuple[KernelInfo, ...]:
    """Every kernel and whether this machine can run it. Imports no optional library."""
    return tuple(
        KernelInfo(name, library, _lacking(needs) is None, extra)
        for name, (_, library, needs, extra) in _LOADERS.items()
    )


def kernel(name: str) -> Decode:
    """The `decode` of kernel `name`. Raises `BadInput` for an unknown name, `Missing` where its
    library is not installed."""
    arrays_of(name)
    module, _, needs, extra = _LOADERS[name]
    if (library := _lacking(needs)) is not None:
        raise Missing(extra, f"the {name} kernel needs {library}, which is not installed", "kernel")
    decode: Decode = importlib.import_module(module).decode
    return decode


def _lacking(needs: Sequence[str]) -> str | None:
    """The first library that is not installed."""
    return next((name for name in needs if importlib.util.find_spec(name) is None), None)


def arrays_of(name: str) -> str:
    """The library whose arrays kernel `name` reads, as `open_arrays` takes it. Raises `BadInput`
    for an unknown name."""
    if name not in _LOADERS:
        raise BadInput(
            f"unknown attention kernel {name!r}",
            "kernel",
            f"choose one of {', '.join(_LOADERS)}",
        )
    return _LOADERS[name][1]


def block_tables(rows: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """Ragged rows as one array `[rows, longest]`, padded with zeros: tables and token counts."""
    table = np.zeros((len(rows), max(map(len, rows), default=0)), np.int32)
    for session, row in enumerate(rows):
        table[session, : len(row)] = row
    return table
