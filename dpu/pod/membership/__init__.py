"""Where the map of a pod is kept: in a file, or in etcd. One contract, two sides.

    file:pod.toml            one machine, the laboratory: write access to the file changes the map
    etcd:HOST:PORT,...       several machines: a lease for each daemon, the map changed by
                             compare-and-swap

If the map cannot be reached, it is frozen: `map` returns the last one seen, `fresh` says so, and
nothing that moves blocks waits for it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from offstage.bindings.errors import BadInput
from offstage.dpu.pod.map import Living, PodMap
from offstage.dpu.pod.membership.etcd import EtcdMembership
from offstage.dpu.pod.membership.static import StaticMembership

__all__ = ["Lease", "Membership", "Transition", "open_membership"]

Transition = Callable[[PodMap], PodMap]


class Lease(Protocol):
    """A daemon's own key. `ttl_ns` 0: it holds for ever, as in a file. `lost`: it has ended."""

    ttl_ns: int
    lost: bool

    def keep(self) -> bool:
        """Confirm it; False if it is lost for good, or there was no answer."""
        ...

    def say(self, member: Living) -> None:
        """Set the value of the key. RunFailed if there is no answer, or the lease is lost."""
        ...

    def end(self) -> None:
        """The daemon leaves: it is no longer among the living."""
        ...


class Membership(Protocol):
    """Contract: calls end within a few seconds and may come from one thread at a time."""

    fresh: bool
    """Whether the last `map` came from where it is kept and not from memory."""

    def map(self) -> PodMap:
        """The newest map; without an answer, the last one seen. BadInput: there never was one."""
        ...

    def change(self, transition: Transition) -> PodMap:
        """Put `transition` of the newest map in its place, retried while others are faster; returns
        the map with its new epoch. RunFailed without an answer: a frozen map does not change."""
        ...

    def announce(self, member: Living, before: str = "") -> Lease:
        """The daemon's key under a lease, which it keeps by `Lease.keep`. BadInput: another process
        has the name, whose lease holds; the holder `before` is this daemon's own earlier one."""
        ...

    def alive(self) -> list[Living]:
        """The daemons with a valid lease. RunFailed if there is no answer."""
        ...

    def secret(self) -> bytes:
        """32 bytes that all who may change the map have, and that no other pod has: of a new map
        in the place of one that was deleted they are others. The first who asks makes them."""
        ...

    def close(self) -> None:
        """Let go of connections. Leases run on until they end."""
        ...


def open_membership(place: str, lease_ns: int = 0) -> Membership:
    """`file:PATH` or `etcd:HOST:PORT,...`. `lease_ns`: of an announced daemon, whole seconds; 0: as
    etcd's side has it. BadInput for another kind of place."""
    kind, colon, rest = place.partition(":")
    if kind == "file" and rest:
        return StaticMembership(Path(rest))
    if kind == "etcd" and rest:
        addresses = rest.split(",")
        if not lease_ns:
            return EtcdMembership(addresses)
        call_s = min(max(lease_ns / 12e9, 0.25), 1.0)  # so that all are asked well within a half
        return EtcdMembership(addresses, lease_ns // 10**9, call_s)
    if not colon and place.endswith(".toml"):
        return StaticMembership(Path(place))
    raise BadInput(f"{place!r} is not a pod map", "pod", "give a .toml file, or etcd:HOST:PORT,...")
