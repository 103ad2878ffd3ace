"""Closed loop: the requests of a log, decided again in the chip's time.

Model: the log's external events, from hosts and from control, are given in order to a fresh core of
the same configuration, bounded by the chip's limits. The core's internal events are not taken from
the log: reads end when the chip ends them, ticks come when the core schedules them, and a demand
that finds every slot pinned is retried. A fetch follows the same events as in the log, with the
host's time in between; a control event follows the event before it and the fetches of its session.

What the log fixes beside the device, the arena and the host's pace, `Elsewhere` may change.

A prefix that the chip's index does not find is made and written again (`known.py`).
Decisions that differ from the log's are counted by kind. An event that the core refuses, because
its state has diverged, is counted too. One thread; raises only what `trace.walk` raises.
"""

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.asic_model.account import PS, Account, Device, Served
from offstage.asic_model.chip import limited, sizes
from offstage.asic_model.elsewhere import AS_LOGGED, Elsewhere
from offstage.asic_model.known import Prefixes, room
from offstage.asic_model.parameters import Preset
from offstage.asic_model.trace import SESSION, TENANT, Trace, walk
from offstage.bindings.core import (
    COMPLETE,
    GUESS,
    READ,
    RETRACT,
    Core,
)
from offstage.bindings.errors import OffstageError
from offstage.bindings.layouts import HIT_ENDS
from offstage.bindings.replay import Event, ToldStep, policy_of

__all__ = ["ClosedLoop"]

RETRY_PS = 10_000_000
OWN = ("io_done", "tick", "slot_free")
"""Events that the core's owner sends; here the model is the owner."""
OF_SESSION = ("append", "generating", "close", "release", "hint")


@dataclass(slots=True)
class _Item:
    """One external event. edges: (item, lag in ps) that follow its issue or its end."""

    event: Event
    fetch: int = -1
    open: int = 0
    at_ps: int = 0
    issued: "list[tuple[_Item, int]]" = field(default_factory=list)
    done: "list[tuple[_Item, int]]" = field(default_factory=list)
    served: Served | None = None
    remaining: int = 0
    busy: int = 0
    retries: int = 0
    read_tag: int = 0


class ClosedLoop:
    """One run; `ends`, `issued` and `diverged` are filled by `run`."""

    def __init__(
        self,
        trace: Trace,
        preset: Preset,
        drive: str,
        seed: int,
        advance: Callable[[int], None],
        elsewhere: Elsewhere = AS_LOGGED,
    ) -> None:
        entries = sizes(preset).prefixes
        trace = replace(trace, config=replace(trace.config, chunk_max=room(trace, entries)))
        self.trace, self.preset, self._elsewhere = trace, preset, elsewhere
        self.device = Device(preset, trace, drive=drive, seed=seed)
        self.account = Account()
        self.ends: npt.NDArray[np.int64] = np.zeros(9, np.int64)
        self.issued: Counter[int] = Counter()
        self._advance = advance
        slots = round(trace.config.slot_count * elsewhere.arena)
        self._core = Core(limited(preset, replace(trace.config, slot_count=slots)), trace.policy)
        self.prefixes = Prefixes(entries)
        self._answer_ps = 0 if preset.cores is None else preset.cores.answer.whole
        self._ticks = bool(trace.policy.prefetch_bytes_per_s_max or trace.policy.lease_ns)
        self._tick_ns: int | None = None
        self._sessions: dict[int, int] = {}
        self._waiters: dict[int, _Item] = {}
        self._reads: Counter[tuple[int, int, int]] = Counter()
        self._victims: Counter[tuple[int, int]] = Counter()
        self._log_reads: Counter[tuple[int, int, int]] = Counter()
        self._log_victims: Counter[tuple[int, int]] = Counter()
        self._kinds: Counter[str] = Counter()
        self._open = 0
        self._first = self._linked()

    def run(self) -> None:
        """Run to the end."""
        for item in self._first:
            self._due(item)
        self.device.run()

    def diverged(self) -> dict[str, int]:
        """Decisions that differ from the log's, by kind."""
        reads, victims = self._reads, self._victims
        kinds = self._kinds + Counter(
            {
                "read not issued": sum((self._log_reads - reads).values()),
                "read issued beside": sum((reads - self._log_reads).values()),
                "victim kept": sum((self._log_victims - victims).values()),
                "victim beside": sum((victims - self._log_victims).values()),
            }
        )
        return dict(sorted((kind, count) for kind, count in kinds.items() if count))

    # Dependencies, from the log.

    def _linked(self) -> list[_Item]:
        """Build the items with their edges; return those without a predecessor."""
        by_fetch: list[_Item] = []
        last: dict[int, _Item] = {}
        first: list[_Item] = []
        before: _Item | None = None
        control: _Item | None = None
        for event in walk(self.trace.log, self.trace.name):
            self._count(event)
            if event.kind in OWN or event.rc:
                continue
            if event.step is not None and event.step.retry:
                by_fetch.append(last[event.step.session])
                continue
            item = _Item(event)
            self._open += event.step is not None
            if event.step is not None:
                item.fetch = len(by_fetch)
                by_fetch.append(item)
                self._after(item, by_fetch, before, control)
                last[event.step.session] = item
            else:
                self._behind(item, before, last)
                control = item
            if item.open == 0:
                item.at_ps = 0
                first.append(item)
            before = item
        return first

    def _count(self, event: Event) -> None:
        for action in event.actions:
            if action["type"] == READ:
                self._log_reads[_read_key(action, int(action["chunk"]))] += 1
            elif action["type"] == RETRACT:
                self._log_victims[int(action["chunk"]), int(action["layer"])] += 1

    def _after(
        self, item: _Item, by_fetch: list[_Item], before: _Item | None, control: _Item | None
    ) -> None:
        """Order a fetch behind the fetches it followed, and behind earlier control events."""
        fetch = self.trace.fetches[item.fetch]
        for number in {id(by_fetch[one]): one for one in fetch.after}.values():
            by_fetch[number].done.append((item, self._lag_ps(fetch.lag_ns)))
            item.open += 1
        if control is not None:
            control.issued.append((item, 0))
            item.open += 1
        if not fetch.after and before is not None:
            lag_ns = item.event.now_ns - before.event.now_ns
            before.issued.append((item, self._lag_ps(lag_ns)))
            item.open += 1

    def _lag_ps(self, lag_ns: int) -> int:
        """The host's own time between two events."""
        return round(max(0, lag_ns) * PS * self._elsewhere.host)

    def _behind(self, item: _Item, before: _Item | None, last: dict[int, _Item]) -> None:
        """Order a control event behind the event before it and its session's last fetch."""
        event = item.event
        if before is not None:
            lag_ns = event.now_ns - before.event.now_ns
            before.issued.append((item, self._lag_ps(lag_ns)))
            item.open += 1
        if event.kind in OF_SESSION:
            fetched = last.get(_numbers(event)[0])
            if fetched is not None:
                answered_ns = self.trace.fetches[fetched.fetch].answered_ns
                fetched.done.append((item, self._lag_ps(event.now_ns - answered_ns)))
                item.open += 1

    def _follow(self, edges: list[tuple[_Item, int]], now_ps: int) -> None:
        for item, lag_ps in edges:
            item.at_ps = max(item.at_ps, now_ps + lag_ps)
            item.open -= 1
            if item.open == 0:
                self._due(item)

    def _due(self, item: _Item) -> None:
        self.device.at(item.at_ps, lambda now_ps: self._issue(item, now_ps))

    # The run.

    def _issue(self, item: _Item, now_ps: int) -> None:
        if item.event.step is not None:
            self._send(item, item.event.step, now_ps)
        else:
            self._control(item.event, now_ps)
        self._follow(item.issued, now_ps)

    def _send(self, item: _Item, step: ToldStep, now_ps: int) -> None:
        """Send the host's command to the chip."""
        fetch = self.trace.fetches[item.fetch]
        pace_ns = self.trace.session_ns.get(fetch.session, 0)
        if item.served is None:
            session = self._sessions.get(fetch.session, fetch.session)
            token = self.account.token(session, fetch.step, pace_ns, fetch.tenant)
            item.served = Served(token, now_ps)
            if fetch.demands:
                self.account.fetches.append(item.served)
        item.served.tags = [
            self.device.ask(
                "command",
                now_ps,
                lambda end_ps: self._decide(item, step, end_ps),
                count=len(step.demands),
                blocks=fetch.blocks,
                score_count=len(step.scores),
                tenant=fetch.tenant,
                session=self._sessions.get(step.session, step.session),
                size_bytes=self.trace.block_bytes,
                layer=step.layer,
            )
        ]

    def _decide(self, item: _Item, step: ToldStep, now_ps: int) -> None:
        """Let the core decide; send staged blocks to the host."""
        assert item.served is not None
        item.served.decided_ps = item.served.staged_ps = now_ps
        item.busy = 0
        self._waiters[item.fetch] = item
        ends = self._call(
            "step",
            lambda now_ns: self._core.step(
                now_ns,
                self._sessions[step.session],
                step.step,
                step.layer,
                step.demands,
                scores=step.scores if len(step.scores) else None,
                waiter=item.fetch,
                selected_count=step.selected_count,
                retry=item.retries > 0,
            ),
            now_ps,
        )
        if ends is None:
            self._done(item, now_ps)
            return
        if not item.retries:
            self.ends += np.bincount(ends, minlength=9)[:9]
            self._differ(item.event.ends, ends)
        waiting = int((ends >= HIT_ENDS).sum())
        staged = len(ends) - waiting
        item.remaining = waiting + (staged > 0)
        item.served.waited |= waiting > 0
        if staged:
            self._hit(item, staged, now_ps, 0)
        self._act(now_ps)
        if not len(ends):
            self._done(item, now_ps)

    def _differ(self, log: npt.NDArray[np.uint8], ends: npt.NDArray[np.uint8]) -> None:
        """Count demands that ended differently than in the log."""
        for before, now in zip(log.tolist(), ends.tolist(), strict=True):
            if before != now:
                was, became = _class(before), _class(now)
                kind = f"{was} became {became}" if was != became else f"{was} by another cause"
                self._kinds[kind] += 1

    def _hit(self, item: _Item, count: int, now_ps: int, read_tag: int) -> None:
        fetch = self.trace.fetches[item.fetch]
        self.account.bytes_to_hosts += count * self.trace.block_bytes

        assert item.served is not None
        served = item.served
        ahead_ps = 0 if read_tag else served.ahead_ps(self.preset)

        def landed(end_ps: int) -> None:
            served.landed(end_ps, ahead_ps)
            served.tags[1:] = [read_tag, tag]
            if ahead_ps and not served.waited:
                served.tags, served.shift_ps = [tag], ahead_ps
            self._answered(item, end_ps)

        tag = self.device.ask(
            "hit",
            now_ps,
            landed,
            count=count,
            size_bytes=self.trace.block_bytes,
            tenant=fetch.tenant,
            session=self._sessions.get(fetch.session, fetch.session),
            layer=fetch.layer,
        )

    def _answered(self, item: _Item, now_ps: int) -> None:
        """Count down the completions that the fetch waits for."""
        item.remaining -= 1
        if item.remaining:
            return
        if item.busy:
            item.retries += 1
            step = item.event.step
            assert step is not None
            self.device.at(now_ps + RETRY_PS, lambda at_ps: self._send(item, step, at_ps))
            return
        self._done(item, now_ps)

    def _done(self, item: _Item, now_ps: int) -> None:
        assert item.served is not None
        if not item.served.end_ps:
            item.served.landed(now_ps, item.served.ahead_ps(self.preset))
        self._open -= 1
        self._advance(1)
        self._follow(item.done, item.served.end_ps)

    def _act(self, now_ps: int, read_tag: int = 0) -> None:
        """Execute the core's actions, and schedule its tick."""
        while len(actions := self._core.actions()):
            for action in actions:
                kind = action["type"]
                if kind == READ:
                    self._read(action, now_ps)
                elif kind == RETRACT:
                    chunk = self.prefixes.logged(int(action["chunk"]))
                    self._victims[chunk, int(action["layer"])] += 1
                elif kind == COMPLETE:
                    self._complete(action, now_ps, read_tag)

    def _complete(self, action: Any, now_ps: int, read_tag: int) -> None:
        item = self._waiters.get(int(action["waiter"]))
        if item is None or not item.remaining:
            return
        if action["rc"] == 0:
            assert item.served is not None
            item.served.staged_ps = now_ps + self._answer_ps
            self._hit(item, 1, now_ps, read_tag)
            return
        item.busy += action["rc"] == -errno.EAGAIN
        self._answered(item, now_ps)

    def _read(self, action: Any, now_ps: int) -> None:
        self._reads[_read_key(action, self.prefixes.logged(int(action["chunk"])))] += 1
        self.issued[int(action["cause"])] += 1
        io = int(action["io"])

        def landed(end_ps: int) -> None:
            self.account.read(end_ps - now_ps, int(action["session"]))
            self._call("io_done", lambda now_ns: self._core.io_done(now_ns, io), end_ps)
            self._act(end_ps, tag)
            self._tick(end_ps)

        tag = self.device.ask(
            "read",
            now_ps,
            landed,
            size_bytes=self.trace.block_bytes,
            tenant=int(action["tenant"]),
            session=int(action["session"]),
            layer=int(action["layer"]),
            cause=int(action["cause"]),
            deadline_ps=min(int(action["deadline_ns"]) * PS, 2**62),
            offset_bytes=self.trace.offset_bytes(int(action["chunk"]), int(action["layer"])),
        )

    def _tick(self, now_ps: int) -> None:
        """The core's own clock: at most one tick is scheduled."""
        if not self._ticks:
            return
        next_ns = self._core.tick(_ns(now_ps))
        self._act(now_ps)
        if next_ns is not None and (self._tick_ns is None or next_ns < self._tick_ns):
            self._tick_ns = next_ns
            self.device.at(next_ns * PS, self._ticked)

    def _ticked(self, now_ps: int) -> None:
        self._tick_ns = None
        if self._open:
            self._tick(now_ps)

    def _call(self, kind: str, call: Callable[[int], Any], now_ps: int) -> Any:
        """Send an event to the core; count it if refused."""
        try:
            return call(_ns(now_ps))
        except OffstageError:
            self._kinds[f"refused {kind}"] += 1
            return None

    def _control(self, event: Event, now_ps: int) -> None:
        """Replay an event that is not a fetch."""
        core, data = self._core, event.input
        n = _numbers(event)
        chunk = self.prefixes.own(n[0]) if n else 0
        session = self._sessions.get(n[0], n[0]) if n else 0
        calls: dict[str, Callable[[int], Any]] = {
            "session_open": lambda ns: core.session_open(ns, self._elsewhere.session(data)),
            "append": lambda ns: self._append(ns, session, event, now_ps),
            "generating": lambda ns: core.session_set_generating(ns, session, bool(n[1])),
            "close": lambda ns: core.session_close(ns, session),
            "release": lambda ns: core.session_release(ns, session),
            "hint": lambda ns: self._hint(ns, session, data, now_ps),
            "stored": lambda ns: core.block_stored(ns, chunk, n[1]),
            "lost": lambda ns: core.block_lost(ns, chunk, n[1]),
            "restore": lambda ns: core.block_restore(ns, n[0], data[8:24], n[1]),
            "forget": lambda ns: core.block_forget(ns, n[0], data[8:24], n[1]),
            "stage": lambda ns: core.block_stage(ns, chunk, n[1]),
            "clean": lambda ns: core.block_clean(ns, chunk, n[1]),
            "drop": lambda ns: core.block_drop(ns, chunk, n[1]),
            "reset": core.reset,
            "tenant": lambda ns: self._tenant(ns, data),
            "policy": lambda ns: core.set_policy(ns, policy_of(data)),
        }
        found = self._call(event.kind, calls[event.kind], now_ps)
        if event.kind == "session_open" and found is not None:
            logged = int(np.frombuffer(event.answer, np.uint32, 1)[0])
            self._sessions[logged] = found
            self.prefixes.opened(logged, int(np.frombuffer(data, SESSION, 1)[0]["tenant"]))
        if event.kind == "close":
            self._sessions.pop(n[0], None)
        if event.kind == "stored":
            self._write(chunk, n[1], now_ps, self.trace.is_prefill(event.offset))
        self._act(now_ps)
        self._tick(now_ps)

    def _hint(self, now_ns: int, session: int, data: bytes, now_ps: int) -> None:
        """Guesses, as the firmware hands them over: no more in a call than its table holds."""
        guesses = np.frombuffer(data[8:], GUESS)
        most = self._core.config.queue_max
        for begin in range(0, len(guesses), most):
            self._core.hint(now_ns, session, guesses[begin : begin + most])
            self._act(now_ps)

    def _append(self, now_ns: int, session: int, event: Event, now_ps: int) -> None:
        """Name chunks, those that the chip's index does not know as new ones, which are written."""
        keys, missed = self.prefixes.keys(event)
        infos = self._core.session_append_keys(now_ns, session, keys)
        layers = self.trace.config.layer_count
        for chunk in self.prefixes.placed(event, infos, missed):
            for layer in range(layers):
                self._core.block_stored(now_ns, chunk, layer)
                self._write(chunk, layer, now_ps, self.trace.is_prefill(event.offset))
            self.prefixes.written_again(layers)

    def _write(self, chunk: int, layer: int, now_ps: int, is_prefill: bool) -> None:
        """Write a block through the chip; before any fetch, and where it took no time, in none."""
        if is_prefill or not self.account.fetches:
            return
        self.account.bytes_written += self.trace.block_bytes
        self.device.write(self.trace, chunk, layer, now_ps)

    def _tenant(self, now_ns: int, data: bytes) -> int:
        """Add a tenant, with its share of an arena that may be smaller than the log's."""
        found = np.frombuffer(data, TENANT, 1)[0]
        has, had = self._core.config.slot_count, self.trace.config.slot_count
        slots = max(1, int(found["slot_count"]) * has // had)
        secret = found["secret"].tobytes()
        return self._core.tenant_add(now_ns, secret, slots, int(found["weight"]))


def _ns(now_ps: int) -> int:
    return -(-now_ps // PS)


def _numbers(event: Event) -> list[int]:
    """The numbers at the start of an event's input."""
    return [int(one) for one in np.frombuffer(event.input[:8], np.uint32)]


def _read_key(action: Any, chunk: int) -> tuple[int, int, int]:
    return chunk, int(action["layer"]), int(action["cause"])


def _class(end: int) -> str:
    return "hit" if end < HIT_ENDS else "late" if end == HIT_ENDS else "miss"
