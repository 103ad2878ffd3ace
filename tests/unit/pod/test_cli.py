"""Does `offstage pod` change a map as asked, print what moves, and refuse bad input in one line?"""

from pathlib import Path

import pytest
from against_schema import checked

from offstage.testbeds.cli import run


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["pod", *words, "--format", "json"]) == 0
    return checked(f"pod {words[0]}", capsys.readouterr().out)


def test_add_drain_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first command writes the file; a member without a daemon is shown as not answering."""
    place = str(tmp_path / "pod.toml")
    told(capsys, "add", place, "a", f"ipc://{tmp_path}/a")
    joined = told(capsys, "add", place, "b", f"ipc://{tmp_path}/b", "--weight", "3")
    assert joined["shards_moved_least"] == 0.75
    assert joined["shards_moved"] == pytest.approx(0.75, abs=0.05)
    drained = told(capsys, "drain", place, "b")
    assert drained["epoch"] == 3
    assert run(["pod", "status", place, "--format", "json"]) == 3, "no member answers"
    shown = checked("pod status", capsys.readouterr().out)
    members = shown["members"]
    assert isinstance(members, dict) and shown["frozen"] == "no"
    assert [one["share"] for one in members.values()] == [1.0, 0.0]
    assert "no daemon answers" in members["a"]["answers"]
    back = told(capsys, "drain", place, "b", "--undo")["members"]
    assert isinstance(back, dict) and back["b"]["share"] == 0.75


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "none.toml"), "no such file"),
        (("drain", "none.toml", "a"), "no member is called 'a'"),
        (("accept", "none.toml"), "in doubt"),
        (("status", "etcd:x"), "write HOST:PORT"),
        (("status", "etcd:127.0.0.1:1"), "etcd does not answer"),
        (("add", "pod.toml", "a", "x", "--weight", "0"), "weight"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pod", *words]) == (3 if "does not answer" in said else 2)
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
