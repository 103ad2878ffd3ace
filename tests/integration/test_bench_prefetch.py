"""Does `offstage bench prefetch` say what hints gain, and what they cost, by when they are sent?"""

import os
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked

from offstage.testbeds.bench.prefetch import ARMS, NO_PAUSES, PAUSES
from offstage.testbeds.cli import run

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/golden/data/tiny_mooncake.jsonl"
MOONCAKE = "mooncake_conversation_0-2400s.jsonl.gz"
SMALL = ("sessions=60", "gap=5s", "hosts=2", "store=160GiB", "arena=60GiB", "pool=4GiB")
SET = [one for word in SMALL for one in ("--set", word)]


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["bench", "prefetch", *words, "--format", "json"]) == 0
    return checked("bench prefetch", capsys.readouterr().out)


def test_a_hint_shortly_before_its_need_is_on_time_and_an_early_one_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An idle pod of hosts that keep little, and one under load. While hosts are idle only one that
    is sent shortly before the end of a pause has time; under load, which leaves no pause that is
    known, one at arrival has. No arm is better than perfect hints."""
    (case,) = bench(capsys, *SET, "--load", "8", "--load", "0.1")["cases"]
    assert case["left_out"] == {} and [one["rate"] for one in case["loads"]] == [0.1, 8]
    idle, busy = ({one["name"]: one for one in load["moments"]} for load in case["loads"])
    for arms in (idle, busy):
        assert list(arms) == list(ARMS)
        none, perfect = arms["none"], arms["perfect"]
        assert none["gained"] == 0 < perfect["gained"] and perfect["missing"] == 0
        assert none["hinted"] == perfect["hinted"] == 0 and none["wasted"] is None
        for one in arms.values():
            assert one["first_ms_p50"] <= one["first_ms_p90"] <= one["first_ms_p99"]
            shares = (one["on_time"], one["late"], one["missing"], one["absent"])
            assert sum(shares) == pytest.approx(1)
            assert one["on_time"] <= perfect["on_time"]
    room = idle["perfect"]["on_time"] - idle["none"]["on_time"]
    for name, least, most in (
        ("on arrival", 0, 0.1),
        ("router knows", 0, 0.1),
        ("host takes", 0, 0.1),
        ("on pause", 0, 0.1),
        ("before resume", 0.8, 1),
    ):
        assert least <= (idle[name]["on_time"] - idle["none"]["on_time"]) / room <= most, name
    assert idle["before resume"]["wasted"] == 0
    assert busy["on arrival"]["on_time"] > busy["none"]["on_time"] + 0.02
    assert case["loads"][0]["gpu"] < case["loads"][1]["gpu"]


def test_a_trace_without_sessions_has_no_pauses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The arm is absent, with the reason, and not a row of zeroes; runs are equal. The page says so
    too."""
    monkeypatch.setenv("OFFSTAGE_TRACES", str(TINY.parent))
    words = ["--trace", TINY.name, "--load", "1"]
    found = bench(capsys, *words)
    assert found == bench(capsys, *words)
    (case,) = found["cases"]
    assert case["left_out"] == dict.fromkeys(PAUSES, NO_PAUSES)
    names = [one["name"] for one in case["loads"][0]["moments"]]
    assert names == [one for one in ARMS if one not in PAUSES]
    page = tmp_path / "page.html"
    assert run(["bench", "prefetch", *words, "--page", str(page)]) == 0
    why, told = f"{TINY.name}: no arm on pause: {NO_PAUSES}", capsys.readouterr().out
    assert why in told and why in page.read_text(encoding="utf-8")
    assert f"Prefetch does not pay here ({TINY.name})" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "hints=pause"], "hints is given"),
        (["--set", "rate=2"], "leave it out: the bench sets it"),
        (["--set", "daemons=[1, 2]"], "several pods"),
        (["--set", "store=0B"], "the store holds nothing"),
        (["--load", "0"], "a load of 0"),
        (["--load", "nan"], "a load of nan"),
        (["--load", "1", "--load", "1"], "one twice"),
        (["--trace", "nowhere.jsonl"], "no such file"),
        (["--page", f"{TINY}/page.html"], "tiny_mooncake.jsonl"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "prefetch", *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line and "Traceback" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("generated", ["--set", "sessions=400", "--set", "pool=8GiB"]),
        (MOONCAKE, ["--trace", MOONCAKE, "--load", "0.25", "--load", "1", "--load", "2"]),
    ],
)
def test_the_tables_of_the_page_are_what_the_commands_print(
    title: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared/traces"))
    if title == MOONCAKE and not (folder / MOONCAKE).exists():
        pytest.skip(f"no traces in {folder}")
    monkeypatch.setenv("OFFSTAGE_TRACES", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["bench", "prefetch", *words]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    begin = next(at for at, line in enumerate(lines) if line.startswith(f"{title}, "))
    end = max(at for at, line in enumerate(lines) if line.split()[1:2] == ["perfect"])
    page = (ROOT / "docs/reference/prefetch-pays.md").read_text(encoding="utf-8")
    assert "\n".join(lines[begin : end + 1]) in page
