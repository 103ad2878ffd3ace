"""Does a host's view of a member change as the table of the state machine says?"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.host.pod import suspicion
from offstage.host.pod.suspicion import SUSPECT_NS, Event, State, Suspicion

TABLE = {
    (row.split()[0], event): cell
    for row in re.findall(r"    ((?:TRUSTED|SUSPECT|LOST) .*)", suspicion.__doc__ or "")
    for event, cell in zip(
        ("FAILED", "ENDED", "ANSWERED", "OVERDUE"), re.split(r"\s{2,}", row)[1:], strict=True
    )
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_the_table_of_the_module_is_what_happens(state: State, event: Event) -> None:
    """A "-" changes no state; only a cell with "probe" sends a probe, and it sends one."""
    asked: list[int] = []
    one = Suspicion(lambda: len(asked) or asked.append(0) or 1, state)
    cell = TABLE[state.name, event.name]
    one.move(event, 5, "why")
    after = cell.split(",")[0]
    assert one.state is (State[after] if after in State.__members__ else state)
    assert bool(asked) == ("probe" in cell)


@given(st.lists(st.tuples(st.sampled_from(Event), st.integers(0, 3 * SUSPECT_NS))))
def test_lost_is_for_good_and_a_silence_counts_once(events: list[tuple[Event, int]]) -> None:
    """Lost is final and keeps its first reason; failures within SUSPECT_NS are one suspicion."""
    one, now_ns, counted_ns, first = Suspicion(lambda: 1), SUSPECT_NS, -SUSPECT_NS, ""
    for number, (event, later_ns) in enumerate(events):
        now_ns, before = now_ns + later_ns, one.count
        one.move(event, now_ns, str(number))
        if event in (Event.FAILED, Event.ENDED):
            assert one.count - before == (now_ns >= counted_ns + SUSPECT_NS)
            counted_ns = now_ns
        first = first or (str(number) if event is Event.ENDED else "")
        assert one.lost_why == first and (one.state is State.LOST) == bool(first)
