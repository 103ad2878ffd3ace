"""Is every option that can have no effect refused by name, in one line, before anything runs?"""

import tarfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from offstage.testbeds.beds import here
from offstage.testbeds.cli import run
from offstage.testbeds.cli.idle import IDLE

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "tests/golden/data/tiny_mooncake.jsonl")
SELECTIONS = '{"run": 1, "model": "m", "layers": [0], "prompt_tokens": 64, "steps": 1}\n'
BASE = {
    "demo": (["--sessions", "2", "--context-tokens", "8192", "--steps", "4"], ["--model", "m"]),
    "compare": (["run", "--quick"],),
    "trace info": (["../selections.jsonl"], [TRACE]),
    "trace import": ([TRACE, "--out", "o"],),
    "trace export": ([TRACE, "--out", "o", "--to", "vllm"],),
    "bench codec": ([],),
    "lab pod": (["--cluster", "tcp://127.0.0.1:9"],),
    "asic sweep": (["s.toml", "--cluster", "tcp://127.0.0.1:9"],),
    "dpu status": (["--format", "json"],),
    "plan": (["--format", "json"], ["--inputs"]),
    "host run": (["--model", "m"], ["--model", "m"], [], ["--model", "m"], [], []),
    "pod run": (["file:pod.toml"],) * 3,
    "pod drain": (["file:pod.toml", "dpu0", "--undo"], ["file:pod.toml", "dpu0", "--no-push"]),
    "trace generate": (["--explain"],),
    "trace capture": (
        ["--model", "m", "--text", "t", "--mode", "teacher"],
        ["--model", "m", "--text", "t"],
    ),
    "bench storage": (["--backend", "spdk"], []),
    "bench pod": (["--folder", "f", "--trace", "t"], ["--folder", "f"]),
    "bench engine": (
        ["--python", "p", "--model", "m", "--trace", "t"],
        ["--python", "p", "--model", "m"],
    ),
    "host calibrate": (["--out", "o", "--model", "m"], ["--out", "o"]),
    "testbed up": (["local"], ["netns"], ["qemu"]),
    "testbed run": (["local"], ["netns"], ["local"]),
    "testbed down": (["netns"], ["qemu"]),
    "report": (
        ["r", "--figures", "f"],
        ["r", "--figures", "f"],
        ["r", "--against", "window"],
    ),
    "results": (["r"],),
}
"""Words that make the rows of a command true, one after the other."""
FLAGS = {
    "everything": "--all",
    "paper": "--figures",
    "generate": "--generate",
    "predict": "--predict",
    "dry_run": "--dry-run",
    "push": "--push",
    "quick": "--quick",
    "inputs": "--inputs",
    "strict": "--strict",
    "warm_up": "--warm-up",
    "layer_ahead": "--layer-ahead",
    "bottleneck": "--bottleneck",
    "disaggregated": "--disaggregated",
}
NAMES = {"lengths": "--length"}
VALUES = {
    "accept": "a.json",
    "time_unit": "s",
    "select_blocks": "8",
    "dtype": "float32",
    "index_keys": "tier",
    "checkpoint_blocks": 8,
    "kv_dtype": "int8",
    "max_kl": "0.01",
    "ahead": "hint",
    "rdma": "mlx5_0",
    "schedule": "reuse",
    "fabric": "zmq",
    "delay": "50us",
    "temperature": "1",
    "seed": "7",
    "pool_ratio": "2",
    "decode_cost": "c.json",
    "trace": "t",
    "text": "t",
    "geometry": "tiny",
    "begin": "1s",
    "span": "1h",
    "target": "t",
    "file": "f",
    "rate": "2",
    "inventory": "i",
    "tenant": "lab",
    "samples": "32",
    "tokens": "128",
    "runtime_dir": "r",
    "context_tokens": "8192",
    "faults": "death",
    "out": "o",
    "storage": "both",
    "time_per_token": "1ms",
    "kernel": "numpy",
    "device": "cpu",
    "baseline": "g2",
}


def _cases() -> list[tuple[int, str]]:
    return [(at, name) for at, row in enumerate(IDLE) for name in row.options]


def test_every_row_is_there_and_tried() -> None:
    rows = Counter(row.command for row in IDLE)
    assert rows == {command: len(words) for command, words in BASE.items()}


@pytest.mark.parametrize(("at", "name"), _cases(), ids=lambda one: str(one))
def test_what_has_no_effect_is_refused_by_name(
    at: int,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each option of each row of the table: one line that names it, exit code 2, and no file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path.parent / "selections.jsonl").write_text(SELECTIONS)
    row = IDLE[at]
    before = [one for one in IDLE[:at] if one.command == row.command]
    words = BASE[row.command][len(before)]
    flag = FLAGS.get(name) or NAMES.get(name, "--" + name.replace("_", "-"))
    given = [flag] if name in FLAGS else [flag, VALUES.get(name, "4")]
    assert run([*row.command.split(), *words, *given]) == 2
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1 and output.out == ""
    assert f"{flag} has no effect" in output.err
    assert not list(tmp_path.iterdir())


def test_an_option_that_has_an_effect_or_was_not_given_is_not_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Defaults are not explicit requests; options count if the ones they need are set."""
    nobody = ["host", "run", "--endpoint", "tcp://127.0.0.1:9", "--timeout", "10ms"]
    for words in (
        [],
        ["--seed", "3", "--sessions", "2"],
        ["--model", "m", "--text", "t"],
        ["--model", "m", "--text", "t", "--dtype", "float32"],
    ):
        assert run([*nobody, *words]) != 0
        assert "no effect" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "capture", "--model", "m", "--text", "t", "--temperature", "1", "--seed", "2"],
        ["compare", "nothing", "--quick", "--samples", "3"],
        ["pod", "run", "file:nothing.toml", "--active", "3", "--schedule", "reuse"],
        ["pod", "drain", "file:nothing.toml", "dpu0", "--runtime-dir", "r", "--tenant", "lab"],
        ["demo", "--quick", "--steps", "4", "--trace", "nothing"],
        ["plan", "nothing", "--inputs", "--engine", "vllm", "--out", "o"],
        ["trace", "info", "nothing", "--seed", "3"],
        ["trace", "info", TRACE, "--trace-format", "servegen", "--seed", "3"],
        ["trace", "import", TRACE, "--out", "/dev/null/no", "--limit", "2"],
        ["lab", "pod", "nothing.toml", "--jobs", "2"],
        ["testbed", "up", "local", "--steps", "4", "--out", "/dev/null/no"],
    ],
    ids=" ".join,
)
def test_nothing_is_refused_that_counts(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command fails for another reason than its options."""
    monkeypatch.chdir(tmp_path)
    assert run(words) != 0
    assert "no effect" not in capsys.readouterr().err


def test_a_seed_counts_where_requests_are_drawn(tmp_path: Path) -> None:
    """The file's content decides, so a detected format counts like a given one."""
    rates = tmp_path / "x" / "a-trace.csv"
    rates.parent.mkdir()
    rates.write_text("600,2.0,1.0,Gamma,1.0,0.5\n")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(rates, "x/a-trace.csv")
    for more in ([], ["--trace-format", "servegen:x"]):
        assert run(["trace", "info", str(tmp_path / "a.tar"), "--seed", "3", *more]) == 0


def test_a_link_that_is_up_takes_no_other_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the run can tell, since the bed was made with its own rate."""
    monkeypatch.setattr(here, "find", lambda out: SimpleNamespace(bed="netns"))
    assert run(["testbed", "run", "netns", "--rate", "1gbit", "--out", str(tmp_path)]) == 2
    assert "the testbed is up already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["accept", "run", "--out", "run/summary.json"],
        ["accept", "run/summary.json", "--out", "run/summary.json"],
        ["accept", "run", "--bench", "links.json", "--out", "links.json"],
        ["accept", "run", "--limits", "links.json", "--out", "linked.json"],
        ["requests", "run", "--prometheus", "run/requests.parquet"],
        ["trace", "import", "links.json", "--out", "links.json"],
    ],
    ids=" ".join,
)
def test_no_output_takes_the_place_of_what_the_command_reads(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By whatever name: the run that is judged, a bench's file, a link to it, a trace."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    files = [tmp_path / name for name in ("run/summary.json", "run/requests.parquet", "links.json")]
    for file in files:
        file.write_text("kept")
    (tmp_path / "linked.json").symlink_to("links.json")
    assert run(words) == 2
    assert "would replace what the command reads" in capsys.readouterr().err
    assert [file.read_text() for file in files] == ["kept"] * 3
