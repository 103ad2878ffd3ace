"""Leases, epochs and deletions of a whole pod in virtual time from one seed: does the fence hold?

Each daemon runs the product's lease keeper and pod member (`dpu.pod.keeper`,
`dpu.control.pod_member`) on a clock that drifts, over an etcd with leases; hosts log in, put, read,
carry blocks from one daemon to another, and read memory directly. Machines crash and stop at any
point; daemons are cut off from etcd and from each other; etcd loses its quorum.

Checked: no incarnation serves a host after the map has removed it; no block made before an
acknowledged deletion comes back; and when the faults end, every daemon serves again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pod_sim_etcd import LEASE_NS, SECRET, LeaseClient, LeaseEtcd
from pod_sim_host import Broken
from pod_world import MS, Machine, Process, S, World

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.dpu import protocol as p
from offstage.dpu.control.pod_member import PodMember
from offstage.dpu.log import Log
from offstage.dpu.pod.fence import deletion_holds, reads_memory
from offstage.dpu.pod.history import keeps
from offstage.dpu.pod.keeper import BEATS_PER_LEASE
from offstage.dpu.pod.map import Member, MemberIncarnation, PodMap, deleted
from offstage.dpu.protocol.login import prove_member
from offstage.dpu.tenants.hosts import Refused

__all__ = ["TENANTS", "Pod", "SimDaemon"]

CALL_NS = S // 4
ANSWER_NS = 300 * MS
TENANTS = ("red", "blue")
BLOCKS = 6


class SimDaemon:
    """A daemon's name, drive and current process. `blocks`: by tenant and name, when each block was
    made; they are on the drive and in memory that hosts read."""

    def __init__(self, pod: "Pod", number: int, rate: float) -> None:
        self.pod, self.name, self.rate = pod, f"dpu{number}", rate
        self.index, self.slow = number, 1
        self.blocks: dict[str, dict[int, int]] = {one: {} for one in TENANTS}
        self.folder = pod.folder / self.name
        self.folder.mkdir()
        self.start()

    def start(self) -> None:
        """Start a process over the contents of the drive."""
        self.machine = Machine(self.name, self.rate)
        self.until_ns = 0
        self.logged_in: list[Any] = []
        self.tenants = {
            name: SimpleNamespace(name=name, index=at) for at, name in enumerate(TENANTS)
        }
        config: Any = SimpleNamespace(
            file="",
            daemon=SimpleNamespace(curve_dir=""),
            pod=SimpleNamespace(
                map="",
                lease_ns=LEASE_NS,
                name=self.name,
                endpoint=f"ipc://{self.name}",
                weight=1,
                zone="",
            ),
            storage=SimpleNamespace(backend="posix", path=str(self.folder / "store")),
        )
        hosts: Any = SimpleNamespace(tenants=self.tenants, all=lambda: list(self.logged_in))
        device: Any = SimpleNamespace(serve_until=self._serve_until, tenant_purge=self._purge)
        peers: Any = SimpleNamespace(ask=self._ask, close=lambda: None)
        membership: Any = LeaseClient(self.pod.etcd, self.machine)
        self.member = PodMember(
            config,
            self.name,
            self.folder,
            device,
            hosts,
            self._leave,
            lambda: None,
            Log("error"),
            membership,
            peers,
            self.clock,
        )
        keeper: Any = self.member.keeper
        keeper.look = lambda epoch: keeper.newest.epoch >= epoch  # its thread is a process here
        self.pod.world.spawn(self.machine, self._beats)
        self.pod.world.spawn(self.machine, self._turns)

    def clock(self) -> int:
        """The clock of its leases, in ns."""
        return int(self.pod.world.now * self.rate)

    def kill(self) -> None:
        """Like kill -9."""
        self.machine.dead, self.machine.stopped = True, False
        self.machine.late.clear()

    def answers(self, connection: Any) -> bool:
        """Whether the reactor serves the connection now."""
        return connection in self.logged_in and self.clock() <= self.until_ns

    def _beats(self) -> None:
        """Like the keeper's thread."""
        keeper = self.member.keeper
        while True:
            try:
                keeper.beat()
            except OffstageError as error:
                keeper._note_silence(str(error))
            self.pod.world.sleep(int(LEASE_NS / BEATS_PER_LEASE / self.rate))

    def _turns(self) -> None:
        """Like the daemon's loop."""
        while True:
            busy = self.member.turn()
            self.pod.world.sleep(self.pod.rng.randrange(1, 5 if busy else 60) * MS * self.slow)

    def _serve_until(self, at_ns: int) -> None:
        self.until_ns = at_ns

    def _leave(self, connection: Any, reason: str) -> None:
        self.logged_in.remove(connection)

    def _purge(self, index: int, _: int) -> dict[str, int]:
        """Purge a few blocks at a time."""
        blocks = self.blocks[TENANTS[index]]
        for name in sorted(blocks)[:2]:
            del blocks[name]
        return {"chunks": 0, "more": len(blocks), "marking": 0, "writing": 0, "named": 0}

    def _ask(self, own: MemberIncarnation, others: Sequence[Member]) -> list[MemberIncarnation]:
        """Like `peers.Peers`: ask all concurrently; returns those that promised in time."""
        promised: list[MemberIncarnation] = []
        for one in others:
            other = self.pod.daemons[one.name]
            proof = prove_member(SECRET, bytes(16), "hold", *own, one.name, one.incarnation)
            asked = p.Hold(
                name=own[0],
                incarnation=own[1],
                to=one.name,
                to_incarnation=one.incarnation,
                nonce=bytes(16),
                proof=proof,
            )

            def hold(other: SimDaemon = other, asked: p.Hold = asked) -> None:
                other.member.hold(asked)
                self.pod.message(
                    other.name,
                    self.machine,
                    partial(promised.append, (asked.to, asked.to_incarnation)),
                )

            self.pod.message(self.name, other.machine, hold)
        self.pod.world.sleep(ANSWER_NS)
        return list(promised)


class SimHost:
    """A host of one tenant. It holds blocks that it has read or made, and discards them when it
    learns of a deletion."""

    def __init__(self, pod: "Pod", number: int) -> None:
        self.pod, self.name = pod, f"host{number}"
        self.tenant = TENANTS[number % len(TENANTS)]
        self.machine = Machine(self.name, pod.rate())
        self.client = LeaseClient(pod.etcd, self.machine)
        self.map = PodMap()
        self.connections: dict[str, Any] = {}
        self.held: dict[int, int] = {}
        pod.world.spawn(self.machine, self._run)

    def _clock(self) -> int:
        return int(self.pod.world.now * self.machine.rate)

    def _run(self) -> None:
        rng = self.pod.rng
        while not self.pod.over:
            self.pod.world.sleep(rng.randrange(5, 200) * MS)
            if rng.random() < 0.3:
                self._look()
            members = self.map.readable
            if not members:
                continue
            member = rng.choice(members)
            try:
                connection = self._connected(member)
                rng.choice((self._make, self._read, self._read, self._carry, self._copy))(
                    connection, rng.randrange(BLOCKS)
                )
            except OffstageError:
                self.connections.pop(member.name, None)

    def _look(self) -> None:
        """Read the map; if it deleted the tenant's blocks, discard everything held."""
        try:
            newest = self.client.map()
        except OffstageError:
            return
        if newest.deleted.get(self.tenant, 0) > self.map.deleted.get(self.tenant, 0):
            self.connections.clear()
            self.held.clear()
        self.map = newest

    def _connected(self, member: Member) -> Any:
        """A connection to the incarnation that the host's map names."""
        known = self.connections.get(member.name)
        if known is not None and known.incarnation == member.incarnation:
            return known
        daemon, epoch = self.pod.daemons[member.name], self.map.epoch
        connection = SimpleNamespace(
            tenant=None,
            daemon=daemon,
            machine=daemon.machine,
            incarnation=member.incarnation,
            asked=0,
        )

        def login() -> None:
            connection.tenant = daemon.tenants[self.tenant]
            daemon.member.admit(connection.tenant, member.incarnation, epoch)
            daemon.logged_in.append(connection)

        self._call(connection, login)
        self.connections[member.name] = connection
        return connection

    def _make(self, connection: Any, block: int) -> None:
        """Compute a block again, and put it."""
        self.held[block] = self.pod.world.now
        self._put(connection, block)

    def _carry(self, connection: Any, block: int) -> None:
        """Put a block that was read from another daemon."""
        if block in self.held:
            self._put(connection, block)

    def _put(self, connection: Any, block: int) -> None:
        made = self.held[block]

        def put() -> None:
            self._reached(connection)
            connection.daemon.blocks[self.tenant][block] = made
            self.pod.counts["puts"] += 1

        self._call(connection, put)

    def _read(self, connection: Any, block: int) -> None:
        def read() -> int | None:
            self._reached(connection)
            found: int | None = connection.daemon.blocks[self.tenant].get(block)
            return found

        made = self._call(connection, read)
        if made is not None:
            self._use(made, block)

    def _copy(self, connection: Any, block: int) -> None:
        """Read a block from the daemon's memory, even while its process is stopped."""
        made = connection.daemon.blocks[self.tenant].get(block)
        there = connection.machine is connection.daemon.machine and not connection.machine.dead
        if made is None or not there:
            return
        self.pod.world.sleep(self.pod.rng.randrange(1, 20) * MS)
        if not reads_memory(connection.asked, self._clock(), LEASE_NS):
            raise RunFailed("it has not answered for long")
        self.pod.check_incarnation(
            connection.daemon.name, connection.incarnation, "a read of memory"
        )
        self.pod.counts["memory"] += 1
        self._use(made, block)

    def _use(self, made: int, block: int) -> None:
        self.pod.check_deleted(self.tenant, made)
        self.pod.counts["hits"] += 1
        self.held[block] = made

    def _reached(self, connection: Any) -> None:
        """Check, as a message arrives, that the daemon may serve it."""
        if not connection.daemon.answers(connection):
            raise RunFailed("the connection was ended")
        self.pod.check_incarnation(connection.daemon.name, connection.incarnation, "an answer")

    def _call(self, connection: Any, work: Callable[[], Any]) -> Any:
        """Make a request; returns its answer. RunFailed: no answer in time, or a refusal."""
        world, answers, begun = self.pod.world, list[Any](), self._clock()
        process: Process | None = world.current()

        def arrive() -> None:
            try:
                said: Any = (work(), None)
            except (OffstageError, Refused) as error:
                said = (None, error)
            self.pod.message(connection.daemon.name, self.machine, partial(answer, said))

        def answer(said: Any) -> None:
            if process is not None:
                answers.append(said)
                world.wake(process)

        self.pod.message(self.name, connection.machine, arrive)
        world.sleep(CALL_NS)
        process = None
        if not answers:
            raise RunFailed("no answer in time")
        found, error = answers[0]
        if error is not None:
            raise RunFailed(str(error))
        connection.asked = begun
        return found


class Pod:
    """The world of one seed."""

    def __init__(self, seed: int, folder: Path, drift: float, daemons: int = 3) -> None:
        self.world = World(seed)
        self.rng, self.folder, self._drift = self.world.rng, folder, drift
        self.etcd = LeaseEtcd(self.world)
        self.counts: Counter[str] = Counter()
        self.cut: set[frozenset[str]] = set()
        self.loss, self.over = 0.0, False
        self.acknowledged: dict[str, int] = {}
        """By tenant: everything made before this was acknowledged as deleted."""
        self.put_back = self.unsure = False
        """etcd was restored, which no operator has accepted yet; no lease has passed since a member
        reported doubt."""
        self.daemons: dict[str, SimDaemon] = {}
        for number in range(daemons):
            one = SimDaemon(self, number, self.rate())
            self.daemons[one.name] = one
        self.hosts = [SimHost(self, number) for number in range(3)]

    def rate(self) -> float:
        """Draw the rate of a clock."""
        return self.rng.uniform(1 - self._drift, 1 + self._drift)

    def message(self, sender: str, to: Machine, call: Callable[[], None]) -> None:
        """Send a message, which arrives late or is lost. A refusal is only counted."""

        def arrive() -> None:
            try:
                call()
            except Refused:
                self.counts["refused"] += 1

        if frozenset((sender, to.name)) not in self.cut and self.rng.random() >= self.loss:
            slow = self.daemons[to.name].slow if to.name in self.daemons else 1
            self.world.deliver(to, self.rng.randrange(MS // 10, 5 * MS) * slow, arrive)

    def check_incarnation(self, name: str, incarnation: int, what: str) -> None:
        """Broken: etcd's map no longer has this incarnation."""
        found = self.etcd.pod.find(name)
        if self.put_back:
            return
        if (
            found is None
            or (found.state, found.incarnation) == ("gone", incarnation)
            or found.incarnation > incarnation
        ):
            raise Broken(f"{what} of {name} in incarnation {incarnation}, and the map has {found}")

    def check_deleted(self, tenant: str, made: int) -> None:
        """Broken: the block was deleted, and the deletion acknowledged."""
        if made < self.acknowledged.get(tenant, 0) and not self.unsure:
            raise Broken(f"a block of {tenant} of {made / S:.3f} s is back")

    def purge(self, tenant: str) -> None:
        """Like `offstage pod purge`, until it is acknowledged."""
        client = LeaseClient(self.etcd, Machine("operator"))
        epoch, since, ident = 0, 0, ""
        while not self.over:
            try:
                if not epoch:
                    made = client.change(lambda pod: deleted(pod, tenant))
                    epoch, ident = made.deleted[tenant], made.purges[tenant][0]
                    since = self.etcd.changed_at[epoch]
                said = {one.name: one.carried_out for one in client.alive()}
                members = [one.name for one in client.map().readable]
                kept = client.fresh and keeps(client.map(), tenant, ident)
                if kept and client.fresh and deletion_holds(epoch, members, said):
                    self.acknowledged[tenant] = max(since, self.acknowledged.get(tenant, 0))
                    self.counts["deletions"] += 1
                    return
            except OffstageError:
                pass
            self.world.sleep(100 * MS)
