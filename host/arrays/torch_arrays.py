"""Blocks in torch: in host memory, or on a CUDA device behind pinned staging rows.

On a device a commit transfers consecutive rows to their blocks, concurrently with the attention of
the previous layer: it waits for work submitted before the blocks were given to the fetch, and work
submitted afterwards waits for it. The kind of transfer is chosen by measurement when the first
memory is made (host/transfers). torch is imported when a device is opened.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.arrays.fastest_transfer import chosen
from offstage.host.arrays.numpy_arrays import HostMemory
from offstage.host.arrays.staging import StagingRing
from offstage.host.model.values import WIDTHS, ValueType
from offstage.host.transfers import Transfer
from offstage.host.transfers.available import kinds

__all__ = ["StagedMemory", "TorchArrays", "open_device", "to_device"]


RESET_MS = 1_000.0
OpenTransfer = Callable[[Any, Any], Transfer]


class SharedMemory(HostMemory):
    """`BlockMemory` of the CPU: `storage` and `landing` are one memory."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        import torch

        super().__init__(blocks, block_bytes)
        self.storage = torch.from_numpy(self.landing)


class StagedMemory:
    """`BlockMemory` of a device that fabrics do not read into. `transfer`: how rows get there; by
    default what was fastest."""

    def __init__(
        self,
        device: Any,
        blocks: int,
        block_bytes: int,
        rows: int,
        transfer: OpenTransfer | None = None,
    ) -> None:
        import torch

        self._device = device
        try:
            self.storage = torch.zeros((blocks, block_bytes), dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            raise BadInput(
                f"an HBM pool of {blocks * block_bytes / 1e9:.1f} GB does not fit into the memory "
                f"of {str(device)!r}",
                "hbm pool",
                "decode fewer sessions, or select fewer blocks",
            ) from None
        pinned = device.type == "cuda"
        self._staging = torch.zeros((rows, block_bytes), dtype=torch.uint8, pin_memory=pinned)
        self.landing: npt.NDArray[np.uint8] = self._staging.numpy()
        self._ring = StagingRing(rows)
        self._fences: dict[int, Any] = {}  # of the runs that are out, by their first row
        opened = transfer or (chosen(device, block_bytes) if pinned else kinds(device)[0]).open
        assert opened is not None, "the first kind is always there"
        self.transfer = opened(self.storage, self._staging)

    def land(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32] | None:
        rows = self._ring.land(indices.size)
        if rows is not None and rows.size:
            self._fences[int(rows[0])] = self.transfer.fence()
        return rows

    def commit(self, indices: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        if indices.size == 0:
            return
        first = int(rows[0])
        fence = self._fences.pop(first)
        self._ring.commit(first, self.transfer.move(fence, first, indices.astype(np.int64)))

    def write(self, indices: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        self.storage[self._moved(indices), : content.shape[1]] = to_device(content, self._device)

    def read(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        copied: npt.NDArray[np.uint8] = self.storage[self._moved(indices)].cpu().numpy()
        return copied

    def _moved(self, indices: npt.NDArray[np.int32]) -> Any:
        return to_device(indices.astype(np.int64), self._device)


class CudaStamps:
    """`Stamps` of a CUDA device: events of its current stream, from one that is set by the host's
    clock. The runtime counts milliseconds in 32-bit floats, so a later event takes the place of
    that one before a second has passed: each is then exact to a tenth of a microsecond."""

    source = "CUDA events"

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda, self._device = torch.cuda, device
        self._base = self.mark()
        self._base.synchronize()
        self._base_ns = time.monotonic_ns()

    def mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def ns(self, mark: Any) -> int:
        mark.synchronize()
        after_ms = float(self._base.elapsed_time(mark))
        then_ns = self._base_ns + int(after_ms * 1e6)
        if after_ms > RESET_MS:
            self._base, self._base_ns = mark, then_ns
        return then_ns


class TorchArrays:
    """`Arrays` of torch on one device. `staged` takes the way of a device on the CPU too."""

    name = "torch"

    def __init__(self, device: str = "cpu", *, staged: bool = False) -> None:
        import torch

        self._torch = torch
        try:
            self._device = torch.device(device)
        except RuntimeError:
            raise _no_device(device) from None
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")  # why torch sees none, such as too old a driver
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (self._device.index or 0) >= {"cpu": 1, "cuda": count}.get(self._device.type, 0):
            raise _no_device(device, str(said[-1].message) if said else "")
        self.device = device
        self._staged = staged or self._device.type != "cpu"

    def memory(self, blocks: int, block_bytes: int, rows: int) -> SharedMemory | StagedMemory:
        if self._staged:
            return StagedMemory(self._device, blocks, block_bytes, rows)
        return SharedMemory(blocks, block_bytes)

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        return to_device(array, self._device)

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        given: npt.NDArray[Any] = array.cpu().numpy()
        return given

    def paged(
        self, storage: Any, shape: tuple[int, int, int, int], value_type: ValueType = "float16"
    ) -> Any:
        used = storage[:, : WIDTHS[value_type] * int(np.prod(shape))]
        return used.view(getattr(self._torch, value_type)).unflatten(1, shape)

    def stamps(self) -> "CudaStamps | None":
        return CudaStamps(self._device) if self._device.type == "cuda" else None

    def all_finite(self, array: Any) -> bool:
        return bool(array.isfinite().all())


def to_device(array: npt.NDArray[Any], device: Any) -> Any:
    """The array on the device. Goes through pinned memory, so that the copy is asynchronous."""
    import torch

    given = torch.from_numpy(np.ascontiguousarray(array))
    return given if device.type == "cpu" else given.pin_memory().to(device, non_blocking=True)


def open_device(device: str) -> TorchArrays:
    """torch on "cpu", "cuda" or "cuda:<n>". Raises `BadInput` where it has no such device."""
    return TorchArrays(device)


def _no_device(device: str, why: str = "") -> BadInput:
    first = why.partition("\n")[0].rstrip(".")
    return BadInput(
        f"torch has no device {device!r}" + (f": {first}" if first else ""),
        "arrays",
        "use 'cpu', or 'cuda' on a machine with an NVIDIA GPU and a torch built for it",
    )
