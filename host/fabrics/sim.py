"""The sim fabric: a device in virtual time in this process, with seeded faults of the link."""

from offstage.bindings.bare_device import BareDevice
from offstage.bindings.driver import Driver

__all__ = ["connect"]


def connect(device: BareDevice, **faults: int) -> Driver:
    """A driver whose waits move the device's time; `faults` as `Driver.in_virtual_time`."""
    assert device.simulated
    return device.driver(**faults)
