"""Leases: sessions that a lookup leaves open, so that its objects stay until they are read."""

import time

from offstage.host.connectors.moves import Chain

__all__ = ["Leases"]


class Leases(dict[bytes, Chain]):
    """Leases by the object's name, the oldest first. Owned by the mover's thread."""

    def hold(self, name: bytes, chain: Chain, hold_s: float) -> None:
        """Lease an object for `hold_s` from now."""
        chain.until_s, chain.busy = time.monotonic() + hold_s, False
        self[name] = chain

    def take(self, name: bytes) -> Chain | None:
        """The session to read the object in; None: no lease, or the object is being read."""
        chain = self.get(name)
        if chain is None or chain.busy:
            return None
        chain.busy = True
        return chain

    def idle(self) -> list[bytes]:
        """Leased objects that are not being read."""
        return [name for name, one in self.items() if not one.busy]

    def expired(self) -> list[bytes]:
        """Expired leases of objects that are not being read."""
        now_s = time.monotonic()
        return [name for name in self.idle() if self[name].until_s < now_s]

    def end(self, name: bytes) -> list[int]:
        """End a lease; returns the session to close, or none if its reader will close it."""
        chain = self.pop(name, None)
        return [] if chain is None or chain.busy else [chain.session]
