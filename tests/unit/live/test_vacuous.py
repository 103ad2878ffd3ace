"""Does a run note that its hits carry no information, from exactly the limit on?"""

import pytest

from offstage.bindings.ledger import Ledger
from offstage.bindings.notes import Note
from offstage.host.model.models import geometry
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.vacuous import (
    all_staged,
    kl_beyond,
    pool_holds_all,
    selected_alike,
    text_unread,
    told_in_vain,
    warm_start,
)
from offstage.testbeds.live.workload import prepare

CASES: dict[str, tuple[list[Note], list[Note]]] = {
    "all-staged": (all_staged(9, 9), all_staged(10, 9)),
    "pool-holds-all": (pool_holds_all(9, 9, "x"), pool_holds_all(10, 9, "x")),
    "selected-alike": (selected_alike((8, 9, 400), [8, 9, 9]), selected_alike((8, 9), [8, 9])),
    "text-unread": (text_unread("t", 64, 48, 16), text_unread("t", 63, 48, 16)),
    "hints-unused": (told_in_vain(5, {"used": 0, "dropped": 5}), told_in_vain(5, {"late": 1})),
    "kl-beyond": (kl_beyond(0.02, 0.01, 128), kl_beyond(0.01, 0.01, 128) + kl_beyond(9, None, 0)),
    "warm-start": (warm_start(Ledger(resident_slots=1)), warm_start(Ledger())),
}


@pytest.mark.parametrize("code", CASES)
def test_each_is_told_at_its_bound_and_not_beyond(code: str) -> None:
    told, silent = CASES[code]
    assert [note.code for note in told] == [code] and silent == []


@pytest.mark.parametrize(("over", "told"), [(0, {"pool-holds-all"}), (1, set())])
def test_a_pool_that_holds_the_longest_session_is_told(over: int, told: set[str]) -> None:
    """48 retained blocks of a layer: 47 of the context, and one that decode fills."""
    shape = geometry("tiny")
    options = DriveOptions(
        geometry=shape,
        sessions=2,
        context_tokens=47 * shape.block_tokens,
        steps=shape.block_tokens + over,
    )
    assert options.pool_layer_blocks == 48
    found = prepare(options).noted(1, 1, options.pool_layer_blocks)
    assert {note.code for note in found} == told
