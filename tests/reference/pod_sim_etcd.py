"""An etcd with leases in virtual time, and the `Membership` of a machine over it."""

from typing import Any

from pod_world import Client, Etcd, Machine, S, World

from offstage.bindings.errors import BadInput, RunFailed
from offstage.dpu.pod.map import Living, PodMap

__all__ = ["LEASE_NS", "SECRET", "LeaseClient", "LeaseEtcd"]

LEASE_NS = 4 * S
SECRET = bytes(32)
"""The pod's secret."""


class LeaseEtcd(Etcd):
    """An etcd with leases that expire by its own clock; without a quorum none expires, and a new
    leader restarts each in full."""

    def __init__(self, world: World) -> None:
        super().__init__(world, PodMap(epoch=1))
        self.leases: dict[int, list[Any]] = {}
        """Holder and end of each lease."""
        self.changed_at: dict[int, int] = {}
        """When each epoch began."""
        self._number = 0

    def grant(self, member: Living, before: str) -> int:
        self._end()
        for number, (other, _) in list(self.leases.items()):
            if other.name == member.name:
                if not before or other.holder != before:
                    raise BadInput(f"{other.name} is another daemon's", "pod", "end that one")
                del self.leases[number]
        self._number += 1
        self.leases[self._number] = [member, self.world.now + LEASE_NS]
        return self._number

    def renew(self, number: int) -> bool:
        self._end()
        if number in self.leases:
            self.leases[number][1] = self.world.now + LEASE_NS
        return number in self.leases

    def alive(self) -> list[Living]:
        self._end()
        return [one[0] for one in self.leases.values()]

    def again(self) -> None:
        """A new leader restarts each lease in full."""
        self.quorum = True
        for one in self.leases.values():
            one[1] = self.world.now + LEASE_NS

    def copy(self) -> tuple[PodMap, dict[int, Living]]:
        """Take a snapshot."""
        self._end()
        return self.pod, {number: one for number, (one, _) in self.leases.items()}

    def put_back(self, copy: tuple[PodMap, dict[int, Living]]) -> None:
        """Restore a snapshot; each lease starts again in full."""
        self.pod = copy[0]
        self.leases = {number: [one, self.world.now + LEASE_NS] for number, one in copy[1].items()}

    def _end(self) -> None:
        self.leases = {
            number: one for number, one in self.leases.items() if one[1] > self.world.now
        }


class SimLease:
    """The `Lease` of one incarnation of a daemon."""

    ttl_ns = LEASE_NS

    def __init__(self, client: "LeaseClient", number: int) -> None:
        self._client, self._number, self.lost = client, number, False

    def keep(self) -> bool:
        try:
            kept = bool(self._client.call(lambda: self._client.etcd.renew(self._number)))
        except RunFailed:
            return False
        self.lost = not kept
        return kept

    def say(self, member: Living) -> None:
        def say() -> bool:
            held = self._client.etcd.leases.get(self._number)
            if held is not None:
                held[0] = member
            return held is not None

        if not self._client.call(say):
            raise RunFailed("the lease is lost")

    def end(self) -> None:
        self._client.call(lambda: self._client.etcd.leases.pop(self._number, None))


class LeaseClient(Client):
    """The `Membership` of one machine."""

    def __init__(self, etcd: LeaseEtcd, of: Machine) -> None:
        super().__init__(etcd, of)
        self.etcd = etcd

    def announce(self, member: Living, before: str = "") -> SimLease:
        return SimLease(self, self.call(lambda: self.etcd.grant(member, before)))

    def alive(self) -> list[Living]:
        found: list[Living] = self.call(self.etcd.alive)
        return found

    def secret(self) -> bytes:
        return SECRET

    def _swap(self, before: PodMap, after: PodMap) -> bool:
        swapped = super()._swap(before, after)
        if swapped:
            self.etcd.changed_at[self.etcd.pod.epoch] = self.etcd.world.now
        return swapped
