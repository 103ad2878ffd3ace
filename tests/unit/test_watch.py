"""Does `dpu status` say in ten lines what an operator asks, and with `--watch` what happened?"""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from offstage.bindings.figures import DmaTotals, MoveStatus, StorageStats, StoreStats
from offstage.bindings.layouts import CAUSES, ENDS, FATES
from offstage.bindings.ledger import Ledger
from offstage.dpu import protocol as p
from offstage.dpu.protocol.status import (
    ArchiveStatus,
    DaemonStatus,
    DeviceReport,
    HostReport,
    MemberStatus,
    Pace,
    TenantReport,
)
from offstage.testbeds.cli import run
from offstage.testbeds.cli.status_shown import FAULTS, LOST, Reading, Span, lines
from offstage.testbeds.cli.watch import Interval

STATUS = DaemonStatus(
    storage="io_uring",
    warning="",
    model="",
    dilation=1,
    draining=False,
    uptime_s=100.0,
    boot_id=1,
    move=MoveStatus(),
    device=DeviceReport(
        busy_ns=10,
        idle_ns=10,
        sleep_ns=20,
        sessions=3,
        ports=1,
        store=StoreStats(blocks=2, bytes_live=1 << 20, segments_total=4, segments_free=3),
        storage=StorageStats(reads=1000, bytes_read=10**8, bytes_written=10**6),
    ),
    hosts=[
        HostReport(name="cli", tenant=p.OPERATOR, fabric="", pid=0, sessions=0),
        HostReport(name="gpu", tenant="red", fabric="shm", pid=7, sessions=3),
    ],
    tenants=[],
    memory=DmaTotals(),
    daemon=dict.fromkeys(FAULTS["daemon"], 0),
)
TENANT: dict[str, Any] = dict.fromkeys(
    ("arena_bytes_max", "sessions", "sessions_max", "ports", "ports_max", "logins", "logins_max"), 0
)
ORDER = "up store arena demands reads prefetch hosts errors policy pod".split()


def ends(**counts: int) -> list[int]:
    return [counts.get(name, 0) for name in ENDS]


def reading(at_s: float = 0.0, status: DaemonStatus = STATUS, **ledger: Any) -> Reading:
    policy = {"prefetchers": ["window", "ema"], "eviction": "score"}
    return Reading(status, Ledger(**ledger), policy, at_s)


def device(**changes: Any) -> DaemonStatus:
    changed = msgspec.structs.replace(STATUS.device, **changes)
    return msgspec.structs.replace(STATUS, device=changed)


def test_ten_lines_of_a_daemon_that_did_nothing_yet() -> None:
    shown = lines(reading())
    assert list(shown) == ORDER and all(shown.values())
    assert shown["up"].startswith("0:01:40, since 2") and "reactor 25.0 % busy" in shown["up"]
    assert shown["up"].endswith("; accepts new work")
    assert shown["store"] == "io_uring, 1 MiB in 2 blocks; 25.0 % of the segments in use"
    assert shown["demands"] == shown["prefetch"] == shown["errors"] == shown["pod"] == "none"
    assert shown["reads"] == "1,000 (10/s), 95.37 MiB (1 MB/s); written 976.6 KiB (10 KB/s)"
    assert shown["hosts"] == "1 with 3 sessions: gpu (red, shm)", "the operator is none"
    assert shown["policy"] == "prefetchers window,ema, eviction score"


def test_placement_handles_in_use_are_said() -> None:
    """Those of a drive that has some."""
    storage = msgspec.structs.replace(STATUS.device.storage, handles=4)
    shown = lines(reading(status=device(storage=storage)))["store"]
    assert shown.endswith("; 4 placement handles")


def test_demands_and_prefetches_are_of_the_ledger() -> None:
    fates = [[0] * len(FATES) for _ in CAUSES]
    for cause in ("window", "pattern"):
        row = fates[CAUSES.index(cause)]
        row[FATES.index("used")], row[FATES.index("late")], row[FATES.index("dropped")] = 6, 1, 90
        row[FATES.index("unused")] = 3
    counted = reading(ends=ends(window=6, retained=2, late=1, cold=1), fates=fates)
    assert lines(counted)["demands"] == "10: hit rate 80.0 %, late 10.0 %, cold 10.0 %"
    assert lines(counted)["prefetch"] == "20 blocks: accuracy 60.0 %, late 10.0 %"
    later = replace(
        counted, ledger=Ledger(ends=ends(window=16, retained=2, late=1, cold=1)), at_s=2
    )
    assert lines(later, counted)["demands"] == "10 (5/s): hit rate 100.0 %, late 0.0 %"


def test_the_arena_is_that_of_all_tenants() -> None:
    own = [
        TenantReport(
            name=name, slots=slots, sharing="tenant", arena_bytes=1 << 20, pod={}, **TENANT
        )
        for name, slots in (("red", 30), ("blue", 10))
    ]
    status = msgspec.structs.replace(STATUS, tenants=own)
    shown = lines(reading(status=status, resident_slots=10))["arena"]
    assert shown == "2 MiB: 10 of 40 slots hold a block (25.0 %)"


def test_only_errors_that_there_were_are_shown() -> None:
    """Under the names that `--all` has, each of them; and every warning."""
    assert lines(reading(io_errors=2))["errors"] == "ledger.io_errors 2"
    for table, names in FAULTS.items():
        for name in names:
            raw = msgspec.to_builtins(STATUS)
            within = raw
            for part in table.split("."):
                within = within[part]
            within[name] = 1234
            shown = lines(reading(status=msgspec.convert(raw, DaemonStatus)))["errors"]
            assert shown == f"{table}.{name} 1,234"
    for name in LOST:
        assert lines(reading(**{name: 1}))["errors"] == f"ledger.{name} 1"
    away = device(
        archive=ArchiveStatus(away=1, uploads_waiting=0, deletes_waiting=0, pace=Pace()),
        target_down="its target is down",
        check_failures=3,
    )
    away = msgspec.structs.replace(away, warning="no io_uring", memory=DmaTotals(warning="no NUMA"))
    assert lines(reading(status=away))["errors"] == (
        "device.check_failures 3, the archive does not answer, its target is down, no io_uring, "
        "no NUMA"
    )


def test_what_is_rare_is_said_where_it_belongs() -> None:
    pod = MemberStatus(
        phase="serving",
        serves=True,
        incarnation=2,
        doubt="no lease",
        epoch=7,
        carried_out=7,
        lease_s=1.0,
        serves_s=1.0,
    )
    names = ["h\x1b[2J", *(f"h{number}" for number in range(1, 6))]
    hosts = [HostReport(name=one, tenant="red", fabric="", pid=1, sessions=0) for one in names]
    move = MoveStatus(state="running", blocks_copied=5, blocks_total=1000)
    status = msgspec.structs.replace(
        device(dirty_blocks=4), draining=True, pod=pod, hosts=hosts, move=move
    )
    shown = lines(reading(status=status))
    assert shown["up"].endswith("; draining")
    assert shown["store"].endswith("; 4 blocks only in memory; move running, 5 of 1,000 blocks")
    assert shown["pod"] == "serving, serves; epoch 7, incarnation 2; in doubt: no lease"
    assert shown["hosts"].startswith("6 with 3 sessions: h\\x1b[2J (red, not attached), h1 ")
    assert shown["hosts"].endswith("h3 (red, not attached), 2 more")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["host", "run", "--timeout", "1000000h"], "give 1ms to 1h"),
        (["host", "run", "--timeout", "0s"], "give 1ms to 1h"),
        (["dpu", "drain", "--timeout", "1000000h"], "give 0s to 1h"),
        (["dpu", "status", "--watch", "1ms"], "give 100ms to 1h"),
    ],
)
def test_a_time_beyond_its_bounds_is_refused_before_anything_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens there, which would be another exit code."""
    assert run([*words, "--endpoint", "tcp://127.0.0.1:9"]) == 2
    assert said in capsys.readouterr().err


def test_an_interval_is_of_what_happened_in_it() -> None:
    """Counts that begin again, after a reset or a move of the store, are those since."""
    storage = StorageStats(reads=1500, bytes_read=10**8 + 4000, bytes_written=0)
    later = reading(2.0, device(storage=storage), ends=ends(window=3, late=1))
    before = reading(ends=ends(window=1, cold=9))
    row = Interval.of(Span(later, before))
    assert (row.seconds, row.demands_per_s, row.hit, row.late) == (2.0, 1.5, 2 / 3, 1 / 3)
    assert (row.read_bytes_per_s, row.written_bytes_per_s) == (2000, 0)
    assert (row.hosts, row.sessions, row.reactor_busy_share) == (1, 3, 0.0)
    assert lines(later, before)["reads"] == "500 (250/s), 3.906 KiB (2 KB/s); written 0 B (0 B/s)"
    nothing = Interval.of(Span(before, before))
    assert nothing.hit is None and nothing.late is None


def test_read_amplification_is_of_the_interval() -> None:
    """It covers the reads since the last look; none without granules, or after a reset."""

    def look(read: int, wanted: int) -> Reading:
        return reading(demand_bytes_read=read, demand_bytes_wanted=wanted)

    span = Span(look(8000, 6000), look(5000, 4000))
    assert Interval.of(span).read_amplification == 1.5
    assert lines(span.now, span.before)["reads"].endswith("; 1.50 bytes read per byte demanded")
    for before, after in ((look(0, 0), look(900, 0)), (look(9, 9), look(0, 0))):
        assert Interval.of(Span(after, before)).read_amplification is None
        assert "for each demanded" not in lines(after, before)["reads"]
