"""Memory of the HBM pool's KV: one array library on one device, behind one Protocol.

The pool's bookkeeping and the block tables stay numpy on the CPU; the blocks themselves are one
array of the library, `[blocks, block_bytes]`, on its device. A fabric reads into host memory, the
*landing* rows. Where the host addresses the device's memory they are the blocks; elsewhere they
are pinned staging rows, and a `commit` copies them to their blocks.

To add a library: a module with a class of these calls and a line in `_LOADERS`; the contract suite
over all libraries then tests it. A missing library raises `Missing` when it is opened.
"""

import importlib
import importlib.util
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, Missing
from offstage.host.model.values import ValueType

__all__ = ["Arrays", "BlockMemory", "Stamps", "open_arrays"]


class BlockMemory(Protocol):
    """The blocks of one pool, and the host memory that fetches land in. One thread.

    storage: uint8 `[blocks, block_bytes]`, the library's own array on its device, zero at first.
    landing: uint8 `[rows, block_bytes]` in host memory, what a fabric reads into and may register;
    it stays where it is for as long as this object lives.
    """

    storage: Any
    landing: npt.NDArray[np.uint8]

    def land(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32] | None:
        """The row of `landing` in which the new content of each of these blocks is to be put.

        They are the caller's until `commit`. None: too few rows are free before others are
        committed; never None for up to `rows` blocks where nothing else is out."""
        ...

    def commit(self, indices: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        """Put the rows of one `land` into their blocks: the device does it before whatever it is
        asked for after this call, and after whatever it was asked for before."""
        ...

    def write(self, indices: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        """Put `content` `[n, up to block_bytes]` at the front of these blocks, ordered as
        `commit`; it is the caller's again on return."""
        ...

    def read(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        """A copy in host memory, `[n, block_bytes]`."""
        ...


class Stamps(Protocol):
    """Timestamps in a device's stream, which measure how long it waited and computed.

    source: their kind, for the reader of a timeline."""

    source: str

    def mark(self) -> Any:
        """A mark that is reached when the compute stream has done all submitted work."""
        ...

    def ns(self, mark: Any) -> int:
        """The time of the mark on the host's clock; waits until it is reached."""
        ...


class Arrays(Protocol):
    """One array library on one device; stateless."""

    name: str
    device: str

    def memory(self, blocks: int, block_bytes: int, rows: int) -> BlockMemory:
        """Memory for a pool. `rows`: of landing, where the blocks themselves cannot be it."""
        ...

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        """The array on the device; it may share memory with `array`."""
        ...

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        """The device's array in host memory; it may share memory with `array`."""
        ...

    def paged(
        self, storage: Any, shape: tuple[int, int, int, int], value_type: ValueType = "float16"
    ) -> Any:
        """The front of each block of `storage` as numbers, `[blocks, *shape]`: a view. Raises
        `BadInput` for a type that the library does not know."""
        ...

    def stamps(self) -> Stamps | None:
        """Timestamps of the device; None if the host computes, since its clock is enough."""
        ...

    def all_finite(self, array: Any) -> bool:
        """Whether no number in `array` is infinite or NaN."""
        ...


# name: module, library it needs, pip extra that brings the library
_LOADERS: dict[str, tuple[str, str, str]] = {
    "numpy": ("offstage.host.arrays.numpy_arrays", "numpy", ""),
    "torch": ("offstage.host.arrays.torch_arrays", "torch", "host"),
}


def open_arrays(name: str = "numpy", device: str = "cpu") -> Arrays:
    """The library `name` on `device`: "cpu", or what the library calls it, such as "cuda:0".

    Raises `BadInput` for an unknown name or a device that is not there, `Missing` where the
    library is not installed."""
    if name not in _LOADERS:
        raise BadInput(
            f"unknown array library {name!r}", "arrays", f"choose one of {', '.join(_LOADERS)}"
        )
    module, library, extra = _LOADERS[name]
    if importlib.util.find_spec(library) is None:
        raise Missing(extra, f"blocks in {name} need {library}, which is not installed", "arrays")
    opened: Arrays = importlib.import_module(module).open_device(device)
    return opened
