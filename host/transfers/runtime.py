"""The CUDA runtime's streams, events and copies by ctypes: the few calls that torch does not offer.

`Runtime` has the calls of the batch transfer; `Cudart` is the real library, tests use a stub. An
event is destroyed with its Python object; the runtime keeps it until it has completed.
"""

import contextlib
import ctypes
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, RunFailed

__all__ = ["Cudart", "Runtime"]

Addresses = npt.NDArray[np.uint64]

LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
NON_BLOCKING, NO_TIMING, HOST_TO_DEVICE, STREAM_ORDER = 1, 2, 1, 1
BATCH_SINCE, BATCH_WITHOUT_FAILED_SINCE = 12_080, 13_000


class Runtime(Protocol):
    """Streams are numbers. All calls return at once but `synchronize`."""

    def stream(self) -> int:
        """A new stream, which waits for no other by itself."""
        ...

    def record(self, stream: int) -> Any:
        """An event that is past when all that the stream was asked until now is done."""
        ...

    def wait(self, stream: int, event: Any) -> None:
        """What the stream is asked from now on waits for the event."""
        ...

    def synchronize(self, event: Any) -> None:
        """Returns when the event is past."""
        ...

    def copy(self, targets: Addresses, sources: Addresses, size_bytes: int, stream: int) -> None:
        """Ask the stream to copy `size_bytes` from each source to its target."""
        ...


class _Attributes(ctypes.Structure):
    """struct cudaMemcpyAttributes: source order, hints of two locations (type, id), flags."""

    _fields_ = [
        (name, ctypes.c_int)
        for name in ("order", "source_type", "source_id", "target_type", "target_id", "flags")
    ]


class _Event:
    def __init__(self, library: Any) -> None:
        self._library, self.handle = library, ctypes.c_void_p()

    def __del__(self) -> None:
        if self.handle:
            self._library.cudaEventDestroy(self.handle)


class Cudart:
    """`Runtime` of the CUDA runtime library that is loaded, or else found. BadInput: there is none.

    Streams and events are of the thread's current device."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or _load()
        version = ctypes.c_int()
        self._check(self._library.cudaRuntimeGetVersion(ctypes.byref(version)), "its version")
        self.version = version.value
        self.batched = self.version >= BATCH_SINCE
        """Whether one call copies a batch."""

    def stream(self) -> int:
        made = ctypes.c_void_p()
        rc = self._library.cudaStreamCreateWithFlags(ctypes.byref(made), NON_BLOCKING)
        self._check(rc, "making a stream")
        return made.value or 0

    def record(self, stream: int) -> Any:
        event = _Event(self._library)
        made = self._library.cudaEventCreateWithFlags(ctypes.byref(event.handle), NO_TIMING)
        self._check(made, "making an event")
        self._check(self._library.cudaEventRecord(event.handle, _at(stream)), "recording")
        return event

    def wait(self, stream: int, event: Any) -> None:
        rc = self._library.cudaStreamWaitEvent(_at(stream), event.handle, 0)
        self._check(rc, "waiting in a stream")

    def synchronize(self, event: Any) -> None:
        self._check(self._library.cudaEventSynchronize(event.handle), "waiting for an event")

    def copy(self, targets: Addresses, sources: Addresses, size_bytes: int, stream: int) -> None:
        if not self.batched:
            for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
                rc = self._library.cudaMemcpyAsync(
                    _at(target),
                    _at(source),
                    ctypes.c_size_t(size_bytes),
                    HOST_TO_DEVICE,
                    _at(stream),
                )
                self._check(rc, "copying")
            return
        sizes = np.full(len(targets), size_bytes, np.uint64)
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        told = [
            _at(targets.ctypes.data),
            _at(sources.ctypes.data),
            _at(sizes.ctypes.data),
            ctypes.c_size_t(len(targets)),
            ctypes.byref(_Attributes(STREAM_ORDER)),
            ctypes.byref(first),
            ctypes.c_size_t(1),
        ]
        if self.version < BATCH_WITHOUT_FAILED_SINCE:
            told.append(ctypes.byref(failed))
        self._check(self._library.cudaMemcpyBatchAsync(*told, _at(stream)), "copying a batch")

    def _check(self, rc: int, doing: str) -> None:
        if rc:
            text = self._library.cudaGetErrorString
            text.restype = ctypes.c_char_p
            said = (text(rc) or b"").decode(errors="replace")
            raise RunFailed(
                f"CUDA: {said or rc} while {doing}",
                "transfer",
                "run `offstage doctor`; the driver must fit the CUDA of torch",
            )


def _at(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def _load() -> Any:
    for name in LIBRARIES:  # the one that torch has loaded is found first, by its name
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise BadInput(
        "no CUDA runtime library could be loaded",
        "transfer",
        "install a torch that is built for CUDA",
    )
