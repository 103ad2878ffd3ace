"""Does a plan follow from its question: the binding limit, the cost, and the refusals?"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.config.values import load
from offstage.dpu.economics.thresholds import NONE_RETURN, Thresholds
from offstage.dpu.protocol.status import Pace
from offstage.testbeds.cli.plan import plan
from offstage.testbeds.plan.inputs import gather
from offstage.testbeds.plan.kv import token_bytes
from offstage.testbeds.plan.question import Question, parse_tokens, read_spec
from offstage.testbeds.plan.result import Plan, make_plan
from offstage.testbeds.plan.rules import figures
from offstage.testbeds.plan.sizing import Place, places
from offstage.testbeds.plan.table import console, dpu_lines, inputs_table, rule_text, sentence
from offstage.testbeds.prices import catalog
from offstage.testbeds.report.compare.columns import Range

DRAWS = 24


def values(**words: Any) -> tuple[Question, dict[str, float]]:
    """Return a question and the values of all its inputs."""
    spec = read_spec(None, words)
    spec.check(catalog())
    return spec.plan, gather(spec, catalog()).values


def found(changes: dict[str, float] | None = None, **words: Any) -> dict[str, Place]:
    question, of = values(**words)
    return {one.name: one for one in places(question, {**of, **(changes or {})})}


@cache
def planned(**words: Any) -> Plan:
    spec = read_spec(None, words)
    return make_plan(spec, gather(spec, catalog()), draws=DRAWS)


def test_what_waits_is_users_times_context() -> None:
    """100 users of 128K tokens of a 70B model keep 4.29 TB; a shared half is stored once."""
    assert found()["tlc"].capacity_bytes == 100 * 131_072 * 327_680
    assert found(shared=0.5)["tlc"].capacity_bytes == (100 * 0.5 + 0.5) * 131_072 * 327_680


def test_turns_that_find_nothing_cost_what_prefilling_costs() -> None:
    """With one turn the whole context is new, so a tier saves nothing."""
    one = found(turns=1)
    assert one["tlc"].gpus == one["recompute"].gpus
    assert one["tlc"].usd_per_mtok > one["recompute"].usd_per_mtok
    ten = found(turns=10)
    assert ten["tlc"].usd_per_mtok < ten["recompute"].usd_per_mtok


def test_decoded_tokens_carry_all_dollars() -> None:
    """Are dollars per decoded token those of the machines, over the answers' tokens alone?"""
    place = found({"workload.answer": 500.0})["tlc"]
    answered = place.turns_per_s * 3_600 * 500
    assert math.isclose(place.usd_per_mtok_decoded * answered / 1e6, place.usd_per_h)
    assert place.usd_per_mtok_decoded > 200 * place.usd_per_mtok


def test_drives_that_hold_weights_load_them_in_time_beside_kv() -> None:
    """Drives have room for the weights too and the floor's rate beside KV's reads; a shorter time
    takes more drives, and what KV leaves of them is enough. Other tiers are as before."""
    long, short = found(cold_start="60s"), found(cold_start="1s")
    weights = values()[1]["model.parameters"]  # in fp8: a byte each
    for name in ("tlc", "dpu"):
        assert short[name].count > long[name].count >= found()[name].count
        assert long[name].cold_start_s <= 60 and short[name].cold_start_s <= 1
        left = short[name].count * values()[1]["tlc.read"] - short[name].read_bytes_per_s
        assert left >= weights
    roomy = {"tlc.capacity": short["tlc"].capacity_bytes}  # of which KV takes all
    assert found(roomy, cold_start="60s")["tlc"].devices["capacity"] == 2
    assert math.isinf(found()["tlc"].cold_start_s) and math.isinf(long["ddr5"].cold_start_s)
    assert long["ddr5"] == found()["ddr5"]
    rules = {one.name: one.figure for one in planned(cold_start="10s").rules}
    assert rules["cold_floor"] is not None and rules["cold_floor"].value == weights / 10
    assert "cold_floor" not in {one.name for one in planned().rules}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"cold_start": "10ms"}, "no drives load the weights within 10ms: the links of"),
        ({"cold_start": "0s"}, "a cold start in no time"),
        ({"cold_start": "soon"}, "'soon' is not a time"),
        ({"cold_start": "10s", "tiers": ["ddr5"]}, "no tier has drives that could hold"),
    ],
)
def test_a_cold_start_that_cannot_be_is_one_line(words: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        spec = read_spec(None, words)
        spec.check(catalog())
        make_plan(spec, gather(spec, catalog()), draws=2)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_prefilled_is_written() -> None:
    """Of a turn, that is what is new and what its place does not find: of 10 turns a tenth, or all,
    or by default a tenth of each tenth that is old."""
    only, every, one = (
        found({"workload.prefix": share})["tlc"].write_bytes_per_s for share in (1.0, 0.0, 0.9)
    )
    assert every == pytest.approx(10 * only) and one == pytest.approx(1.9 * only)


def test_each_need_of_a_tier_can_bind() -> None:
    """The most demanding of capacity, rates and wear gives the number of devices."""
    for changes, binds in (
        ({"tlc.endurance": 1e16}, "wear"),
        ({"tlc.endurance": 1e30}, "read"),
        ({"tlc.endurance": 1e30, "tlc.read": 1e15}, "write"),
        ({"tlc.endurance": 1e30, "tlc.read": 1e15, "tlc.write": 1e15}, "capacity"),
    ):
        place = found(changes)["tlc"]
        assert place.device_binds == binds
        assert place.count == max(place.devices.values()) == place.devices[binds]


def test_a_full_store_takes_drives_sooner() -> None:
    """Is a drive's life the endurance over what flash writes for KV, by the table of amplification,
    with room left and without? Where the rate needs no more drives than a full store, wear does."""
    one = found({"wear.roomy": 1.0, "wear.full": 4.0, "wear.rated": 8.0})["tlc"]
    put = one.write_bytes_per_s * 86_400 * 365
    assert one.years == pytest.approx(one.count * 56_064e12 * 8 / put)
    assert one.years_full == pytest.approx(one.years / 4)
    assert one.devices_full == math.ceil(3 * put * 4 / 8 / 56_064e12) > one.count
    equal = found({"wear.full": 1.0, "wear.roomy": 1.0})["tlc"]
    assert equal.devices_full == equal.count and equal.years_full == equal.years


def test_a_rule_names_what_it_rests_on() -> None:
    """The input whose range moves a rule most, and the kind of knowledge that it is."""
    spec = read_spec(None, {})
    inputs = gather(spec, catalog())
    assert {one.kind for name, one in inputs.of.items() if name.startswith("wear.")} == {"modelled"}
    rules = {one.name: one for one in planned().rules}
    for one in rules.values():
        assert one.rests_on in inputs.numbers() and one.kind == inputs.of[one.rests_on].kind
    assert rules["drives_per_dpu"].rests_on == "bluefield3.link"
    assert rules["effective"].rests_on == "serving.hit" and rules["effective"].kind == "assumed"
    assert "(assumed: serving.hit)" in rule_text(rules["effective"])


def test_a_cluster_has_the_price_of_its_size() -> None:
    """Do 1,000 GPUs cost what the same users ten times over do, and reads a second of each GPU come
    from the turns' loads?"""
    question, of = values(users=6_000)
    best = min(places(question, of), key=lambda one: one.usd_per_mtok)
    shape, _, _ = read_spec(None, {}).shape()
    got = figures(question, shape, of, best)
    assert got["cluster"] == pytest.approx(best.usd_per_mtok, rel=0.02)
    assert got["iops_per_gpu"] * best.gpus * 262_144 == pytest.approx(best.read_bytes_per_s)
    assert got["drives_per_dpu"] == pytest.approx(50 / 14)


def test_each_need_of_a_gpu_can_bind() -> None:
    assert found()["hbm"].gpu_binds == "room for KV"
    assert found()["recompute"].gpu_binds == "prefill"
    slow = found({"h100.bandwidth": 1e12, "h100.compute": 1e18})
    assert slow["tlc"].gpu_binds == "HBM bandwidth"


def test_gpus_hold_what_is_live() -> None:
    """However they are counted, replicas have room for weights and live sessions."""
    question, of = values()
    for place in places(question, of):
        room = place.gpus * of["h100.memory"] * of["serving.memory_share"]
        weights = place.gpus / place.replica * of["model.parameters"]
        live = question.users if place.name == "hbm" else math.ceil(place.active)
        assert room >= weights + live * 131_072 * 327_680
        assert place.gpus % place.replica == 0


def test_a_tier_slower_than_prefilling_is_not_recommended() -> None:
    place = found({"tlc.read": 1e8, "tlc.iops": 1e3, "tlc.endurance": 1e30})
    assert place["object"].note == "slower than prefilling again"
    plan = planned(tiers=("object",))
    assert plan.best == "recompute"


def test_modules_need_slots() -> None:
    """68 DIMMs for 2 machines are reported and not recommended."""
    dram = found()["ddr5"]
    assert dram.count == 68 and dram.note == "needs 68 slots, has 64"
    assert not found({"ddr5.slots": 40.0})["ddr5"].note


def test_a_model_that_no_machine_holds_says_so() -> None:
    question, of = values()
    none = places(question, {**of, "model.parameters": 1e18})
    assert all(one.gpus == 0 and "do not fit" in one.note for one in none)


def test_every_figure_lies_in_its_range_and_the_seed_decides() -> None:
    plan = planned()
    spec = read_spec(None, {})
    again = make_plan(spec, gather(spec, catalog()), draws=DRAWS)
    assert msgspec.json.encode(plan) == msgspec.json.encode(again)
    for place in plan.places:
        for name, figure in place.figures.items():
            if figure is not None:
                assert figure.low <= figure.value <= figure.high, (place.name, name)
    for rule in plan.rules:
        assert rule.figure is None or rule.figure.low <= rule.figure.value <= rule.figure.high


def test_what_matters_most_comes_first_and_ends_differ() -> None:
    effects = planned().effects
    widths = [abs(one.at_high - one.at_low) for one in effects]
    assert widths == sorted(widths, reverse=True) and len(widths) > 10
    gpu = next(one for one in effects if one.parameter == "h100.hour")
    assert gpu.at_high > gpu.at_low


def test_a_place_is_dearer_by_draws_of_the_same_inputs() -> None:
    """Drives behind a DPU are drives in the host and a DPU: both cost the same but for it, so they
    are a tie, though either could cost a third or triple. To prefill again is dearer in nearly all
    draws, though its range overlaps with theirs."""
    rows = {one.name: one for one in planned().places}
    best, dpu, again = rows["tlc"], rows["dpu"], rows["recompute"]
    assert planned().best == "tlc" and not best.tied
    assert dpu.tied and dpu.over_best is not None and 0 < dpu.over_best.low < dpu.over_best.high
    assert dpu.over_best.high < 0.02 and dpu.cheaper_in == 0
    spread = best.figures["usd_per_mtok"]
    assert spread is not None and spread.high > 2 * spread.low
    assert again.over_best is not None and again.over_best.low > 0 and not again.tied
    assert "flash behind a DPU (G3.5) ties with it" in sentence(planned())


def test_the_sentence_counts_what_is_bought() -> None:
    """One drive is no "1 drives", and the DPU in front of it is none of them."""
    said = sentence(planned(tiers=("dpu",), shared=0.9))
    assert "(G3.5), 16 h100, 2 drives and 1 DPU, $" in said
    assert "h100 and 1 drive, $" in sentence(planned(dtype="fp4", weights="fp4"))


def test_what_a_dpu_adds_is_said_against_each_place_that_it_could_replace() -> None:
    """Nothing that dollars show against the same drives in a host; against HBM it saves, and the
    first token is later."""
    against = {one.base: one for one in planned().dpu}
    assert against.keys() == {"tlc", "hbm"}, "no machine has slots for as much DRAM"
    usd, wait = against["hbm"].usd, against["hbm"].first_token_s
    assert usd is not None and usd.value < -0.5 and wait is not None and wait.low > 0
    lines = dpu_lines(planned())
    assert "no gain that the plan counts" in lines[0] and "later" in lines[1]
    assert not planned(tiers=("tlc", "hbm")).dpu


def test_flash_that_never_pays_is_said_in_words() -> None:
    """As for a model that is prefilled sooner than a read pays for itself."""
    plan = planned()
    never = [
        msgspec.structs.replace(one, figure=Range(0.0, 0.0, 1e-3))
        if one.name == "keep_flash"
        else one
        for one in plan.rules
    ]
    said = sentence(msgspec.structs.replace(plan, rules=never))
    assert said.endswith("; keeping KV in flash costs more than it saves.")


def test_every_input_says_what_kind_of_knowledge_it_is() -> None:
    rows = planned().inputs
    assert {one.kind for one in rows} == {"cited", "assumed", "modelled"}
    assert all(one.source for one in rows)
    stale = [one.name for one in rows if one.stale]
    assert stale == ["object.rent"] or "object.rent" in stale


def test_what_is_printed_is_what_was_planned() -> None:
    """The sentence names the cheapest place; the tables mark stale prices."""
    from rich.console import Console

    plan = msgspec.structs.replace(planned(), sentence=sentence(planned()))
    assert "4.3 TB" in plan.sentence and "cheapest is NVMe" in plan.sentence
    out = Console(width=260)
    with out.capture() as text:
        out.print(console(plan))
        out.print(inputs_table(plan))
    assert "older than a year (marked †): object.rent" in text.get()
    assert "2016-12-01 †" in text.get()


@pytest.mark.parametrize("text", ["128K", "131072", 131_072, "0.125M", " 128 k "])
def test_tokens_as_people_write_them(text: str | int) -> None:
    assert parse_tokens(text) == 131_072


def test_a_part_of_a_token_is_no_context() -> None:
    assert parse_tokens("1.5K") == 1_536
    with pytest.raises(BadInput, match=r"'1\.5' is not a number of tokens"):
        parse_tokens("1.5")


def test_a_spec_has_the_question_a_model_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        '[plan]\nmodel = "mine"\nusers = 7\ncontext = "32K"\ntiers = ["tlc"]\n'
        '[model]\nlayers = 10\nform = "mha"\nheads = 4\nhead = 64\nparameters = 3\n'
        '[tlc]\nprice = { value = 1, unit = "$/GB", low = 1, high = 1, date = 2026-01-01, '
        'tag = "cited", source = "mine" }\n',
        encoding="utf-8",
    )
    spec = read_spec(path, {"users": 8})
    shape, parameters, active = spec.shape()
    assert spec.plan.users == 8 and spec.plan.tokens == 32_768
    assert token_bytes(shape, "fp16").value == 10 * 2 * 4 * 64 * 2
    assert parameters.base == active.base == 3e9
    assert catalog().with_tables(spec.numbers, spec.where).numbers("tlc")["price"].value == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"model": "gpt-5"}, "no published geometry"),
        ({"users": 0}, "--users: 0; give 1 to"),
        ({"context": "9" * 400}, "is not a number of tokens"),
        ({"users": 10**9, "context": "1M"}, "a tier can name"),
        ({"context": "12x"}, "not a number of tokens"),
        ({"context": 0}, "0 tokens"),
        ({"context": 9}, "a context of 9 tokens grows over 10 turns"),
        ({"context": "1K", "turns": 1025}, "a context of 1,024 tokens grows over 1,025 turns"),
        ({"dtype": "fp3"}, "unknown format"),
        ({"gpu": "a100"}, "choose one of h100"),
        ({"tiers": ["tape"]}, "choose one of hbm"),
        ({"tiers": ["hbm", "tlc", "hbm"]}, "name each tier once"),
        ({"shared": 1.5}, "--shared: 1.5; give 0 to 1"),
        ({"usres": 5}, "did you mean 'users'"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(words: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        spec = read_spec(None, words)
        spec.check(catalog())
    assert "\n" not in str(error.value)


def test_a_daemon_decides_by_what_the_plan_tells_it() -> None:
    """A daemon with blocks of this model reads the plan's keys and follows its rules."""
    plan = planned()
    rules = {one.name: one.figure.value for one in plan.rules if one.figure is not None}
    config = load(
        None,
        plan.daemon
        | {
            "arena.layers": "80",
            "arena.payload": "256KiB",
            "arena.size": "64GiB",
            "storage.lba": "512B",
            "storage.size": "30720GB",
            "storage.backend": "emulated",
        },
        environ={},
    )
    thresholds, policy = Thresholds(config, 30_720 * 10**9), config.policy
    assert thresholds.keep_ns(policy) / 1e9 == pytest.approx(rules["keep_flash"], rel=0.02)
    written = thresholds.written_per_hit_max(policy) / (256 << 10)
    assert written == pytest.approx(1 / rules["least_reuse"], rel=0.02)
    slow = Pace(1.0, rules["rate_to_fetch"] / 327_680 * 0.9)
    fast = Pace(1e-3, 1e-3 * rules["rate_to_fetch"] / 327_680 * 1.1)
    assert thresholds.return_tokens_min(policy, slow) == NONE_RETURN
    assert thresholds.return_tokens_min(policy, fast) < 2048


@pytest.mark.parametrize("given", [{"limit": 5}, {"whole": True}, {"trace_format": "azure"}])
def test_options_of_a_trace_need_one(given: dict[str, Any]) -> None:
    """Without a trace they are refused rather than silently ignored."""
    with pytest.raises(BadInput, match=r"no trace.*--trace FILE"):
        plan(**given)
