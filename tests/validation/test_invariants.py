"""Do laws that hold for all parameters hold on every unit of random networks?

A network is drawn with its load: units of all kinds, short queues, routes of any order, pieces,
drops and misses. Nothing may be lost or created, no unit may use more servers than it has, FIFO
queues must keep order, and the mean number inside is exactly the rate times the mean time (Little
1961) if the run begins and ends empty.
"""

from fractions import Fraction

import numpy as np
import pytest

from offstage.bindings.chip import (
    NO_NUMBER,
    Chip,
    Limits,
    Load,
    Network,
    Stage,
    Unit,
    make_requests,
)
from offstage.bindings.qos import QosConfig, TenantShare
from offstage.bindings.storage import preset

MIB = 1 << 20
LENGTH = 3000
AT_ONCE = preset("gen5-tlc").params
LATER = AT_ONCE | {"scheduled": 1, "read_command_ps": 300_000, "program_command_ps": 300_000}
DRIVES = {"at once": AT_ONCE, "later": LATER}
"""Drives that say at the request when it ends, and those whose channels have schedulers."""


def unit(random: np.random.Generator, number: int, drive: dict[str, int]) -> Unit:
    """A random unit, of any kind and queue."""
    kind = ("server", "link", "pipe", "banks", "tags", "delay", "drive")[number % 7]
    queue = ("fifo", "priority", "qos")[int(random.integers(0, 3))]
    queue = "fifo" if kind == "banks" and queue == "qos" else queue
    rows = (Load(0, 0, 10, 20, 30, 10**5), Load(900, 10, 10**5, 10**6, 10**7, 10**7))
    return Unit(
        f"{kind}{number}",
        kind,
        queue,
        servers=int(random.integers(1, 5)),
        queue_max=int(random.integers(1, 9)),
        in_flight_max=int(random.integers(4, 20)),
        drops=random.random() < 0.1,
        set_count=8 if kind == "tags" else 0,
        way_count=2 if kind == "tags" else 0,
        fixed_ps=int(random.integers(0, 2_000_000)),
        mib_ps=int(random.integers(0, 20_000_000)),
        latency_ps=int(random.integers(0, 2)) * int(random.integers(0, 9_000_000)),
        load_rows=rows if kind in ("server", "banks") and random.random() < 0.5 else (),
        load_span_ps=MIB,
        drive=drive if kind == "drive" else None,
        qos=QosConfig(MIB, session_count=2, queue_max=4, session_max=2) if queue == "qos" else None,
        tenants=(TenantShare(2), TenantShare(1)) if queue == "qos" else (),
    )


def network(random: np.random.Generator, drive: dict[str, int]) -> Network:
    """Units in a fixed order along every route, so that no cycle can wait for itself."""
    units = [unit(random, number, drive) for number in range(9)]
    routes = {}
    for route in range(3):
        chosen = np.sort(random.choice(len(units), 6, replace=False))
        stages = []
        for position, number in enumerate(chosen):
            cutting = position == 2 and route < 2 and not units[number].drops
            stages.append(
                Stage(
                    units[number].name,
                    label=f"{position}",
                    miss="5" if position < 4 else "",
                    piece_bytes=MIB // 8 if cutting else 0,
                    join=position == 5,
                    coded=position == 3,
                )
            )
        routes[f"route{route}"] = stages
    return Network(tuple(units), routes)


@pytest.mark.parametrize("drive", DRIVES)
@pytest.mark.parametrize("seed", range(8))
def test_laws_of_every_unit(seed: int, drive: str) -> None:
    random = np.random.default_rng(seed)
    limits = Limits(in_flight_max=100, piece_max=50, sample_every=1, visit_max=1 << 18)
    one = Chip(network(random, DRIVES[drive]), seed=seed, limits=limits)
    gaps = random.exponential(float(random.integers(1, 9)) * 10**6, LENGTH)
    trace = make_requests(
        LENGTH,
        at_ps=np.cumsum(gaps).astype(np.uint64),
        key=random.integers(0, 40, LENGTH),
        offset_bytes=random.integers(0, 1 << 20, LENGTH) * 4096,
        size_bytes=random.integers(1, MIB, LENGTH),
        coded_bytes=random.integers(1, MIB // 2, LENGTH),
        deadline_ps=random.integers(0, 10**12, LENGTH),
        route=random.integers(0, 3, LENGTH),
        priority=random.integers(0, 8, LENGTH),
    )
    trace["tenant"] = trace["session"] = random.integers(0, 2, LENGTH)
    done, now_ps = one.run(trace), one.now_ps
    visits = one.visits()

    assert sorted(done["tag"]) == list(range(LENGTH)) and (done["end_ps"] >= done["at_ps"]).all()
    assert (np.diff(done["end_ps"].astype(np.int64)) >= 0).all()
    assert one.figures["inside"] == 0 and one.figures["visits_lost"] == 0
    dropped = {name: 0 for name in one.stats()}
    for number, stats in enumerate(one.stats().values()):
        assert stats.present == stats.waiting == 0 and stats.arrivals == stats.departures
        assert stats.dropped == 0 or one.network.units[number].drops
        dropped[stats.name] = stats.dropped
        assert stats.waiting_max <= one.network.units[number].queue_max
        endless = stats.kind in ("delay", "drive")
        assert stats.busy_ps <= now_ps * (1 if endless else stats.servers)
        mine = visits[visits["unit"] == number]
        assert len(mine) == stats.arrivals
        if stats.arrivals:
            inside = Fraction(stats.area_ps, now_ps)
            rate = Fraction(stats.arrivals, now_ps)
            times = (mine["leave_ps"] - mine["enter_ps"]).astype(object).sum()
            assert inside == rate * Fraction(times, len(mine)) and stats.time.sum_ps == times
        of = one.network.units[number]
        if of.queue == "fifo" and of.kind != "banks":
            order = mine[np.lexsort((mine["begin_ps"], mine["enter_ps"]))]
            assert (np.diff(order["begin_ps"].astype(np.int64)) >= 0).all()
    assert (done["dropped"] != NO_NUMBER).sum() <= sum(dropped.values())
    again = Chip(one.network, seed=seed, limits=limits)
    assert again.run(trace).tobytes() == done.tobytes() and again.hash == one.hash
