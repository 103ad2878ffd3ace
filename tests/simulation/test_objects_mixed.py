"""Does a reader always get one whole put of an object, whatever other clients write, lease, lose or
leave unfinished? A list of choices determines the order of all events. OFFSTAGE_OBJECT_SEEDS: the
number of random lists; OFFSTAGE_OBJECT_ORDERS: the most deviations per list in the small cases."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from objects_sim import FROZEN_S, LAYERS, LEASED_S, PAYLOAD, U8, World, stepped

from offstage.host.connectors import moves
from offstage.host.connectors.moves import Kind, Move, State, shape_of
from offstage.host.connectors.object_head import head_of, sums_of

NAME = b"an object's name"
SEEDS = int(os.environ.get("OFFSTAGE_OBJECT_SEEDS", "400"))
SIZES = (10, PAYLOAD, 2 * PAYLOAD, (LAYERS + 1) * PAYLOAD - 3, 4 * PAYLOAD)
STEPS_MAX = 4000
ORDERS = int(os.environ.get("OFFSTAGE_OBJECT_ORDERS", "2"))
FAULTS = ("kill", "lose", "damage", "fill", "refuse", "restart")
CASES = ("nothing there", "there", "lost", "damaged", "two writers")
SOON = (("nothing there", False), ("there", True))  # the other cases take longer


@dataclass
class Asked:
    """One operation of a client, and how it ended."""

    client: int
    kind: Kind
    data: U8
    hold_s: float = 0.0
    within_s: float = 0.0
    state: State | None = None
    left: U8 | None = None
    """The content of the buffer when the operation ended."""

    def submit(self, world: World) -> None:
        """Submit it to the client's mover."""

        def ended(move: Move, state: State, what: str) -> None:
            self.state, self.left = state, self.data.copy()

        if self.kind is Kind.PUT:
            inline = shape_of(len(self.data), PAYLOAD, LAYERS).inline
            head = head_of(len(self.data), sums_of(self.data[inline:], PAYLOAD))
            world.heads[self.client] = head + self.data[:inline].tobytes()
        buffer = self.data if self.kind in (Kind.PUT, Kind.GET) else None
        size = 0 if self.kind is Kind.DELETE else len(self.data)
        move = Move(
            self.kind, NAME, "", size, ended, buffer, hold_s=self.hold_s, within_s=self.within_s
        )
        world.movers[self.client].submit([move])


def bytes_of(seed: int, size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def go_on(world: World, asked: list[Asked], done: list[Asked], **left: int) -> None:
    """Run until every operation that can end has ended: each step chooses among the clients that
    can proceed and the faults, each kind of which may occur a limited number of times. By default
    the daemon finishes its calls first, and no fault occurs."""
    world.left = Counter(left)
    for one in asked:
        if one.kind is Kind.PUT:
            done.append(one)
        one.submit(world)
    for _ in range(STEPS_MAX):
        waiting = {one.client for one in asked if one.state is None and one.client in world.movers}
        if not waiting:
            return
        leaving = {
            client
            for client, one in world.movers.items()
            if one._closing or one._deleting or one._leases.expired()
        }
        actors = [("one_block", at) for at in range(len(world.blocks()))]
        actors += [("turn", client) for client in sorted(waiting | leaving)] + world.faults()
        what, number = actors[world.choose(len(actors))]
        world.left[what] -= 1
        getattr(world, what)(number)
    raise AssertionError("it does not end")


def check(asked: list[Asked], puts: list[Asked], found: Counter[str]) -> None:
    """Every read returns one whole put, and no buffer is written after its operation ended."""
    for one in asked:
        assert one.left is None or np.array_equal(one.left, one.data), "written after its end"
        found[f"{one.kind.name} {one.state.value if one.state else 'killed'}"] += 1
        if one.kind is Kind.GET and one.state is State.DONE:
            assert any(np.array_equal(one.data, put.data) for put in puts), "a mixture"


def settle(world: World, puts: list[Asked]) -> None:
    """Once all other clients have left and there is room, a put succeeds and is read back."""
    for client in list(world.movers):
        world.kill(client)
    world.full, world.lasting = False, True
    last = Asked(world.client(), Kind.PUT, bytes_of(99, 3 * PAYLOAD))
    go_on(world, [last], puts)
    read = Asked(last.client, Kind.GET, np.zeros(3 * PAYLOAD, np.uint8))
    go_on(world, [read], puts)
    assert last.state is read.state is State.DONE and np.array_equal(read.data, last.data)


def drawn(rng: random.Random, weight: float) -> Callable[[int], int]:
    """Seeded random choices, biased towards progress, so that runs get far."""

    def choose(count: int) -> int:
        return rng.randrange(count) if rng.random() < weight else rng.randrange(min(count, 3))

    return choose


def test_of_many_writers_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients write, read and lease one key and may die; the store loses and damages blocks,
    fills up and fails deletes; the daemon restarts. No read is a mixture, and the key works once
    they have left."""
    worlds: list[World] = []
    stepped(monkeypatch, worlds)
    found = Counter[str]()
    for seed in range(SEEDS):
        rng = random.Random(seed)
        world = World(drawn(rng, rng.choice((0.05, 0.2, 0.6))))
        worlds[:] = [world]
        sizes = rng.sample(SIZES, rng.choice((1, 1, 2)))
        puts: list[Asked] = []
        for _ in range(rng.randint(3, 5)):
            world.client()
        clients = list(world.movers)
        first = Asked(clients[0], Kind.PUT, bytes_of(1000 * seed, rng.choice(sizes)))
        go_on(world, [first] if rng.random() < 0.8 else [], puts)
        for batch in range(2):
            world.full, world.lasting = False, True
            asked = []
            for turn, client in enumerate(c for c in clients if c in world.movers):
                kind = rng.choice((Kind.PUT, Kind.PUT, Kind.GET, Kind.GET, Kind.LOOK, Kind.DELETE))
                size = rng.choice(sizes)
                data = (
                    bytes_of(1000 * seed + 10 * batch + turn + 1, size)
                    if kind is Kind.PUT
                    else np.zeros(size, np.uint8)
                )
                bounded = rng.random() < 0.3 and kind in (Kind.GET, Kind.LOOK)
                asked.append(
                    Asked(
                        client,
                        kind,
                        data,
                        1.0 if kind is Kind.LOOK else 0.0,
                        rng.choice((0.05, 0.2, FROZEN_S)) if bounded else 0.0,
                    )
                )
            go_on(
                world,
                asked,
                puts,
                kill=rng.choice((0, 0, 1, 2)),
                lose=rng.choice((0, 1, 2)),
                damage=rng.choice((0, 1)),
                fill=rng.choice((0, 0, 1)),
                refuse=rng.choice((0, 0, 1)),
                freeze=rng.choice((0, 0, 1)),
                restart=rng.choice((0, 0, 1)),
            )
            check(asked, puts, found)
            reads = [
                Asked(client, Kind.GET, np.zeros(size, np.uint8))
                for client in list(world.movers)[:1]
                for size in sizes
            ]
            go_on(world, reads, puts)
            check(reads, puts, found)
        settle(world, puts)
    assert min(found[f"GET {state}"] for state in ("done", "absent", "unreadable")) > SEEDS // 20
    assert found["PUT done"] > SEEDS // 2 and found["PUT refused"] and found["PUT killed"]
    assert found["GET late"] > SEEDS // 20 and found["LOOK late"] > SEEDS // 40


@pytest.mark.parametrize("kind", [Kind.DELETE, Kind.PUT])
def test_a_delete_that_may_not_last_is_no_success(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """If the drive fails deletes, deleting or replacing an object is refused."""
    world = World(lambda _: 0)
    stepped(monkeypatch, [world])
    asked = [
        Asked(world.client(), one, bytes_of(at, 2 * PAYLOAD))
        for at, one in enumerate((Kind.PUT, kind))
    ]
    go_on(world, asked[:1], [])
    world.lasting = False
    go_on(world, asked[1:], [])
    assert [one.state for one in asked] == [State.DONE, State.REFUSED]


class Known(Exception):
    """This order reached a state from which earlier orders have continued."""


@dataclass
class Order:
    """One list of choices: the given ones, then 0. `counts`: the number of alternatives of each
    choice; `left`: how many more deviations are allowed; `seen`: states, and the deviations left
    when they were reached."""

    world: World
    prefix: list[int]
    left: int
    seen: dict[int, int]
    counts: list[int] = field(default_factory=list)

    def choose(self, count: int) -> int:
        at = len(self.counts)
        if at >= len(self.prefix):
            state = hash(self.world.state())
            if self.seen.get(state, -1) >= self.left:
                raise Known
            self.seen[state] = self.left
        self.counts.append(count)
        return self.prefix[at] if at < len(self.prefix) else 0


def orders(deviations: int, begin: Callable[[], World]) -> Iterator[World]:
    """Yield a world for each list of choices with at most this many that are not 0. A run that
    reaches a state already continued with as many deviations left raises Known."""
    todo: list[list[int]] = [[]]
    seen: dict[int, int] = {}
    while todo:
        prefix = todo.pop()
        one = Order(begin(), prefix, deviations - sum(map(bool, prefix)), seen)
        one.world.choose = one.choose
        yield one.world
        for at in range(len(prefix), len(one.counts)) if one.left else []:
            todo += [
                prefix + [0] * (at - len(prefix)) + [other] for other in range(1, one.counts[at])
            ]


def small_cases() -> list[Any]:
    cases = [
        (case, leased)
        for case in CASES
        for leased in (False, True)
        if case != "nothing there" or not leased
    ]
    slow = [one for one in cases if one not in SOON]
    return [
        *(pytest.param(*one, ORDERS) for one in SOON),
        *(pytest.param(*one, 1) for one in slow),
        *(pytest.param(*one, ORDERS, marks=pytest.mark.slow) for one in slow),
    ]


@pytest.mark.parametrize(("case", "leased", "deviations"), small_cases())
def test_all_orders_of_the_small_cases(
    monkeypatch: pytest.MonkeyPatch, case: str, leased: bool, deviations: int
) -> None:
    """One or two writers of an object's key, a reader, and perhaps a third client that leases the
    object: with two deviations, no order reads a mixture, and the key works afterwards. A deviation
    is a step out of turn or a fault: a client dies, a block is lost or damaged, the store is full,
    the drive fails deletes, the daemon restarts without the newest blocks."""
    worlds: list[World] = []
    stepped(monkeypatch, worlds)
    monkeypatch.setattr(moves, "HELD_S", 0.05)  # a longer hold adds turns but no states
    found, size, puts = Counter[str](), 2 * PAYLOAD, list[Asked]()

    def begin() -> World:
        world = World(lambda _: 0)
        worlds[:] = [world]
        puts.clear()
        for _ in range(4):
            world.client()
        if case != "nothing there":
            go_on(world, [Asked(0, Kind.PUT, bytes_of(1, size))], puts)
        if leased:
            go_on(world, [Asked(3, Kind.LOOK, np.zeros(size, np.uint8), LEASED_S)], puts)
        if case in ("lost", "damaged"):
            {"lost": world.lose, "damaged": world.damage}[case](1)
        return world

    for world in orders(deviations, begin):
        asked = [Asked(1, Kind.PUT, bytes_of(2, size)), Asked(2, Kind.GET, np.zeros(size, "u1"))]
        if case in ("nothing there", "two writers"):
            asked.append(Asked(0, Kind.PUT, bytes_of(3, size)))
        try:
            go_on(world, asked, puts, **dict.fromkeys(FAULTS, 1))
        except Known:
            found["known"] += 1
        else:
            world.choose = lambda _: 0
            after = [Asked(world.client(), Kind.GET, np.zeros(size, np.uint8))]
            go_on(world, after, puts)
            check(after, puts, found)
            settle(world, puts)
        check(asked, puts, found)
        found["orders"] += 1
    assert found["orders"] > 50 and found["known"], "the orders were not gone through"
    ends = ("done", "absent", "unreadable", "away")
    assert all(found[f"GET {end}"] for end in ends) and found["PUT done"] and found["PUT refused"]


@pytest.mark.parametrize("leased", [False, True])
def test_what_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, leased: bool) -> None:
    """A bounded read, a lookup with a lease and a concurrent put, with a daemon that freezes at any
    point: no order writes a buffer after its operation ended, leaks a session or a call, or leaves
    the key unreadable."""
    worlds: list[World] = []
    stepped(monkeypatch, worlds)
    found, size, puts = Counter[str](), 3 * PAYLOAD, list[Asked]()

    def begin() -> World:
        world = World(lambda _: 0)
        worlds[:] = [world]
        puts.clear()
        for _ in range(2):
            world.client()
        go_on(world, [Asked(0, Kind.PUT, bytes_of(1, size))], puts)
        if leased:
            go_on(world, [Asked(1, Kind.LOOK, np.zeros(size, "u1"), LEASED_S)], puts)
        return world

    for world in orders(ORDERS, begin):
        asked = [
            Asked(1, Kind.GET, np.zeros(size, "u1"), within_s=FROZEN_S),
            Asked(1, Kind.LOOK, np.zeros(size, "u1"), LEASED_S, within_s=FROZEN_S),
            Asked(0, Kind.PUT, bytes_of(1, size)),
        ]
        try:
            go_on(world, asked, puts, freeze=1)
        except Known:
            found["known"] += 1
            check(asked, puts, found)
            continue
        world.choose = lambda _: 0
        after = [Asked(1, Kind.GET, np.zeros(size, np.uint8))]
        go_on(world, after, puts)
        assert after[0].state is State.DONE
        check(asked + after, puts, found)
        while leaving := [client for client, one in world.movers.items() if one._closing]:
            world.turn(leaving[0])
        leases = sum(len(one._leases) for one in world.movers.values())
        assert not world.flights and len(world.sessions) == leases <= 1
    assert min(found[one] for one in ("GET late", "LOOK late", "GET done", "LOOK done")) > 5
