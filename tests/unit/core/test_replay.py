"""Does a log give its events one by one, with the decisions made on each?"""

import random
from contextlib import suppress
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest
from core_logs import CONFIG, HEADER_BYTES, boundaries, recorded, restamped
from core_pair import Driver, random_policy
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.core import CHUNK_KEYS, KEY, Core, Policy, SessionConfig, replay
from offstage.bindings.errors import Corrupt, OffstageError
from offstage.bindings.replay import Walk, events
from offstage.bindings.sim import populate
from offstage.dpu.watch.recorder import first_difference


def test_every_event_comes_with_what_the_core_decided() -> None:
    """Decisions equal those of a core that gets the same events directly."""
    core = Core(changed(CONFIG, record_max=64), Policy(prefetchers="ema", degree_max=2))
    tenant = core.tenant_add(0, b"k" * 16, 10)
    session = core.session_open(1, SessionConfig(tenant, 4, step_ns=1000))
    populate(core, session, 8)
    scores = np.arange(8, dtype=np.uint16) * 8000
    expected = []
    core.actions()
    for step in range(6):
        ends = core.step(10 * step + 2, session, step, step % 2, [step, 7], scores=scores)
        actions = core.actions()
        expected.append(("step", 10 * step + 2, ends.tolist(), actions.tobytes()))
        for io in actions["io"][actions["type"] == 1]:
            core.io_done(10 * step + 3, int(io))
            expected.append(("io_done", 10 * step + 3, [], core.actions().tobytes()))
    found = list(events(core.log()))
    assert [event.kind for event in found[:3]] == ["tenant", "session_open", "append"]
    seen = [event for event in found if event.kind in ("step", "io_done")]
    assert [
        (event.kind, event.now_ns, event.ends.tolist(), event.actions.tobytes()) for event in seen
    ] == expected
    assert all(event.agreed and event.rc == 0 for event in found)
    assert sum(len(event.actions) for event in found) > 6
    steps = [event.step for event in seen if event.step is not None]
    assert [(step.session, step.step, step.layer) for step in steps] == [
        (session, step, step % 2) for step in range(6)
    ]
    assert all((step.scores == scores).all() and not step.retry for step in steps)
    assert [step.demands.tolist() for step in steps] == [[step, 7] for step in range(6)]


@pytest.mark.parametrize("prefetchers", ["ema", "ema+shared"])
def test_a_log_holds_no_secret_and_no_content(prefetchers: str) -> None:
    """A log holds neither the tenant's key nor hashes of contents, and still replays, refused
    appends included."""
    core = Core(changed(CONFIG, chunk_max=14), Policy(prefetchers=prefetchers))
    secret = bytes(range(101, 117))
    tenant = core.tenant_add(0, secret, 10)
    contents = np.frombuffer(random.Random(5).randbytes(16 * 30), KEY)
    one, other = (core.session_open(1, SessionConfig(tenant, 4)) for _ in range(2))
    core.session_append(2, one, contents[:4])
    core.session_append(3, other, contents[:2])
    with pytest.raises(OffstageError):
        core.session_append(4, other, contents[4:15])
    core.session_append(5, other, contents[15:17])
    log = core.log()
    assert all(event.agreed for event in events(log)) and replay(log).diverged_at is None
    assert [event.rc for event in events(log) if event.kind == "append"][2] < 0
    for kept in (secret, *contents[:17].tolist()):
        raw = kept if isinstance(kept, bytes) else np.array([kept], KEY).tobytes()
        for part in (raw, raw[:8], raw[8:], raw.hex().encode()):
            assert part not in log


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_keys_that_no_append_derives_are_refused(pairs: list[tuple[int, int]]) -> None:
    """Forged keys, repeated or of other sessions' chunks, break no table."""
    core = Core(CONFIG, Policy(prefetchers="ema"))
    tenant = core.tenant_add(0, b"k" * 16, 10)
    sessions = [core.session_open(1, SessionConfig(tenant, 4)) for _ in range(2)]
    for session in sessions:
        keys = np.zeros(len(pairs), CHUNK_KEYS)
        keys["store_key"]["lo"], keys["key"]["lo"] = np.array(pairs, np.uint64).T
        with suppress(OffstageError):
            core.session_append_keys(2, session, keys)
        assert core.verify()
    for session in sessions:
        core.session_close(3, session)
        assert core.verify()


def test_the_seed_of_the_fuzzer_opens_a_core() -> None:
    """Without a log of this format the replay's fuzzer never gets past its checks. If this fails,
    write `recorded()` to that file."""
    seed = Path(__file__).parents[3] / "dpu/firmware/test/corpus/fuzz_replay/short.log"
    assert next(iter(events(seed.read_bytes()))).offset > 0


def test_the_whole_replay_is_the_sum_of_the_events() -> None:
    driver = Driver(9, CONFIG, random_policy(random.Random(9)))
    driver.begin()
    driver.run(60)
    log, walk = driver.pair.log, Walk(driver.pair.log)
    found = list(walk)
    whole = replay(log)
    assert whole.agreed == sum(len(event.actions) + len(event.ends) for event in found) > 20
    assert [event.offset for event in found] == boundaries(log)[:-1]
    assert walk.work() == whole.work and list(walk) == []


def test_the_first_event_that_differs_is_the_last(tmp_path: Path) -> None:
    """After a logged end is changed and the checksums repaired, the walk stops at its event."""
    log = bytearray(recorded())
    begin = 0
    for end in boundaries(bytes(log)):
        out_bytes = int.from_bytes(log[begin + 12 : begin + 16], "little")
        if int.from_bytes(log[begin + 4 : begin + 6], "little") == 15 and out_bytes:
            in_bytes = int.from_bytes(log[begin + 8 : begin + 12], "little")
            log[begin + HEADER_BYTES + (in_bytes + 7) // 8 * 8] ^= 1
            break
        begin = end
    bad = restamped(bytes(log))
    found = list(events(bad))
    assert [event.agreed for event in found] == [True] * (len(found) - 1) + [False]
    assert found[-1].kind == "step" and found[-1].offset == begin == replay(bad).diverged_at
    (tmp_path / "bad.log").write_bytes(bad)
    (tmp_path / "good.log").write_bytes(recorded())
    first = first_difference(tmp_path / "bad.log")
    assert first is not None and first.offset == begin
    assert first_difference(tmp_path / "good.log") is None


@settings(max_examples=60)
@given(data=st.data())
def test_a_torn_or_flipped_log_ends_the_walk(data: st.DataObject) -> None:
    """Whole records before the damage are still yielded; the damage raises `Corrupt`."""
    log = bytearray(recorded())
    at = data.draw(st.integers(0, len(log) - 1))
    if data.draw(st.booleans()):
        log[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del log[at:]
        if at in boundaries(recorded()):
            return
    given_before = 0
    with pytest.raises(Corrupt):
        for event in events(bytes(log)):
            assert event.agreed
            given_before += 1
    assert given_before == max(sum(end <= at for end in boundaries(recorded())) - 1, 0)
