"""Does a recording say how busy its machine was, and is a core given to the reactor alone?"""

import os
import threading
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.storage import alone
from offstage.dpu.watch import busy


def test_the_shares_are_of_the_time_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the threads did before does not count, and a thread that is new counts whole."""
    thread = busy._Thread
    before = {"1": thread("python", 100, 900, 5)}
    after = {"1": thread("python", 130, 910, 6), "2": thread(alone.REACTOR, 60_000, 20_000, 4)}
    counts = iter([before, after])
    pressures = iter([1_000_000, 3_000_000])
    monkeypatch.setattr(busy, "_threads", lambda: next(counts))
    monkeypatch.setattr(busy, "_pressure_us", lambda: next(pressures))
    clock = iter([10.0, 14.0])
    monkeypatch.setattr(busy.time, "monotonic", lambda: next(clock))
    found = busy.Busy().since()
    assert found.seconds == 4.0 and found.pressure == pytest.approx(0.5)
    assert found.reactor_waited == pytest.approx(0.25)
    assert found.process_waited == pytest.approx(20_010 / 80_040)
    assert found.reactor_delay_us == pytest.approx(5.0)


def test_where_the_kernel_does_not_count_the_shares_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(busy, "_threads", dict)
    monkeypatch.setattr(busy, "_pressure_us", lambda: None)
    found = busy.Busy().since()
    assert found.reactor_waited is None and found.pressure is None


def test_one_core_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    with pytest.raises(BadInput, match="one core only"):
        alone.spare_core(-1, "--isolate")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert alone.spare_core(-1, "--isolate") == 5 and alone.spare_core(3, "x") == 3


def test_the_reactor_gets_its_core_and_other_threads_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user who may not is told so in one line."""
    affinity: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: affinity.update({pid: cores}))
    scheduled: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, how, what: scheduled.append(pid))
    done = threading.Event()
    found: list[int] = []

    def reactor() -> None:
        tid = threading.get_native_id()
        found.append(tid)
        Path(f"/proc/self/task/{tid}/comm").write_text(alone.REACTOR)
        done.wait(10)

    thread = threading.Thread(target=reactor)
    thread.start()
    while not found or alone.REACTOR not in Path(f"/proc/self/task/{found[0]}/comm").read_text():
        pass
    alone.set_alone(-1)
    assert scheduled == found and affinity[found[0]] == {1}
    assert affinity[os.getpid()] == {0}

    def refuse(pid: int, how: int, what: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(BadInput, match="core to itself"):
        alone.set_alone(-1)
    done.set()
    thread.join()
