"""Does the live host give the same hints for a session's first step as the lab's warm-up?"""

from pathlib import Path

import numpy as np

from offstage.bindings.layouts import CAUSES
from offstage.host.decode.prefill import compute_context
from offstage.host.model.models import geometry
from offstage.host.selection import Quest
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.live.warm_up import first_guesses
from offstage.testbeds.live.workload import prepare

OPTIONS = DemoOptions(
    out=Path("out"),
    sessions=1,
    context_tokens=4096,
    select_blocks=16,
    geometry=geometry("tiny"),
    buffer_ratio=2.0,
)
BLOCKS, WINDOWS = 256, 32


def test_votes_of_the_last_windows_predict_the_first_step() -> None:
    """Recounted independently: the k best blocks before each window vote, and the most chosen fill
    the buffer. They include most of the first step's selection."""
    workload = prepare(OPTIONS)
    context = compute_context(workload.synthetic_kv, range(BLOCKS), "quest", lambda *_: None)
    told = first_guesses(OPTIONS, workload, {0: context})[0]
    assert set(told["cause"]) == {CAUSES.index("pattern")} and set(told["steps"]) == {0}
    for layer, selector in enumerate(context.selectors):
        assert isinstance(selector, Quest)
        votes = np.zeros(BLOCKS, int)
        queries = workload.synthetic_kv.windows(0, layer, WINDOWS, BLOCKS)
        for later, query in enumerate(queries[::-1]):
            scores = selector.scores(query)[: BLOCKS - later]
            votes[np.argsort(-scores, kind="stable")[: OPTIONS.select_blocks]] += 1
        mine = told[told["layer"] == layer]
        assert len(mine) == min(OPTIONS.buffer_blocks, np.count_nonzero(votes))
        chosen = np.sort(votes[mine["ordinal"]])
        assert np.array_equal(chosen, np.sort(votes)[-len(mine) :])
        share = votes[mine["ordinal"]] / WINDOWS
        np.testing.assert_allclose(mine["probability"] / 65535, share, atol=1e-4)
        first = selector.scores(workload.synthetic_kv.queries(0, layer).next(0, BLOCKS))
        best = np.argsort(-first)[: OPTIONS.select_blocks]
        assert np.isin(best, mine["ordinal"]).mean() > 0.5
