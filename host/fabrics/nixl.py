"""The nixl fabric: the daemon's memory, read and written through NIXL, on this machine or another.

The blob of an attach is all that is needed: where the daemon's agent is, and the keys to its
memory.
"""

from offstage.bindings import nixl
from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.host.link.control import Control

__all__ = ["connect"]


def connect(control: Control) -> Driver:
    """Attach and connect. BadInput where NIXL is missing here, or there; Incompatible where the
    daemon's memory cannot be reached."""
    nixl.load()
    return Driver(Attachment(control.attach("nixl").blob))
