"""`offstage bench soak`: eight hosts of three tenants at one daemon, one hostile, for a long time.

The daemon and each tenant run as separate users, all of them forks of this process, which is
root. Honest hosts check every byte that they read; the hostile one runs all attacks
concurrently. Meanwhile the daemon's memory, threads and descriptors are observed from outside.
At the end each question has a verdict: blocks right, ledgers equal, memory flat, no honest host
shut out, nothing granted.
"""

import encodings.ascii
import encodings.idna  # noqa: F401  (another user may be unable to import)
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.layouts import ENDS
from offstage.bindings.ledger import Ledger
from offstage.bindings.units import format_count, format_seconds, format_size
from offstage.dpu.protocol import OPERATOR, OPERATOR_SOCKET
from offstage.host.endpoint import Endpoint
from offstage.host.link.control import Control
from offstage.testbeds.beds.child import Child
from offstage.testbeds.beds.daemon import Daemon, Sections, fork
from offstage.testbeds.bench.rows import BenchResult
from offstage.testbeds.bench.soak_board import Board
from offstage.testbeds.bench.soak_hostile import ATTACKS, GRANTED, Target, hostile
from offstage.testbeds.bench.soak_hosts import LAYERS, HostSaw, honest
from offstage.testbeds.bench.tenants_hosts import PAYLOAD_BYTES
from offstage.testbeds.table import Column, Table

__all__ = ["GRANTED", "HONEST", "Level", "Look", "SoakResult", "bench_soak", "judge"]

KEEPER = 30_101  # user ids that need no account: the daemon's, and from here on the tenants'
HONEST = {"red": 3, "blue": 3, "grey": 1}  # and the hostile one is another of the last
HOSTILE = "grey"
SLOTS = 128  # of each tenant
STORE_BYTES = 192 << 20  # a tenth of what the hosts write in some minutes
BEGIN_S = 900.0
END_S = 120.0
FLAT_BYTES = 8 << 20
FLAT_FROM_S = 30.0  # before that the hostile host opens connections, and memory grows with them
SAMPLES = 600
SHOWN = 12  # observations in the table
IO_URING = "iou-"  # the kernel's threads, which come and go

Say = Callable[[str], None]


class Level(msgspec.Struct, frozen=True):
    """The daemon's resources, as the kernel counts them."""

    rss_bytes: int
    threads: int
    descriptors: int


class Look(msgspec.Struct, frozen=True):
    """The daemon from outside at one time. `operator_s`: time of an operator's login and its
    answer; `hosts` is -1 if it was refused."""

    at_s: float
    held: Level
    hosts: int
    operator_s: float
    checked: int


class SoakResult(BenchResult, kw_only=True):
    """The daemon over time, each host, each attack. `ledgers` and `status` are the daemon's own."""

    seconds: float
    storage: str
    before: Level
    after: Level
    samples: list[Look]
    hosts: list[HostSaw]
    rounds: int
    """How often the hostile host started over."""
    exits: list[int]
    complaints: str
    attacks: dict[str, int]
    ledgers: dict[str, Ledger]
    status: dict[str, Any]
    daemon_exit: int
    daemon_said: list[str]
    rss_early_bytes: int = 0
    rss_late_bytes: int = 0

    def about(self) -> list[str]:
        slowest = format_seconds(max(one.operator_s for one in self.samples))
        early, late = map(format_size, (self.rss_early_bytes, self.rss_late_bytes))
        return [
            f"measured on {self.storage}, {self.seconds:g} s, seed {self.seed}; the "
            f"hostile host began {self.rounds} times; most memory of the second quarter {early}, "
            f"of the last {late}; the operator's slowest login and answer {slowest}",
        ]

    def own_tables(self) -> list[Table]:
        def held(one: Level) -> list[object]:
            return [one.rss_bytes, one.descriptors, one.threads]

        every = max(len(self.samples) // SHOWN, 1)
        looks: list[list[object]] = [
            [f"{one.at_s:.0f} s", *held(one.held), one.hosts, one.checked]
            for one in [*self.samples[:-1:every], self.samples[-1]]
        ]
        looks.append(["all gone", *held(self.after)])
        hosts = [
            [one.name, one.texts, one.checked, one.wrong, one.lost, sum(one.refused.values())]
            for one in self.hosts
        ]
        names = {one.name for one in self.hosts}
        attacks = [[name, count] for name, count in self.attacks.items() if name not in names]
        return [
            Table.of(
                [
                    Column("daemon", left=True),
                    Column("memory", format_size),
                    *map(Column, ("files", "threads", "hosts")),
                    Column("checked", format_count),
                ],
                looks,
            ),
            Table.of(
                [
                    Column("host", left=True),
                    *(
                        Column(name, format_count)
                        for name in ("texts", "checked", "wrong", "lost", "refused")
                    ),
                ],
                hosts,
            ),
            Table.of([Column("attack", left=True), Column("times", format_count)], attacks),
        ]


def bench_soak(
    *,
    seconds: float = 600.0,
    folder: Path | None = None,
    seed: int = 1,
    say: Say = lambda line: None,
) -> SoakResult:
    """Takes `seconds` from when all hosts are at work. `folder`, which other users must be able
    to traverse, contains the store. BadInput unless this is root."""
    if os.getuid() != 0:
        raise BadInput(
            "needs root, to run processes as other users", "bench soak", "run it as root"
        )
    if not 1 <= seconds <= 7 * 86_400:
        raise BadInput(f"{seconds:g} s", "bench soak", "choose 1 s to a week")
    board = Board([*_names(), *ATTACKS, GRANTED])
    base = Path(tempfile.mkdtemp(dir=folder or "/tmp", prefix="offstage-soak-"))
    try:
        with _daemon(base) as daemon:
            before = _before(daemon)
            with _hosts(base, daemon, board, seed) as hosts:
                _await_all(board, hosts)
                samples = _look(daemon, board, seconds, say)
                board.stop()
                saw = [msgspec.convert(host.line(END_S), HostSaw) for host in hosts[:-1]]
                rounds = hosts[-1].line(END_S)["rounds"]
                exits = [host.wait(END_S) for host in hosts]
                complaints = hosts[-1].complaint()[:2000]
            after, ledgers, status = _after(daemon, before)
            found = SoakResult(
                seconds=seconds,
                seed=seed,
                storage=daemon.storage,
                before=before,
                after=after,
                samples=samples,
                hosts=saw,
                rounds=rounds,
                exits=exits,
                complaints=complaints,
                attacks=board.counts(),
                ledgers=ledgers,
                status=status,
                daemon_exit=daemon.process.wait(END_S),
                daemon_said=_told(daemon.log.read_text(errors="replace")),
            )
    finally:
        shutil.rmtree(base)
    judge(found)
    return found


def _names() -> list[str]:
    return [f"{tenant}-{i}" for tenant, count in HONEST.items() for i in range(count)]


@contextmanager
def _daemon(base: Path) -> Iterator[Daemon]:
    """The daemon under its user, with its own store and secrets."""
    base.chmod(0o711)
    users = {"daemon": KEEPER} | {name: KEEPER + 1 + i for i, name in enumerate(HONEST)}
    for name, uid in users.items():
        (base / name).mkdir(mode=0o711)
        os.chown(base / name, uid, uid)
    for name in HONEST:
        text = secrets.token_hex(32)
        for path, uid in (
            (base / f"daemon/{name}.secret", KEEPER),
            (base / name / "secret", users[name]),
        ):
            path.write_text(text)
            path.chmod(0o600)
            os.chown(path, uid, uid)
    daemon = fork(KEEPER, _sections(base, users), base)
    try:
        yield daemon
    finally:
        daemon.kill()


def _sections(base: Path, users: Mapping[str, int]) -> Sections:
    return {
        "daemon": {
            "endpoint": "tcp://127.0.0.1:*",
            "metrics_endpoint": "127.0.0.1:0",
            "runtime_dir": f"{base}/daemon/run",
            "host_timeout": "1m",  # a machine may be slow; a death is seen at once
        },
        "arena": {
            "size": len(HONEST) * SLOTS * (PAYLOAD_BYTES + 4096),
            "payload": PAYLOAD_BYTES,
            "layers": LAYERS,
        },
        "storage": {"path": f"{base}/daemon/store", "size": STORE_BYTES},
        "store": {"segment": "1MiB"},
        "limits": {"demands": 64, "chunks": 16_384, "ports": 24},
        "tenant": [
            {
                "name": name,
                "users": [str(users[name])],
                "secret_file": f"{base}/daemon/{name}.secret",
            }
            for name in HONEST
        ],
    }


@contextmanager
def _hosts(base: Path, daemon: Daemon, board: Board, seed: int) -> Iterator[list[Child]]:
    """Every host, the hostile one last; started before this process has threads."""
    hosts: list[Child] = []
    try:
        number = 0
        for place, (tenant, count) in enumerate(HONEST.items(), KEEPER + 1):
            where = Endpoint(daemon.endpoint, tenant, secret=base / tenant / "secret")
            for i in range(count):
                hosts.append(Child(place, honest, where, f"{tenant}-{i}", number, seed, board))
                number += 1
            if tenant == HOSTILE:
                victim = next(name for name in HONEST if name != HOSTILE)
                target = Target(where, daemon.metrics_port, victim)
                hosts.append(Child(place, hostile, target, board))
        yield hosts
    finally:
        board.stop()
        for host in hosts:
            host.kill()


def _await_all(board: Board, hosts: Sequence[Child]) -> None:
    """Wait until every host has checked a text, and every attack has run once."""
    until_s = time.monotonic() + BEGIN_S
    while not all(count for name, count in board.counts().items() if name != GRANTED):
        if time.monotonic() > until_s:
            said = "".join(host.complaint() for host in hosts)[-2000:]
            raise RunFailed(
                f"not every process started: {board.counts()} {said}",
                "bench soak",
                "run it again on an idle machine",
            )
        time.sleep(0.05)


def _look(daemon: Daemon, board: Board, seconds: float, say: Say) -> list[Look]:
    """Observe the daemon from outside, repeatedly."""
    samples: list[Look] = []
    begun_s = said_s = time.monotonic()
    pause_s = max(seconds / SAMPLES, 0.2)
    while (now_s := time.monotonic()) < begun_s + seconds:
        samples.append(
            Look(
                now_s - begun_s,
                _process(daemon.process.pid),
                *_asked(daemon),
                sum(board.counts()[name] for name in _names()),
            )
        )
        if now_s > said_s + 30:
            said_s = now_s
            say(
                f"{now_s - begun_s:.0f} s: {samples[-1].checked:,} blocks checked, "
                f"{samples[-1].held.rss_bytes / (1 << 20):.1f} MiB"
            )
        time.sleep(pause_s)
    return samples


def _process(pid: int) -> Level:
    """The kernel's figures of the daemon's process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    words = {
        name: rest.split()[0] for name, _, rest in (x.partition(":") for x in lines) if rest.split()
    }
    threads = []
    for one in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            threads.append((one / "comm").read_text())
    return Level(
        rss_bytes=int(words["VmRSS"]) << 10,
        threads=sum(not one.startswith(IO_URING) for one in threads),
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    )


def _operator(daemon: Daemon) -> Control:
    """The operator's endpoint; root may read the secret of the daemon's user."""
    place = daemon.runtime_dir
    secret = bytes.fromhex((place / f"{OPERATOR}.secret").read_text(encoding="ascii"))
    way = Endpoint(f"ipc://{place}/{OPERATOR_SOCKET}", OPERATOR, secret=secret, timeout_s=END_S)
    return way.control(heartbeat=False)


def _asked(daemon: Daemon) -> tuple[int, float]:
    """A new login of the operator and a question: the number of hosts in the answer, and its
    time."""
    begun_s = time.monotonic()
    try:
        with _operator(daemon) as operator:
            hosts = len(operator.status()["hosts"])
    except OffstageError:
        hosts = -1
    return hosts, time.monotonic() - begun_s


def _before(daemon: Daemon) -> Level:
    """The daemon's resources with the operator alone."""
    with _operator(daemon) as operator:
        operator.status()
        return _process(daemon.process.pid)


def _after(daemon: Daemon, before: Level) -> tuple[Level, dict[str, Ledger], dict[str, Any]]:
    """After all hosts have left: the daemon's remaining resources, its ledgers and its status.
    Then it is stopped."""
    until_s = time.monotonic() + END_S
    with _operator(daemon) as operator:
        while (
            not _as_before(after := _process(daemon.process.pid), before)
            and time.monotonic() < until_s
        ):
            operator.status()
            time.sleep(0.1)
        ledgers = {name: Ledger.of(operator.ledger(name)) for name in HONEST}
        status = operator.status()
    daemon.process.send_signal(signal.SIGTERM)
    return after, ledgers, status


def _told(log: str) -> list[str]:
    """What the daemon logged of the honest hosts, unexpected lines, and its last words."""
    lines = log.splitlines()
    kinds = ("host_dead", "request_failed", "accept_failed", "reactor_silent", "Traceback")
    known = [
        one for one in lines if any(kind in one for kind in kinds) and f'"{HOSTILE}-' not in one
    ]
    return [*known[-100:], *lines[-10:]]


def _as_before(after: Level, before: Level) -> bool:
    """Each tenant's region takes one more descriptor from its first host on."""
    most = before.descriptors + len(HONEST)
    return after.threads <= before.threads and after.descriptors <= most


def judge(found: SoakResult) -> None:
    """Set the verdicts of a run: True, False, or None where it was too short to say."""
    hosts, samples = found.hosts, found.samples
    victims = [host for host in hosts if host.tenant != HOSTILE]
    quarter = max(len(samples) // 4, 1)
    found.rss_early_bytes, found.rss_late_bytes = (
        max(one.held.rss_bytes for one in some)
        for some in (samples[quarter : 2 * quarter] or samples, samples[-quarter:])
    )
    flat = found.rss_late_bytes <= found.rss_early_bytes + FLAT_BYTES
    granted = found.attacks[GRANTED]
    made = [count for name, count in found.attacks.items() if name != GRANTED]
    found.verdicts = {
        "every_block_right": not any(one.wrong for one in hosts)
        and all(one.checked for one in hosts),
        "no_acknowledged_block_lost": not any(one.lost for one in hosts),
        "other_tenants_refused_nothing": not any(one.refused for one in victims),
        "ledgers_equal": all(_equal(found, name) for name in HONEST if name != HOSTILE),
        "memory_flat": flat if found.seconds >= FLAT_FROM_S else None,
        "descriptors_and_threads_as_before": _as_before(found.after, found.before),
        "operator_always_let_in": all(one.hosts >= 0 for one in samples),
        "every_attack_was_made": all(made) and not found.complaints,
        "nothing_of_the_operator_granted": granted == 0,
        "all_ended_well": not any(found.exits)
        and found.daemon_exit == 0
        and not any("Traceback" in line for line in found.daemon_said),
    }


def _equal(found: SoakResult, tenant: str) -> bool:
    """Whether the ends that the tenant's hosts saw equal the daemon's counts."""
    own = [one.ends for one in found.hosts if one.tenant == tenant]
    seen = [sum(ends[i] for ends in own) for i in range(len(ENDS))]
    return seen == found.ledgers[tenant].ends
