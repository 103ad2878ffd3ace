"""A daemon as a member of a pod, on its loop: which hosts it admits, and what a new map deletes.

A connection belongs to one incarnation of the daemon and to one epoch. Both are sent and checked at
the login; since a ticket, a port and a region belong to one process, no other message repeats
them. When a map deletes a tenant's blocks, the daemon closes that tenant's connections, drops all
its data, and admits none of its hosts until that is done, nor later under an older map. Then the
epoch counts as carried out. When an incarnation ends in a running process, the connections of all
tenants are closed.

A file next to the store records the map that was carried out last, by the random ids of its change
and of its deletions. A store without the file has seen no deletion; a store whose recorded change
the present map does not descend from is in doubt (`pod.history`). A store that belonged to another
pod, recognized by the pod's secret, drops everything. The file also records the id under which the
daemon held its name: after a restart it takes the name over from its own earlier process without
waiting, and from no other.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings.durable import write_whole
from offstage.bindings.errors import BadInput
from offstage.bindings.outside import read_json
from offstage.dpu import protocol as p
from offstage.dpu.config.values import Config
from offstage.dpu.control.peers import Peers, answered, asks_rightly
from offstage.dpu.log import Log
from offstage.dpu.pod.fence import Refusal, adopts, refusal, serves_until
from offstage.dpu.pod.history import Seen
from offstage.dpu.pod.keeper import Keeper, boot_ns
from offstage.dpu.pod.map import Member, PodMap
from offstage.dpu.pod.membership import Membership, open_membership
from offstage.dpu.protocol.status import MemberStatus
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Host, Hosts, Refused, TenantState
from offstage.dpu.tenants.tenancy import secrets_beside

__all__ = ["PodMember"]

ADOPT_S = 0.001
FIXES: dict[Refusal, tuple[str, str]] = {
    "fenced": (
        "this daemon's lease is not confirmed: it serves no host",
        "it resumes by itself when the service that keeps the pod's map answers",
    ),
    "foreign": (
        "the request was for another incarnation of this daemon",
        "read the pod's map anew",
    ),
    "stale": ("the pod's map has changed since", "read the pod's map anew"),
}


class _Carried(msgspec.Struct):
    """The file next to the store: `Seen` of the map carried out last, and `Keeper.holder`."""

    pod: str = ""
    change: str = ""
    epoch: int = 0
    accepted: tuple[str, ...] = ()
    purges: dict[str, tuple[str, ...]] = {}
    holder: str = ""

    @property
    def seen(self) -> Seen:
        """Without the holder."""
        return Seen(self.change, self.epoch, self.accepted, self.purges)


class PodMember:
    """The membership of a daemon whose configuration names a pod. Belongs to the daemon's loop."""

    def __init__(
        self,
        config: Config,
        endpoint: str,
        runtime_dir: Path,
        device: Device,
        hosts: Hosts,
        leave: Callable[[Host, str], None],
        wake: Callable[[], None],
        log: Log,
        membership: Membership | None = None,
        peers: Peers | None = None,
        clock: Callable[[], int] = boot_ns,
    ) -> None:
        """`leave` reclaims everything from a host. `membership`, `peers` replace those of the
        configuration."""
        pod = config.pod
        self._name = pod.name
        self._device, self._hosts, self._leave, self._log = device, hosts, leave, log
        membership = membership or open_membership(pod.map, pod.lease_ns)
        self._secret = membership.secret()
        self._peers = peers or Peers(b"" if config.daemon.curve_dir else self._secret)
        base = Path(secrets_beside(config.storage) or runtime_dir / "memory")
        self._file = base.with_name(f"{base.name}.pod")
        self._purging: list[TenantState] = []
        self._target = PodMap()
        self._pod = hashlib.sha256(self._secret).hexdigest()
        found = self._read()
        foreign = found.pod not in ("", self._pod)
        self._done = _Carried(holder=found.holder) if foreign else found
        member = Member(
            name=pod.name, endpoint=pod.endpoint or endpoint, weight=pod.weight, zone=pod.zone
        )
        self.keeper = Keeper(
            membership,
            member,
            self._done.seen,
            self._done.holder,
            device.serve_until,
            wake,
            log,
            self._peers.ask,
            clock,
        )
        self.keeper.unknown = foreign

    def join(self) -> None:
        """Become a member, and drop what was deleted meanwhile: from then on hosts are served.
        RunFailed if the map service does not answer."""
        self.keeper.start()
        while self.keeper.phase == "adopting":
            if not self.turn():
                time.sleep(ADOPT_S)

    def admit(self, tenant: TenantState | None, incarnation: int, epoch: int) -> int:
        """Admit an authenticated login, or raise Refused; the operator is always admitted. Returns
        the daemon's lease in ns."""
        standing = self.keeper.standing
        if tenant is None:
            return standing.ttl
        self._refuse(self._why(tenant, incarnation, epoch))
        return standing.ttl

    def check(self, host: Host, request: Any) -> None:
        """Refused: a request of a tenant's host while no host is served."""
        if host.tenant is not None and not isinstance(request, (p.Heartbeat, p.Detach, p.Status)):
            self._refuse("" if self.keeper.serves() else "fenced")

    def hold(self, request: p.Hold) -> p.Held:
        """Answer a member that cannot reach the map service. Refused: it is no member, means
        another incarnation, or gets no promise."""
        asked = (request.to, request.to_incarnation)
        if not asks_rightly(self._secret, request):
            raise Refused(
                "unauthenticated",
                "not proved to be of this pod",
                request.name,
                "members of one pod have one etcd",
            )
        if asked != (self._name, self.keeper.standing.incarnation):
            self._refuse("foreign")
        asking = (request.name, request.incarnation)
        if not self.keeper.promise(asking):
            raise Refused(
                "forbidden",
                "the pod's map can be changed from here",
                self._name,
                "the member that asks is cut off from it alone",
            )
        return p.Held(proof=answered(self._secret, request.nonce, asking, asked))

    @property
    def deleting(self) -> bool:
        """Whether there is more to do in the next turn."""
        return bool(self._purging)

    def turn(self) -> bool:
        """Carry out what the newest map says, a batch at a time; False where nothing was done."""
        keeper = self.keeper
        if keeper.phase == "over":
            self._drop(None, "its incarnation in the pod has ended")
            self._purging.clear()
            self._target = PodMap()  # it may join a map whose epochs are counted anew
            keeper.left()
            return True
        if keeper.phase == "away":
            return False  # its knowledge is of an ended incarnation, and perhaps of another history
        newest, done = keeper.newest, keeper.standing.epoch
        if newest.epoch > max(done, self._target.epoch):
            self._target = newest
            for name, tenant in self._hosts.tenants.items():
                if keeper.unknown or not adopts(
                    self._done.purges.get(name, ()), newest.purges.get(name, ())
                ):
                    self._drop(tenant, "the tenant's blocks are being deleted")
                    self._purging.append(tenant)
        if self._purging and not self._purged(self._purging[-1]):
            return True
        if self._purging:
            self._purging.pop()
            return True
        if self._target.epoch > done:
            self._write(Seen.of(self._target))
            keeper.carried_out(self._target.epoch)
            return True
        return False

    def status(self) -> MemberStatus:
        """The status for an operator."""
        keeper = self.keeper
        standing = keeper.standing
        left_ns = 0 if not standing.ttl else serves_until(standing) - keeper.now()
        return MemberStatus(
            phase=keeper.phase,
            serves=keeper.serves(),
            incarnation=standing.incarnation,
            doubt=keeper.doubt,
            epoch=keeper.newest.epoch,
            carried_out=standing.epoch,
            lease_s=standing.ttl / 1e9,
            serves_s=max(0.0, left_ns / 1e9),
        )

    def close(self) -> None:
        """Stop serving hosts."""
        self.keeper.close()
        self._peers.close()

    def _why(self, tenant: TenantState, incarnation: int, epoch: int) -> Refusal:
        """Epochs in which nothing of the tenant was deleted make no difference to it. Who knows a
        newer map than this member waits until that one is read and carried out here: it would be
        served what that map deleted, and put it where that is done."""
        keeper = self.keeper
        if keeper.phase != "serving":
            return "fenced"
        if not keeper.look(epoch):
            return "stale"
        deleted = keeper.newest.deleted.get(tenant.name, 0)
        if tenant in self._purging or deleted > keeper.standing.epoch:
            return "stale"
        standing = replace(keeper.standing, epoch=min(deleted, keeper.standing.epoch))
        return refusal(standing, keeper.now(), incarnation, epoch, writes=True)

    def _refuse(self, why: Refusal) -> None:
        if why:
            what, fix = FIXES[why]
            if self.keeper.doubt:
                what, fix = "the pod's map is in doubt: it serves no host", "offstage pod status"
            raise Refused(why, what, self._name, fix)

    def _drop(self, tenant: TenantState | None, reason: str) -> None:
        """The hosts of one tenant, or of all; the operator stays."""
        for host in self._hosts.all():
            if host.tenant is not None and tenant in (None, host.tenant):
                self._leave(host, reason)

    def _purged(self, tenant: TenantState) -> bool:
        """Whether nothing of the tenant is left, nor can reappear: by a restart, or by the
        completion of a write that was in flight when its hosts were detached."""
        purged = self._device.tenant_purge(tenant.index, 0)
        if purged["named"]:
            self._drop(tenant, "the tenant's blocks are being deleted")
        return not any(purged[name] for name in ("chunks", "more", "marking", "writing", "named"))

    def _read(self) -> _Carried:
        try:
            return read_json(self._file, "", _Carried)
        except BadInput:
            return _Carried()

    def _write(self, seen: Seen) -> None:
        """Write it to the drive before it is announced. Raises nothing: after a restart, a store
        with an older one drops more than it must."""
        self._done = _Carried(
            self._pod, seen.change, seen.epoch, seen.accepted, dict(seen.purges), self.keeper.holder
        )
        try:
            write_whole(self._file, msgspec.json.encode(self._done))
        except OSError as error:
            self._log.warning("pod_epoch_not_kept", error=str(error))
