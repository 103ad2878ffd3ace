"""Is what a reader gets of an object one put, whole, whoever else writes, leases, dies or loses
blocks meanwhile? One list of choices is one order of everything; OFFSTAGE_OBJECT_SEEDS says how
many are drawn."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from objects_sim import FROZEN_S, LAYERS, PAYLOAD, Asked, World, stepped

from offstage.host.connectors.moves import Kind, State

SEEDS = int(os.environ.get("OFFSTAGE_OBJECT_SEEDS", "400"))
SIZES = (10, PAYLOAD, 2 * PAYLOAD, (LAYERS + 1) * PAYLOAD - 3, 4 * PAYLOAD)
STEPS_MAX = 4000


def bytes_of(seed: int, size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def go_on(world: World, asked: list[Asked], kills: int, losses: int, done: list[Asked]) -> None:
    """Until all has ended that can: each step is a choice among those who can go on."""
    for one in asked:
        if one.kind is Kind.PUT:
            done.append(one)
        one.submit(world.movers[one.client])
    for _ in range(STEPS_MAX):
        waiting = [one.client for one in asked if one.state is None and one.client in world.movers]
        if not waiting:
            return
        leaving = [client for client, one in world.movers.items()
                   if one._closing or one._deleting or one._expired()]  # fmt: skip
        actors = [("turn", client) for client in sorted({*waiting, *leaving})]
        blocks = [one for one in world.flights if one.left]
        actors += [("block", number) for number in range(len(blocks))]
        if losses:
            actors += [("lose", number) for number in range(len(world.store))]
        if kills:
            actors += [("kill", client) for client in sorted(set(waiting))]
        actors += [("freeze", 0)] * (world.freezes > 0)
        # By default the daemon does what is under way before anybody goes on.
        actors.sort(key=lambda one: ("block", "turn", "lose", "kill", "freeze").index(one[0]))
        what, number = actors[world.choose(len(actors))]
        kills -= what == "kill"
        losses -= what == "lose"
        {"turn": world.turn, "block": world.one_block, "lose": world.lose,
         "kill": world.kill, "freeze": world.freeze}[what](number)  # fmt: skip
    raise AssertionError("it does not end")


def check(asked: list[Asked], puts: list[Asked], found: Counter[str]) -> None:
    """What was read is one put, whole, and no buffer was written after its end."""
    for one in asked:
        assert one.left is None or np.array_equal(one.left, one.data), "written after its end"
        found[f"{one.kind.name} {one.state.value if one.state else 'killed'}"] += 1
        if one.kind is Kind.GET and one.state is State.DONE:
            assert any(np.array_equal(one.data, put.data) for put in puts), "a mixture"


def settle(world: World, puts: list[Asked]) -> None:
    """When all others have gone, a put is taken, and is what is read."""
    for client in list(world.movers):
        world.kill(client)
    world.client()
    last = Asked(max(world.movers), Kind.PUT, bytes_of(99, 3 * PAYLOAD))
    go_on(world, [last], 0, 0, puts)
    read = Asked(last.client, Kind.GET, np.zeros(3 * PAYLOAD, np.uint8))
    go_on(world, [read], 0, 0, puts)
    assert last.state is read.state is State.DONE and np.array_equal(read.data, last.data)


def drawn(rng: random.Random, weight: float) -> Callable[[int], int]:
    """Choices of a seed: often what goes on by itself, so that seeds get far."""

    def choose(count: int) -> int:
        return rng.randrange(count) if rng.random() < weight else rng.randrange(min(count, 3))

    return choose


def test_of_many_writers_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of one key, readers, holders of leases, a store that loses blocks, clients that die:
    is no read a mixture, and does the key work when they have gone?"""
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
        go_on(world, [first] if rng.random() < 0.8 else [], 0, 0, puts)
        for batch in range(2):
            asked = []
            for turn, client in enumerate(c for c in clients if c in world.movers):
                kind = rng.choice((Kind.PUT, Kind.PUT, Kind.GET, Kind.GET, Kind.LOOK, Kind.DELETE))
                size = rng.choice(sizes)
                data = (bytes_of(1000 * seed + 10 * batch + turn + 1, size) if kind is Kind.PUT
                        else np.zeros(size, np.uint8))  # fmt: skip
                bounded = rng.random() < 0.3 and kind in (Kind.GET, Kind.LOOK)
                asked.append(Asked(client, kind, data, 1.0 if kind is Kind.LOOK else 0.0,
                                   rng.choice((0.05, 0.2, FROZEN_S)) if bounded else 0.0))
            world.freezes = rng.choice((0, 0, 1))
            go_on(world, asked, rng.choice((0, 0, 1, 2)), rng.choice((0, 1, 2)), puts)
            check(asked, puts, found)
            reads = [Asked(client, Kind.GET, np.zeros(size, np.uint8))
                     for client in list(world.movers)[:1] for size in sizes]  # fmt: skip
            go_on(world, reads, 0, 0, puts)
            check(reads, puts, found)
        settle(world, puts)
    assert min(found[f"GET {state}"] for state in ("done", "absent", "unreadable")) > SEEDS // 20
    assert found["PUT done"] > SEEDS and found["PUT refused"] and found["PUT killed"]
    assert found["GET late"] > SEEDS // 20 and found["LOOK late"] > SEEDS // 40


def orders(deviations: int) -> Iterator[tuple[list[int], list[int]]]:
    """All lists of choices with at most so many that are not 0: each list, and, filled while it is
    gone through, how many there were to choose of each time."""
    todo: list[list[int]] = [[]]
    while todo:
        prefix = todo.pop()
        counts: list[int] = []
        yield prefix, counts
        if sum(1 for one in prefix if one) < deviations:
            for at in range(len(prefix), len(counts)):
                todo += [prefix + [0] * (at - len(prefix)) + [other]
                         for other in range(1, counts[at])]  # fmt: skip


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("case", ["lost before", "two writers", "lost meanwhile"])
def test_all_orders_of_the_small_cases(
    monkeypatch: pytest.MonkeyPatch, case: str, leased: bool
) -> None:
    """An object that is there, other bytes for its key, and a reader: is no order of them, with one
    step that comes before or after its turn (more of them by OFFSTAGE_OBJECT_ORDERS), a mixture?"""
    worlds: list[World] = []
    stepped(monkeypatch, worlds)
    found, size = Counter[str](), 3 * PAYLOAD
    for prefix, counts in orders(int(os.environ.get("OFFSTAGE_OBJECT_ORDERS", "1"))):

        def choose(count: int, prefix: list[int] = prefix, counts: list[int] = counts) -> int:
            counts.append(count)
            return prefix[len(counts) - 1] if len(counts) <= len(prefix) else 0

        world = World(lambda _: 0)
        worlds[:] = [world]
        for _ in range(4):
            world.client()
        puts: list[Asked] = []
        go_on(world, [Asked(0, Kind.PUT, bytes_of(1, size))], 0, 0, puts)
        if leased:
            go_on(world, [Asked(3, Kind.LOOK, np.zeros(size, np.uint8), 1e9)], 0, 0, puts)
        if case == "lost before":
            world.lose(2)
        world.choose = choose
        asked = [Asked(1, Kind.PUT, bytes_of(2, size)), Asked(2, Kind.GET, np.zeros(size, "u1"))]
        if case == "two writers":
            asked.append(Asked(0, Kind.PUT, bytes_of(3, size)))
        go_on(world, asked, 0, int(case == "lost meanwhile"), puts)
        world.choose = lambda _: 0
        after = [Asked(2, Kind.GET, np.zeros(size, np.uint8))]
        go_on(world, after, 0, 0, puts)
        check(asked + after, puts, found)
        found["orders"] += 1
    assert found["orders"] > 20 and found["PUT refused" if leased else "PUT done"]


@pytest.mark.parametrize("leased", [False, True])
def test_what_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, leased: bool) -> None:
    """A bounded read and a lookup with a lease while the daemon is frozen at any point, and a put
    beside them: in no order is a buffer written after its end, a session or a call left over, or
    the same key not read afterwards."""
    worlds: list[World] = []
    stepped(monkeypatch, worlds)
    found, size = Counter[str](), 3 * PAYLOAD
    for prefix, counts in orders(int(os.environ.get("OFFSTAGE_OBJECT_ORDERS", "1"))):

        def choose(count: int, prefix: list[int] = prefix, counts: list[int] = counts) -> int:
            counts.append(count)
            return prefix[len(counts) - 1] if len(counts) <= len(prefix) else 0

        world = World(lambda _: 0)
        worlds[:] = [world]
        for _ in range(2):
            world.client()
        puts: list[Asked] = []
        go_on(world, [Asked(0, Kind.PUT, bytes_of(1, size))], 0, 0, puts)
        if leased:
            go_on(world, [Asked(1, Kind.LOOK, np.zeros(size, "u1"), 1e9)], 0, 0, puts)
        world.choose, world.freezes = choose, 1
        asked = [Asked(1, Kind.GET, np.zeros(size, "u1"), within_s=FROZEN_S),
                 Asked(1, Kind.LOOK, np.zeros(size, "u1"), 1e9, within_s=FROZEN_S),
                 Asked(0, Kind.PUT, bytes_of(1, size))]  # fmt: skip
        go_on(world, asked, 0, 0, puts)
        world.choose, world.freezes = (lambda _: 0), 0
        after = [Asked(1, Kind.GET, np.zeros(size, np.uint8))]
        go_on(world, after, 0, 0, puts)
        assert after[0].state is State.DONE
        check(asked + after, puts, found)
        while leaving := [client for client, one in world.movers.items() if one._closing]:
            world.turn(leaving[0])
        leases = sum(len(one._leases) for one in world.movers.values())
        assert not world.flights and len(world.sessions) == leases <= 1
        found["orders"] += 1
    assert min(found[one] for one in ("GET late", "LOOK late", "GET done", "LOOK done")) > 5
