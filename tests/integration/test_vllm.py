"""vLLM on the tier: does it generate the same tokens with and without it, and compute less?"""

import json
import signal
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zmq
from live_daemon import daemon, until
from vllm_bed import BLOCK, FULL, PROMPT, SIZES, engine, prompt

from offstage.testbeds.bench.engines.apart import ARMS, bench_apart
from offstage.testbeds.bench.engines.arrivals import arrivals_of
from offstage.testbeds.bench.engines.bed import bed_of

SEVERAL = {"n": 3, "temperature": 1.0, "seed": 7}


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_what_is_generated_is_the_same_with_the_tier(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """vLLM generates the same tokens as without the tier when it fills the tier, another engine
    reuses the first one's objects, also for three answers to one prompt, an object is truncated and
    stored again, another engine's prefill never arrives, or the daemon is lost."""
    prompts = [prompt(n) for n in range(4)]
    with engine(python, model, tmp_path, None) as alone:
        expected = alone.ask(*prompts)
        lonely = alone.ask(prompt(9))
        several = alone.ask(prompts[1], sampling=SEVERAL)["outputs"]
    assert expected["reused"] == [0] * 4
    assert len({tuple(one) for one in several[0]}) == 3
    with daemon(tmp_path, **SIZES) as tier:
        with engine(python, model, tmp_path, tier) as first:
            assert first.ask(*prompts) == expected
        with engine(python, model, tmp_path, tier) as second:
            reused = second.ask(*prompts)
            assert reused == {"tokens": expected["tokens"], "reused": [FULL] * 4}
            assert second.ask(prompts[1], sampling=SEVERAL)["outputs"] == several
            assert second.ask(prompts[0], read=3) == "done"
            torn = second.ask(prompts[0], truncate=3)
            assert torn["tokens"] == expected["tokens"][:1]
            until(lambda: bool(second.ask(prompts[0], read=3) == "done"))
            healed = second.ask(prompts[0])
            assert healed == {"tokens": expected["tokens"][:1], "reused": [FULL]}
            wish = {"offstage": {"expect": {"tokens": PROMPT, "seconds": 0.5}}}
            assert second.ask(prompt(9), params=wish) == lonely
            tier.process.kill()
            tier.process.wait()
            assert second.ask(*prompts) == expected


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_kinds_of_requests_get_the_same_answers(python: Path, model: Path, tmp_path: Path) -> None:
    """Log-probabilities of all tokens of a prompt, answers of a given form, and prefill in pieces
    that are smaller than what is loaded: each is as without the tier. A request that wants figures
    of its prompt loads nothing; the others load every full block."""
    more = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
    kinds: list[dict[str, object]] = [
        {"sampling": {"prompt_logprobs": 1}},
        {"sampling": {}, "form": "[a-z]{3}[0-9]{9}"},
        {"sampling": {}},
    ]
    with engine(python, model, tmp_path, None, more) as alone:
        expected = [alone.ask(prompt(0), prompt(1), **kind) for kind in kinds]
    assert expected[0]["logprobs"] == [PROMPT] * 2
    assert expected[1]["tokens"] != expected[2]["tokens"]
    with daemon(tmp_path, **SIZES) as tier, engine(python, model, tmp_path, tier, more) as one:
        one.ask(prompt(0), prompt(1))
        for number in range(2):
            until(lambda at=number: bool(one.ask(prompt(at), read=FULL // BLOCK - 1) == "done"))
        for kind, wanted in zip(kinds, expected, strict=True):
            reused = [0 if "prompt_logprobs" in str(kind) else FULL] * 2
            found = one.ask(prompt(0), prompt(1), **kind)
            assert found == wanted | {"reused": reused}, kind
        made = [each for each in one.ask([], decisions=1) if each["tokens"]]
        assert [each["tokens"] for each in made] == [FULL] * 4


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_requests_that_are_left_or_preempted_lose_nothing(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """A client leaves while its prompt's KV is loaded: vLLM's blocks are all free in the end.
    Answers for which vLLM has too little memory are preempted and go on, with the tokens that an
    engine without the tier gives."""
    prompts = [prompt(n) for n in range(3)]
    more = {"num_gpu_blocks_override": 28, "max_model_len": 512}
    with engine(python, model, tmp_path, None, more) as alone:
        expected = alone.ask(*prompts, tokens=120)["tokens"]
        assert alone.ask(metrics=1)["vllm:num_preemptions"] > 0
    bounds = {"patience_s": 60.0, "patience_min_s": 60.0, "timeout_s": 60.0}
    with daemon(tmp_path, **SIZES) as tier:
        with engine(python, model, tmp_path, tier, more, **bounds) as first:
            assert first.ask(*prompts, tokens=120)["tokens"] == expected
            before, during, after = first.ask(*prompts[:2], abort=tier.process.pid)
            assert during <= before - FULL // BLOCK, "its blocks were freed while they were loaded"
            assert after == before
            assert first.ask(*prompts, tokens=120)["tokens"] == expected
        with engine(python, model, tmp_path, tier, more, **bounds) as second:
            assert second.ask(*prompts, tokens=120)["tokens"] == expected
            counts = second.ask(metrics=1)
    assert counts["vllm:num_preemptions"] > 0 and counts["vllm:offstage_fetched_tokens"] > 0


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_an_engine_that_begins_before_its_daemon(python: Path, model: Path, tmp_path: Path) -> None:
    """An engine computes until its daemon answers; then it stores, and another engine loads."""
    address = f"ipc://{tmp_path}/d"
    with daemon(tmp_path, **SIZES, daemon__endpoint=address) as tier:
        tier.process.kill()
        tier.process.wait()
    with engine(python, model, tmp_path, tier) as early:
        expected = early.ask(prompt(0))
        with daemon(tmp_path, **SIZES, daemon__endpoint=address) as tier:
            until(lambda: bool(early.ask(prompt(0), read=0) != "away"))
            assert early.ask(prompt(0)) == expected | {"reused": [0]}
            until(lambda: bool(early.ask(prompt(0), read=FULL // BLOCK - 1) == "done"))
            assert early.ask(prompt(0)) == expected | {"reused": [FULL]}


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_no_request_waits_for_the_load_of_another(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """The daemon is frozen while a request loads from it what its memory has no room for. Another
    request, which arrived with it, ends first, the tokens of both are unchanged, and later loads
    work."""
    bounds = {"patience_s": 10.0, "patience_min_s": 10.0, "timeout_s": 60.0}
    small = SIZES | {"arena__size": "512KiB"}  # leased objects in memory need no daemon to be read
    with daemon(tmp_path, **small) as tier, engine(python, model, tmp_path, tier, **bounds) as one:
        expected = one.ask(prompt(0), prompt(1))["tokens"]
        until(lambda: bool(one.ask(prompt(0), read=FULL // BLOCK - 1) == "done"))
        other = one.ask(prompt(2))["tokens"]
        try:
            frozen = one.ask(prompt(0), prompt(3), stop=tier.process.pid)
        finally:
            tier.process.send_signal(signal.SIGCONT)
        assert frozen["order"] == [1, 0] and frozen["reused"] == [0, 0]
        assert frozen["tokens"][0] == expected[0]
        counts = one.ask(metrics=1)
        assert counts["vllm:offstage_load_late_blocks"] == FULL // BLOCK
        until(lambda: bool(one.ask(prompt(0), read=0) == "done"))
        again = one.ask(prompt(0), prompt(1), prompt(2))
        assert again == {"tokens": [*expected, *other], "reused": [FULL] * 3}


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_two_workers_keep_their_parts(python: Path, model: Path, tmp_path: Path) -> None:
    """With a model that two workers share, stored blocks are found. A block with a bad part of one
    worker is missing and stored again; the generated tokens are always the same."""
    prompts, two = [prompt(n) for n in range(2)], {"tensor_parallel_size": 2}
    with engine(python, model, tmp_path, None, two) as alone:
        expected = alone.ask(*prompts)
    with (
        daemon(tmp_path, **SIZES | {"limits__ports": "16"}) as tier,
        engine(python, model, tmp_path, tier, two) as first,
    ):
        assert first.ask(*prompts) == expected
        for one in prompts:
            until(lambda one=one: bool(first.ask(one, read=FULL // BLOCK - 1) == "done"))
        assert first.ask(*prompts) == {"tokens": expected["tokens"], "reused": [FULL] * 2}
        torn = first.ask(prompts[0], truncate=3)
        assert torn == {"tokens": expected["tokens"][:1], "reused": [3 * BLOCK]}
        until(lambda: bool(first.ask(prompts[0], read=3) == "done"))
        healed = first.ask(prompts[0])
        assert healed == {"tokens": expected["tokens"][:1], "reused": [FULL]}


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_one_and_two_workers_load_what_the_other_stored(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """Blocks stored by two groups of heads: two workers load all full blocks that one stored, one
    worker those of two, each with the tokens of the engine that computed them. Prompts are those to
    which one and two workers give the same answers without the tier: on some processors the sums of
    two groups of heads round otherwise."""
    more = {"max_num_batched_tokens": 2048}
    prompts, two = [prompt(n) for n in range(12)], more | {"tensor_parallel_size": 2}
    alone = []
    for workers in (more, two):
        with engine(python, model, tmp_path, None, workers) as by_itself:
            alone.append(by_itself.ask(*prompts)["tokens"])
    agreed = zip(prompts, *alone, strict=True)
    prompts = [each for each, by_one, by_two in agreed if by_one == by_two][:4]
    assert len(prompts) == 4, "one and two workers rarely agree here"
    with (
        daemon(tmp_path, **SIZES | {"limits__ports": "16"}) as tier,
        engine(python, model, tmp_path, tier, more, head_groups=2) as one,
        engine(python, model, tmp_path, tier, two, head_groups=2) as pair,
    ):
        for first, second, asked in ((one, pair, prompts[:2]), (pair, one, prompts[2:])):
            computed = first.ask(*asked)
            assert computed["reused"] == [0] * 2
            stored = partial(first.ask, read=FULL // BLOCK - 1)
            for each in asked:
                until(lambda stored=stored, each=each: bool(stored(each) == "done"))
            assert second.ask(*asked) == computed | {"reused": [FULL] * 2}
            objects = 2 * 2 * FULL // BLOCK
            counts = second.ask(metrics=1)
            read = ("on_time", "late", "missing")
            loaded = sum(counts.get(f"vllm:offstage_objects_{how}", 0) for how in read)
            assert loaded >= objects / (2 if second is pair else 1), "of one process"


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_failures_pollute_nothing_and_all_is_told(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """With vLLM's own cache on, two requests that share a prefix lose a block while they load. It
    is computed for both, neither cache keeps a wrong block, subscribers hear of each stored block,
    and Prometheus' counters show what happened."""
    prompts = [prompt(0), [*prompt(0)[: 7 * BLOCK], *prompt(1)[7 * BLOCK :]]]
    events = zmq.Context.instance().socket(zmq.SUB)
    events.subscribe(b"")
    events.connect(f"ipc://{tmp_path}/events")
    more = {
        "enable_prefix_caching": True,
        "kv_events_config": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"ipc://{tmp_path}/events",
        },
    }
    with daemon(tmp_path, **SIZES) as tier, engine(python, model, tmp_path, tier, more) as one:
        expected = one.ask(*prompts)["tokens"]
        until(lambda: bool(one.ask([7] * 64, forget=1) and events.poll(200)))  # connected
        for number in (9, 8):  # the second one's steps report what the first stored
            one.ask(prompt(number))
        until(lambda: bool(one.ask(prompts[0], read=8) == "done"))
        for _ in range(3):
            assert one.ask(prompts[0], forget=1, tokens=1)["reused"] == [FULL]
            one.ask(prompts[0], read=2, rot=2)
            assert one.ask(*prompts, forget=1)["tokens"] == expected
            assert one.ask(*prompts)["tokens"] == expected, "vLLM's own cache has something wrong"
            until(lambda: bool(one.ask(prompts[0], read=2) == "done"))
            assert one.ask(*prompts, forget=1)["tokens"] == expected, "the tier has"
        counts = one.ask(metrics=1)
    assert counts["vllm:offstage_load_failed_blocks"] >= 1
    assert counts["vllm:offstage_put_done"] >= 10 and counts["vllm:offstage_objects_on_time"] >= 9
    told = []
    while events.poll(1000):
        told += msgspec.msgpack.decode(events.recv_multipart()[2])[1]
    events.close(0)
    ours = [event for event in told if event.get("medium") == "STORAGE"]
    stored = [event for event in ours if event["type"] == "BlockStored"]
    found = {tuple(event["token_ids"]): event for event in stored}
    first, second = (found[tuple(prompt(9)[at : at + BLOCK])] for at in (0, BLOCK))
    assert second["parent_block_hash"] == first["block_hashes"][0]
    assert any(event["type"] == "BlockRemoved" for event in ours)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_one_engine_prefills_and_another_decodes(python: Path, model: Path, tmp_path: Path) -> None:
    """With one engine that prefills and another that decodes, over files and over the tier, in turn
    and at once, the tokens are those of a single engine, and no full block is computed twice."""
    rows = [
        {
            "timestamp": 200 * n,
            "input_length": 1024,
            "output_length": 5,
            "hash_ids": [2 * n, 2 * n + 1],
        }
        for n in range(3)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bed = bed_of(python, model, 1024, "io_uring")
    traffic = arrivals_of(
        trace,
        count=3,
        context_tokens=1024,
        vocabulary=bed.vocabulary,
        seconds=0.4,
        outputs=8,
        seed=1,
    )
    arms = bench_apart(bed, traffic, rounds=2).arms
    full = (len(traffic.requests[0].prompt) - 1) // BLOCK * BLOCK
    assert full > 900
    reused = {name: arm.reused for name, arm in arms.items()}
    assert reused == {name: [full if name != ARMS[0] else 0] * 6 for name in ARMS}
    for name in ARMS[2:]:
        assert arms[name].counters["fetched_tokens"] == 6 * full
