"""Blocks that arrive in fewer bits: the landing rows have the tier's bytes, the blocks the model's.

`QuantizedArrays` stands for another library's arrays. What lands or is written is dequantized on
the CPU and then put into the block, so that kernels and block tables are those of any other run:
drive, arena and link hold fewer bytes, the HBM pool as many as ever. One thread.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays import Arrays, BlockMemory
from offstage.host.arrays.staging import StagingRing
from offstage.host.model.quantized import BlockQuantizer

__all__ = ["QuantizedArrays"]


class QuantizedMemory:
    """`BlockMemory` whose content comes quantized; `read` gives blocks as attention reads them."""

    def __init__(self, plain: BlockMemory, quantizer: BlockQuantizer, rows: int) -> None:
        self._plain, self._quantizer = plain, quantizer
        self.storage: Any = plain.storage
        self.landing: npt.NDArray[np.uint8] = np.zeros((rows, quantizer.payload_bytes), np.uint8)
        self._ring = StagingRing(rows)

    def land(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32] | None:
        return self._ring.land(indices.size)

    def commit(self, indices: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        if indices.size == 0:
            return
        self.write(indices, self.landing[rows])
        self._ring.commit(int(rows[0]), lambda: None)

    def write(self, indices: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        self._plain.write(indices, self._quantizer.dequantize(content))

    def read(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        return self._plain.read(indices)


class QuantizedArrays:
    """`Arrays` of another library, whose memory takes quantized blocks."""

    def __init__(self, plain: Arrays, quantizer: BlockQuantizer) -> None:
        self._plain, self._quantizer = plain, quantizer
        self.name, self.device = plain.name, plain.device
        self.from_host, self.to_host = plain.from_host, plain.to_host
        self.paged, self.stamps, self.all_finite = plain.paged, plain.stamps, plain.all_finite

    def memory(self, blocks: int, block_bytes: int, rows: int) -> QuantizedMemory:
        return QuantizedMemory(self._plain.memory(blocks, block_bytes, 1), self._quantizer, rows)
