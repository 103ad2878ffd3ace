"""Is the DPU held against its rivals fairly: equal money, one stream of selections, honest ties?"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from against_schema import checked

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run
from offstage.testbeds.plan.inputs import Inputs
from offstage.testbeds.plan.rivals.design import RIVALS, bought
from offstage.testbeds.plan.rivals.model import _queued, outcome
from offstage.testbeds.plan.rivals.question import Asked, of_use
from offstage.testbeds.plan.rivals.result import make_rivals, numbers_of
from offstage.testbeds.plan.rivals.stream import drawn, shares
from offstage.testbeds.prices import catalog
from offstage.testbeds.progress import Silent

SELECTIONS = Path(__file__).parents[3] / "docs/examples/offstage-selections"
CAPTURES = SELECTIONS / "offstage_selections/data"
TRACE = str(Path(__file__).parents[2] / "golden/data/tiny_mooncake.jsonl")
STREAM = {"missed": 0.25, "pages": 0.2, "unstaged": 0.05, "ahead": 0.3, "spread": 0.05}


def asked(use: str, **given: object) -> Asked:
    return of_use(use, given)


def values(question: Asked, **changed: float) -> dict[str, float]:
    found = numbers_of(question, catalog()).values
    found |= {f"stream.{name}": value for name, value in STREAM.items()}
    return found | {name.replace("_", ".", 1): value for name, value in changed.items()}


@pytest.mark.parametrize("budget", [100.0, 2_000.0, 10_000.0, 100_000.0])
@pytest.mark.parametrize("name", RIVALS)
def test_no_rival_spends_more_than_the_budget(name: str, budget: float) -> None:
    """And what none was bought of has no capacity, and says so."""
    tier = bought(name, budget, "h200", "bluefield3", values(asked("tokens")))
    assert tier.note or tier.usd <= budget * (1 + 1e-9)
    assert bool(tier.note) == (not tier.capacity and name != "hbm")


def test_soldered_memory_is_bought_for_every_gpu_or_for_none() -> None:
    v = values(asked("tokens"))
    one = v["rival-c2c.each"] + v["lpddr5x.price"] * 480
    assert bought("c2c", one - 1, "h200", "bluefield3", v).note
    assert bought("c2c", one + 1, "h200", "bluefield3", v).capacity == 480e9


def test_a_pool_misses_what_lru_misses_and_a_larger_one_less() -> None:
    """Against counting by hand on the same selections."""
    work = drawn(("hisparse",), 4096, 1, 256, 16)
    found = shares(work, 1.0, 6, 16)
    assert shares(work, 2.0, 6, 16)["stream.missed"].value < found["stream.missed"].value
    (source, session), missed = work.streams[0], []
    for layer in range(2):
        steps = np.concatenate([slab.selected for slab in source.slabs(session)])[:, layer]
        missed += [len(set(now) - set(before)) for before, now in pairwise(steps[15:])]
    assert found["stream.missed"].value == pytest.approx(np.mean(missed) / 256)
    assert found["stream.pages"].value <= found["stream.missed"].value
    assert found["stream.unstaged"].value <= found["stream.missed"].value


def test_sessions_end_at_the_pace_and_at_what_the_money_holds() -> None:
    question = asked("tokens", users=256)
    whole = outcome("dram", question, values(question))
    slow = outcome("dram", question, values(question, **{"rival-dram_latency": 1e-3}))
    assert slow.bound == "pace" and slow.sessions < whole.sessions
    small = asked("tokens", users=256, budget=1_000.0)
    assert outcome("dram", small, values(small)).bound == "capacity"
    v = values(question, **{"rival-nvme_latency": 1.0})
    assert outcome("nvme", question, v).note == "not one session: pace"


def test_reading_ahead_never_makes_a_dpu_slower_than_reading_on_demand() -> None:
    question = asked("tokens")
    none = outcome("dpu", question, values(question, stream_ahead=1e6))
    some = outcome("dpu", question, values(question, stream_ahead=1e-3, stream_unstaged=0.0))
    assert 0 < none.sessions < some.sessions
    still = outcome("dpu", question, values(question, stream_unstaged=0.25, stream_ahead=1e-9))
    assert still.sessions == none.sessions


def test_a_rival_waits_for_its_reads_a_second() -> None:
    """By hand: with half the reads a second every row that is missed takes twice as long."""
    question = asked("tokens", users=1)
    common = {"rival-nvme_granule": 512.0, "rivals_overlap": 0.0, "stream_spread": 0.0}
    slow, fast = (
        outcome("nvme", question, values(question, **common, **{"rival-nvme_iops": iops}))
        for iops in (1e6, 2e6)
    )
    rows = 61 * question.k * STREAM["missed"]
    assert slow.stall_p99_s - fast.stall_p99_s == pytest.approx(rows * (1e-6 - 0.5e-6))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_a_queue_of_reads_waits_as_long_as_one_that_is_run(load: float) -> None:
    """The closed form of the 99th percentile against a queue of 400,000 arrivals."""
    gaps = np.random.default_rng(1).exponential(1.0 / load, 400_000)
    ahead = np.concatenate([[0.0], np.cumsum(1.0 - gaps[1:])])
    waits = ahead - np.minimum.accumulate(ahead)
    assert _queued(1.0, load) == pytest.approx(np.quantile(waits, 0.99) + 1.0, rel=0.2)


def test_two_that_differ_by_less_than_their_ranges_are_a_tie_and_others_are_not() -> None:
    """DRAM of 32 channels twice as dear in half of the draws, and one that is clearly worse."""
    question = asked("tokens", rivals=("hbm", "dram", "cxl", "nvme"))
    found = make_rivals(
        question, numbers_of(question, catalog()), Silent(), steps=4, draws=32, map_draws=8
    )
    rows = {one.name: one for one in found.rows}
    assert found.best == "dram"
    assert rows["cxl"].tied and not rows["nvme"].tied and not rows["dram"].tied
    exact = {
        name: one.number for name, one in numbers_of(question, catalog()).of.items()
    }  # the same without ranges: nothing is left to be a tie
    fixed = numbers_of(question, catalog()).set(
        {
            name: Number(
                value=one.value,
                unit=one.unit,
                low=one.value,
                high=one.value,
                tag=one.tag,
                source=one.source,
                scale=one.scale,
            )
            for name, one in exact.items()
        },
        "assumed",
    )
    assert isinstance(fixed, Inputs)
    again = make_rivals(question, fixed, Silent(), steps=4, draws=8, map_draws=8)
    assert not {one.name: one for one in again.rows}["nvme"].tied


def test_what_a_prefix_tier_cannot_hold_is_prefilled_again() -> None:
    """More users than it holds: fewer tokens a second of a GPU that is busy."""
    few, many = asked("prefix", users=20), asked("prefix", users=2_000)
    assert (
        outcome("dram", many, values(many)).tokens_per_s
        < outcome("nvme", many, values(many)).tokens_per_s
    )
    assert outcome("nvme", few, values(few)).tokens_per_s > 0


def test_a_trace_gives_the_reuse_and_json_what_its_schema_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["rivals", "prefix", "--trace", TRACE, "--draws", "8", "--format", "json"]) == 0
    text = capsys.readouterr().out
    checked("rivals", text)
    found = json.loads(text)
    assert found["asked"]["reuse"] and all(one["reuse"] is None for one in found["map"])
    (reuse,) = [one for one in found["inputs"] if one["name"] == "workload.prefix"]
    assert reuse["kind"] == "measured"


def test_a_capture_sets_the_block_and_stands_beside_drawn_selections(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its blocks are of 64 tokens, so 32 of them are the 2,048 tokens of the use; the drawn cells
    are those that the same question has without it."""
    capture = str(CAPTURES / "judge-prose-32k.parquet")
    words = ["rivals", "blocks", "--capture", capture, "--steps", "2", "--draws", "8"]
    assert run([*words, "--format", "json"]) == 0
    text = capsys.readouterr().out
    checked("rivals", text)
    found = json.loads(text)
    assert (found["asked"]["unit"], found["asked"]["k"]) == (64, 32)
    plain = make_rivals(
        asked("blocks", unit=64, k=32),
        numbers_of(asked("blocks", unit=64, k=32), catalog()),
        Silent(),
        steps=2,
        draws=8,
        map_draws=8,
    )
    drawn_cells = [one["drawn"] for one in found["map"]]
    assert [(one["best"], one["tied"]) for one in drawn_cells] == [
        (one.best, one.tied) for one in plain.map
    ]
    changed = sum(
        {one["best"], *one["tied"]} != {one["drawn"]["best"], *one["drawn"]["tied"]}
        for one in found["map"]
    )
    assert changed and f"{changed} of 24 cells" in found["sentence"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["sums"], "unknown use 'sums'"),
        (["--k", "200000"], "--k: 200000; give 1 to 100,000"),
        (["--users", "1000000000"], "--users: 1000000000; give 1 to 1,000,000"),
        (["--k", "60000"], "over a quarter"),
        (["--context", "none"], "not a number of tokens"),
        (["--rivals", "dram"], "two or more"),
        (["--rivals", "dram,tape"], "tape"),
        (["--budget", "0"], "budget"),
        (["--budget", "nan"], "budget"),
        (["--budget", "1e308"], "at most 1e+09"),
        (["prefix", "--pace", "1e308"], "at most 1e+09"),
        (["--budget", "1", "--rivals", "dpu,nvme"], "no rival carries one session"),
        (["--gpu", "abacus"], "abacus"),
        (["--model", "gemma-3-270m"], "gemma-3-270m"),
        (["--trace", TRACE], "--trace is not read by tokens"),
        (["prefix", "--k", "3"], "--k is not read by prefix"),
        (["prefix", "--time-unit", "s"], "give --trace FILE"),
        (["blocks", "--capture", "nowhere.parquet"], "nowhere.parquet"),
        (["blocks", "--capture", str(CAPTURES / "judge-prose.parquet")], "480 blocks, at k = 128"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rivals", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert wrong in said and len(said.splitlines()) == 1


def test_a_question_of_unknown_devices_is_bad_input() -> None:
    with pytest.raises(BadInput, match="DPU"):
        asked("tokens", dpu="abacus").check(catalog())
