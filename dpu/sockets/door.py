"""Who may fetch a tenant's descriptors on this machine: users and groups, identified by the kernel.

A tenant that lists neither admits only the daemon's own user. Root is always admitted: it could
bypass the check anyway.
"""

import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.dpu.config.options import Tenant
from offstage.dpu.config.values import Config

__all__ = ["Door", "Peer", "door_of", "peer_of", "shared"]

SO_PEERGROUPS = 59  # socket(7), since Linux 4.13; Python has no name for it
GROUPS_MAX = 65_536  # of a process, by the kernel's limit


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a Unix socket, when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]


@dataclass(frozen=True)
class Door:
    """`users` and `groups` may come in; both empty: the daemon's own user alone."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()

    def admits(self, peer: Peer) -> bool:
        """Whether this process may have the tenant's memory."""
        return peer.uid in self.users | {0, os.getuid()} or bool(peer.gids & self.groups)

    def hang(self, path: Path) -> None:
        """Set the mode of the tenant's socket: one group gets it by the file's mode already; for
        more the file is open and `admits` decides. BadInput where the group cannot be given."""
        if self.users or len(self.groups) > 1:
            path.chmod(0o666)
        elif self.groups:
            (group,) = self.groups
            try:
                os.chown(path, -1, group)
            except OSError as error:
                raise BadInput(
                    f"cannot be given to group {group} ({error.strerror})",
                    str(path),
                    "let the daemon's user be in that group, or name users instead",
                ) from None
            path.chmod(0o660)
        else:
            path.chmod(0o600)


def door_of(tenant: Tenant) -> Door:
    """By the names or numbers of its configuration. BadInput for a name that is not known here."""
    where = f"[[tenant]] {tenant.name!r}"
    return Door(
        frozenset(_number(one, "user", where) for one in tenant.users),
        frozenset(_number(one, "group", where) for one in tenant.groups),
    )


def shared(config: Config) -> bool:
    """Whether a user other than the daemon's may fetch memory of some tenant."""
    return any(one.users or one.groups for one in config.tenants)


def peer_of(connection: socket.socket) -> Peer:
    """The peer as the kernel identifies it (SO_PEERCRED, SO_PEERGROUPS)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("iII", raw)
    try:
        more = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * GROUPS_MAX)
    except OSError:
        more = b""
    return Peer(pid, uid, frozenset({gid, *struct.unpack(f"{len(more) // 4}I", more)}))


def _number(name: str, noun: str, where: str) -> int:
    if name.isdigit() and len(name) < 11:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if noun == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadInput(
            f"there is no {noun} {name!r}", where, f"make it, or give its number in {noun}s"
        ) from None
