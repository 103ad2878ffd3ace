"""Do specs that name a request trace take lengths, sharing and prefix hits from it?"""

import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import EVICTIONS
from offstage.testbeds.cli import run
from offstage.testbeds.lab.run.experiment import plan
from offstage.testbeds.lab.run.requests import requests_of
from offstage.testbeds.lab.run.source import build, trace_notes
from offstage.testbeds.lab.run.summarize import finish
from offstage.testbeds.lab.spec.load import load
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.traced import on_trace
from offstage.testbeds.progress import Silent
from offstage.testbeds.report.page.files import read_lab_summary
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.trace_sessions import sessions_from_trace

TRACE = Path(__file__).resolve().parents[2] / "golden/data/tiny_mooncake.jsonl"

DECODE = f"""
seeds = [3]
[workload]
trace = "{TRACE}"
sessions = 3
steps = 9
context_tokens = 8192
context_tokens_min = 1024
[geometry]
model = "tiny"
block_tokens = 64
[selection]
k_blocks = 8
"""

REQUESTS = f"""
[workload]
kind = "requests"
file = "{TRACE}"
capacity_share = [0.1, 1.0]
admission = ["all"]
[[policy]]
use = "lru"
[[policy]]
use = "sieve"
"""


def spec_of(text: str, folder: Path) -> Spec:
    path = folder / "spec.toml"
    path.write_text(text)
    return load(path)


def test_decode_sessions_have_the_lengths_and_prefixes_of_the_trace(tmp_path: Path) -> None:
    """Each session is a request of the trace, cut to whole blocks, with the same sharing."""
    work = build(spec_of(DECODE, tmp_path), 3)
    wanted = sessions_from_trace(open_trace(TRACE), 3, 1024, 8192, "dev", block_tokens=64)
    assert [one.name for one in work.sessions] == [one.name for one in wanted]
    assert [one.blocks * 64 for one in work.sessions] == [one.context_tokens for one in wanted]
    assert [one.steps for one in work.sessions] == [min(9, one.output_tokens) for one in wanted]
    for mine, theirs in zip(work.sessions, wanted, strict=True):
        assert np.array_equal(mine.contents, theirs.contents)


def test_a_traced_workload_is_the_same_again_and_in_other_slabs(tmp_path: Path) -> None:
    """Two objects and different slab sizes give the same selections."""
    spec = spec_of(DECODE, tmp_path)
    one, two = build(spec, 3), build(spec, 3)
    for session in range(3):
        first = np.concatenate([slab.selected for slab in one.slabs(session, 4)])
        again = np.concatenate([slab.selected for slab in two.slabs(session, 7)])
        assert np.array_equal(first, again)
        assert first.shape[0] == one.sessions[session].steps


def test_requests_give_a_row_for_every_cache(tmp_path: Path) -> None:
    """Every combination has a row, and a cache with room for all blocks equals an unlimited one."""
    rows = requests_of(spec_of(REQUESTS, tmp_path), Silent())
    assert {(row.eviction, row.capacity_share) for row in rows} == {
        (name, share) for name in ("lru", "sieve") for share in (0.1, 1.0)
    }
    for row in rows:
        assert row.block_hit_rate <= row.opt <= row.ideal
        if row.capacity_share == 1.0:
            assert row.block_hit_rate == row.ideal


def test_requests_need_no_policy(tmp_path: Path) -> None:
    """A spec that names no eviction compares all that can hold requests' blocks."""
    spec = spec_of(REQUESTS.partition("[[policy]]")[0], tmp_path)
    assert [one.use for one in spec.policy] == [name for name in EVICTIONS if name != "score"]


def test_requests_refuse_what_only_decode_has(tmp_path: Path) -> None:
    """A prefetcher on a request trace is refused in one line that names the key."""
    with pytest.raises(BadInput, match=r"\[\[policy\]\] use: .*no eviction 'ema'"):
        spec_of(REQUESTS.replace('"sieve"', '"ema"'), tmp_path)


def test_a_warm_up_of_requests_counts_the_rest_and_says_so(tmp_path: Path) -> None:
    """The key affects the rates, and is refused where no such warm-up exists."""
    warm = REQUESTS.replace("admission", "warm_up_share = 0.5\nadmission")
    cold = requests_of(spec_of(REQUESTS, tmp_path), Silent())
    found = requests_of(spec_of(warm, tmp_path), Silent())
    assert all(row.block_hit_rate <= row.opt <= row.ideal for row in found)
    assert [row.block_hit_rate for row in found] != [row.block_hit_rate for row in cold]
    experiment = plan(tmp_path / "spec.toml", {})
    summary = finish(experiment, tmp_path, tmp_path, Silent())
    told = [note.what for note in summary.notes]
    assert "the first 0.5 of the requests fill the caches and count in no rate" in told
    with pytest.raises(BadInput, match=r"warm_up_share has no effect"):
        spec_of(DECODE.replace("sessions", "warm_up_share = 0.5\nsessions"), tmp_path)


def test_caches_of_requests_say_what_of_trace_and_seeds_had_no_effect(tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(TRACE.read_text().replace('{"timestamp"', '{"chat_id": 1, "timestamp"'))
    spec_of(
        REQUESTS.replace(str(TRACE), str(more)).replace("[workload]", "seeds = [1, 2]\n[workload]"),
        tmp_path,
    )
    told = finish(plan(tmp_path / "spec.toml", {}), tmp_path, tmp_path, Silent()).notes
    assert [note.code for note in told] == ["trace", "seeds-unused"]
    assert "chat_id (" in told[0].what and "seed 1" in told[1].what


def test_a_trace_cut_to_one_length_says_so_in_a_note(tmp_path: Path) -> None:
    """A held-out part whose requests are all cut to one length draws the other part's selections. A
    note says that its lengths had no effect, and appears only then."""
    alike = DECODE.replace("context_tokens = 8192", "context_tokens = 1024").replace(
        "steps = 9", "steps = 1"
    )
    codes = {note.code: note for note in trace_notes(spec_of(alike, tmp_path))}
    assert {"cut-alike", "outputs-cut-alike"} <= codes.keys()
    assert "1,024 tokens" in codes["cut-alike"].what and codes["cut-alike"].fix
    free = {note.code for note in trace_notes(spec_of(DECODE, tmp_path))}
    assert "cut-alike" not in free
    experiment = plan(tmp_path / "spec.toml", {})
    assert all(one.point < 0 for one in experiment.failures)
    told = finish(experiment, tmp_path, tmp_path, Silent()).notes
    assert {note.code for note in told} >= free


@pytest.mark.parametrize("text", [DECODE, REQUESTS], ids=["decode", "requests"])
def test_another_trace_takes_the_place_of_the_specs(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a file, or a name in the folder of traces. Headline, summary and page name it."""
    (tmp_path / "spec.toml").write_text(text.replace(str(TRACE), "no-such-trace.jsonl"))
    (tmp_path / "another.jsonl").write_bytes(TRACE.read_bytes())
    monkeypatch.setenv("OFFSTAGE_TRACES", str(tmp_path))
    words = ["lab", "run", str(tmp_path / "spec.toml"), "--jobs", "1"]
    for trace in ("another.jsonl", str(TRACE)):
        out = tmp_path / Path(trace).name.partition(".")[0]
        assert run([*words, "--out", str(out), "--trace", trace, "--format", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        name = Path(trace).name
        assert told["sentence"].startswith(f"On {name}, ")
        summary = read_lab_summary(out)
        assert [one["trace"] for one in summary.manifest.workloads.values()] == [name]
        page = unescape((out / "report.html").read_text(encoding="utf-8"))
        assert f"On {name}, " in page
    assert run([*words, "--out", str(tmp_path / "out")]) == 2, "without it, the spec's own"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--set workload.steps=NaN", "--set workload.steps=NaN: expected"),
        ("--set workload.stepz=3", "--set workload.stepz=3: unknown key 'stepz'"),
        ("--set workloads.x=3 --seed 1", "--set workloads.x=3: unknown key 'workloads'"),
        ("--set tier.device=nosuch", "--device nosuch: no preset"),
        ("--device nosuch", "--device nosuch: no preset"),
        ("--trace no/such", "--trace no/such: "),
        ("--seed 1 --set seeds=[2]", "command line: seeds is set twice; leave out --seed, or"),
    ],
)
def test_an_option_that_spoils_a_spec_is_named_in_its_place(
    given: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not the spec's file, which is right."""
    assert run(["lab", "run", "demo-128k", *given.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"offstage: {says}") and "demo-128k" not in line


@pytest.mark.parametrize(
    ("more", "changes", "said"),
    [
        ("", {"workload.trace": "x"}, "--trace and --set workload.trace"),
        ('[sweep]\n"workload.trace" = ["x", "y"]', {}, "workload.trace is an axis"),
        ("", {"sweep": {"workload.trace": ["x"]}}, "workload.trace is an axis"),
    ],
)
def test_two_traces_are_refused(
    more: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(DECODE + more)
    with pytest.raises(BadInput, match=said):
        on_trace(path, changes, str(TRACE))


def test_a_spec_of_recorded_selections_takes_no_trace(tmp_path: Path) -> None:
    """What kind of workload it is may be changed too."""
    path = tmp_path / "spec.toml"
    path.write_text('[workload]\nkind = "captured"\nfile = "scores.parquet"\n')
    with pytest.raises(BadInput, match="trace has no effect with recorded selections"):
        load(path, on_trace(path, {}, "x"))
    changes = {"workload.kind": "requests"}
    assert load(path, on_trace(path, changes, "x")).workload.file == "x"
    assert on_trace(path, {}, "") == {}
    with pytest.raises(BadInput, match="sweep"):
        load(path, on_trace(path, {"sweep": 3}, "x"))
