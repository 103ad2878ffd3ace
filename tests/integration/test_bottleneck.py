"""Does `offstage bottleneck` run a run again, and refuse in one line what it cannot?"""

import json
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from asic_logs import recorded, written
from lab_runs import SPEC, here

from offstage import __version__
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.trace import read_trace
from offstage.bindings.layouts import ENDS
from offstage.testbeds.cli import run
from offstage.testbeds.lab.results.summary import PointSummary
from offstage.testbeds.live.pod_figures import MemberResult, PodResult
from offstage.testbeds.report.page.files import read_lab_summary

RECORD: dict[str, Any] = {"version": __version__, "closed": True, "stages": {}}


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """`offstage bottleneck WORDS`, held to its schema."""
    capsys.readouterr()
    assert run(["bottleneck", *words, "--format", "json"]) == 0
    return checked("bottleneck", capsys.readouterr().out)


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["steps"]}


def test_a_recorded_run_is_decided_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that waits for its drive: the figures suspect the flash, and a faster one gains most.
    What binds is what gains most, and its figures are those of the unchanged loop."""
    folder = written(tmp_path, recorded(), **RECORD)
    found = asked(capsys, str(folder))
    steps = by_name(found)
    gains = {name: one["gain"] for name, one in steps.items() if one["gain"] is not None}
    assert found["binds"] == max(gains, key=lambda name: gains[name])
    assert found["gain"] == gains[found["binds"]] >= 0.01
    assert found["tokens_per_s"] * (1 + gains["flash"]) == pytest.approx(
        steps["flash"]["tokens_per_s"]
    )
    assert steps["flash"]["stall_ms"] < found["stall_ms"]
    assert found["next"] is not None and steps[found["next"]]["gain_then"] == found["next_gain"]
    ends = read_trace(folder).ends
    roomless = ends[ENDS.index("capacity")] + ends[ENDS.index("policy")]
    assert 0 < steps["arena"]["figure"] == pytest.approx(roomless / ends.sum())
    hbm = steps["HBM capacity"]
    assert hbm["figure"] is None and "summary.json" in hbm["figure_absent"]
    assert hbm["gain"] is None and "larger pool" in hbm["rerun_absent"]
    assert found["run_tokens_per_s"] is None


def test_an_arena_that_the_device_cannot_hold_is_no_gain_of_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chip in the loop whose memory the arena fills: the reason stands in place of a figure."""
    device = "bluefield3,ddr.capacity=0.004"  # 65 slots of 64 KiB in each of two channels
    folder = written(tmp_path, recorded(), **{**RECORD, "device": device})
    steps = by_name(asked(capsys, str(folder)))
    assert steps["arena"]["gain"] is None and "131 slots" in steps["arena"]["rerun_absent"]
    assert steps["flash"]["gain"] is not None


@pytest.mark.parametrize(
    ("log", "record", "says"),
    [
        (recorded()[:-9], {}, "torn or has a hole"),
        (recorded(), {"closed": False}, "incomplete"),
        (recorded(), {"version": "0.0.1"}, "version 0.0.1"),
        (b"", {}, "decision log"),
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(
    log: bytes, record: dict[str, Any], says: str, tmp_path: Path, capsys: Any
) -> None:
    folder = written(tmp_path, log, **{**RECORD, **record})
    assert run(["bottleneck", str(folder)]) == 2
    told = [one for one in capsys.readouterr().err.splitlines() if one.startswith("offstage: ")]
    assert len(told) == 1 and says in told[0]


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert run(["bottleneck", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert run(["bottleneck", str(tmp_path / "nowhere")]) == 2
    other = tmp_path / "other.json"
    other.write_text("{}")
    capsys.readouterr()
    assert run(["bottleneck", str(other)]) == 2
    assert f"{other}: holds no run" in capsys.readouterr().err


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the small experiment of other tests, with a pool and one seed."""
    monkeypatch.chdir(tmp_path)
    text = SPEC.replace("seeds = [1, 2]", 'name = "e"\nseeds = [3]')
    text = text.replace('[[policy]]\nuse = "lab_policies:Silent"', "")
    text = text.replace("[tier]", '[tier]\nhbm_pool_over_k = 1\ntime_per_token = "200us"')
    (tmp_path / "e.toml").write_text(text)
    return tmp_path


def point_of(folder: Path) -> PointSummary:
    points = read_lab_summary(folder).points
    return next(one for one in points if one.info.policy == "window+ema")


def rate_of(folder: Path) -> float:
    rate = point_of(folder).tokens_per_s
    assert rate is not None
    return rate.value


def test_a_point_of_the_laboratory_runs_again(experiment: Path, capsys: Any) -> None:
    """On the device that it names the unchanged re-run is the run itself, to the last digit, and a
    changed one is a run of the spec with that one key changed; the page then says what binds."""
    assert here("run", "e.toml", "--out", "out", "--device", "bluefield3") == 0
    found = asked(capsys, "out", "--policy", "window+ema")
    point = point_of(experiment / "out")
    assert found["tokens_per_s"] == pytest.approx(rate_of(experiment / "out"), rel=1e-12)
    steps = by_name(found)
    assert all(one["gain"] is not None for one in steps.values())
    assert all(0 < steps[name]["figure"] < 1 for name in ("flash", "link", "DPU"))
    assert found["by_figures"] is not None
    assert {name: steps[name]["figure"] for name in point.used} == pytest.approx(point.used)
    assert point.token_ms_mean is not None
    assert steps["compute"]["figure"] == pytest.approx(0.2 / point.token_ms_mean.value, rel=1e-9)
    by_hand = {
        "HBM capacity": "tier.hbm_pool_over_k=2",
        "arena": "tier.buffer_over_k=[4]",
        "compute": "tier.time_per_token=100us",
        "flash": "tier.device=bluefield3,nvme.drives=8",
    }
    for number, (name, change) in enumerate(by_hand.items()):
        words = ["--device", "bluefield3"] if name != "flash" else []
        words += ["--set", change, "--out", f"changed-{number}"]
        assert here("run", "e.toml", *words) == 0
        rate = rate_of(experiment / f"changed-{number}")
        assert steps[name]["tokens_per_s"] == pytest.approx(rate, rel=1e-12), name
    assert run(["report", "out", "--bottleneck"]) == 0
    page = (experiment / "out/report.html").read_text()
    assert "Run again unchanged, policy" in page


@pytest.mark.parametrize("words", [[], ["--device", "bluefield3"]])
def test_a_session_that_decodes_alone_does_not_wait_for_the_others(
    words: list[str], experiment: Path, capsys: Any
) -> None:
    """Of three sessions, two at once, the last is alone for half of the time. What a token takes
    beyond the GPU's own time is its wait, and that of the fabric for a hit."""
    few = ("workload.sessions=3", "workload.concurrent=2", 'tier.time_per_token="20ms"')
    changed = [word for one in few for word in ("--set", one)]
    assert here("run", "e.toml", *changed, *words, "--out", "out") == 0
    found = asked(capsys, "out", "--policy", "window+ema")
    share = by_name(found)["compute"]["figure"]
    assert 0.9 < share <= 20 / (20 + found["stall_ms"])
    assert found["tokens_per_s"] * 20e-3 / 2 < 0.8, "as the run's tokens/s would have it"
    assert run(["report", "out"]) == 0


def test_without_a_device_only_what_the_spec_says_is_changed(experiment: Path, capsys: Any) -> None:
    """Of link, DPU and control there is a reason in place of a figure and of a gain. A policy that
    the run does not have, and a sweep, are refused."""
    assert here("run", "e.toml", "--out", "out") == 0
    steps = by_name(asked(capsys, "out"))
    for name in ("link", "DPU", "metadata and control"):
        assert steps[name]["figure"] is None and "no device" in steps[name]["figure_absent"]
        assert steps[name]["gain"] is None and "no device" in steps[name]["rerun_absent"]
    for name in ("compute", "HBM capacity", "arena", "flash"):
        assert steps[name]["gain"] is not None, name
    assert run(["bottleneck", "out", "--policy", "windw+ema"]) == 2
    assert "did you mean 'window+ema'" in capsys.readouterr().err
    axes = '\n[sweep]\n"workload.turn_steps" = [5, 10]\n'
    with (experiment / "e.toml").open("a") as spec:
        spec.write(axes)
    assert here("run", "e.toml", "--out", "swept") == 0
    assert run(["bottleneck", "swept"]) == 2
    assert "sweep" in capsys.readouterr().err


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """The folder of a run over two members, `a` with twice the demands of `b`, and a recording of
    each. A token of the host takes 2 ms, of which it waited 1."""
    member = {field: 0 for field in MemberResult.__struct_fields__} | {"state": "served"}
    members = {
        "a": member | {"weight": 1, "demands": 200},
        "b": member | {"weight": 1, "demands": 100},
    }
    for name, sessions in (("a", 2), ("b", 1)):
        written(tmp_path, recorded(sessions=sessions), **RECORD).rename(tmp_path / name)
    figures = {field: 0 for field in PodResult.__struct_fields__ if field != "notes"}
    figures |= {
        "members": members,
        "selected": 600,
        "demands": 300,
        "tokens": read_tokens(tmp_path),
    }
    figures |= {"pace_overruns": -1.0, "tokens_per_s": 500.0}
    figures |= {"token_ms_mean": 2.0, "stall_ms_mean": 1.0}
    (tmp_path / "pod.json").write_text(json.dumps(figures))
    return tmp_path


def read_tokens(folder: Path) -> int:
    """Steps of a member's log."""
    return closed_loop(read_trace(folder / "a"), read_preset("dpu_x86_measured")).tokens


def test_a_pod_waits_for_its_slowest_member(pod: Path, capsys: Any) -> None:
    """The pod's wait is that of the member that is waited for longest, in the re-run and after a
    change, which is made at both. What a token does not wait is the host's own time. Even loads
    change each wait as they change the load."""
    found = asked(capsys, str(pod))
    a, b = found["members"]
    assert (a["load"], b["load"]) == pytest.approx((4 / 3, 2 / 3))
    assert a["stall_ms"] != b["stall_ms"]
    assert found["stall_ms"] == pytest.approx(max(a["stall_ms"], b["stall_ms"]))
    slowest = max((a, b), key=lambda one: one["stall_ms"])["name"]
    assert found["member"] == slowest and f"{slowest} is waited for longest" in found["sentence"]
    assert found["tokens_per_s"] == pytest.approx(1000 / (1 + found["stall_ms"]))
    assert (found["run_tokens_per_s"], found["run_stall_ms"]) == (500.0, 1.0)
    even_ms = max(one["stall_ms"] / one["load"] for one in (a, b))
    assert found["even_gain"] == pytest.approx((1 + found["stall_ms"]) / (1 + even_ms) - 1)
    steps = by_name(found)
    assert steps["compute"]["figure"] == 0.5 and steps["HBM capacity"]["figure"] == 0.5
    assert steps["flash"]["figure"] == max(one["used"]["flash"] for one in found["members"])
    assert steps["flash"]["stall_ms"] < found["stall_ms"]
    gained = (1 + found["stall_ms"]) / (1 + steps["flash"]["stall_ms"]) - 1
    assert steps["flash"]["gain"] == pytest.approx(gained)
    assert run(["report", str(pod), "--bottleneck"]) == 0
    page = (pod / "report.html").read_text()
    assert "Which member binds" in page and "How evenly members are used" in page


def test_a_pod_without_a_members_recording_has_figures_alone(pod: Path, capsys: Any) -> None:
    (pod / "b/decisions.log").unlink()
    found = asked(capsys, str(pod))
    assert found["binds"] is None and "no recording in b/" in found["rerun_absent"]
    assert [one["stall_ms"] for one in found["members"]] == [None, None]
    assert found["member"] is None and found["members"][0]["load"] == pytest.approx(4 / 3)
    assert run(["report", str(pod)]) == 0
    assert "Which member binds" in (pod / "report.html").read_text()
    assert run(["bottleneck", str(pod), "--policy", "window"]) == 2
    assert "a pod has one run" in capsys.readouterr().err
    (pod / "pod.json").write_text("{}")
    assert run(["bottleneck", str(pod)]) == 2
    assert "not the result of a pod" in capsys.readouterr().err
