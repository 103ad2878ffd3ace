"""A whole pod in virtual time from one seed: daemons, an etcd, hosts, and faults.

Checked under every fault: no wrong byte; no tenant is over its quota or charged for absent blocks;
every request ends; every miss of an acknowledged block has a reason. When the faults end, every
block is hit again unless a store is full. The fence of leases is explored separately, in
`pod_model`.
"""

import errno
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from pod_sim_daemon import QUOTA_BLOCKS, TENANTS, Daemon, Key
from pod_sim_host import BLOCK, Broken, HostClock, Wire, content
from pod_world import MS, Client, Etcd, Machine, S, World

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.dpu.pod.map import Member, PodMap, moved
from offstage.dpu.pod.shards import ShardGrid
from offstage.host.link.tier_sessions import append_chunks
from offstage.host.pod import fabric as pod_fabric
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.follow import Follower
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions

__all__ = ["FAULTS", "Broken", "Pod", "run_seed"]

LAYERS, SHARD = 2, 4
DEADLINE_NS = 300 * MS
LOOK_NS = S // 2
DOCUMENTS, LONGEST = 6, 14
REQUESTS = 14
REQUEST_NS = 20 * S
"""More than a request may take: a few deadlines for each member."""
FAULTS = ("crash", "stop", "cut host", "slow", "full", "no quorum", "loss", "drain")
LASTS_S = 8


class Pod:
    """The world of one seed."""

    def __init__(self, seed: int, daemons: int = 3, hosts: int = 2) -> None:
        """Start everything, without faults."""
        self.world = world = World(seed)
        self.rng = world.rng
        members = tuple(Member(name=f"dpu{n}", endpoint=f"ipc://{n}") for n in range(daemons))
        self.etcd = Etcd(world, PodMap(epoch=1, member=members))
        self.cut: set[frozenset[str]] = set()
        self.loss = 0.0
        self.daemons = {one.name: Daemon(world, one.name, self._rate(), LAYERS) for one in members}
        self.at: dict[Key, str] = {}
        """Blocks that were acknowledged, with the daemon that did so last."""
        self.refused: set[Key] = set()
        """Blocks whose last put was refused: a full disk, a quota."""
        self.counts: Counter[str] = Counter()
        self.calm = False
        self.hosts = [SimHost(self, f"host{n}", TENANTS[n % 2]) for n in range(hosts)]

    def _rate(self) -> float:
        return self.rng.uniform(0.97, 1.03)

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        """Start a process that has no faults."""
        self.world.spawn(Machine(name), body)

    def check_quotas(self) -> None:
        """Check that tenants are charged for exactly what is stored, within their quotas, and that
        memory has only stored blocks."""
        for daemon in self.daemons.values():
            there = Counter(key[0] for key in daemon.stored)
            if there != daemon.charged or max(there.values(), default=0) > QUOTA_BLOCKS:
                raise Broken(f"{daemon.name} has {there} and charges {daemon.charged}")
            if daemon.process.memory - daemon.stored:
                raise Broken(f"{daemon.name} has in memory what it has not stored")


class SimHost:
    """A host of one tenant that requests documents repeatedly."""

    def __init__(self, pod: Pod, name: str, tenant: str) -> None:
        """It logs in as soon as it can."""
        self.pod, self.name, self.tenant = pod, name, tenant
        self.world, self.machine = pod.world, Machine(name, pod._rate())
        self.clock = HostClock(self.world, self.machine)
        self.done = False
        self.rows = np.zeros((64, BLOCK), np.uint8)
        self.members: list[Joined] = []
        self.client = Client(pod.etcd, self.machine)
        self.world.spawn(self.machine, self._run)

    def _login(self, member: Member, epoch: int = 0) -> Joined:
        wire: Any = Wire(
            self.world,
            self.machine,
            self.pod.daemons[member.name],
            self.pod.cut,
            lambda: self.pod.loss,
            self.tenant,
        )
        return Joined(member, wire, wire, clock=self.clock)

    def _look(self) -> None:
        """Like the follower's thread."""
        while not self.done:
            self.follower.look()
            self.world.sleep(LOOK_NS)

    def _run(self) -> None:
        while not self.members:
            self.world.sleep(LOOK_NS)
            try:
                self.members = [self._login(one) for one in self.client.map().readable]
            except OffstageError:
                continue
        self.sessions = PodSessions(self.members, ShardGrid(SHARD), clock=self.clock)
        self.fabric = PodFabric(self.sessions, DEADLINE_NS)
        self.fabric.register(self.rows)
        self.sessions.wall_s = lambda: self.world.now / S
        self.follower = Follower(
            self.client,  # type: ignore[arg-type]
            self._login,
            self.fabric,
            self.sessions,
            look_s=0,
        )
        self.world.spawn(self.machine, self._look)
        for _ in range(REQUESTS):
            self.world.sleep(self.pod.rng.randrange(10, 700) * MS)
            self._request(self.pod.rng.randrange(DOCUMENTS))
        while not self.pod.calm:
            self.world.sleep(S)
            self.follower.take()
            for one in self.sessions.members:  # this probes a suspect one
                one.usable(self.clock.now_ns())
        for number in range(3 * DOCUMENTS):
            missed = self._request(number % DOCUMENTS)
            self.world.sleep(LOOK_NS)
            full = any(key[0] == self.tenant for key in self.pod.refused)
            if number >= 2 * DOCUMENTS and missed and not full:
                raise Broken(f"{self.name} misses {missed} blocks where nothing fails")
        self.done = True

    # ---- one request ----

    def _request(self, document: int) -> int:
        """Look up, fetch, check, compute and put the rest; returns how many known blocks did not
        arrive."""
        self.follower.take()
        begun = self.world.now
        known = {key for key in self.pod.at if key[0] == self.tenant}
        chunks = [1 + (document * 7919 + at) * 104729 for at in range(LONGEST - document)]
        missed = 0
        try:
            session = self.sessions.session_open(select_blocks=8)
            try:
                missed = self._served(session, chunks, known)
            finally:
                self.sessions.session_close(session)
        except RunFailed:
            self.pod.counts["nobody answered"] += 1
            missed = 1
        self.pod.counts["requests"] += 1
        if self.world.now - begun > REQUEST_NS:
            raise Broken(f"{self.name}: a request took {(self.world.now - begun) / S:.1f} s")
        return missed

    def _key(self, session: int, ordinal: int, layer: int) -> Key:
        shard = self.sessions.shards(session)[ordinal // SHARD]
        own = ordinal - shard.first
        return self.tenant, shard.name if own == 0 else shard.contents[own], layer

    def _served(self, session: int, chunks: list[int], known: set[Key]) -> int:
        before = {name: set(one.stored) for name, one in self.pod.daemons.items()}
        found = append_chunks(self.sessions, session, chunks, LAYERS)
        told = [self._where(session, ordinal) for ordinal in range(len(chunks))]
        missed = 0
        for layer in range(LAYERS):
            ordinals = np.flatnonzero(found.stored_layers == LAYERS).astype(np.uint32)
            self.rows[:] = 0
            got = self.fabric.fetch(
                FetchRequest(session, 1, layer, ordinals, found.keys[layer, ordinals], self.rows)
            )
            for row, ordinal in enumerate(ordinals.tolist()):
                if got.rcs[row] == 0:
                    self._used(row, self._key(session, ordinal, layer))
            came = set(ordinals[got.rcs == 0].tolist())
            left = [one for one in range(len(chunks)) if one not in came]
            errors = dict(zip(ordinals.tolist(), got.rcs.tolist(), strict=True))
            for ordinal in left:
                key = self._key(session, ordinal, layer)
                if key in known and key in self.pod.at:
                    both = {self._key(session, ordinal, one) for one in range(LAYERS)}
                    missed += not both & self.pod.refused
                    whole = both <= before.get(told[ordinal], set())
                    self._reason(key, errors.get(ordinal, 0), told[ordinal], whole)
            if left:
                self._put(session, layer, left)
        return missed

    def _used(self, row: int, key: Key) -> None:
        """Check a row when the host uses it."""
        self.pod.counts["hits"] += 1
        if not (self.rows[row] == content(key)).all():
            raise Broken(f"wrong bytes for {key}")

    def _where(self, session: int, ordinal: int) -> str:
        at = self.sessions.shards(session)[ordinal // SHARD].at
        return "nobody" if at is None else at.member.name

    def _reason(self, key: Key, rc: int, where: str, whole: bool) -> None:
        """Count why an acknowledged block did not arrive. Broken: its home had all layers before
        the request (`whole`) and answered, or it has lost the block."""
        if rc:
            self.pod.counts[errno.errorcode[-rc]] += 1
        elif whole:
            raise Broken(f"{where} has {key} and did not say so")
        elif where != self.pod.at[key]:
            self.pod.counts["elsewhere"] += 1
        elif key in self.pod.daemons[where].stored:
            self.pod.counts["another layer is missing"] += 1
        else:
            raise Broken(f"{where} has lost {key}")

    def _put(self, session: int, layer: int, left: list[int]) -> None:
        keys = [self._key(session, one, layer) for one in left]
        blocks = np.stack([content(key) for key in keys])
        rcs = self.fabric.put(PutRequest(session, layer, np.array(left, np.uint32), blocks))
        for ordinal, key, rc in zip(left, keys, rcs.tolist(), strict=True):
            at = self.sessions.shards(session)[ordinal // SHARD].at
            if rc == 0 and at is not None:
                self.pod.at[key] = at.member.name
                self.pod.refused.discard(key)
            elif rc in (-errno.ENOSPC, -errno.EDQUOT):
                self.pod.refused.add(key)
                self.pod.counts[errno.errorcode[-rc]] += 1


def run_seed(seed: int, faults: int = 5) -> Counter[str]:
    """Run one world to its end; returns the counts. Broken: an invariant does not hold."""
    pod = Pod(seed)
    pod_fabric.LOOK_NS = 20 * MS
    try:
        pod.spawn("chaos", lambda: _chaos(pod, faults))
        ended = pod.world.run(600 * S, lambda: all(one.done for one in pod.hosts))
        if not ended:
            raise Broken("a request does not end")
        pod.check_quotas()
        return pod.counts
    except Broken as broken:
        raise Broken(f"seed {seed}, at {pod.world.now / S:.3f} s: {broken}") from broken
    finally:
        pod.world.close()


def _chaos(pod: Pod, count: int) -> None:
    """Inject faults, some at once; then leave time for them to heal and suspicions to end."""
    world, rng = pod.world, pod.rng
    for _ in range(count):
        world.sleep(rng.randrange(200, 3000) * MS)
        fault = rng.choice(FAULTS)
        pod.counts[fault] += 1
        lasts = rng.randrange(100, LASTS_S * 1000) * MS
        pod.spawn(fault, partial(_fault, pod, fault, lasts))
        pod.check_quotas()
    world.sleep(2 * LASTS_S * S)
    pod.calm = True


def _fault(pod: Pod, fault: str, lasts: int) -> None:
    world, rng = pod.world, pod.rng
    daemon = pod.daemons[rng.choice(sorted(pod.daemons))]
    pair = frozenset((rng.choice(pod.hosts).name, daemon.name))
    match fault:
        case "crash":
            if not daemon.machine.dead:
                daemon.kill()
                world.sleep(lasts)
                daemon.start()
        case "stop":
            machine = daemon.machine
            if not machine.stopped and not machine.dead:
                machine.stopped = True
                world.sleep(lasts)
                if machine is daemon.machine and not machine.dead:
                    world.go_on(machine)
        case "cut host":
            pod.cut.add(pair)
            world.sleep(lasts)
            pod.cut.discard(pair)
        case "slow":
            daemon.slow = rng.choice((20, 400))
            world.sleep(lasts)
            daemon.slow = 1
        case "full":
            daemon.full = True
            world.sleep(lasts)
            daemon.full = False
        case "no quorum":
            pod.etcd.quorum = False
            world.sleep(lasts)
            pod.etcd.quorum = True
        case "loss":
            pod.loss = pod.etcd.loss = 0.1
            world.sleep(lasts)
            pod.loss = pod.etcd.loss = 0.0
        case "drain":
            _patiently(pod, lambda found: moved(found, daemon.name, "draining"))
            world.sleep(lasts)
            _patiently(pod, lambda found: moved(found, daemon.name, "up"))


def _patiently(pod: Pod, transition: Callable[[PodMap], PodMap]) -> None:
    """Retry until etcd accepts it."""
    client = Client(pod.etcd, Machine("operator"))
    while True:
        try:
            client.change(transition)
            return
        except RunFailed:
            pod.world.sleep(S)
