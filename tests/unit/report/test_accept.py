"""Does an acceptance judge each limit by the worst of its figures, and invent none?"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from against_schema import checked
from bench_results import RESULTS

from offstage.bindings.errors import BadInput
from offstage.bindings.stages import StageTimes
from offstage.testbeds.bench.engines.result import Arm
from offstage.testbeds.bench.links import line_rate, rows_of
from offstage.testbeds.cli import run
from offstage.testbeds.document import as_json
from offstage.testbeds.lab.pod.spec import PodSpec
from offstage.testbeds.lab.pod.summary import PodSummary, Row
from offstage.testbeds.lab.results.summary import LabSummary
from offstage.testbeds.live.pod_figures import MemberResult, PodResult
from offstage.testbeds.report import write_summary
from offstage.testbeds.report.accept.figures import of_bench, of_live, of_run
from offstage.testbeds.report.accept.judge import Acceptance, Seen, judge
from offstage.testbeds.report.accept.rules import LOST, RULES, Limits, defaults_text, read_limits
from offstage.testbeds.report.page.files import write_lab_summary

POD = {
    "epoch": 1,
    "shard_tokens": 64,
    "members": {},
    "demands": 100,
    "load_cv": 0.25,
    "blocks_verified": 90,
    "blocks_corrupt": 1,
    "blocks_recomputed": 2,
    "ends_differ": 3,
    "pace_overruns": -1.0,
    "passed_over": 0,
    "wall_s": 1.0,
}
"""What is read of a pod.json; the rest of its keys are filled with 0."""


def judged(*seen: Seen, limits: Limits | None = None) -> Acceptance:
    return judge(limits or Limits.built_in(), seen, "run", "arm", "0")


def values_of(seen: list[Seen]) -> dict[str, float | None]:
    return {one.name: one.value for one in seen}


@pytest.mark.parametrize(
    ("name", "kept", "missed"),
    [
        ("p99_over_median", 10.0, 10.01),
        ("link_rate", 0.8, 0.799),
        ("drive_rate", 0.8, 0.799),
        ("decision_ms", 0.999, 1.0),
        ("load_cv", 0.299, 0.3),
        ("reuse", 0.701, 0.7),
        ("ttft_cost", 0.05, 0.051),
        (LOST, 0.0, 1.0),
    ],
)
def test_a_limit_passes_and_fails_at_its_value(name: str, kept: float, missed: float) -> None:
    """The limit itself is kept by at most and at least alone, and the worse of two counts."""
    sound = Seen(LOST, 0.0)
    for values, verdict in (((kept,), "pass"), ((missed,), "fail"), ((kept, missed), "fail")):
        found = judged(sound, *(Seen(name, value) for value in values))
        (row,) = [one for one in found.limits if one.name == name]
        assert (row.verdict, row.value) == (verdict, values[-1])
        assert found.accepted is (verdict == "pass")
        assert (name in found.sentence) is (verdict == "fail")


def test_what_nobody_saw_is_absent_with_a_reason() -> None:
    """It has no value, and stands against the tier only where it is required."""
    found = judged(Seen(LOST, 0.0), Seen("decision_ms", None, reason="not timed"))
    rows = {one.name: one for one in found.limits}
    assert list(rows) == list(RULES) and found.accepted
    assert rows["decision_ms"].reason == "not timed"
    assert rows["link_rate"].reason == RULES["link_rate"].get
    absent = [one for one in found.limits if one.verdict == "absent"]
    assert len(absent) == 7 and all(one.value is None and one.reason for one in absent)
    assert found.sentence == "Accepted: no limit fails; 1 of 8 pass, 7 have no figure."
    needed = judged(Seen(LOST, 0.0), limits=Limits(Limits.built_in().values, (LOST, "reuse")))
    assert not needed.accepted and "reuse is required and has no figure" in needed.sentence
    assert not judged().accepted


def test_a_file_changes_limits_and_the_built_in_ones_are_a_file(tmp_path: Path) -> None:
    """What is left out stays as it is."""
    path = tmp_path / "limits.toml"
    path.write_text(defaults_text(), encoding="utf-8")
    assert read_limits(path) == read_limits(None) == Limits.built_in()
    path.write_text('reuse = 0.5\nrequired = ["reuse", "reuse"]\n', encoding="utf-8")
    found = read_limits(path)
    assert found.values == Limits.built_in().values | {"reuse": 0.5}
    assert found.required == ("reuse",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("link_rat = 0.5", "unknown limit 'link_rat'; did you mean 'link_rate'?"),
        ('required = ["reus"]', "required: unknown limit 'reus'; did you mean 'reuse'?"),
        ('required = "reuse"', "required is not a list of names"),
        ("reuse = true", "reuse: True is not a limit"),
        ("reuse = -0.1", "reuse: -0.1 is not a limit"),
        ("reuse = nan", "reuse: nan is not a limit"),
        ("reuse = inf", "reuse: inf is not a limit"),
        ("[reuse]", "reuse: {} is not a limit"),
        ("reuse 1", "is not TOML"),
    ],
)
def test_a_file_that_is_no_limits_is_one_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "limits.toml").write_text(text, encoding="utf-8")
    words = ["accept", str(tmp_path), "--limits", str(tmp_path / "limits.toml")]
    assert run(words) == 2
    line = capsys.readouterr().err
    assert told in line and line.count("\n") == 1


def test_figures_of_a_live_run_are_its_summarys(made: SimpleNamespace) -> None:
    """By hand; and what the run did not time or compare has no figure."""
    whole = msgspec.structs.replace(
        made.summary().runs[0],
        fetch_ms_p50=0.5,
        fetch_ms_p99=4.0,
        fetch_count=9,
        stages={"decide": StageTimes(count=3, ns_p99=250_000)},
        blocks_corrupt=1,
        blocks_recomputed=2,
        ends_differ=4,
        records_lost=8,
        log_bytes_lost=16,
        log_diverged_at=0,
    )
    seen = list(of_live(whole))
    assert values_of(seen) == {"p99_over_median": 8.0, "decision_ms": 0.25, LOST: 32.0}
    assert {one.provenance for one in seen} == {whole.provenance}
    blank = {"fetch_count": 0, "stages": {}, "blocks_verified": 0}
    blank |= {"blocks_corrupt": 0, "blocks_recomputed": 0}
    lost = list(of_live(msgspec.structs.replace(whole, **blank)))
    assert len(lost) == 3 and all(one.value is None and one.reason for one in lost)


def test_figures_of_lab_runs_are_the_worst_of_their_rows(whole: LabSummary, tmp_path: Path) -> None:
    """Reuse of every request trace, or of one eviction; reads that failed."""
    write_lab_summary(whole, tmp_path / "summary.json")
    found = judged(*of_run(tmp_path).seen)
    rows = {one.name: one for one in found.limits}
    assert rows["reuse"].value == min(row.token_hit_rate for row in whole.requests)
    assert rows["reuse"].provenance == "modelled" and rows[LOST].value == 0
    assert rows["decision_ms"].verdict == "absent"
    own = [row.token_hit_rate for row in whole.requests if row.eviction == "sieve"]
    some = {one.value for one in of_run(tmp_path, "sieve").seen if one.name == "reuse"}
    assert some == set(own)
    with pytest.raises(BadInput, match="nothing with the policy 'siev'"):
        of_run(tmp_path, "siev")


def pod_json(folder: Path, **changes: Any) -> Path:
    fields = {field: 0 for field in PodResult.__struct_fields__ if field != "notes"} | POD
    member = {field: 0 for field in MemberResult.__struct_fields__} | {"state": "served"}
    fields |= {"members": {"a": member, "b": member}} | changes
    (folder / "pod.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def test_a_pod_has_its_load_and_its_losses(tmp_path: Path) -> None:
    """A pod of one has no variation, which is not 0; a figure that cannot be true is refused."""
    found = of_run(pod_json(tmp_path))
    assert values_of(found.seen) == {"load_cv": 0.25, LOST: 6.0}
    assert of_run(tmp_path / "pod.json") == found
    assert {one.provenance for one in found.seen} == {"measured"}
    paced = of_run(pod_json(tmp_path, pace_overruns=0.0)).seen
    assert {one.provenance for one in paced} == {"emulated"}
    alone = values_of(of_run(pod_json(tmp_path, members={})).seen)
    assert alone["load_cv"] is None
    with pytest.raises(BadInput, match="load_cv = -2"):
        of_run(pod_json(tmp_path, load_cv=-2.0))


def test_pods_of_the_laboratory_are_judged_without_a_fault(tmp_path: Path) -> None:
    """By their schedule, if one is named; one daemon has no variation."""
    rows = [
        Row(daemons=n, schedule=how, fault=fault, seeds=1, refused=0, means=means, ranges={})
        for n, how, fault, means in (
            (1, "load", "none", {"load_cv": 0.0, "hit": 0.5}),
            (4, "load", "none", {"load_cv": 0.2, "hit": 0.6}),
            (4, "reuse", "none", {"load_cv": 0.4, "hit": 0.9}),
            (4, "reuse", "death", {"load_cv": 0.9, "hit": 0.1}),
        )
    ]
    pods = PodSummary(version="", command="", spec=PodSpec(), points=[], rows=rows, beside=[])
    (tmp_path / "summary.json").write_text(as_json(pods), encoding="utf-8")
    seen = [(one.name, one.value) for one in of_run(tmp_path).seen if one.name != LOST]
    assert [value for name, value in seen if name == "load_cv"] == [0.2, 0.4]
    assert [value for name, value in seen if name == "reuse"] == [0.5, 0.6, 0.9]
    assert values_of(of_run(tmp_path, "reuse").seen) == {"load_cv": 0.4, "reuse": 0.9, LOST: None}


@pytest.mark.parametrize(
    ("name", "limit", "least"),
    [
        ("links", "link_rate", lambda it: it.links[0].bandwidth_ratio),
        ("fabric", "link_rate", lambda it: it.reads[0].memcpy_ns / it.reads[0].hit_ns),
        ("storage", "drive_rate", lambda it: it.cases[0].bandwidth_ratio),
        ("schedule", "reuse", lambda it: min(one.live.hit for one in it.arms)),
    ],
)
def test_figures_of_a_bench_are_its_documents(
    name: str, limit: str, least: Any, tmp_path: Path
) -> None:
    result: Any = RESULTS[name]
    path = tmp_path / f"{name}.json"
    path.write_text(as_json(result.document()), encoding="utf-8")
    seen = of_bench(path)
    assert {one.name for one in seen} == {limit}
    assert min(one.value or 0.0 for one in seen) == pytest.approx(least(result))
    assert all(path.name in one.source for one in seen)


def test_a_nic_is_judged_by_its_line_rate_too(tmp_path: Path) -> None:
    """The kernel's word for the rate of a port counts where the adapter is a device of a bus: a
    link that keeps up with its reference, and not with its line, is judged by the line."""
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    assert line_rate("mlx5_0", 1, tmp_path) is None, "a soft adapter has no line"
    (tmp_path / "mlx5_0/device").mkdir()
    assert line_rate("mlx5_0", 1, tmp_path) == 12.5e9
    for none in ("", "0 Gb/sec\n", "fast\n"):
        (port / "rate").write_text(none)
        assert line_rate("mlx5_0", 1, tmp_path) is None
    assert line_rate("mlx5_1", 1, tmp_path) is None
    found = RESULTS["links"]
    link = msgspec.structs.replace(
        found.links[0], bandwidth_ratio=0.95, bytes_per_s=5e9, line_bytes_per_s=12.5e9
    )
    path = tmp_path / "links.json"
    path.write_text(as_json(msgspec.structs.replace(found, links=[link]).document()))
    [limit] = [one for one in judged(*of_bench(path)).limits if one.name == "link_rate"]
    assert (limit.value, limit.verdict) == (0.4, "fail") and "NIC's line rate" in limit.source
    [row] = [one for one in rows_of(link) if "line rate" in one.name]
    assert (row.ours, row.reference, row.ratio) == (5e9, 12.5e9, 0.4)


def test_a_drive_of_spdk_counts_too_and_other_benches_do_not(tmp_path: Path) -> None:
    """Reads one after the other say nothing of a drive's rate."""
    path = tmp_path / "bench.json"
    fio: Any = RESULTS["storage"]
    pairs = [(32, 0.9), (1, 0.1)]
    cases = [
        msgspec.structs.replace(fio.cases[0], queue_depth=depth, bandwidth_ratio=ratio)
        for depth, ratio in pairs
    ]
    path.write_text(as_json(msgspec.structs.replace(fio, cases=cases).document()), encoding="utf-8")
    assert [one.value for one in of_bench(path)] == [0.9]
    spdk: Any = RESULTS["spdk"]
    path.write_text(as_json(spdk.document()), encoding="utf-8")
    deep = [one.ratio for one in spdk.cases if one.queue_depth > 1]
    assert [one.value for one in of_bench(path)] == deep and deep
    for text in ("[]", "{}", as_json(RESULTS["qos"].document()), '{"links": 1, "batch": 2}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadInput, match="no result of a bench"):
            of_bench(path)


def test_the_cost_in_ttft_is_of_requests_that_reuse_nothing(tmp_path: Path) -> None:
    """The same requests on both sides: 1.1 s instead of 1 s, whatever hits gain elsewhere."""
    arms = {
        "recompute": Arm([1.0, 1.0, 9.0, 2.0], [0, 0, 0, 64]),
        "tier": Arm([1.1, 1.1, 0.1, 9.0], [0, 0, 512, 0]),
        "file system": Arm([5.0, 5.0, 5.0, 5.0], [0, 0, 0, 0]),
        "all hit": Arm([0.1, 0.1, 0.1, 0.1], [64, 64, 64, 64]),
    }
    engine = msgspec.structs.replace(RESULTS["engine"], arms=arms)
    path = tmp_path / "engine.json"
    path.write_text(as_json(engine.document()), encoding="utf-8")
    tier, hit = [one for one in of_bench(path) if one.name == "ttft_cost"]
    assert tier.value == pytest.approx(0.1) and "2 requests" in tier.source
    assert hit.value is None and hit.reason == "all hit: no request without a hit"


def test_a_bench_of_an_engine_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Its reuse is of the trace's prompts, what it lost are objects that failed their check;
    prompts that are alone are no trace, and pay for the tier by length."""
    counters = {"get_unreadable": 2.0}
    arms = {
        "recompute": Arm([1.0] * 4, [0] * 4),
        "tier": Arm([1.5, 0.1, 1.5, 0.1], [0, 48, 0, 48], counters),
        "file system": Arm([2.0] * 4, [0] * 4),
    }
    engine = msgspec.structs.replace(RESULTS["engine"], arms=arms, rounds=2, tokens=[32, 64])
    path = tmp_path / "engine.json"
    path.write_text(as_json(engine.document()), encoding="utf-8")
    found = of_run(path)
    assert found.subject == "all arms"
    assert values_of(found.seen) == {"ttft_cost": 0.5, "reuse": 0.5, LOST: 2.0}
    with pytest.raises(BadInput, match="did you mean 'tier'"):
        of_run(path, "teir")
    alone = {
        "32 tokens, recompute": Arm([1.0], [0]),
        "32 tokens, fetch": Arm([1.25], [0], counters),
        "32 tokens, choose": Arm([4.0], [0]),
    }
    engine = msgspec.structs.replace(engine, arms=alone, load_before=0.5)
    path.write_text(as_json(engine.document()), encoding="utf-8")
    assert values_of(of_run(path, "fetch").seen) == {"ttft_cost": 0.25, LOST: 2.0}


def test_the_command_says_it_by_text_json_page_and_exit_code(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a page takes only the judgement of its own run."""
    summary = made.summary()
    folder, limits, out = tmp_path / "run", tmp_path / "limits.toml", tmp_path / "accept.json"
    folder.mkdir()
    write_summary(summary, folder / "summary.json")
    limits.write_text('required = ["reuse"]\n', encoding="utf-8")
    assert run(["accept", str(folder), "--format", "json", "--out", str(out)]) == 0
    found = checked("accept", capsys.readouterr().out)
    assert found["accepted"] and found["limits"] == json.loads(out.read_text())["limits"]
    assert run(["accept", str(folder), "--limits", str(limits)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("Not accepted: reuse is required and has no figure; ")
    assert told.err.count("\n") == 1 and "not accepted" in told.err
    assert run(["accept", str(folder), "--policy", "nothing"]) == 2
    assert "no run with the policy 'nothing'" in capsys.readouterr().err
    assert run(["accept", "--limits-default"]) == 0
    assert capsys.readouterr().out == defaults_text()
    page = folder / "report.html"
    assert run(["report", str(folder)]) == 0 and 'id="acceptance"' not in page.read_text()
    assert run(["report", str(folder), "--accept", str(out)]) == 0
    assert page.read_text().count('id="acceptance"') == 1
    assert "needs <code>bench storage</code>" in page.read_text()
    write_summary(made.summary(seed=2), folder / "summary.json")
    capsys.readouterr()
    assert run(["report", str(folder), "--accept", str(out)]) == 2
    assert "judged another run" in capsys.readouterr().err


def test_a_lab_page_shows_it_too(
    whole: LabSummary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lab_summary(whole, tmp_path / "summary.json")
    out = tmp_path / "accept.json"
    assert run(["accept", str(tmp_path), "--out", str(out)]) == 1  # reuse of a small cache
    assert run(["report", str(tmp_path), "--accept", str(out)]) == 0
    assert 'id="acceptance"' in (tmp_path / "report.html").read_text()
