"""A CUDA runtime whose streams work as late as they may, on the CPU's memory.

A stream is a queue of copies, waits and events; none of them runs before an event or the blocks are
read. Code that does not wait, or waits for the wrong event, reads old bytes here every time; on a
GPU only now and then. For tests only: no figure is made with it.
"""

import ctypes
from collections import deque
from typing import Any

from offstage.host.arrays.torch_arrays import StagedMemory, TorchArrays
from offstage.host.transfers.batch import BatchCopies

COMPUTE = 0


class LaterRuntime:
    """The `Runtime`. Stream COMPUTE exists; `asked` holds every call in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._streams: dict[int, deque[tuple[Any, ...]]] = {COMPUTE: deque()}
        self._past: set[int] = set()
        self._events = 0

    def stream(self) -> int:
        self._streams[len(self._streams)] = deque()
        return len(self._streams) - 1

    def record(self, stream: int) -> int:
        self._events += 1
        self._ask(stream, "event", self._events)
        return self._events

    def wait(self, stream: int, event: int) -> None:
        self._ask(stream, "wait", event)

    def synchronize(self, event: int) -> None:
        for number, queue in self._streams.items():
            if ("event", event) in queue:
                self._run(number, until=("event", event))
        assert event in self._past, "nobody will ever record it"

    def copy(self, targets: Any, sources: Any, size_bytes: int, stream: int) -> None:
        self._ask(stream, "copy", tuple(targets.tolist()), tuple(sources.tolist()), size_bytes)

    def drain(self, stream: int = COMPUTE) -> None:
        """Run everything queued on a stream, after the events that it waits for."""
        self._run(stream, until=None)

    def _ask(self, stream: int, *what: Any) -> None:
        self.asked.append((stream, *what))
        self._streams[stream].append(what)

    def _run(self, stream: int, until: tuple[Any, ...] | None) -> None:
        queue = self._streams[stream]
        while queue:
            what = queue.popleft()
            if what[0] == "copy":
                for target, source in zip(what[1], what[2], strict=True):
                    ctypes.memmove(target, source, what[3])
            elif what[0] == "event":
                self._past.add(what[1])
            elif what[1] not in self._past:
                self.synchronize(what[1])
            if what == until:
                return


class LaterBatchMemory(StagedMemory):
    """`StagedMemory` over this runtime: a read of the blocks is a kernel of the compute stream."""

    def __init__(self, device: Any, blocks: int, block_bytes: int, rows: int) -> None:
        self.runtime = LaterRuntime()

        def opened(storage: Any, staging: Any) -> BatchCopies:
            return BatchCopies(
                self.runtime, lambda: COMPUTE, storage.data_ptr(), staging.data_ptr(), block_bytes
            )

        super().__init__(device, blocks, block_bytes, rows, opened)

    @property
    def storage(self) -> Any:
        self.runtime.drain()
        return self._blocks

    @storage.setter
    def storage(self, made: Any) -> None:
        self._blocks = made


class LaterBatchArrays(TorchArrays):
    """The `Arrays` of torch on the CPU with that memory."""

    def __init__(self) -> None:
        super().__init__("cpu", staged=True)

    def memory(self, blocks: int, block_bytes: int, rows: int) -> Any:
        import torch

        return LaterBatchMemory(torch.device("cpu"), blocks, block_bytes, rows)
