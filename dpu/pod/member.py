"""What a daemon does as a member of a pod, on its loop: whom it lets in, what a newer map deletes.

A connection is of one life of the daemon and of one epoch: both are said at the login and checked
there, and a ticket, a port and a region are of one process. So nothing else has to carry them. When
a map deletes a tenant's blocks, the connections of that tenant end, everything of it is dropped,
and nobody of it is let in meanwhile, nor later under an older map; then the epoch counts as carried
out. Where a life ends in a running process, the connections of all tenants end.

The epoch that was carried out last stands beside the store, with the pod that it is an epoch of: a
store that comes back without it, or out of another pod, has seen no deletion.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.outside import read_json
from offstage.dpu import protocol as p
from offstage.dpu.config import Config
from offstage.dpu.device import DeviceLike
from offstage.dpu.log import Log
from offstage.dpu.pod.fence import Refusal, adopts, refusal, serves_until
from offstage.dpu.pod.keeper import Keeper, boot_ns
from offstage.dpu.pod.map import Member
from offstage.dpu.pod.membership import Membership, open_membership
from offstage.dpu.pod.peers import Peers, answered, asks_rightly
from offstage.dpu.sessions import Host, Hosts, Refused, TenantState
from offstage.dpu.tenancy import secrets_beside

__all__ = ["PodMember"]

ADOPT_S = 0.001
MENDS: dict[Refusal, tuple[str, str]] = {
    "fenced": ("this daemon's lease is not confirmed: it serves nobody",
               "it goes on by itself once whoever keeps the pod's map answers it"),
    "foreign": ("another life of this daemon was meant", "read the pod's map anew"),
    "stale": ("the pod's map has changed since", "read the pod's map anew"),
}  # fmt: skip


class _Carried(msgspec.Struct):
    """The file beside the store."""

    pod: str
    epoch: int


class PodMember:
    """Of a daemon whose configuration names a pod. Belongs to the daemon's loop."""

    def __init__(
        self, config: Config, endpoint: str, runtime_dir: Path, device: DeviceLike, hosts: Hosts,
        leave: Callable[[Host, str], None], wake: Callable[[], None], log: Log,
        membership: Membership | None = None, peers: Peers | None = None,
        clock: Callable[[], int] = boot_ns,
    ) -> None:  # fmt: skip
        """`leave` takes everything back from a host. `membership`, `peers`: others than those that
        the configuration names. BadInput: `pod.name` is missing."""
        pod = config.pod
        if not pod.name:
            raise BadInput("a member of a pod has a name", config.file or "configuration",
                           "give --pod-name or pod.name")  # fmt: skip
        self._name = pod.name
        self._device, self._hosts, self._leave, self._log = device, hosts, leave, log
        membership = membership or open_membership(pod.map, pod.lease_ns)
        self._secret = membership.secret()
        self._pod = hashlib.sha256(self._secret).hexdigest()
        self._peers = peers or Peers(b"" if config.daemon.curve_dir else self._secret)
        base = Path(secrets_beside(config.storage) or runtime_dir / "memory")
        self._file = base.with_name(f"{base.name}.pod")
        self._purging: list[TenantState] = []
        self._target = 0
        member = Member(name=pod.name, endpoint=pod.endpoint or endpoint, weight=pod.weight,
                        zone=pod.zone)  # fmt: skip
        self.keeper = Keeper(
            membership, member, self._read(), device.serve_until, wake, log, self._peers.ask,
            clock,
        )  # fmt: skip

    def join(self) -> None:
        """Become a member, and drop what was deleted meanwhile: from then on hosts are served.
        RunFailed where whoever keeps the map does not answer."""
        self.keeper.start()
        while self.keeper.phase == "adopting":
            if not self.turn():
                time.sleep(ADOPT_S)

    def admit(self, tenant: TenantState | None, incarnation: int, epoch: int) -> int:
        """A login that is proved; Refused where it is not let in. The operator always is. The
        daemon's lease in ns."""
        standing = self.keeper.standing
        if tenant is None:
            return standing.ttl
        self._refuse(self._why(tenant, incarnation, epoch))
        return standing.ttl

    def check(self, host: Host, request: Any) -> None:
        """Refused: a request of a tenant's host while nobody is served."""
        if host.tenant is not None and not isinstance(request, (p.Heartbeat, p.Detach, p.Status)):
            self._refuse("" if self.keeper.serves() else "fenced")

    def hold(self, request: p.Hold) -> p.Reply:
        """What another member asks when it is not heard. Refused: it is no member, means another
        life, or is promised nothing."""
        life = (request.to, request.life)
        if not asks_rightly(self._secret, request):
            raise Refused("unauthenticated", "not proved to be of this pod", request.name,
                          "members of one pod have one etcd")  # fmt: skip
        if life != (self._name, self.keeper.standing.incarnation):
            self._refuse("foreign")
        asking = (request.name, request.incarnation)
        if not self.keeper.promise(asking):
            raise Refused("forbidden", "the pod's map can be changed from here", self._name,
                          "the member that asks is cut off from it alone")  # fmt: skip
        return p.Held(proof=answered(self._secret, request.nonce, asking, life))

    @property
    def deleting(self) -> bool:
        """Whether there is more to do in the next turn."""
        return bool(self._purging)

    def turn(self) -> bool:
        """Carry out what the newest map says, a batch at a time; False where nothing was done."""
        keeper = self.keeper
        if keeper.phase == "over":
            self._drop(None, "its life in the pod is over")
            self._purging.clear()
            self._target = 0  # it may join a map that went back
            keeper.left()
            return True
        newest, done = keeper.newest, keeper.standing.epoch
        if newest.epoch > max(done, self._target):
            self._target = newest.epoch
            for name, deleted in newest.deleted.items():
                tenant = self._hosts.tenants.get(name)
                if tenant is not None and not adopts(done, deleted):
                    self._drop(tenant, "the tenant's blocks are being deleted")
                    self._purging.append(tenant)
        if self._purging and not self._purged(self._purging[-1]):
            return True
        if self._purging:
            self._purging.pop()
            return True
        if self._target > done:
            self._write(self._target)
            keeper.carried_out(self._target)
            return True
        return False

    def status(self) -> dict[str, Any]:
        """What an operator sees."""
        keeper = self.keeper
        standing = keeper.standing
        left_ns = 0 if not standing.ttl else serves_until(standing) - keeper.now()
        return {"phase": keeper.phase, "serves": keeper.serves(), "life": standing.incarnation,
                "epoch": keeper.newest.epoch, "carried_out": standing.epoch,
                "lease_s": standing.ttl / 1e9, "serves_s": max(0.0, left_ns / 1e9)}  # fmt: skip

    def close(self) -> None:
        """Serve nobody any more."""
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
            what, mend = MENDS[why]
            raise Refused(why, what, self._name, mend)

    def _drop(self, tenant: TenantState | None, reason: str) -> None:
        """The hosts of one tenant, or of all; the operator stays."""
        for host in self._hosts.all():
            if host.tenant is not None and tenant in (None, host.tenant):
                self._leave(host, reason)

    def _purged(self, tenant: TenantState) -> bool:
        """Whether nothing of the tenant is left, nor could come back: with a start, or with the end
        of a write that was under way when its hosts were let go."""
        purged = self._device.tenant_purge(tenant.index, 0)
        if purged["named"]:
            self._drop(tenant, "the tenant's blocks are being deleted")
        return not any(purged[name] for name in ("chunks", "more", "marking", "writing", "named"))

    def _read(self) -> int:
        try:
            found = read_json(self._file, "", _Carried)
        except BadInput:
            return 0
        return found.epoch if found.pod == self._pod else 0

    def _write(self, epoch: int) -> None:
        """Raises nothing: a store without it drops more than it must when it comes back."""
        fresh = self._file.with_name(f"{self._file.name}.new")
        try:
            fresh.write_bytes(msgspec.json.encode(_Carried(self._pod, epoch)))
            fresh.replace(self._file)
        except OSError as error:
            self._log.warning("pod_epoch_not_kept", error=str(error))
