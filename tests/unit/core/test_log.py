"""Is a damaged decision log always detected and refused?"""

import random
from dataclasses import replace as changed
from itertools import pairwise

import numpy as np
import pytest
from core_logs import CONFIG, HEADER_BYTES, boundaries, recorded, restamped
from core_pair import Driver
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.core import (
    ACTION,
    CAUSES,
    GUESS,
    Core,
    Policy,
    SessionConfig,
    replay,
)
from offstage.bindings.errors import Corrupt
from offstage.bindings.sim import populate


@settings(max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_is_found(data: st.DataObject) -> None:
    log = bytearray(recorded())
    log[data.draw(st.integers(0, len(log) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corrupt):
        replay(bytes(log))


@settings(max_examples=60)
@given(data=st.data())
def test_a_torn_log_is_refused(data: st.DataObject) -> None:
    """A cut inside a record is refused; one between records is a shorter log that agrees."""
    log = recorded()
    ends = boundaries(log)
    assert ends[-1] == len(log) and len(ends) > 30
    cut = data.draw(st.one_of(st.integers(0, len(log) - 1), st.sampled_from(ends)))
    if cut in ends:
        assert replay(log[:cut]).diverged_at is None
    else:
        with pytest.raises(Corrupt):
            replay(log[:cut])


def test_a_missing_or_moved_record_is_refused() -> None:
    log = recorded()
    ends = boundaries(log)
    first, second = log[ends[4] : ends[5]], log[ends[5] : ends[6]]
    with pytest.raises(Corrupt):
        replay(log[: ends[4]] + log[ends[5] :])
    with pytest.raises(Corrupt):
        replay(log[: ends[4]] + second + first + log[ends[6] :])
    assert replay(log).agreed > 20


def test_a_log_with_a_hole_is_refused() -> None:
    """A ring that is not drained loses whole records and reports it; the log is not replayed past
    the gap."""
    config = changed(CONFIG, log_size_bytes=4096)
    driver = Driver(7, config, Policy())
    pair = driver.pair
    pair.core.tenant_add(0, b"k" * 16, 4)
    taken = pair.core.log()
    for now in range(200):
        pair.core.tick(now)
    assert pair.core.ledger().log_bytes_lost > 0
    taken += pair.core.log()
    pair.core.tick(300)
    assert replay(taken).diverged_at is None
    with pytest.raises(Corrupt):
        replay(taken + pair.core.log())


def test_another_decision_is_named_by_its_record() -> None:
    """The log of a core that decides differently is valid; its first different record is named."""
    log = bytearray(recorded())
    assert restamped(bytes(log)) == log
    ends = [0, *boundaries(bytes(log))]
    # Number of actions at byte 16 of a record; the last 88 bytes are its last action.
    begin, end = next(
        (a, b) for a, b in pairwise(ends) if int.from_bytes(log[a + 16 : a + 20], "little") > 0
    )
    log[end - ACTION.itemsize + 20] ^= 1  # its slot
    result = replay(restamped(bytes(log)))
    assert result.diverged_at == begin
    assert result.agreed < replay(recorded()).agreed


@pytest.mark.parametrize("count", [0, 1, 9, 0x10000001, 0xFFFFFFFF])
def test_a_hint_that_lies_about_its_size_is_refused(count: int) -> None:
    """The count inside a record is checked against its bytes before a guess is read."""
    core = Core(CONFIG, Policy())
    session = core.session_open(0, SessionConfig(core.tenant_add(0, b"k" * 16, 4), 2))
    populate(core, session, 4)
    guesses = np.zeros(5, GUESS)
    guesses["cause"] = CAUSES.index("lookahead")
    core.hint(5, session, guesses)
    log = bytearray(core.log())
    assert replay(bytes(log)).diverged_at is None
    begin = [0, *boundaries(bytes(log))][-2]
    assert len(log) - begin >= HEADER_BYTES + 8 + guesses.nbytes
    log[begin + HEADER_BYTES + 4 : begin + HEADER_BYTES + 8] = count.to_bytes(4, "little")
    with pytest.raises(Corrupt):
        replay(restamped(bytes(log)))


def test_nonsense_is_refused() -> None:
    log = recorded()
    ends = boundaries(log)
    garbage = bytes(random.Random(3).randbytes(len(log)))
    for nonsense in (b"", b"\0" * HEADER_BYTES, garbage, log[ends[0] :]):
        with pytest.raises(Corrupt):
            replay(nonsense)
