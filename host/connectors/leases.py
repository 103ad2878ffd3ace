"""Sessions that a lookup leaves open, so that what it found is still there when it is read."""

import time

from offstage.host.connectors.moves import Chain

__all__ = ["Leases"]


class Leases(dict[bytes, Chain]):
    """By the object's name, the oldest first. Owned by the mover's thread."""

    def hold(self, name: bytes, chain: Chain, hold_s: float) -> None:
        """From now on, for so long."""
        chain.until_s, chain.busy = time.monotonic() + hold_s, False
        self[name] = chain

    def take(self, name: bytes) -> Chain | None:
        """The session to read the object in; None: there is none, or it is read just now."""
        chain = self.get(name)
        if chain is None or chain.busy:
            return None
        chain.busy = True
        return chain

    def idle(self) -> list[bytes]:
        """What is not read just now."""
        return [name for name, one in self.items() if not one.busy]

    def expired(self) -> list[bytes]:
        """What was held long enough, and is not read just now."""
        now_s = time.monotonic()
        return [name for name in self.idle() if self[name].until_s < now_s]

    def end(self, name: bytes) -> list[int]:
        """The session that is to be closed; none where it is read just now: then by its reader."""
        chain = self.pop(name, None)
        return [] if chain is None or chain.busy else [chain.session]
