"""The map in a TOML file, for the laboratory and for one machine: no leases, all members count as
alive, and a change renames a new file over the old one, under a lock on the folder.
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from offstage.bindings.durable import refused, write_whole
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import read_toml
from offstage.dpu.pod.map import Living, PodMap, from_tables, noted

__all__ = ["StaticMembership", "write_map"]


class StaticLease:
    """The lease of an unwatched map: it never ends."""

    ttl_ns = 0
    lost = False

    def keep(self) -> bool:
        """It always holds."""
        return True

    def say(self, member: Living) -> None:
        """No effect."""

    def end(self) -> None:
        """No effect."""


class StaticMembership:
    """`Membership` of a file."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self._path, self._last = path, PodMap()
        self.fresh = False

    def map(self) -> PodMap:
        """See `Membership`. A file that is wrong is BadInput only where no map was seen yet."""
        try:
            pod = self._read()
        except BadInput:
            self.fresh = False
            if not self._last.epoch:
                raise
            return self._last
        self._last, self.fresh = pod, True
        return pod

    def change(self, transition: Callable[[PodMap], PodMap]) -> PodMap:
        """See `Membership`; who is faster is waited for, by a lock on the folder."""
        try:
            with _alone(self._path.absolute().parent):
                before = self._read() if self._path.exists() else PodMap()
                after = noted(before, transition(before), int(time.time()))
                pod = msgspec.structs.replace(
                    after,
                    epoch=before.epoch + 1 + after.epoch_base - before.epoch_base,
                    identity=before.identity or secrets.token_hex(16),
                )
                write_map(self._path, pod)
        except OSError as error:
            raise refused(self._path, error) from None
        self._last, self.fresh = pod, True
        return pod

    def announce(self, member: Living, before: str = "") -> StaticLease:
        """See `Membership`: the member is added by hand."""
        return StaticLease()

    def alive(self) -> list[Living]:
        """See `Membership`: all that are not gone."""
        return [Living(**msgspec.structs.asdict(one)) for one in self.map().readable]

    def secret(self) -> bytes:
        """See `Membership`: the file's identity, which is not secret. A file without one is
        changed."""
        pod = self._read()
        return (pod.identity or self.change(lambda pod: pod).identity).encode()

    def close(self) -> None:
        """Nothing is held."""

    def _read(self) -> PodMap:
        tables = read_toml(self._path, "give the file of a pod's map")
        pod = from_tables(tables, str(self._path))
        return pod if pod.epoch else msgspec.structs.replace(pod, epoch=1)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One change at a time in a folder: the lock is the folder's own, and leaves nothing."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def write_map(path: Path, pod: PodMap) -> None:
    """The map as a file, whole or not at all, and on the drive when this returns: a deletion in it
    is acknowledged. Raises OSError."""
    numbers = (
        "epoch",
        "epoch_base",
        "lease_ns",
        "shard_tokens",
        "first_shard_tokens",
        "fill_s",
    )
    lines = [f"{key} = {getattr(pod, key)}" for key in numbers]
    lines += [f"identity = {json.dumps(pod.identity)}"] if pod.identity else []
    lines += [
        f"{key} = {json.dumps(ids)}"
        for key, ids in (("history", pod.history), ("accepted", pod.accepted))
        if ids
    ]
    lines += ["", "[copies]"]
    lines += [f"{key} = {count}" for key, count in msgspec.to_builtins(pod.copies).items()]
    lines.append("")
    for member in pod.member:
        lines.append("[[member]]")
        fields = msgspec.to_builtins(member).items()
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields]
        lines.append("")
    for former in pod.former:
        weights = ", ".join(f"{json.dumps(key)} = {one}" for key, one in former.weights.items())
        lines += ["[[former]]", f"until_s = {former.until_s}", f"weights = {{ {weights} }}", ""]
    for name in ("deleted", "purges", "doubt"):
        by_name: dict[str, object] = getattr(pod, name)
        lines += [f"[{name}]"] if by_name else []
        lines += [f"{json.dumps(key)} = {json.dumps(one)}" for key, one in by_name.items()]
    write_whole(path, "\n".join(lines).encode(), 0o666)
