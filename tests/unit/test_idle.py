"""Options that can have no effect: is each refused by name, in one line, before anything runs?"""

from pathlib import Path

import pytest

from offstage.testbeds.cli import run
from offstage.testbeds.cli.idle import IDLE

BASE = {
    "host run": (["--model", "m"], ["--model", "m"], [], [], []),
    "pod run": (["file:pod.toml"], ["file:pod.toml"]),
    "pod drain": (["file:pod.toml", "dpu0", "--undo"],) * 2,
    "trace generate": (["--explain"],),
    "trace capture": (["--model", "m", "--text", "t"],),
    "bench storage": (["--backend", "spdk"], []),
    "bench pod": (["--folder", "f", "--trace", "t"], ["--folder", "f"]),
    "host calibrate": (["--out", "o", "--model", "m"], ["--out", "o"]),
    "testbed up": (["local"], ["netns"]),
    "testbed run": (["local"], ["netns"], ["local"]),
    "testbed down": (["netns"],),
    "report": (["r", "--figures", "f"],),
}
"""Words that make the rows of a command true, one after the other."""
FLAGS = {"paper": "--figures", "generate": "--generate", "foretell": "--foretell",
         "dry_run": "--dry-run", "push": "--push"}  # fmt: skip
VALUES = {
    "time_unit": "s", "select_blocks": "8", "dtype": "float32", "ahead": "hint", "rdma": "mlx5_0",
    "schedule": "reuse", "fabric": "zmq", "delay": "50us", "temperature": "1", "seed": "7",
    "pool_ratio": "2", "decode_cost": "c.json", "trace": "t", "text": "t", "geometry": "tiny",
    "begin": "1s", "span": "1h", "target": "t", "file": "f", "rate": "2", "inventory": "i",
    "tenant": "lab", "faults": "death", "out": "o",
}  # fmt: skip


def _cases() -> list[tuple[int, str]]:
    return [(at, name) for at, row in enumerate(IDLE) for name in row.options]


@pytest.mark.parametrize(("at", "name"), _cases(), ids=lambda one: str(one))
def test_what_has_no_effect_is_refused_by_name(
    at: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of each row of the table and each of its options: one line that names it, exit code 2, and
    nothing is made."""
    monkeypatch.chdir(tmp_path)
    row = IDLE[at]
    before = [one for one in IDLE[:at] if one.command == row.command]
    words = BASE[row.command][len(before)]
    flag = FLAGS.get(name, "--" + name.replace("_", "-"))
    given = [flag] if name in FLAGS else [flag, VALUES.get(name, "4")]
    assert run([*row.command.split(), *words, *given]) == 2
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1 and output.out == ""
    assert f"{flag} has no effect" in output.err
    assert not list(tmp_path.iterdir())


def test_an_option_that_has_an_effect_or_was_not_given_is_not_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Defaults are not what somebody asked for; and beside what they need, options count."""
    nobody = ["host", "run", "--endpoint", "tcp://127.0.0.1:9", "--timeout", "10ms"]
    for words in ([], ["--seed", "3", "--sessions", "2"], ["--model", "m", "--text", "t"],
                  ["--model", "m", "--text", "t", "--dtype", "float32"]):  # fmt: skip
        assert run([*nobody, *words]) != 0
        assert "no effect" not in capsys.readouterr().err
