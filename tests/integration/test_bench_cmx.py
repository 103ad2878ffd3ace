"""Do the arms of `offstage bench cmx` differ in what they are named by, and in nothing else?"""

import os
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked

from offstage.testbeds.bench.cmx import ARMS, keys_of
from offstage.testbeds.cli import run

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/golden/data/tiny_mooncake.jsonl"
TRACES = ("mooncake_conversation_0-2400s.jsonl.gz", "weka_claudecode_sessions_dev.jsonl.gz")
SHARES = ("on_time", "late", "missing", "absent", "behind")


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["bench", "cmx", *words, "--format", "json"]) == 0
    return checked("bench cmx", capsys.readouterr().out)


def test_every_arm_has_the_same_requests_and_its_own_rule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two hosts that cannot follow, over a store that loses the fronts of prompts: waits hide reads
    behind a hint, holes are computed or not, and no arm has other values than another."""
    words = ["sessions=60", "gap=5s", "hosts=2", "store=160GiB", "arena=20GiB", "pool=10GiB"]
    found = bench(capsys, *(one for word in words for one in ("--set", word)))
    (case,) = found["cases"]
    arms = {one["name"]: one for one in case["arms"]}
    assert (case["trace"], case["requests"], list(arms)) == ("generated", 240, list(ARMS))
    none = arms.pop("no tier")
    assert [none[one] for one in (*SHARES, "wasted")] == [None] * 6 and none["read_bytes"] == 0
    for one in arms.values():
        assert sum(one[share] for share in SHARES) == pytest.approx(1)
        assert one["first_ms_p50"] < none["first_ms_p50"] and one["hit"] > none["hit"]
        assert (one["wasted"] is None) == (one["hinted"] == 0) == (one["name"] != "hints")
    rules = arms["rules kept"]
    assert arms["1 MiB values"]["values"] == pytest.approx(10 * rules["values"], rel=0.02)
    assert arms["exist, prefix"]["behind"] > 0 == arms["exist first"]["behind"] == rules["behind"]
    assert arms["exist, prefix"]["hit"] < arms["exist first"]["hit"]
    assert arms["hints"]["on_time"] > rules["on_time"]
    assert rules["elsewhere"] == 0 < max(one["elsewhere"] for one in arms.values()) < 240
    perfect = arms["perfect hints"]
    assert perfect["missing"] == 0 and perfect["first_ms_p50"] < rules["first_ms_p50"]
    assert case["keys"]["collisions"] == 0 and case["keys"]["distinct"] % 16 == 0
    assert found["provenance"] == "modelled" and found["spec"]["trace"] == ""
    assert [one["rule"] for one in found["left_out"]] == ["huge pages", "any node reads"]


def test_traces_stand_side_by_side_and_runs_are_equal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by its path, one by its name in the folder of traces."""
    monkeypatch.setenv("OFFSTAGE_TRACES", str(TINY.parent))
    words = ["--trace", str(TINY), "--trace", TINY.name]
    first, again = bench(capsys, *words), bench(capsys, *words)
    assert first == again and first["cases"][0] == first["cases"][1]
    assert first["cases"][0]["trace"] == TINY.name


def test_requests_that_were_refused_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Their arms have fewer first tokens, and look better for it."""
    words = ["sessions=60", "hosts=1", "active=1", "waiting=2", "arrivals_per_s=100"]
    assert run(["bench", "cmx", *(one for word in words for one in ("--set", word))]) == 0
    told = [one for one in capsys.readouterr().out.splitlines() if "were refused" in one]
    assert len(told) == len(ARMS) and told[0].startswith("no tier: ")


def test_keys_that_are_equal_are_counted() -> None:
    """Cut to two bytes, as many keys collide as the birthday bound expects; whole ones do not."""
    short = keys_of(250, 4, bits=16)
    assert short.distinct == 1000 and 0 < short.collisions < 30
    assert short.collisions == pytest.approx(1000 * 999 / 2 / 2**16, abs=8)
    assert short.probability == 1.0
    whole = keys_of(250, 4)
    assert whole.collisions == 0 and whole.probability == 1000 * 999 / 2 / 2**128


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "holes=false"], "holes is given"),
        (["--set", "value=4MiB"], "leave it out: the bench sets it"),
        (["--set", "daemons=[1, 2]"], "several pods"),
        (["--set", "schedule=reuse"], "schedules"),
        (["--set", "store=0B"], "the store holds nothing"),
        (["--trace", "nowhere.jsonl"], "no such file"),
        (["--time-unit", "ms"], "trace is not"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "cmx", *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line and "Traceback" not in line


@pytest.mark.slow
def test_the_table_of_the_page_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared/traces"))
    if not all((folder / one).exists() for one in TRACES):
        pytest.skip(f"no traces in {folder}")
    monkeypatch.setenv("COLUMNS", "80")
    words = [word for one in TRACES for word in ("--trace", str(folder / one))]
    assert run(["bench", "cmx", *words]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    begin = next(at for at, line in enumerate(lines) if line.startswith(TRACES[0]))
    end = max(at for at, line in enumerate(lines) if line.startswith("perfect hints"))
    page = (ROOT / "docs/how-to/cmx.md").read_text(encoding="utf-8")
    assert "\n".join(lines[begin : end + 1]) in page
