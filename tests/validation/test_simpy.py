"""Do two simulators that share no code end every request at the same picosecond?

The other one is SimPy: processes and resources. Five small topologies, one for each thing a
queueing network can get wrong, get the same trace of random times, and every single end is
compared. Times are random integers, so that no two events of a run coincide.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offstage.bindings.chip import Chip, Network, Stage, Unit, make_requests

simpy = pytest.importorskip("simpy", reason="no simpy: pip install '.[test]'")

LENGTH = 1500
MEAN_PS = 10**9

Trace = npt.NDArray[np.void]
Process = Callable[[Any, Any], Iterator[Any]]


def trace(load: float, seed: int = 1) -> Trace:
    """Poisson arrivals, each with two exponential service times and a priority."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(MEAN_PS / load, LENGTH).round().astype(np.uint64) + 1
    drawn = make_requests(LENGTH, at_ps=np.cumsum(gaps))
    for column in ("count", "score_count"):
        drawn[column] = random.exponential(MEAN_PS, LENGTH).round()
    drawn["priority"] = random.integers(0, 3, LENGTH)
    return drawn


def ours(units: list[Unit], routes: dict[str, list[Stage]], requests: Trace) -> list[int]:
    done = Chip(Network(tuple(units), routes)).run(requests)
    assert len(done) == len(requests)
    return [int(end) for end in done["end_ps"][np.argsort(done["tag"])]]


def theirs(env: Any, requests: Trace, process: Process) -> list[int]:
    """Return when each request's process ends."""
    ends = [0] * len(requests)

    def one(number: int, request: Any) -> Iterator[Any]:
        yield env.timeout(int(request["at_ps"]))
        yield from process(env, request)
        ends[number] = env.now

    for number, request in enumerate(requests):
        env.process(one(number, request))
    env.run()
    return ends


def serve(env: Any, server: Any, takes_ps: int, **asked: int) -> Iterator[Any]:
    with server.request(**asked) as turn:
        yield turn
        yield env.timeout(takes_ps)


def test_several_servers_in_a_row() -> None:
    """1, 2 and 4 servers; two stages of random service and one of constant."""
    requests = trace(0.7)
    env = simpy.Environment()
    servers = [simpy.Resource(env, capacity) for capacity in (1, 2, 4)]

    def process(env: Any, request: Any) -> Iterator[Any]:
        yield from serve(env, servers[0], int(request["count"]))
        yield from serve(env, servers[1], int(request["score_count"]))
        yield from serve(env, servers[2], 3 * MEAN_PS)

    units = [Unit("a", item_ps=1), Unit("b", servers=2, item_ps=1)]
    units += [Unit("c", servers=4, fixed_ps=3 * MEAN_PS)]
    route = [Stage("a", items="blocks"), Stage("b", items="scores"), Stage("c")]
    assert ours(units, {"only": route}, requests) == theirs(env, requests, process)


def test_priorities_that_do_not_interrupt() -> None:
    requests = trace(0.9)
    env = simpy.Environment()
    server = simpy.PriorityResource(env, 1)

    def process(env: Any, request: Any) -> Iterator[Any]:
        yield from serve(env, server, int(request["count"]), priority=int(request["priority"]))

    units = [Unit("a", queue="priority", item_ps=1)]
    route = [Stage("a", items="blocks")]
    assert ours(units, {"only": route}, requests) == theirs(env, requests, process)


def test_blocking_after_service_in_a_line_of_three() -> None:
    """A finished request holds its server until the next unit has room: in SimPy that room is a
    separate resource, taken before the previous server is released."""
    requests = trace(0.8)
    env = simpy.Environment()
    rooms = (10**6, 1, 2)
    servers = [simpy.Resource(env, 1) for _ in rooms]
    places = [simpy.Resource(env, 1 + room) for room in rooms]

    def process(env: Any, request: Any) -> Iterator[Any]:
        takes = (int(request["count"]), int(request["score_count"]), MEAN_PS // 2)
        held: list[tuple[Any, Any]] = []
        for server, place, takes_ps in zip(servers, places, takes, strict=True):
            room = place.request()
            yield room
            for resource, turn in held:
                resource.release(turn)
            turn = server.request()
            yield turn
            yield env.timeout(takes_ps)
            held = [(server, turn), (place, room)]
        for resource, turn in held:
            resource.release(turn)

    units = [Unit("a", item_ps=1), Unit("b", item_ps=1, queue_max=1)]
    units += [Unit("c", fixed_ps=MEAN_PS // 2, queue_max=2)]
    route = [Stage("a", items="blocks"), Stage("b", items="scores"), Stage("c")]
    assert ours(units, {"only": route}, requests) == theirs(env, requests, process)


def test_pieces_fork_and_join() -> None:
    """Each request is cut into up to five pieces, which pass through two units and join."""
    requests = trace(0.3)
    piece = 1 << 20
    requests["size_bytes"] = requests["count"] % (5 * piece) + 1
    env = simpy.Environment()
    servers = [simpy.Resource(env, 1), simpy.Resource(env, 2), simpy.Resource(env, 1)]
    mib_ps = (300_000_007, 500_000_003)

    def takes(size: int, rate_ps: int) -> int:
        return (size * rate_ps + piece // 2) // piece

    def passing(env: Any, size: int) -> Iterator[Any]:
        for server, rate_ps in zip(servers, mib_ps, strict=False):
            yield from serve(env, server, takes(size, rate_ps))

    def process(env: Any, request: Any) -> Iterator[Any]:
        size = int(request["size_bytes"])
        sizes = [piece] * (size // piece) + [size % piece] * (size % piece > 0)
        yield env.all_of([env.process(passing(env, each)) for each in sizes])
        yield from serve(env, servers[2], int(request["score_count"]))

    units = [Unit("a", mib_ps=mib_ps[0]), Unit("b", servers=2, mib_ps=mib_ps[1])]
    units += [Unit("c", item_ps=1)]
    route = [Stage("a", piece_bytes=piece), Stage("b"), Stage("c", items="scores", join=True)]
    assert ours(units, {"only": route}, requests) == theirs(env, requests, process)


def test_two_routes_share_a_link_of_credits() -> None:
    """Reads pass a delay before the link, hits do not; a credit returns after the link latency."""
    requests = trace(0.5)
    requests["route"] = np.random.default_rng(2).random(LENGTH) < 0.3
    env = simpy.Environment()
    way_ps, credits = 3 * MEAN_PS, 5
    front, link = simpy.Resource(env, 1), simpy.Resource(env, 1)
    credit = simpy.Container(env, credits, init=credits)

    def come_back(env: Any) -> Iterator[Any]:
        yield env.timeout(way_ps)
        yield credit.put(1)

    def process(env: Any, request: Any) -> Iterator[Any]:
        yield from serve(env, front, MEAN_PS // 3)
        if request["route"]:
            yield env.timeout(7 * MEAN_PS)
        with link.request() as turn:
            yield turn
            yield credit.get(1)
            yield env.timeout(int(request["count"]))
        yield env.timeout(way_ps)
        env.process(come_back(env))

    units = [Unit("front", fixed_ps=MEAN_PS // 3), Unit("medium", "delay", latency_ps=7 * MEAN_PS)]
    units += [Unit("link", "link", item_ps=1, latency_ps=way_ps, in_flight_max=credits)]
    hit = [Stage("front"), Stage("link", items="blocks")]
    routes = {"hit": hit, "read": [hit[0], Stage("medium"), hit[1]]}
    assert ours(units, routes, requests) == theirs(env, requests, process)
