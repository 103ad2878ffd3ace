"""Does a run of a real model fail, with its files written, if blocks, ledger or pace are wrong?"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from damaged import damage_fetches, damage_store
from model_bed import CONTEXT, SMALL_POOL, STEPS, drive, model_of, start, words_of
from tiny_models import save_text

from offstage.bindings.ledger import Ledger
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.cli import run
from offstage.testbeds.live.model import passes

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for two layers, two KV heads of 16, float32."""
    with start(tmp_path_factory.mktemp("daemon"), 2, 4096, 512, 30) as one:
        yield one


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


def test_a_corrupt_block_fails_the_run(
    tier: Daemon,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """model.json is there, and the exit code is 1."""
    damage_fetches(monkeypatch)
    words = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS), "--select-blocks", "12"]
    model, out = model_of(tmp_path, "llama"), tmp_path / "out"
    assert run(words_of(tier, model, text, "--out", str(out), *words)) == 1
    assert "12 blocks: " in (told := capsys.readouterr().err)
    assert "were not what prefill wrote" in told
    (one,) = json.loads((out / "model.json").read_text())["passes"]
    assert one["blocks_corrupt"] > 0


def test_what_the_stores_checksum_refuses_is_made_again(text: Path, tmp_path: Path) -> None:
    """Every third block of the store is damaged while its daemon is stopped. The model's output is
    the same to the bit, nothing is corrupt, the exit code is 0, and host and daemon count the same.
    Segments are small, so that they are full: recovery itself reads the blocks of others."""
    model = model_of(tmp_path, "llama")
    words = ["--select-blocks", "all", *SMALL_POOL]
    found = []
    for _ in range(2):
        with start(tmp_path, 2, 4096, 512, 30, store={"segment": "64KiB"}) as tier:
            out = tmp_path / f"out{len(found)}"
            (one,) = drive(tier, model, text, out, *words)["passes"]
        found.append(one)
        assert damage_store(tmp_path / "store.kv", every=3) > 10
    whole, damaged = found
    assert whole["blocks_recomputed"] == 0 < damaged["blocks_recomputed"]
    for one in found:
        assert one["bit_equal"] is True and one["blocks_corrupt"] == one["ends_differ"] == 0
        assert one["blocks_verified"] + one["blocks_recomputed"] == one["demands"]
    assert damaged["positions"] == whole["positions"]


def test_a_selection_that_never_fits_is_refused_before_the_prefill(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is the largest selection checked first, and not after the prefill and the smaller ones?"""
    model = model_of(tmp_path, "llama")
    with start(tmp_path, 2, 4096, 512, 12) as tier:
        assert run(words_of(tier, model, text, "--select-blocks", "6,all")) == 2
    told = capsys.readouterr().err
    assert "blocks never fits into the tenant's 12 slots" in told
    assert "prefill" not in told


def test_a_ledger_that_differs_fails_the_run(
    tier: Daemon,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a daemon that counts one demand more than the host, model.json is there with the
    difference, and the exit code is 1."""
    told = Control.ledger
    looks = iter(range(100))

    def one_more(control: Control) -> Ledger:
        ledger = told(control)
        ledger.ends = [*ledger.ends[:-1], ledger.ends[-1] + next(looks)]
        return ledger

    monkeypatch.setattr(Control, "ledger", one_more)
    words = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS), "--select-blocks", "12"]
    model, out = model_of(tmp_path, "llama"), tmp_path / "out"
    assert run(words_of(tier, model, text, "--out", str(out), *words)) == 1
    assert "disagree on how demands ended, at least 1 of them" in capsys.readouterr().err
    (one,) = json.loads((out / "model.json").read_text())["passes"]
    assert one["ends_differ"] == 1


def test_a_run_against_a_chip_that_came_too_late_is_void(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of 101 reads, writes, commands and answers too late, model.json is there and the
    exit code is 1."""
    late = {"reads": 40, "writes": 20, "paced": 41, "emulation_late": 1, "paced_late": 1}
    monkeypatch.setattr(passes, "counters_since", lambda before, after: {**after, **late})
    words = ["--context-tokens", "128", "--steps", "4", "--select-blocks", "6"]
    model, out = model_of(tmp_path, "llama"), tmp_path / "out"
    chip = {"device": "asic_7nm", "dilation": 20}
    with start(tmp_path, 2, 4096, 512, 30, storage={"backend": "emulated"}, model=chip) as tier:
        assert run(words_of(tier, model, text, "--out", str(out), *words)) == 1
    assert "6 blocks: 2.0% of all requests ended later" in capsys.readouterr().err
    (one,) = json.loads((out / "model.json").read_text())["passes"]
    assert one["pace_overruns"] == pytest.approx(2 / 101)
