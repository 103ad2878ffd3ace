"""Do the records of vLLM's requests have the moments and counts that its scheduler went through?
Over a stand-in for the tier, with a clock that the test sets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm.groups import Group, Groups
from offstage.host.connectors.vllm.plans import Plans
from offstage.host.connectors.vllm.requests import RECORDS_MAX, RequestLog, log_of
from offstage.host.connectors.vllm.steps import Landed, Report, There
from offstage.host.request_file import read_requests
from offstage.host.request_record import Found, RequestRecord

BLOCK, SIZE = 4, 100


class Tier:
    """A stand-in for an object client that has the first `blocks` of every prompt."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def prefetch(self, keys: list[bytes], sizes: list[int], *, tell: Any, **_: Any) -> None:
        states = [State.DONE if at < self.blocks else State.ABSENT for at in range(len(keys))]
        tell(Completion(1, tuple(states), ("",) * len(keys)))

    def release(self, keys: list[bytes]) -> None:
        """Nothing is leased."""


class Engine:
    """A scheduler with one request of `tokens` tokens; `now` is its clock in ns."""

    def __init__(self, folder: Path, tokens: int, blocks: int) -> None:
        self.now, self.path = 100, folder / "requests.parquet"
        self.log = RequestLog(self.path, lambda: self.now)
        self.plans = Plans(Tier(blocks), Groups([Group(BLOCK, SIZE)]), log=self.log)  # type: ignore[arg-type]
        self.request = SimpleNamespace(
            request_id="r",
            all_token_ids=list(range(tokens)),
            num_tokens=tokens,
            max_tokens=4,
            mm_features=[],
            prompt_embeds=None,
            lora_request=None,
            cache_salt=None,
        )

    def step(self, begin: int, end: int, computed: int, there: There | None = None) -> None:
        """A step that has `computed` tokens of the request computed, and what it generates."""
        self.now = begin
        step = self.plans.plan({"r": computed}, lambda _: [list(range(computed // BLOCK))])
        self.now = end
        self.plans.learn(Report(step.number, 0, there=there or There()))
        if computed >= self.request.num_tokens:
            self.request.all_token_ids.append(7)
            self.request.num_tokens += 1

    def record(self) -> RequestRecord:
        """What the file then has."""
        self.plans.finish(self.request)
        self.log.write()
        ((about, (one,)),) = read_requests(self.path)
        assert about.provenance == "measured" and about.absent["late_blocks"]
        return one


def test_a_request_that_loads_has_every_moment(tmp_path: Path) -> None:
    """vLLM has one block of five, the tier two behind it; a prefill in two steps, three tokens."""
    engine = Engine(tmp_path, 22, 3)
    engine.now = 110
    engine.plans.arrive(engine.request)
    engine.now = 120
    assert engine.plans.match(engine.request, 4) == 8
    engine.plans.load(engine.request, [[0, 1, 2]], 8)
    engine.step(130, 150, 16, There(18e-9, 5e-9))
    engine.step(150, 170, 22)
    engine.step(170, 180, 23)
    engine.step(180, 190, 24)
    assert engine.record() == RequestRecord(
        request=0,
        host=0,
        input_tokens=22,
        output_tokens=3,
        arrival_ns=10,
        asked_ns=10,
        scheduled_ns=30,
        found=[Found("engine", 4), Found("tier", 8)],
        first_block_ns=32,
        last_block_ns=45,
        prefilled_ns=70,
        first_token_ns=70,
        gaps_ns=[(10, 2)],
        end_ns=90,
        absent_blocks=2,
        wasted_blocks=0,
    )


def test_the_last_token_counts_though_its_step_ends_after_the_request(tmp_path: Path) -> None:
    """vLLM ends a request while it reads what a step gave, and then passes the step's report on.
    One token alone is a record too."""
    engine = Engine(tmp_path, 10, 0)
    engine.plans.arrive(engine.request)
    plan = engine.plans.plan({"r": 10}, lambda _: ([0, 1],))
    engine.plans.finish(engine.request)
    engine.now = 140
    engine.plans.learn(Report(plan.number, 0, there=There()))
    one = engine.record()
    one.check("vLLM")
    assert (one.output_tokens, one.first_token_ns, one.end_ns) == (1, 40, 40)


def test_blocks_that_are_computed_all_the_same_are_wasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path, 10, 2)
    engine.plans.arrive(engine.request)
    decided = SimpleNamespace(tokens=8, fetched=False, regret_s=0.0)
    monkeypatch.setattr(engine.plans.choice, "decide", lambda *_, **__: decided)
    assert engine.plans.match(engine.request, 0) == 0
    engine.step(120, 130, 10)
    one = engine.record()
    assert (one.found_tokens(), one.absent_blocks, one.wasted_blocks) == (8, 0, 2)
    assert one.last_block_ns is None and one.output_tokens == 1


def test_a_load_apart_ends_when_all_workers_say_so(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 10, 2)
    engine.plans.arrive(engine.request)
    other = SimpleNamespace(**vars(engine.request) | {"request_id": "other"})
    engine.plans.arrive(other)  # what makes the load one apart
    engine.plans.match(engine.request, 0)
    engine.plans.load(engine.request, [[0, 1]], 8)
    engine.now = 140
    engine.plans.learn(Report(0, 0, landed=[Landed("r", SIZE, 0.1, 0.1, There(20e-9, 5e-9))]))
    engine.step(150, 160, 10)
    one = engine.record()
    moments = (one.first_block_ns, one.last_block_ns, one.scheduled_ns, one.first_token_ns)
    assert moments == (20, 35, 50, 60)


def test_an_aborted_request_leaves_no_record(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 10, 0)
    engine.plans.arrive(engine.request)
    engine.step(120, 130, 8)
    engine.plans.finish(engine.request)
    engine.log.write()
    assert [len(records) for _, records in read_requests(engine.path)] == [0]
    assert engine.log._ended.maxlen == RECORDS_MAX


@pytest.mark.parametrize("value", [1, "", True, ["a"]])
def test_a_path_that_is_none_is_refused(value: object) -> None:
    assert log_of(None) is None
    with pytest.raises(BadInput, match="write the path of a file"):
        log_of(value)


def test_a_folder_is_refused_when_the_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        log_of(str(tmp_path))
