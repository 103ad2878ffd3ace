"""The transfers of a CUDA device: scatter by torch, batch by the CUDA runtime, gather by CuPy.

Streams are torch's, or torch's stream waits for them, so that its kernels run after the copies.
Imported only if torch has a CUDA device; cupy only when its transfer is tried.
"""

import importlib
import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import OffstageError
from offstage.host.transfers import Kind, Transfer, Wait
from offstage.host.transfers.batch import BatchCopies
from offstage.host.transfers.runtime import Cudart

__all__ = ["cuda_kinds"]

GATHER = r"""
extern "C" __global__ void gather(const uint4 *rows, uint4 *blocks, const long long *places,
                                  long long words)
{
    const uint4 *row = rows + (long long)blockIdx.y * words;
    uint4 *block = blocks + places[blockIdx.y] * words;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words;
         i += (long long)gridDim.x * blockDim.x)
        block[i] = row[i];
}
"""
WORD_BYTES, THREADS, WIDE = 16, 256, 4
"""A thread reads 16 bytes at a time; several thread blocks share a row, as the bus is slow."""


class _OnStream:
    """Common base of scatter and gather: a stream apart from torch's, and its fences."""

    def __init__(self, storage: Any, staging: Any) -> None:
        import torch

        self._torch, self._cuda = torch, torch.cuda
        self._storage, self._staging = storage, staging
        self._stream: Any = torch.cuda.Stream(storage.device)

    def fence(self) -> Any:
        return self._cuda.current_stream(self._storage.device).record_event()

    def _places(self, places: npt.NDArray[np.int64]) -> Any:
        pinned = self._torch.from_numpy(places).pin_memory()
        return pinned.to(self._storage.device, non_blocking=True)

    def _join(self) -> Any:
        """What torch is asked from now on comes after the stream; an event of that."""
        done = self._stream.record_event()
        self._cuda.current_stream(self._storage.device).wait_event(done)
        return done


class Scatter(_OnStream):
    """`Transfer`: one copy to device memory, which need not wait, then one scatter."""

    name = "scatter"

    def move(self, fence: Any, first: int, places: npt.NDArray[np.int64]) -> Wait:
        staged = self._staging[first : first + len(places)]
        with self._cuda.stream(self._stream):
            where = self._places(places)
            arrived = staged.to(self._storage.device, non_blocking=True)
            left = self._stream.record_event()
            self._stream.wait_event(fence)
            self._storage.index_copy_(0, where, arrived)
        self._join()
        wait: Wait = left.synchronize
        return wait


class Gather(_OnStream):
    """`Transfer`: one kernel reads the pinned rows where they are. Blocks are of whole words."""

    name = "gather"

    def __init__(self, storage: Any, staging: Any) -> None:
        super().__init__(storage, staging)
        assert storage.shape[1] % WORD_BYTES == 0, "blocks of whole words"
        self._cupy: Any = importlib.import_module("cupy")
        with self._cupy.cuda.Device(storage.device.index or 0):
            self._kernel = self._cupy.RawKernel(GATHER, "gather")
            self._kernel.compile()

    def move(self, fence: Any, first: int, places: npt.NDArray[np.int64]) -> Wait:
        block_bytes = self._storage.shape[1]
        source = self._staging.data_ptr() + first * block_bytes
        with self._cuda.stream(self._stream):
            where = self._places(places)
            self._stream.wait_event(fence)
            with self._cupy.cuda.ExternalStream(self._stream.cuda_stream):
                self._kernel(
                    (WIDE, len(places)),
                    (THREADS,),
                    (
                        np.uint64(source),
                        np.uint64(self._storage.data_ptr()),
                        np.uint64(where.data_ptr()),
                        np.int64(block_bytes // WORD_BYTES),
                    ),
                )
        done = self._join()

        def wait(kept: Any = where) -> None:
            done.synchronize()

        return wait


def cuda_kinds() -> list[Kind]:
    """The transfers of a CUDA device, as `available.kinds` gives them."""
    return [Kind("scatter", Scatter), _batch(), _gather()]


def _batch() -> Kind:
    try:
        runtime = Cudart()
    except OffstageError as error:
        return Kind("batch", None, str(error))

    def opened(storage: Any, staging: Any) -> Transfer:
        import torch

        def compute() -> int:
            return int(torch.cuda.current_stream(storage.device).cuda_stream)

        return BatchCopies(
            runtime, compute, storage.data_ptr(), staging.data_ptr(), storage.shape[1]
        )

    return Kind("batch", opened)


def _gather() -> Kind:
    """cupy may be there and see no device: its driver library, or its CUDA, is another."""
    fix = "pip install cupy-cuda12x, or cupy-cuda13x for CUDA 13"
    if importlib.util.find_spec("cupy") is None:
        return Kind("gather", None, f"cupy is not installed ({fix})")
    try:
        cupy = importlib.import_module("cupy")
        if cupy.cuda.is_available():
            return Kind("gather", Gather)
        return Kind("gather", None, "cupy sees no CUDA device (see `nvidia-smi`)")
    except Exception as error:  # whatever a half-installed package raises
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return Kind("gather", None, f"cupy does not import: {first} ({fix})")
