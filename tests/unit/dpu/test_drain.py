"""Does the drain change state as its table says, and does every caller of a drain get an answer?"""

import io
import time
from typing import Any

import pytest

from offstage.bindings.errors import DeviceTimeout
from offstage.dpu import protocol
from offstage.dpu.control import drain
from offstage.dpu.control.drain import NEXT, Drain, Event, State
from offstage.dpu.control.replies import Waiting
from offstage.dpu.log import Log
from offstage.dpu.tenants.hosts import Refused

HOUR_NS = 3_600 * 10**9
ASKED, OTHER = Waiting(b"route", 7), Waiting(b"other", 8)


def drain_of(device: Any) -> Drain:
    return Drain(device, HOUR_NS, Log("debug", io.StringIO(), text=False))


def test_the_docstring_shows_the_transitions() -> None:
    """The module's table has a column for each event, with an empty cell where there is no
    transition."""
    lines = (drain.__doc__ or "").splitlines()
    table = {
        one.split()[0]: one for one in lines if one.strip() and one.split()[0] in State.__members__
    }
    for state in set(State) - {State.STOPPED}:
        shown = [word for word in table[state.name].split()[1:] if word in State.__members__]
        assert shown == [NEXT[state, event].name for event in Event if (state, event) in NEXT]
    assert not [state for state, _ in NEXT if state is State.STOPPED]


def test_waiting_drains_are_answered_when_all_is_stored_or_at_their_deadline(device: Any) -> None:
    device.dirty = 3
    one = drain_of(device)
    assert not one.refuses and not one.pending and one.turn(0.0) == []
    one.ask(ASKED, HOUR_NS)
    one.ask(OTHER, 0)
    (late,) = one.turn(time.monotonic() + 1)
    assert late == (OTHER, protocol.Drained(drained=False, dirty_blocks=3)) and one.pending
    device.dirty = 0
    assert one.turn(0.0) == [(ASKED, protocol.Drained(drained=True, dirty_blocks=0))]
    assert one.state is State.DRAINING and one.refuses and not one.pending


def test_an_undrain_answers_waiting_drains_unless_stopping(device: Any) -> None:
    device.dirty = 3
    one = drain_of(device)
    one.ask(ASKED, HOUR_NS)
    one.undrain()
    assert not one.refuses
    assert one.turn(0.0) == [(ASKED, protocol.Drained(drained=False, dirty_blocks=3))]
    one.signalled()
    assert one.turn(0.0) == [] and one.state is State.STOPPING
    with pytest.raises(Refused, match="is draining"):
        one.undrain()
    one.ask(ASKED, HOUR_NS)  # a drain requested meanwhile does not keep it running
    device.dirty = 0
    assert len(one.turn(0.0)) == 1 and one.state is State.STOPPED and not one.lost


def test_hosts_are_cut_once_and_blocks_that_stay_in_memory_are_lost(device: Any) -> None:
    device.dirty = 3
    one = drain_of(device)
    one.signalled()
    one.signalled()  # at once: the same request
    one.turn(0.0)
    assert not one.cuts_hosts(0.5) and one.cuts_hosts(1.5) and not one.cuts_hosts(1.5)
    one.turn(HOUR_NS / 1e9 - 1)
    assert one.state is State.STOPPING
    one.turn(HOUR_NS / 1e9 + 1)
    assert one.state is State.STOPPED and one.lost and not one.stuck


def test_a_reactor_that_does_not_answer_is_asked_once(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def silent(timeout_ns: int) -> bool:
        asked.append(timeout_ns)
        raise DeviceTimeout("no answer", errno=110)

    monkeypatch.setattr(device, "drain", silent)
    one = drain_of(device)
    one.ask(ASKED, 0)
    ended = one.turn(time.monotonic() + 1)
    assert ended == [(ASKED, protocol.Drained(drained=False, dirty_blocks=-1))]
    one.ask(ASKED, HOUR_NS)
    assert one.turn(0.0) == [] and one.stuck and len(asked) == 1
