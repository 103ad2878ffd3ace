"""Does `--strict` turn any missed aim into the exit code, and do notes stand above the table?"""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from against_schema import checked
from bench_results import CORE, FABRIC, LINKS
from msgspec.structs import replace

from offstage.bindings.notes import Note
from offstage.testbeds.bench import asic, core, fabric, links, qos, spdk, storage
from offstage.testbeds.bench.engines import l2
from offstage.testbeds.bench.rows import BenchResult
from offstage.testbeds.bench.storage_result import Granules
from offstage.testbeds.bench.storage_result import Sample as StorageSample
from offstage.testbeds.cli import run

Patch = pytest.MonkeyPatch
HALF = StorageSample(1e9, 2e6, 2e6), StorageSample(2e9, 1e6, 1e6)
"""Our reads and fio's on a slow machine."""
SAID = "keys data verified OK\n" + json.dumps(
    {
        "metrics": {
            f"op_{name}": {
                "operation": name,
                "total_success": 4,
                "keys_per_round": 4,
                "duration_p50_ms": 2.0,
            }
            for name in ("Store", "Load")
        }
    }
)


def slow_asic(patch: Patch, folder: Path) -> list[str]:
    """A measured run against an unreachable aim."""
    pytest.importorskip("simpy", reason="no simpy: pip install '.[test]'")
    patch.setattr(asic, "EVENTS_AIM_RATIO", 10**9)
    return ["asic", "--requests", "1000", "--rounds", "1"]


def slow_qos(patch: Patch, folder: Path) -> list[str]:
    patch.setattr(qos, "JAIN_AIM", 2)
    return ["qos"]


def slow_core(patch: Patch, folder: Path) -> list[str]:
    """A short trace is measured; decode and the laboratory come from an earlier run."""
    pytest.importorskip("libcachesim", reason="the reference: pip install '.[test]'")
    patch.setattr(core, "FLAT_AIM_RATIO", 10**9)
    patch.setattr(core, "_traces", lambda *_: [("short", core.dense(np.arange(4096) % 640))])
    patch.setattr(core, "_decode_rows", lambda *_: (CORE.decode, CORE.replay))
    patch.setattr(core, "lab_figures", lambda *_: CORE.lab)
    return ["core"]


def slow_storage(patch: Patch, folder: Path) -> list[str]:
    for name, one in zip(("_ours", "fio_reads"), HALF, strict=True):
        patch.setattr(storage, name, lambda *_, one=one: one)
    patch.setattr(storage, "_granules", lambda *_: Granules())
    patch.setattr(storage, "fio_version", lambda: "fio")
    patch.setattr(storage.shutil, "which", lambda *_: "fio")
    patch.setattr(storage, "nvme_presets", list)
    (folder / "file").touch()
    os.truncate(folder / "file", 64 << 20)
    return ["storage", "--file", str(folder / "file"), "--rounds", "1"]


def slow_spdk(patch: Patch, folder: Path) -> list[str]:
    target = SimpleNamespace(memory_drive=lambda *_: "drive", serve=lambda *_: "path")
    patch.setattr(spdk, "spdk", SimpleNamespace(ensure=lambda: None, release=lambda: "26.01"))
    patch.setattr(spdk.shutil, "which", lambda *_, **__: "spdk_nvme_perf")
    patch.setattr(spdk, "Target", lambda *_, **__: nullcontext(target))
    patch.setattr(spdk, "_count", lambda *_: 64)
    patch.setattr(spdk, "_ours", lambda *_: 1.0)
    patch.setattr(spdk, "_perf", lambda *_: 2.0)
    return ["storage", "--backend", "spdk", "--rounds", "1"]


def slow_fabric(patch: Patch, folder: Path) -> list[str]:
    patch.setattr(fabric, "_read_row", lambda *_: FABRIC.reads[0])
    patch.setattr(fabric, "_ring", lambda *_: replace(FABRIC.ring, ratio_to_floor=99.0))
    patch.setattr(fabric, "stage_timers", lambda *_: FABRIC.stage_timers)
    patch.setattr(fabric, "_layer", lambda *_: FABRIC.layer)
    return ["fabric"]


def slow_links(patch: Patch, folder: Path) -> list[str]:
    patch.setattr(links.nixl, "load", lambda: None)
    patch.setattr(
        links,
        "_in_a_process",
        lambda link, size, *_: replace(
            LINKS.links[0], link=link, block_bytes=size, latency_ratio=99.0
        ),
    )
    return ["fabric", "--links", "nixl"]


def slow_l2(patch: Patch, folder: Path) -> list[str]:
    """An adapter as fast as files, and no faster."""
    patch.setattr(l2, "_adapter", lambda *_: nullcontext({}))
    patch.setattr(l2, "_run", lambda *_: SAID)
    (folder / "lmcache").touch()
    return ["l2", "--lmcache", str(folder / "lmcache"), "--rounds", "1", "--in-flight", "4"]


BENCHES: dict[str, tuple[Callable[[Patch, Path], list[str]], str]] = {
    "asic": (slow_asic, "three stages, events >= 1e+09x"),
    "core": (slow_core, "lru on short >= 1e+09x"),
    "fabric": (slow_fabric, "command round trip p50, C <= 1.5"),
    "l2": (slow_l2, "page cache, store: plugin >= 2.5"),
    "links": (slow_links, "nixl 64 KiB one read <= 1.3"),
    "qos": (slow_qos, "Jain's index of bytes by weight >= 2"),
    "spdk": (slow_spdk, "TCP 64 KiB depth 32 >= 0.95"),
    "storage": (slow_storage, "64 KiB depth 32 bandwidth >= 0.98"),
}
"""How each bench is made to miss an aim, and what it then says. Benches of live daemons are tested
with them: `bench pod` in test_bench_judge.py, `bench tenants` in test_tenants.py."""


@pytest.mark.parametrize("name", BENCHES)
def test_strict_decides_after_the_file_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Aims and table are the bench's own. A missed aim is a word in the table; `--strict` makes it
    the exit code, and the file stays."""
    make, aim = BENCHES[name]
    words = ["bench", *make(monkeypatch, tmp_path), "--out", str(tmp_path / "found.json")]
    assert run(words) == 0
    (tmp_path / "found.json").unlink()
    capsys.readouterr()
    assert run([*words, "--strict"]) == 1
    said = capsys.readouterr()
    assert "missed: " in (last := said.err.splitlines()[-1]) and aim in last
    assert said.out
    checked(f"bench {words[1]}", (tmp_path / "found.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["soak", "schedule"])
def test_a_verdict_that_is_no_fails_the_bench(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails always and by name; a verdict that could not be judged does not."""
    found = BenchResult(verdicts={"no_wrong_byte": False, "all_ended_well": True, "late": None})
    owner = {"soak": "soak.bench_soak", "schedule": "pod.reuse.bench_schedule"}[name]
    monkeypatch.setattr(f"offstage.testbeds.bench.{owner}", lambda **_: found)
    words = ["bench", name, *(["--trace", "trace"] if name == "schedule" else [])]
    assert run([*words, "--out", str(tmp_path / "found.json")]) == 1
    said = capsys.readouterr()
    assert f"bench {name}: no wrong byte: NO; " in said.err and "not judged" in said.out
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["verdicts"] == found.verdicts and written["verdicts_met"] is False
    found.verdicts["no_wrong_byte"] = True
    assert run(words) == 0


def test_notes_stand_above_the_table_and_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replace(CORE, notes=[Note("trace", "keys [x] have no effect")])
    monkeypatch.setattr(core, "bench_core", lambda **_: found)
    assert run(["bench", "core", "--out", str(tmp_path / "found.json")]) == 0
    first, heads, *_ = capsys.readouterr().out.split("\n")
    assert first == "note: keys [x] have no effect" and heads.split()[0] == "ours"
    (note,) = json.loads((tmp_path / "found.json").read_text())["notes"]
    assert note["what"] == "keys [x] have no effect"
