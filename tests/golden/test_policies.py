"""Do the policies still make exactly the same decisions on the small committed trace?

`data/tiny_decode.json` is a generated trace: two sessions that share half of their context, with
the score of every block and the demanded blocks. `data/policies.json` holds the counts of every
prefetcher and every eviction on it, `data/feedback.json` those of a degree that follows the
accuracy of the guesses. For an intended change of behaviour `python tests/golden/test_policies.py`
writes them again, and the commit says why they changed.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.layouts import EVICTIONS, FATES, PREFETCHERS
from offstage.bindings.sim import DecodePlan, decode, populate

DATA = Path(__file__).resolve().parent / "data"
BLOCKS, SELECTED, SLOTS = 48, 6, 36
SETS = ["none", *PREFETCHERS, "window+ema", "window+ema+shared"]
FEEDBACK = {"degree_max": 8, "accuracy_permille_min": 400, "lateness_permille_max": 200}
FED_BACK = [("next_n", "lru"), ("next_n", "fifo"), ("window+ema+prev_layer", "score")]
"""Guesses of which enough are wrong for the degree to move within the trace."""


def trace() -> tuple[np.ndarray, np.ndarray]:
    """Return scores uint16 `[sessions, steps, layers, blocks]`, demands `[.., selected]`."""
    data = json.loads((DATA / "tiny_decode.json").read_text())
    shape = data["shape"]
    scores = np.array(data["scores"], np.uint16).reshape(shape) * 256
    return scores, np.array(data["demands"], np.uint32).reshape([*shape[:3], SELECTED])


def counts(prefetchers: str, eviction: str, **changes: int) -> dict[str, Any]:
    """Return the counts of one policy on the trace; `changes` are its other settings."""
    scores, demands = trace()
    sessions, steps, layers, _ = scores.shape
    config = CoreConfig(
        SLOTS, 512, BLOCKS, layers, session_max=sessions, block_size_bytes=4096, io_max=16
    )
    policy = Policy(prefetchers, eviction, window_blocks=2, degree_max=2).with_(**changes)
    core = Core(config, policy)
    tenant = core.tenant_add(0, b"golden  secret 1", SLOTS)
    numbers = []
    for session in range(sessions):
        number = core.session_open(0, SessionConfig(tenant, SELECTED, 1, 2, 1_000_000))
        populate(core, number, BLOCKS // 2, content=1)
        populate(core, number, BLOCKS // 2, content=2 + session)
        core.session_set_generating(0, number, True)
        numbers.append(number)
    offsets = np.arange(sessions * steps * layers + 1, dtype=np.uint64) * SELECTED
    plan = DecodePlan(tuple(numbers), steps, offsets, demands.reshape(-1), scores, SELECTED)
    result = decode(core, plan)
    assert core.verify() and result.failed == 0
    ledger = core.ledger()
    fates = {name: sum(row[i] for row in ledger.fates) for i, name in enumerate(FATES)}
    names = ("ends", "issued", "evictions", "shadow_misses", "pollution", "shared_chunks")
    return {name: getattr(ledger, name) for name in names} | {"fates": fates}


def counts_with_feedback(prefetchers: str, eviction: str) -> dict[str, Any]:
    return counts(prefetchers, eviction, **FEEDBACK)


def key(prefetchers: str, eviction: str) -> str:
    return f"{prefetchers}/{eviction}"


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("prefetchers", SETS)
def test_counts_are_as_they_were(prefetchers: str, eviction: str) -> None:
    golden = json.loads((DATA / "policies.json").read_text())
    assert counts(prefetchers, eviction) == golden[key(prefetchers, eviction)]


@pytest.mark.parametrize(("prefetchers", "eviction"), FED_BACK)
def test_counts_with_feedback_are_as_they_were(prefetchers: str, eviction: str) -> None:
    """The degree follows the accuracy of the guesses, which is off in the rows above."""
    golden = json.loads((DATA / "feedback.json").read_text())
    assert counts_with_feedback(prefetchers, eviction) == golden[key(prefetchers, eviction)]
    without = counts(prefetchers, eviction, degree_max=FEEDBACK["degree_max"])
    assert without["fates"] != golden[key(prefetchers, eviction)]["fates"]


def test_the_trace_tells_the_policies_apart() -> None:
    """A golden file with equal counts for all policies would detect nothing."""
    golden = json.loads((DATA / "policies.json").read_text())
    for prefetchers in ("none", "window+ema"):
        rows = {json.dumps(golden[key(prefetchers, eviction)]) for eviction in EVICTIONS}
        assert len(rows) >= len(EVICTIONS) - 1  # without scores, score eviction is LRU
    rows = {json.dumps(golden[key(prefetchers, "lru")]) for prefetchers in SETS}
    assert len(rows) >= len(SETS) - 1


def write(name: str, rows: dict[str, dict[str, Any]]) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items()]
    (DATA / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    pairs = [(prefetchers, eviction) for prefetchers in SETS for eviction in EVICTIONS]
    write("policies.json", {key(*pair): counts(*pair) for pair in pairs})
    write("feedback.json", {key(*pair): counts_with_feedback(*pair) for pair in FED_BACK})
