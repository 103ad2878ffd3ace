"""Do all sides of the timing seam behave alike, from Python, and can another package add one?

This is the contract of test/test_timing.c, over every side that `TIMINGS` registers, other
packages' too, and over two extensions: a chip, whose units block each other and serve by priority,
tiers, which remember where a block is, and a drive that a stream of weights reads too.
"""

import numpy as np
import pytest

from offstage.bindings.chip import Chip, Deadlock, Limits, Network, Stage, Unit
from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.engine import Engine, EngineConfig
from offstage.bindings.errors import BadInput, Incompatible
from offstage.bindings.firmware import ffi
from offstage.bindings.sim import populate
from offstage.bindings.storage import preset
from offstage.bindings.stream import StreamConfig, open_stream
from offstage.bindings.tiers import TierCosts, TiersConfig, open_tiers
from offstage.bindings.timing import KINDS, TIMINGS, Costs, Timing, open_timing

COSTS = Costs(70, 20, 3, 1, preset("gen5-tlc").params, writes=True, seed=3, in_flight_max=512)
REQUESTS = 300
LAYERS, STEPS, WIDTH, BLOCKS = 2, 20, 4, 32


def chip(costs: Costs) -> Timing:
    """A front end, followed by a medium with a short queue."""
    front = Unit("front", queue="priority", fixed_ps=1000 * costs.command_ns, latency_ps=700)
    medium = Unit("medium", servers=2, queue_max=1, fixed_ps=1000 * costs.read_ns, mib_ps=100_000)
    there = (Stage("front"), Stage("medium"))
    routes = {"read": there, "write": there, "hit": (Stage("front"),), "command": (Stage("front"),)}
    limits = Limits(in_flight_max=costs.in_flight_max)
    return Chip(Network((front, medium), routes), seed=costs.seed, limits=limits).timing()


def tiers(costs: Costs) -> Timing:
    """Memory with few concurrent requests, with drives below it."""
    each = 1000 * costs.read_ns
    memory = TierCosts(64, 5000, latency_ps=each, write_ps=each, concurrency=2)
    drives = TierCosts(1 << 20, latency_ps=each, drive_count=2, drive=costs.nvme or {})
    config = TiersConfig(
        1 << 10,
        LAYERS,
        4,
        1 << 16,
        hit_ps=1000 * costs.hit_ns,
        command_ps=1000 * costs.command_ns,
        seed=costs.seed,
    )
    return open_tiers(config, [memory, drives]).timing


def stream(costs: Costs) -> Timing:
    """A drive that reads weights meanwhile, from before the first request."""
    config = StreamConfig(
        costs.nvme or {},
        1 << 28,
        1 << 16,
        1 << 18,
        costs.in_flight_max,
        floor_bytes_per_s=10**9,
        hit_ps=1000 * costs.hit_ns,
        command_ps=1000 * costs.command_ns,
        seed=costs.seed,
    )
    return open_stream(config).timing


SIDES = {**TIMINGS, "chip": chip, "tiers": tiers, "stream": stream}


def drive(timing: Timing) -> list[int]:
    """Return when each of some random requests ends; each completion is polled at its time."""
    random = np.random.default_rng(1)
    ends: dict[int, int] = {}
    asked: list[int] = []
    now_ps = 0

    def take(until_ps: int) -> None:
        for tag, end_ps in timing.poll(until_ps, REQUESTS):
            assert tag not in ends and asked[tag] <= end_ps <= until_ps
            ends[tag] = end_ps
        later = timing.next_ps()
        assert later is None or later > until_ps

    for tag in range(REQUESTS):
        now_ps += int(random.integers(0, 3)) * int(random.integers(0, 90_000))
        take(now_ps)
        asked.append(now_ps)
        end_ps = timing.ask(
            KINDS[int(random.integers(0, len(KINDS)))],
            now_ps,
            tag=tag,
            offset_bytes=int(random.integers(0, 1024)) << 16,
            size_bytes=1 << 16,
            chunk=tag % 99,
        )
        if end_ps is not None:
            assert end_ps >= now_ps
            ends[tag] = end_ps
    while (next_ps := timing.next_ps()) is not None:
        take(next_ps)
    assert sorted(ends) == list(range(REQUESTS))
    return [ends[tag] for tag in range(REQUESTS)]


def decode(config: EngineConfig) -> tuple[bytes, int]:
    """Return the rows of one session on an engine of its own, and when it ended."""
    core = Core(
        CoreConfig(24, 128, 64, layer_count=LAYERS, demand_max=WIDTH, io_max=8, seed=2),
        Policy(prefetchers="prev_step", degree_max=2),
    )
    tenant = core.tenant_add(0, bytes(16), 24)
    session = core.session_open(0, SessionConfig(tenant, WIDTH))
    populate(core, session, BLOCKS)
    engine = Engine(core, config)
    engine.start(0, session, 0)
    rows = []
    random = np.random.default_rng(5)
    picked = [random.choice(BLOCKS, WIDTH, replace=False) for _ in range(STEPS * LAYERS)]
    selected = np.array(picked, np.uint32).reshape(STEPS, LAYERS, WIDTH)
    while (event := engine.run()) is not None:
        if event[0] == "rows":
            engine.feed(0, selected, last=True)
        rows.append(engine.take_rows(0).tobytes())
    assert core.verify()
    return b"".join(rows), engine.now_ns


@pytest.mark.parametrize("side", SIDES)
def test_every_request_ends_once_and_at_the_same_time_again(side: str) -> None:
    timing = SIDES[side](COSTS)
    first = drive(timing)
    timing.reset()
    assert drive(timing) == first == drive(SIDES[side](COSTS))


@pytest.mark.parametrize("side", SIDES)
def test_a_reset_drops_what_is_owed(side: str) -> None:
    timing = SIDES[side](COSTS)
    for kind in KINDS:
        timing.ask(kind, 0, size_bytes=1 << 16)
    timing.reset()
    assert timing.next_ps() is None and timing.poll(1 << 60) == []


@pytest.mark.parametrize("side", SIDES)
def test_an_engine_decodes_over_it(side: str) -> None:
    """Every demand ends, and a device that takes time ends no sooner than a free one."""
    config = EngineConfig(1, 1000, append_steps=3, hit_ns=50, timing=SIDES[side](COSTS))
    rows, end_ns = decode(config)
    free_rows, free_ns = decode(EngineConfig(1, 1000, append_steps=3, timing="free"))
    assert len(rows) == len(free_rows) and end_ns > free_ns == STEPS * LAYERS * 1000


@pytest.mark.parametrize("side", SIDES)
def test_a_pointer_from_elsewhere_is_as_good_as_a_name(side: str) -> None:
    """A side of another extension is an address; the engine cannot distinguish them."""
    owner = SIDES[side](COSTS)
    assert Timing(owner.address, owner).name == owner.name
    named = EngineConfig(1, 1000, timing=SIDES[side](COSTS))
    assert decode(EngineConfig(1, 1000, timing=Timing(owner.address, owner))) == decode(named)


def test_without_a_drive_nvme_is_free() -> None:
    with_hit = EngineConfig(1, 1000, hit_ns=50)
    assert decode(with_hit) == decode(EngineConfig(1, 1000, hit_ns=50, timing="free"))


def test_a_wrong_name_and_a_foreign_version_are_refused() -> None:
    with pytest.raises(BadInput, match="nvme, free, skeleton"):
        open_timing("asics", Costs())
    with pytest.raises(BadInput):
        open_timing("skeleton", Costs(in_flight_max=0))
    ops = ffi.new("struct ofs_timing_ops *", {"version": 99})
    side = ffi.new("struct ofs_timing *", {"ops": ops, "in_flight_max": 1})
    with pytest.raises(Incompatible):
        Timing(int(ffi.cast("uintptr_t", side)), (ops, side))


def test_a_deadlock_of_the_device_is_told_by_name() -> None:
    """Two routes each hold a unit that the other needs, with no queue between them; the engine
    reports the deadlock with the units' names."""
    there, back = Stage("there"), Stage("back")
    units = (Unit("there", queue_max=0, fixed_ps=10**6), Unit("back", queue_max=0, fixed_ps=10**6))
    routes = {
        "read": (there, back),
        "write": (back, there),
        "hit": (back, there),
        "command": (there,),
    }
    side = Chip(Network(units, routes)).timing()
    for kind in ("read", "hit"):
        side.ask(kind, 0)
    assert side.poll(10**9) == [] and side.next_ps() is None
    assert str(side.stuck()).startswith("at 1000000 ps: deadlock: there -> back -> there")
    with pytest.raises(Deadlock, match="there -> back -> there"):
        decode(EngineConfig(1, 1000, append_steps=1, timing=Chip(Network(units, routes)).timing()))
