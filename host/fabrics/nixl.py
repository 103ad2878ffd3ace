"""The nixl fabric: the daemon's memory, read and written through NIXL, on this machine or another.

The blob of an attach has all that is needed: the address of the daemon's agent, and the keys to its
memory.
"""

from offstage.bindings import nixl
from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.host.link.control import Control

__all__ = ["connect"]


def connect(control: Control) -> Driver:
    """Attach and connect. BadInput if NIXL is missing on either side; Incompatible if the daemon's
    memory cannot be reached."""
    nixl.load()
    return Driver(Attachment(control.attach("nixl").blob))
