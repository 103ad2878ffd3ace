"""Paged block-sparse decode attention: one function shape, several kernels, one registry.

A kernel attends from one token's query to the tokens of the selected blocks, read in place from
the pool's storage through their pool indices; `token_counts` says how many tokens of each block
count, since the last may be partly filled. Softmax of q.k / sqrt(head_dim); query head h reads KV
head h // (q_heads / kv_heads). The order of the blocks does not matter.

To add a kernel: write a module with a `decode` of this shape and enter it in `_LOADERS`; the tests
over all kernels then hold it to the reference. A kernel whose library is missing is reported by
`kernels()`, and raises `Missing` only when asked for.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, Missing
from offstage.host.geometry import KvGeometry

__all__ = ["Decode", "KernelInfo", "kernel", "kernels"]


class Decode(Protocol):
    """Contract: a pure function of its arguments; changes none of them; no block is read that
    `block_indices` does not name, and no token at or beyond its `token_counts`."""

    def __call__(
        self,
        query: npt.NDArray[np.float32],
        pool_storage: Any,
        block_indices: npt.NDArray[np.int32],
        token_counts: npt.NDArray[np.int32],
        geometry: KvGeometry,
    ) -> npt.NDArray[np.float32]:
        """float32 `[q_heads, head_dim]` from float32 `[q_heads, head_dim]`, uint8
        `[pool_blocks, block_bytes]`, and per selected block its pool index and its tokens."""
        ...


@dataclass(frozen=True)
class KernelInfo:
    """One kernel: `available` here, or else the pip `extra` that brings it."""

    name: str
    available: bool
    extra: str = ""


# name: module, library it needs, pip extra that brings the library
_LOADERS: dict[str, tuple[str, str, str]] = {
    "reference": ("offstage.host.attention.reference", "numpy", ""),
    "numpy": ("offstage.host.attention.numpy_kernel", "numpy", ""),
    "torch": ("offstage.host.attention.torch_kernel", "torch", "host"),
}


def kernels() -> tuple[KernelInfo, ...]:
    """Every kernel and whether this machine can run it. Imports no optional library."""
    return tuple(
        KernelInfo(name, importlib.util.find_spec(library) is not None, extra)
        for name, (_, library, extra) in _LOADERS.items()
    )


def kernel(name: str) -> Decode:
    """The `decode` of kernel `name`. Raises `BadInput` for an unknown name, `Missing` where its
    library is not installed."""
    if name not in _LOADERS:
        raise BadInput(
            f"no attention kernel is called {name!r}",
            "kernel",
            f"choose one of {', '.join(_LOADERS)}",
        )
    module, library, extra = _LOADERS[name]
    if importlib.util.find_spec(library) is None:
        raise Missing(extra, f"the {name} kernel needs {library}, which is not installed", "kernel")
    decode: Decode = importlib.import_module(module).decode
    return decode
