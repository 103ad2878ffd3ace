"""Does the sentence agree with the numbers, even when they are bad?"""

from types import SimpleNamespace

import msgspec
import pytest

from offstage.bindings.notes import Note
from offstage.testbeds.report import sentence

ALL = ("window", "ema", "shared")


def runs(made: SimpleNamespace, without: float, full: float, **changes: object) -> list[object]:
    return [
        made.run((), hit=without, traffic_ratio=1.0),
        made.run(ALL, hit=full, **{"traffic_ratio": 1.24, **changes}),
    ]


def test_better_names_both_rates_and_the_price(made: SimpleNamespace) -> None:
    text = sentence(runs(made, 0.80, 0.95))
    assert text.startswith("With window + ema + shared prefetch, 95.0 % of the blocks")
    assert "against 80.0 % without prefetch, for 1.24× the bytes read" in text
    assert "did better" not in text
    assert "on synthetic disk (measured)" in text, "no number without its provenance"


def test_what_the_hits_gained_is_said_unless_it_is_void(made: SimpleNamespace) -> None:
    """More hits at fewer tokens/s are no gain, and a late drive's times tell nothing."""
    slower = [
        made.run((), hit=0.80, tokens_per_s=9.0),
        made.run(ALL, hit=0.95, tokens_per_s=6.5),
    ]
    assert "; 6.5 tokens/s were decoded, 9.0 without prefetch; " in sentence(slower)
    late = Note("emulation-late", "the drive was late", figures="52 % of 9")
    slower[0] = msgspec.structs.replace(slower[0], notes=[late])
    assert "tokens/s" not in sentence(slower)


def test_worse_says_fewer(made: SimpleNamespace) -> None:
    text = sentence(runs(made, 0.90, 0.85))
    assert "85.0 %" in text and "fewer than the 90.0 % without prefetch" in text


@pytest.mark.parametrize("full", [0.9, 0.9002])
def test_equal_says_no_more(made: SimpleNamespace, full: float) -> None:
    assert "no more than without prefetch (90.0 %)" in sentence(runs(made, 0.9, full))


def test_the_subject_is_the_fullest_set_even_where_a_smaller_one_won(made: SimpleNamespace) -> None:
    three = [*runs(made, 0.80, 0.90), made.run(("window",), hit=0.93)]
    text = sentence(three)
    assert text.startswith("With window + ema + shared prefetch, 90.0 %")
    assert "(window did better: 93.0 %)" in text


def test_measured_leads_and_emulated_is_named(made: SimpleNamespace) -> None:
    both = [
        made.run((), "emulated synthetic", "emulated", 0.70),
        made.run(ALL, "emulated synthetic", "emulated", 0.88),
        *runs(made, 0.80, 0.95),
    ]
    text = sentence(both)
    first, *rest = text.split("; ")
    assert "95.0 %" in first and "(measured)" in first
    assert rest[0].startswith("on synthetic (emulated) 88.0 %, against 70.0 %")


def test_corrupt_blocks_are_said(made: SimpleNamespace) -> None:
    found = runs(made, 0.80, 0.95, blocks_verified=1_000, blocks_corrupt=3)
    assert "3 of the" in sentence(found) and "were corrupt" in sentence(found)
    assert "matched what prefill wrote" not in sentence(found)


def test_nothing_compared_is_said(made: SimpleNamespace) -> None:
    assert "no block was compared" in sentence([made.run(blocks_verified=0)])


def test_no_demand_no_baseline_no_run(made: SimpleNamespace) -> None:
    assert "HBM pool served every selection" in sentence([made.run(ALL, demands=0)])
    assert "no run without prefetch to compare with" in sentence([made.run(ALL)])
    assert sentence([made.run(())]).startswith("Without prefetch, ")
    assert sentence([]) == "Nothing was run."
