"""Does the engine agree with queueing theory, where theory has an answer?

Each test simulates a system with a known mean and compares it with a confidence interval over
`SEEDS` independent runs: at 99.9 %, so that a correct engine keeps passing, and narrow, so that a
wrong one fails. Random service times are in the requests, as a number of items of 1 ps each: the
engine itself draws nothing here. Deterministic systems are compared to the picosecond.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from offstage.bindings.chip import Chip, Limits, Load, Network, Stage, Unit, make_requests

SEEDS = 10
STUDENT = 4.781
"""Student's t for 99.9 % on both sides, 9 degrees of freedom."""
WIDTH_MAX = 0.05
"""Largest half interval over its mean: with a wider one, agreement is no evidence."""
MEAN_PS = 1_000_000
LENGTH = 60_000
MIB = 1 << 20

Trace = npt.NDArray[np.void]
LIMITS = Limits(in_flight_max=1 << 16)


def arrivals(random: np.random.Generator, load: float, length: int = LENGTH) -> Trace:
    """Poisson arrivals for a service of MEAN_PS, each with two exponential service times."""
    gaps = random.exponential(MEAN_PS / load, length).round().astype(np.uint64)
    trace = make_requests(length, at_ps=np.cumsum(gaps))
    for column in ("count", "score_count"):
        trace[column] = random.exponential(MEAN_PS, length).round()
    return trace


def settled(values: npt.NDArray[np.uint64]) -> float:
    """The mean in units of MEAN_PS, without the first tenth, in which the system fills."""
    return float(values[len(values) // 10 :].mean()) / MEAN_PS


def assert_agrees(simulate: Callable[[np.random.Generator], float], expected: float) -> None:
    """The closed form lies in the confidence interval of the simulated mean."""
    found = np.array([simulate(np.random.default_rng(seed)) for seed in range(SEEDS)])
    half = STUDENT * found.std(ddof=1) / math.sqrt(SEEDS)
    assert half < WIDTH_MAX * expected, f"interval {half:.4f} is too wide for {expected:.4f}"
    assert abs(found.mean() - expected) < half, f"{found.mean():.4f} +- {half:.4f}: {expected:.4f}"


def chip(units: list[Unit], *stages: Stage, limits: Limits = LIMITS) -> Chip:
    return Chip(Network(tuple(units), {"only": stages}), limits=limits)


def waits(one: Chip, trace: Trace, service_ps: npt.NDArray[np.uint64] | int) -> list[float]:
    """Return the mean wait of each priority."""
    done = one.run(trace)
    by_tag = np.empty(len(done), np.uint64)
    by_tag[done["tag"]] = done["end_ps"] - done["at_ps"]
    waited = by_tag - service_ps
    return [settled(waited[trace["priority"] == each]) for each in np.unique(trace["priority"])]


def test_md1_pollaczek_khinchine() -> None:
    """One server, constant service: the wait is rho / (2 (1 - rho)) service times."""

    def simulate(random: np.random.Generator) -> float:
        one = chip([Unit("a", fixed_ps=MEAN_PS)], Stage("a"))
        return waits(one, arrivals(random, 0.7), MEAN_PS)[0]

    assert_agrees(simulate, 0.7 / (2 * 0.3))


def test_mmc_erlang() -> None:
    """Three servers, exponential service: the wait is Erlang's C over the spare capacity."""
    servers, load = 3, 0.6
    offered = servers * load
    last = offered**servers / math.factorial(servers) / (1 - load)
    waiting = last / (sum(offered**n / math.factorial(n) for n in range(servers)) + last)

    def simulate(random: np.random.Generator) -> float:
        one = chip([Unit("a", servers=servers, item_ps=1)], Stage("a", items="blocks"))
        trace = arrivals(random, offered, 3 * LENGTH)
        return waits(one, trace, trace["count"].astype(np.uint64))[0]

    assert_agrees(simulate, waiting / (servers - offered))


@pytest.mark.parametrize("priority", [0, 1])
def test_priority_cobham(priority: int) -> None:
    """Two classes, constant service, no preemption: each waits as in Cobham 1954."""
    loads = (0.3, 0.4)
    rest = sum(loads) / 2  # the mean remaining service
    above = sum(loads[:priority])
    expected = rest / ((1 - above) * (1 - above - loads[priority]))

    def simulate(random: np.random.Generator) -> float:
        trace = arrivals(random, sum(loads))
        trace["priority"] = random.random(len(trace)) > loads[0] / sum(loads)
        one = chip([Unit("a", queue="priority", fixed_ps=MEAN_PS)], Stage("a"))
        return waits(one, trace, MEAN_PS)[priority]

    assert_agrees(simulate, expected)


def test_tandem_jackson() -> None:
    """Two exponential servers in a row: departures of the first are Poisson again (Burke), so each
    behaves as a single server."""

    def simulate(random: np.random.Generator) -> float:
        units = [Unit("a", item_ps=1), Unit("b", item_ps=1)]
        one = chip(units, Stage("a", items="blocks"), Stage("b", items="scores"))
        done = one.run(arrivals(random, 0.6))
        return settled(done["end_ps"] - done["at_ps"])

    assert_agrees(simulate, 2 / (1 - 0.6))


@pytest.mark.parametrize("figure", ["lost", "present"])
def test_finite_buffer_mm1k(figure: str) -> None:
    """A server with room for K drops arrivals when full: share lost, and mean number inside."""
    load, room = 0.9, 5
    shares = np.array([load**n for n in range(room + 1)])
    shares /= shares.sum()
    expected = {"lost": shares[-1], "present": float(shares @ np.arange(room + 1))}[figure]

    def simulate(random: np.random.Generator) -> float:
        unit = Unit("a", queue_max=room - 1, drops=True, item_ps=1)
        one = chip([unit], Stage("a", items="blocks"))
        one.run(arrivals(random, load, 2 * LENGTH))
        stats = one.stats()["a"]
        lost = stats.dropped / (stats.dropped + stats.arrivals)
        return lost if figure == "lost" else stats.area_ps / one.now_ps

    assert_agrees(simulate, expected)


@pytest.mark.parametrize("room", [1, 4])
def test_blocking_after_service(room: int) -> None:
    """A first server that is never idle, a buffer of B, a second server: the lead of the first is a
    chain of B + 3 equally probable states, in one of which the second idles."""

    def simulate(random: np.random.Generator) -> float:
        units = [Unit("a", item_ps=1), Unit("b", item_ps=1, queue_max=room)]
        one = chip(units, Stage("a", items="blocks"), Stage("b", items="scores"))
        trace = arrivals(random, 1)
        trace["at_ps"] = 0
        one.run(trace)
        return len(trace) * MEAN_PS / one.now_ps

    assert_agrees(simulate, (room + 2) / (room + 3))


@pytest.mark.parametrize("servers", [1, 4])
def test_latency_by_load(servers: int) -> None:
    """A memory with latency 0 at no load and 1000 ns at full load takes load x 1000 ns."""
    rows = (Load(0, 0, 0, 0, 0, 0), Load(1000, *([1_000_000] * 5)))
    unit = Unit(
        "a", servers=servers, mib_ps=16 * MEAN_PS, load_rows=rows, load_span_ps=400 * MEAN_PS
    )

    def simulate(random: np.random.Generator) -> float:
        one = chip([unit], Stage("a"))
        trace = arrivals(random, 0.4 * servers)
        trace["size_bytes"] = MIB // 16
        served = []  # after the first tenth, where the measured load starts at 0, and at the end
        for part in np.split(trace, [LENGTH // 10]):
            one.run(part, int(part["at_ps"][-1]))
            stats = one.stats()["a"]
            served.append((stats.time.sum_ps - stats.wait.sum_ps, stats.departures))
        (early_ps, early), (all_ps, count) = served
        return ((all_ps - early_ps) / (count - early) - MEAN_PS) / 1_000_000

    assert_agrees(simulate, 0.4)


def test_quantiles_that_are_drawn() -> None:
    """Draws follow the quantiles of their row, linear between them."""
    row = Load(0, 100_000, 200_000, 300_000, 600_000, 1_000_000)
    one = chip([Unit("a", load_rows=(row,), load_span_ps=MIB)], Stage("a"))
    done = one.run(make_requests(LENGTH, at_ps=np.arange(LENGTH) * 2_000_000))
    found = np.quantile(done["end_ps"] - done["at_ps"], [0, 0.25, 0.5, 0.9, 0.99, 1])
    np.testing.assert_allclose(found, [1e5, 1.5e5, 2e5, 3e5, 6e5, 1e6], rtol=0.02)


LINE = (
    Unit("front", "pipe", fixed_ps=2000, item_ps=7, latency_ps=250_000),
    Unit("tags", "tags", fixed_ps=1000, latency_ps=4000, set_count=16, way_count=2),
    Unit("spill", servers=4, fixed_ps=3000, latency_ps=90_000),
    Unit("banks", "banks", servers=8, fixed_ps=30_000, mib_ps=25_000_000, latency_ps=12_000),
    Unit("codec", servers=2, mib_ps=5_000_000, latency_ps=60_000),
    Unit("link", "link", mib_ps=20_000_000, latency_ps=100_000, in_flight_max=8),
    Unit("wire", "delay", latency_ps=300_000),
)
ROUTE = (
    Stage("front", items="blocks"),
    Stage("tags", next="banks", miss="spill"),
    Stage("spill", label="spill"),
    Stage("banks", label="banks", coded=True),
    Stage("codec"),
    Stage("link"),
    Stage("wire"),
)


def test_zero_load_is_the_sum_of_the_stages() -> None:
    """One request at a time, to the picosecond: a miss, then a hit of the same key."""
    one = chip(list(LINE), *ROUTE)
    trace = make_requests(2, at_ps=[0, 10**9], size_bytes=MIB, coded_bytes=MIB // 2, count=3)
    done = one.run(trace)
    fixed = 2000 + 21 + 250_000 + 5000 + 30_000 + 12_000 + 60_000 + 100_000 + 300_000
    hit = fixed + 12_500_000 + 5_000_000 + 20_000_000
    assert (done["end_ps"] - done["at_ps"]).tolist() == [hit + 93_000, hit]


def test_roofline() -> None:
    """Under overload, the throughput is that of the slowest unit, and never more."""
    trace = make_requests(20_000, size_bytes=MIB // 4, count=1, key=np.arange(20_000) % 997)
    services = {
        "front": 2007,
        "banks": (30_000 + 6_250_000) / 8,
        "codec": 1_250_000 / 2,
        "link": 5_000_000,
    }
    binding = max(services, key=lambda name: services[name])
    one = chip(list(LINE), *ROUTE)
    done = one.run(trace)
    per_request = int(done["end_ps"][-1]) / len(done)
    assert binding == "link" and services[binding] <= per_request < 1.001 * services[binding]
    assert one.stats()["link"].busy_ps == len(done) * services[binding]


def test_credits_bound_a_link() -> None:
    """Too few credits for the round trip give exactly credits / (sending + both ways)."""
    link = Unit("link", "link", fixed_ps=100, latency_ps=1950, in_flight_max=4)
    one = chip([link], Stage("link"))
    done = one.run(make_requests(4000))
    round_trip = 100 + 2 * 1950
    assert int(done["end_ps"][-4]) == 999 * round_trip + 100 + 1950
