"""Virtual time for a whole pod: processes that take turns, messages between them, and an etcd.

Each process is a thread, and exactly one runs at a time: it runs until it sleeps or waits, then
the next event is due. So the product's blocking code runs unchanged, and a seed determines the
order of all events. A stopped process halts in the middle of its work until it is resumed; a killed
one never resumes.
"""

import heapq
import random
import secrets
import threading
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from offstage.bindings.errors import RunFailed
from offstage.dpu.pod.map import HISTORY_MAX, PodMap

MS, S = 10**6, 10**9
CALL_NS = S // 4
"""How long a call waits for etcd."""


class Killed(BaseException):
    """Ends a process; the product never catches it."""


class Machine:
    """The processes of one daemon or host, which can be stopped, killed and cut off."""

    def __init__(self, name: str, rate: float = 1.0) -> None:
        """`rate`: how fast its clock runs."""
        self.name, self.rate = name, rate
        self.stopped = self.dead = False
        self.late: list[Callable[[], None]] = []


class Process:
    """One thread of a machine."""

    def __init__(self, world: "World", of: Machine, body: Callable[[], None]) -> None:
        """Start it; it runs when its turn comes."""
        self.of, self.turn, self.token, self.over = of, threading.Lock(), 0, False
        self.failed: BaseException | None = None
        self._world, self._body = world, body
        self.turn.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        world.wake(self)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.of.dead:
                self._body()
        except Killed:
            pass
        except BaseException as error:
            self.failed = error
        self.over = True
        self._world.back.release()


class World:
    """Virtual time, turns, and all randomness."""

    def __init__(self, seed: int) -> None:
        """Start without processes."""
        self.rng = random.Random(seed)
        self.now, self._count = 0, 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self.back = threading.Lock()
        self.back.acquire()
        self._running: Process | None = None
        self._processes: list[Process] = []

    def spawn(self, of: Machine, body: Callable[[], None]) -> Process:
        """Start a process of a machine."""
        one = Process(self, of, body)
        self._processes.append(one)
        return one

    def at(self, time: int, call: Callable[[], None]) -> None:
        """Schedule a call for that time."""
        self._count += 1
        heapq.heappush(self._due, (max(time, self.now), self._count, call))

    def deliver(self, to: Machine, delay: int, call: Callable[[], None]) -> None:
        """Deliver a message: lost if the machine is dead, held back if it is stopped."""
        self.at(self.now + delay, lambda: self._arrive(to, call))

    def _arrive(self, to: Machine, call: Callable[[], None]) -> None:
        if to.stopped:
            to.late.append(call)
        elif not to.dead:
            call()

    def sleep(self, duration: int) -> None:
        """Let the running process sleep; `wake` ends that early."""
        one = self._running
        assert one is not None
        one.token += 1
        token = one.token
        self.at(self.now + max(1, duration), lambda: self._resume(one, token))
        self.back.release()
        one.turn.acquire()
        self._running = one
        if one.of.dead:
            raise Killed

    def current(self) -> Process:
        """The running process."""
        assert self._running is not None
        return self._running

    def wake(self, one: Process) -> None:
        """Let a process resume now, when its turn comes."""
        token = one.token
        self.at(self.now, lambda: self._resume(one, token))

    def _resume(self, one: Process, token: int) -> None:
        if one.over or token != one.token:
            return
        if one.of.stopped:
            one.of.late.append(lambda: self._resume(one, token))
            return
        self._running = one
        one.turn.release()
        self.back.acquire()
        self._running = None
        if one.failed is not None:
            raise one.failed

    def go_on(self, of: Machine) -> None:
        """A stopped machine resumes and handles the messages that arrived meanwhile."""
        of.stopped = False
        late, of.late = of.late, []
        for call in late:
            self.at(self.now, lambda call=call: self._arrive(of, call))  # type: ignore[misc]

    def run(self, until: int, done: Callable[[], bool]) -> bool:
        """Run until that time or until `done`; returns whether it was done."""
        while self._due and self._due[0][0] <= until:
            time, _, call = heapq.heappop(self._due)
            self.now = time
            call()
            if done():
                return True
        return False

    def close(self) -> None:
        """End all processes."""
        for one in self._processes:
            one.of.dead, one.of.stopped = True, False
            while not one.over:
                one.turn.release()
                self.back.acquire()


class Etcd:
    """One map, which only a quorum serves. `cut`: the names that cannot reach it."""

    def __init__(self, world: World, pod: PodMap) -> None:
        """`pod`: the map of the first epoch."""
        self.world, self.pod = world, pod
        self.quorum = True
        self.cut: set[str] = set()
        self.loss = 0.0


class Client:
    """The `Membership` of one machine."""

    fresh = False

    def __init__(self, etcd: Etcd, of: Machine) -> None:
        """Sends nothing yet."""
        self._etcd, self._of = etcd, of
        self._last = PodMap()

    def call(self, work: Callable[[], Any]) -> Any:
        """A request and its answer. RunFailed: either was lost; the work may have been done."""
        world, etcd = self._etcd.world, self._etcd
        begun = world.now
        world.sleep(world.rng.randrange(1, 3) * MS)
        if etcd.quorum and self._of.name not in etcd.cut and world.rng.random() >= etcd.loss:
            result = work()
            world.sleep(world.rng.randrange(1, 3) * MS)
            if self._of.name not in etcd.cut and world.rng.random() >= etcd.loss:
                return result
        world.sleep(begun + CALL_NS - world.now)
        raise RunFailed("etcd does not answer")

    def map(self) -> PodMap:
        """Return etcd's map; without an answer, the last one read."""
        try:
            self._last = self.call(lambda: self._etcd.pod)
        except RunFailed:
            self.fresh = False
            if not self._last.epoch:
                raise
            return self._last
        self.fresh = True
        return self._last

    def change(self, transition: Callable[[PodMap], PodMap]) -> PodMap:
        """Apply a transition to the newest map, until etcd takes it."""
        while True:
            before = self.call(lambda: self._etcd.pod)
            after = transition(before)
            after = replace(after, history=(secrets.token_hex(8), *before.history)[:HISTORY_MAX])
            if self.call(lambda before=before, after=after: self._swap(before, after)):
                return self.map()

    def _swap(self, before: PodMap, after: PodMap) -> bool:
        if self._etcd.pod.epoch != before.epoch:
            return False
        base = after.epoch_base - before.epoch_base
        self._etcd.pod = replace(after, epoch=before.epoch + 1 + base)
        return True

    def close(self) -> None:
        """Nothing to release."""
