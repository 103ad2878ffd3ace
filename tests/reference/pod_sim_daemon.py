"""A daemon of the simulated pod: a plain model of a store with tenants, quotas and a disk.

A part of the store is staged in memory that hosts read directly, even while the process is stopped.
The store survives the process; sessions, connections and memory do not.
"""

import errno
from collections import Counter
from dataclasses import dataclass, field

from pod_world import MS, Machine, World

__all__ = ["QUOTA_BLOCKS", "TENANTS", "Connection", "Daemon", "Key", "Process"]

TENANTS = ("red", "blue")
QUOTA_BLOCKS = 90
STAGED = 0.5
"""The share of puts that stay in memory."""
Key = tuple[str, bytes, int]
"""Tenant, name of a chunk at its shard, layer."""


@dataclass(eq=False)
class Connection:
    """A host's connection to one incarnation of a daemon."""

    tenant: str
    sessions: dict[int, list[bytes]] = field(default_factory=dict)


class Process:
    """One incarnation of a daemon."""

    def __init__(self, daemon: "Daemon") -> None:
        """Open the daemon's store."""
        self.daemon, self.memory = daemon, set[Key]()
        self._sessions = 0

    def open(self, host: Connection) -> int:
        """Open a session; returns its number."""
        self._sessions += 1
        host.sessions[self._sessions] = []
        return self._sessions

    def append(self, host: Connection, session: int, names: list[bytes]) -> list[int]:
        """Add chunks; returns how many layers of each are stored."""
        host.sessions[session] += names
        return [
            sum(
                (host.tenant, name, layer) in self.daemon.stored
                for layer in range(self.daemon.layers)
            )
            for name in names
        ]

    def put(self, key: Key) -> int:
        """Store a block; returns 0 or -errno."""
        daemon = self.daemon
        if key not in daemon.stored:
            if daemon.full:
                return -errno.ENOSPC
            if daemon.charged[key[0]] >= QUOTA_BLOCKS:
                return -errno.EDQUOT
            daemon.stored.add(key)
            daemon.charged[key[0]] += 1
        if daemon.world.rng.random() < STAGED:
            self.memory.add(key)
        return 0

    def read(self, key: Key) -> int:
        """Stage a stored block; returns 0 or -errno."""
        if key not in self.daemon.stored:
            return -errno.ENOENT
        self.memory.add(key)
        return 0


class Daemon:
    """A name in the pod: its machine, its drive, and its current process."""

    def __init__(self, world: World, name: str, rate: float, layers: int) -> None:
        """Start it on an empty drive."""
        self.world, self.name, self.rate, self.layers = world, name, rate, layers
        self.stored: set[Key] = set()
        self.charged: Counter[str] = Counter()
        self.full, self.slow = False, 1
        self.start()

    def start(self) -> None:
        """Start a new process on the drive."""
        self.machine = Machine(self.name, self.rate)
        self.process = Process(self)

    def kill(self) -> None:
        """Like kill -9."""
        self.machine.dead, self.machine.stopped = True, False
        self.machine.late.clear()

    def delay(self) -> int:
        """Draw the delay of one message."""
        return self.world.rng.randrange(MS // 10, MS) * self.slow
