"""Blocks in numpy: the host's own memory, in which fetches land without a copy."""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.model.values import WIDTHS, ValueType, stored

__all__ = ["HostMemory", "NumpyArrays", "open_device"]


class HostMemory:
    """`BlockMemory` where the host addresses the blocks: what lands has arrived."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.landing = np.empty((blocks, block_bytes), np.uint8)
        self.landing.fill(0)  # the first touch, so that no decode step pays for a page fault
        self.storage: Any = self.landing

    def land(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32] | None:
        return indices.astype(np.uint32)

    def commit(self, indices: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        pass  # the rows are the blocks

    def write(self, indices: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        self.landing[indices, : content.shape[1]] = content

    def read(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        return self.landing[indices]


class NumpyArrays:
    """`Arrays` of numpy."""

    name = "numpy"
    device = "cpu"

    def memory(self, blocks: int, block_bytes: int, rows: int) -> HostMemory:
        return HostMemory(blocks, block_bytes)

    def from_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def to_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def paged(
        self,
        storage: npt.NDArray[np.uint8],
        shape: tuple[int, int, int, int],
        value_type: ValueType = "float16",
    ) -> npt.NDArray[Any]:
        if value_type in ("bfloat16", "float8_e4m3fn"):
            raise BadInput(
                f"numpy has no {value_type}", "arrays", "use torch, or another type of KV"
            )
        used = storage[:, : WIDTHS[value_type] * int(np.prod(shape))]
        return stored(used, value_type).reshape(len(storage), *shape)

    def stamps(self) -> None:
        return None

    def all_finite(self, array: npt.NDArray[Any]) -> bool:
        return bool(np.isfinite(array).all())


def open_device(device: str) -> NumpyArrays:
    """numpy has one device. Raises `BadInput` for any other."""
    if device != "cpu":
        raise BadInput(f"numpy has no device {device!r}", "arrays", "use torch, or device 'cpu'")
    return NumpyArrays()
