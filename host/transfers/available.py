"""The transfers that are available on a device. torch is loaded before; cupy is tried here."""

from typing import Any

from offstage.host.transfers import HostCopies, Kind
from offstage.host.transfers.cuda import cuda_kinds
from offstage.host.transfers.nixl import absent, nixl_kinds

__all__ = ["kinds"]


def kinds(device: Any) -> list[Kind]:
    """Every kind for torch tensors on `device`, there or not; the first is always there."""
    if device.type == "cpu":
        return [Kind("memcpy", HostCopies), *absent()]
    return [*cuda_kinds(), *nixl_kinds()]
