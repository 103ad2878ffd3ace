"""Does a daemon serve a real host at the pace of a modelled chip, in dilated time, without a wrong
byte, and does a run that did not keep the pace say so?"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.beds.connect import Link, attached, device_status
from offstage.testbeds.beds.daemon_process import Tier, serve, write_config
from offstage.testbeds.cli import run
from offstage.testbeds.live import host_run

DILATION = 20
WORDS = ["--tenant", "lab", "--geometry", "tiny", "--sessions", "2", "--context-tokens", "4096",
         "--time-per-token", "1ms", "--steps", "20"]  # fmt: skip


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    folder = tmp_path_factory.mktemp("chip")
    sections = {
        "daemon": {"endpoint": f"ipc://{folder}/control", "runtime_dir": str(folder / "run"),
                   "metrics_endpoint": ""},
        "arena": {"size": "3MiB", "payload": "4KiB", "layers": 2, "block_tokens": 16},
        "storage": {"backend": "emulated", "size": "64MiB"},
        "model": {"device": "asic_7nm", "dilation": DILATION},
        "store": {"segment": "256KiB"},
        "limits": {"sessions": 4, "context_tokens": 8192},
    }  # fmt: skip
    write_config(folder / "daemon.toml", sections, "lab")
    with serve(folder / "daemon.toml", folder / "log", folder / "record") as one:
        yield one


def link(tier: Tier, fabric: str = "shm") -> Link:
    return Link(tier.endpoint, "lab", fabric, runtime_dir=Path(tier.ready["runtime_dir"]))


def test_a_host_decodes_against_a_chip(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block as prefill wrote it, every command and answer paced, times in the chip's time;
    how well this machine kept the pace is another question."""
    monkeypatch.setattr(host_run, "OVERRUNS_MAX", 1.0)
    runtime_dir = str(tier.ready["runtime_dir"])
    words = ["host", "run", "--endpoint", tier.endpoint, "--runtime-dir", runtime_dir, *WORDS]
    assert run([*words, "--out", str(tmp_path / "out")]) == 0
    (one,) = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
    assert one["provenance"] == "emulated"
    assert one["storage"] == f"asic_7nm, {DILATION} times slower"
    assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
    assert one["blocks_verified"] == one["demands"] > 0 and one["attention_checked"] > 0
    status = device_status(link(tier))
    steps = 2 * 20 * 2  # sessions, steps, layers: a command each, and the hits of most
    assert steps < status["paced"] <= 2 * steps
    assert status["storage"]["reads"] > 0


def test_only_shared_memory_goes_by_its_clock(tier: Tier) -> None:
    """A host over messages would wait by the machine's clock: refused, with the mend."""
    with pytest.raises(BadInput, match="attach over shm"), attached(link(tier, "zmq")):
        pass


@pytest.mark.parametrize(("late", "void"), [(1, False), (2, True)])
def test_a_run_too_late_is_void(late: int, void: bool) -> None:
    """More than 1 % of reads, writes, commands and answers that ended too late: no figures."""
    status = {"model": "asic_7nm", "dilation": 4}
    counters = {"reads": 40, "writes": 20, "paced": 41, "emulation_late": late - 1, "paced_late": 1}
    if not void:
        host_run._check_pace(status, counters)
        return
    with pytest.raises(RunFailed, match=r"2 of 101 .*void.*larger --dilation"):
        host_run._check_pace(status, counters)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--device", "asic_6nm"], "asic_7nm"),
        (["--device", "asic_7nm", "--set", "storage.backend=posix"], "emulated"),
        (["--dilation", "0"], "1 to 100000"),
    ],
)
def test_what_cannot_be_served(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another preset, a disk with a time of its own, time that stands still: one line, exit 2."""
    assert run(["dpu", "serve", *more]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error
