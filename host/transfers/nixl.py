"""Transfers by NIXL: its agent writes registered host rows into registered device memory itself.

`nixl` lets UCX choose the transport. `gpudirect` restricts UCX to RDMA transports, so that an
adapter reads the rows and writes the GPU's memory (GPUDirect RDMA). NIXL has no streams: a move
waits for the kernels that were submitted before its blocks were given away, and is done when it
returns. The agent comes from the `nixl` package, which is loaded only on a CUDA device.
"""

import importlib
import importlib.util
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import RunFailed
from offstage.host.transfers import Kind, Transfer, Wait

__all__ = ["NixlRows", "absent", "nixl_kinds"]

NAMES = ("nixl", "gpudirect")
PACKAGES = ("nixl", "nixl_cu13", "nixl_cu12")
RDMA_ONLY = "rc,cuda_copy"
"""UCX's transports where an adapter must do it; the second only copies what UCX itself needs."""
SECONDS_MAX = 10.0
_NUMBERS = itertools.count()


def _package() -> str | None:
    return next((one for one in PACKAGES if importlib.util.find_spec(one) is not None), None)


def _api() -> Any:
    return importlib.import_module(f"{_package()}._api")


class NixlRows:
    """`Transfer` by one agent that is both ends. `transports`: UCX's; "" as it likes."""

    def __init__(self, name: str, transports: str, storage: Any, staging: Any) -> None:
        self.name = name
        api = _api()
        before = os.environ.get("UCX_TLS")
        try:
            if transports:
                os.environ["UCX_TLS"] = transports
            self._own = f"offstage-{os.getpid()}-{next(_NUMBERS)}"
            self._agent = api.nixl_agent(self._own, api.nixl_agent_config(backends=["UCX"]))
        finally:
            if transports:
                os.environ.pop("UCX_TLS")
                os.environ.update({} if before is None else {"UCX_TLS": before})
        self._storage, self._staging = storage, staging
        self._agent.register_memory([storage])
        self._agent.register_memory([staging])
        self._cuda = storage.device.type == "cuda"

    def fence(self) -> Any:
        """See `Transfer`."""
        if not self._cuda:
            return None
        import torch

        return torch.cuda.current_stream(self._storage.device).record_event()

    def move(self, fence: Any, first: int, places: npt.NDArray[np.int64]) -> Wait:
        """See `Transfer`."""
        if fence is not None:
            fence.synchronize()
        size = int(self._storage.shape[1])
        rows = self._staging.data_ptr() + (first + np.arange(len(places))) * size
        blocks = self._storage.data_ptr() + places * size
        device = self._storage.device.index or 0
        source = self._agent.get_xfer_descs([(int(at), size, 0) for at in rows], "DRAM")
        kind = "VRAM" if self._cuda else "DRAM"
        target = self._agent.get_xfer_descs([(int(at), size, device) for at in blocks], kind)
        handle = self._agent.initialize_xfer("WRITE", source, target, self._own)
        try:
            self._run(handle)
        finally:
            self._agent.release_xfer_handle(handle)
        return lambda: None

    def _run(self, handle: Any) -> None:
        state, until = self._agent.transfer(handle), time.monotonic() + SECONDS_MAX
        while state not in ("DONE", "ERR") and time.monotonic() < until:
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            what = "failed" if state == "ERR" else f"took more than {SECONDS_MAX:g} s"
            raise RunFailed(
                f"NIXL's copy into the device {what}",
                f"transfer {self.name}",
                "run `offstage doctor`, or use another transfer",
            )


def absent() -> list[Kind]:
    """What there is of them without a CUDA device."""
    return [Kind(name, None, "no device: it writes the memory of a GPU") for name in NAMES]


def nixl_kinds(machine: Path = Path("/")) -> list[Kind]:
    """The transfers of a CUDA device. `machine`: its root, to read what its kernel reports."""
    if _package() is None:
        reason = "the nixl package is not installed (pip install nixl)"
        return [Kind(name, None, reason) for name in NAMES]
    adapters, loaded = machine / "sys/class/infiniband", machine / "sys/module/nvidia_peermem"
    why = ""
    if not adapters.is_dir() or not any(adapters.iterdir()):
        why = "no RDMA adapter"
    elif not loaded.exists():
        why = "nvidia-peermem is not loaded (modprobe nvidia-peermem)"
    direct = Kind("gpudirect", None if why else _opener("gpudirect", RDMA_ONLY), why)
    return [Kind("nixl", _opener("nixl", "")), direct]


def _opener(name: str, transports: str) -> Callable[[Any, Any], Transfer]:
    return lambda storage, staging: NixlRows(name, transports, storage, staging)
