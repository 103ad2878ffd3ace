"""Blocks that arrive in fewer bits: the landing rows have the tier's bytes, the blocks the model's.

`QuantizedArrays` stands for another library's arrays. What lands or is written is dequantized and
then put into the block, so that kernels and block tables are those of any other run: drive, arena
and link hold fewer bytes, the HBM pool as many as ever. With torch the bytes go to the device as
they are stored and are dequantized there; other libraries' are dequantized by numpy on the CPU.
FP8 rows stay as they are, since kernels read them. One thread.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays import Arrays, BlockMemory
from offstage.host.arrays.numpy_arrays import HostMemory
from offstage.host.arrays.staging import StagingRing
from offstage.host.model.quantized import BlockQuantizer
from offstage.host.model.quantized_rows import Quantizer, RowQuantizer

__all__ = ["QuantizedArrays"]

Bytes = npt.NDArray[np.uint8]


class QuantizedMemory:
    """`BlockMemory` whose content comes quantized; `read` gives blocks as attention reads them.

    `stored`: memory of as many quantized blocks as land at once, consecutive ones for a fetch."""

    def __init__(self, plain: BlockMemory, stored: BlockMemory, quantizer: BlockQuantizer) -> None:
        self._plain, self._stored, self._quantizer = plain, stored, quantizer
        self.storage: Any = plain.storage
        self.landing: Bytes = stored.landing
        self._heads = quantizer.geometry.block_shape(0)[1]
        self._ring = StagingRing(len(stored.storage))
        self._slots: dict[int, npt.NDArray[np.int32]] = {}  # in `stored`, by their first row

    def land(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32] | None:
        slots = self._ring.land(indices.size)
        if slots is None or slots.size == 0:
            return slots
        rows = self._stored.land(slots.astype(np.int32))
        assert rows is not None, "it has a row for each slot"
        self._slots[int(rows[0])] = slots.astype(np.int32)
        return rows

    def commit(self, indices: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        if indices.size == 0:
            return
        slots = self._slots.pop(int(rows[0]))
        codes = self.landing[rows, : self._heads]
        self._stored.commit(slots, rows)
        first = int(slots[0])
        self._put(indices, self._stored.storage[first : first + slots.size], codes)
        self._ring.commit(first, lambda: None)

    def write(self, indices: npt.NDArray[np.int32], content: Bytes) -> None:
        self._put(indices, content, content[:, : self._heads])

    def read(self, indices: npt.NDArray[np.int32]) -> Bytes:
        return self._plain.read(indices)

    def _put(self, indices: npt.NDArray[np.int32], content: Any, codes: Bytes) -> None:
        """`codes`: the first bytes of each block, the types of its heads, in host memory."""
        self._plain.write(indices, self._quantizer.dequantize(content))


class DeviceQuantizedMemory(QuantizedMemory):
    """With torch: quantized blocks are on the device, too."""

    def write(self, indices: npt.NDArray[np.int32], content: Bytes) -> None:
        from offstage.host.arrays.torch_arrays import to_device

        given = to_device(content, self.storage.device)
        self._put(indices, given, content[:, : self._heads])

    def _put(self, indices: npt.NDArray[np.int32], content: Any, codes: Bytes) -> None:
        from offstage.host.arrays.torch_arrays import to_device
        from offstage.host.arrays.torch_quantized import dequantize

        numbers = dequantize(self._quantizer, content, codes)
        where = to_device(indices.astype(np.int64), self.storage.device)
        self.storage[where, : numbers.shape[1]] = numbers


class QuantizedArrays:
    """`Arrays` of another library, whose memory takes quantized blocks."""

    def __init__(self, plain: Arrays, quantizer: Quantizer) -> None:
        self._plain, self._quantizer = plain, quantizer
        self.name, self.device = plain.name, plain.device
        self.from_host, self.to_host = plain.from_host, plain.to_host
        self.paged, self.stamps, self.all_finite = plain.paged, plain.stamps, plain.all_finite

    def memory(self, blocks: int, block_bytes: int, rows: int) -> BlockMemory:
        quantizer, payload = self._quantizer, self._quantizer.payload_bytes
        if isinstance(quantizer, RowQuantizer):
            return self._plain.memory(blocks, payload, rows)
        plain = self._plain.memory(blocks, block_bytes, 1)
        if self.name == "torch":
            stored = self._plain.memory(rows, payload, rows)
            return DeviceQuantizedMemory(plain, stored, quantizer)
        return QuantizedMemory(plain, HostMemory(rows, payload), quantizer)
