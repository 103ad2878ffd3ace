"""Does sending only the scores that the policy accepts change nothing but the bytes?"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import BadInput
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.firmware import lib
from offstage.bindings.scores import Packed, pack, unpack

LIMITS = st.tuples(*map(st.sampled_from, ([0, 1, 5, 200], [1, 3], [8, 16])))
SCORES = st.lists(
    st.one_of(st.sampled_from([0, 1, 255, 256, 511, 65535]), st.integers(0, 65535)),
    min_size=1,
    max_size=90,
)
BLOCKS, STEPS, PAYLOAD = 96, 24, 4096


def taken_in(limits: tuple[int, int, int], scores: list[int]) -> list[int]:
    """Recompute the scores that the core keeps of a step: among equal ones at the limit, the
    first."""
    most, _, bits = limits
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    kept = set(order[: most or len(order)])
    return [
        (one | 255 if bits == 8 and one else one) if at in kept else 0
        for at, one in enumerate(scores)
    ]


@given(LIMITS, st.integers(0, 8), SCORES)
@settings(max_examples=400, deadline=None)
def test_what_comes_is_what_the_core_would_have_kept(
    limits: tuple[int, int, int], step: int, scores: list[int]
) -> None:
    """Whatever the scores, the core gets the same from what was sent as from all of them. That is
    never more bytes than all, and no more than the limits where nothing is ambiguous."""
    sent = pack(limits, step, np.array(scores, np.uint16))
    if step % limits[1]:
        assert sent.count == 0 and sent.data == b""
        return
    came = unpack(sent).tolist()
    assert taken_in(limits, came) == taken_in(limits, scores)
    assert unpack(pack(sent.limits, step, np.array(came, np.uint16))).tolist() == came
    assert len(sent.data) <= 2 * len(scores)
    if min(scores) > 255:
        most = limits[0] or len(scores)
        one = limits[2] // 8
        assert len(sent.data) == min(most * (one + 2), len(scores) * one)


@pytest.mark.parametrize("flags", [0, 2, 6, 14, 15, 1 << 14])
def test_bytes_that_no_host_packs_are_refused(flags: int) -> None:
    """Too many best scores, ordinals out of range, sizes that do not fit: one line, no crash."""
    bad = [(4, 5, b"x" * 20), (4, 1, b"\xff" * 4), (8, 2, b"x"), (1 << 23, 0, b""), (4, 0, b"x")]
    for count, best, data in bad:
        with pytest.raises(BadInput, match="scores"):
            unpack(Packed(flags | (2 if best else 0), count, best, data))


def decided(hints: tuple[int, int, int], told: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the ends of a seeded decode in virtual time, and the ledger. `told`: the host knows
    the limits."""
    config = BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=24,
        block_max=BLOCKS,
        demand_max=16,
        hints=hints,
        prefetchers=int(lib.OFS_PREFETCH_EMA),
        layer_count=1,
    )
    source = np.random.default_rng(3)
    with BareDevice(config, simulated=True) as device, device.driver() as driver:
        session = device.session(BLOCKS, select_blocks=12)
        rows = np.zeros((BLOCKS, PAYLOAD), np.uint8)
        driver.register(rows)
        every = np.arange(BLOCKS, dtype=np.uint32)
        assert not driver.put(PutRequest(session.number, 0, every, rows)).any()
        if told:
            driver.limit_scores(*hints)
        weights: NDArray[np.float64] = source.random(BLOCKS)
        ends = []
        for step in range(STEPS):
            weights = 0.8 * weights + 0.2 * source.random(BLOCKS)
            scores = (300 + 60000 * weights).astype(np.uint16)
            wanted = np.sort(np.argsort(-weights, kind="stable")[:12]).astype(np.uint32)
            keys = np.ascontiguousarray(session.keys[0, wanted])
            done = driver.fetch(
                FetchRequest(session.number, step, 0, wanted, keys, rows, scores=scores)
            )
            assert not done.rcs.any()
            ends.append(done.ends.tolist())
        return ends, device.ledger()


@pytest.mark.parametrize("hints", [(8, 1, 16), (8, 2, 8), (0, 1, 8), (90, 1, 8), (90, 3, 16)])
def test_decisions_and_ledger_are_those_of_all_scores(hints: tuple[int, int, int]) -> None:
    """Every demand's end and every counter except the bytes are the same, whether a host sends all
    of its scores and the core limits them, or only those that the policy accepts."""
    every, whole = decided(hints, told=False)
    few, limited = decided(hints, told=True)
    assert few == every
    most, often, bits = hints
    one = bits // 8
    size = min(most * (one + 2) if most else BLOCKS * one, BLOCKS * one)
    assert whole.hint_bytes == 2 * BLOCKS * STEPS
    assert limited.hint_bytes == size * -(-STEPS // often)
    assert replace(limited, hint_bytes=whole.hint_bytes) == whole
    assert whole.prefetch_bytes_read > 0
