"""Does `--strict` make a missed aim the exit code, in whatever form a bench has its aims, and do
notes stand above the table?"""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_results import CORE, FABRIC, LINKS

from offstage.bindings.notes import Note
from offstage.testbeds.bench import asic, core, fabric, links, qos, spdk, storage
from offstage.testbeds.bench.engines import l2
from offstage.testbeds.bench.storage import Sample as StorageSample
from offstage.testbeds.cli import run
from offstage.testbeds.cli.bench import missed_aims
from offstage.testbeds.cli.bench_tables import TABLES

RESULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "of all": ({"aims": {"a": True, "b >= 2": False}}, ["b >= 2"]),
    "of rows": (
        {
            "rows": [{"name": "4 KiB", "aims": {"ratio": False}}, {"aims": {"x": True}}],
            "aims_met": False,
        },
        ["4 KiB: ratio"],
    ),
    "of both": (
        {"aims": {"a": False}, "rows": [{"name": "r", "aims": {"b": False}}, 7]},
        ["a", "r: b"],
    ),
    "of one number": ({"aim": 1.5, "aim_reached": False}, ["1.5 times of files"]),
    "reached": ({"aims": {"a": True}, "aim": 1.5, "aim_reached": True}, []),
    "none": ({"verdicts_met": True}, []),
}
Patch = pytest.MonkeyPatch
HALF = StorageSample(1e9, 2e6, 2e6), StorageSample(2e9, 1e6, 1e6)
"""What is read by us and by fio, as a slow machine has it."""
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
    """Measured, at an aim beyond any machine."""
    pytest.importorskip("simpy", reason="no simpy: pip install '.[test]'")
    patch.setattr(asic, "EVENTS_AIM_RATIO", 10**9)
    return ["asic", "--requests", "1000", "--rounds", "1"]


def slow_qos(patch: Patch, folder: Path) -> list[str]:
    patch.setattr(qos, "JAIN_AIM", 2)
    return ["qos"]


def slow_core(patch: Patch, folder: Path) -> list[str]:
    """A short trace, measured; decode and the laboratory as somebody had them."""
    pytest.importorskip("libcachesim", reason="the reference: pip install '.[test]'")
    patch.setattr(core, "FLAT_AIM_RATIO", 10**9)
    patch.setattr(core, "_traces", lambda *_: [("short", core.dense(np.arange(4096) % 640))])
    patch.setattr(
        core, "_decode_rows", lambda *_: {"decode": CORE["decode"], "replay": CORE["replay"]}
    )
    patch.setattr(core, "lab_row", lambda *_: CORE["lab"])
    return ["core"]


def slow_storage(patch: Patch, folder: Path) -> list[str]:
    for name, one in zip(("_ours", "_fio"), HALF, strict=True):
        patch.setattr(storage, name, lambda *_, one=one: one)
    patch.setattr(storage, "_granules", lambda *_: [])
    patch.setattr(storage, "_fio_version", lambda: "fio")
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
    patch.setattr(fabric, "_read_row", lambda *_: FABRIC["reads"][0])
    patch.setattr(fabric, "_ring", lambda *_: {**FABRIC["ring"], "ratio_to_floor": 99.0})
    patch.setattr(fabric, "stage_timers", lambda *_: FABRIC["stage_timers"])
    patch.setattr(fabric, "_layer", lambda *_: FABRIC["layer"])
    return ["fabric"]


def slow_links(patch: Patch, folder: Path) -> list[str]:
    patch.setattr(links.nixl, "load", lambda: None)
    patch.setattr(
        links,
        "_in_a_process",
        lambda link, size, *_: {
            **LINKS["links"][0],
            "link": link,
            "block_bytes": size,
            "latency_ratio": 99.0,
        },
    )
    return ["fabric", "--links", "nixl"]


def slow_l2(patch: Patch, folder: Path) -> list[str]:
    """As fast as files, and not faster."""
    patch.setattr(l2, "_adapter", lambda *_: nullcontext({}))
    patch.setattr(l2, "_run", lambda *_: SAID)
    (folder / "lmcache").touch()
    return ["l2", "--lmcache", str(folder / "lmcache"), "--rounds", "1", "--in-flight", "4"]


BENCHES: dict[str, tuple[Callable[[Patch, Path], list[str]], str]] = {
    "asic": (slow_asic, "three stages >= 1000000000x"),
    "core": (slow_core, "flat LRU >= 1000000000 of libCacheSim"),
    "fabric": (slow_fabric, "round trip / floor <= "),
    "l2": (slow_l2, "1.5 times of files"),
    "links": (slow_links, "nixl latency / floor <= "),
    "qos": (slow_qos, "Jain >= 2"),
    "spdk": (slow_spdk, "ratio >= "),
    "storage": (slow_storage, "bandwidth_ratio >= "),
}
"""How each is made to miss, and what it says. Those of live daemons are tested beside them:
`bench pod` in test_bench_judge.py, `bench tenants` in test_tenants.py."""


@pytest.mark.parametrize("name", RESULTS)
def test_missed_aims_are_found_in_every_form(name: str) -> None:
    result, missed = RESULTS[name]
    assert missed_aims(result) == missed


@pytest.mark.parametrize("name", BENCHES)
def test_strict_decides_after_the_file_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Aims and table are the bench's own. Without it a missed aim is a word in the table; with it
    the exit code, and the file stays."""
    make, aim = BENCHES[name]
    words = ["bench", *make(monkeypatch, tmp_path), "--out", str(tmp_path / "found.json")]
    assert run(words) == 0
    (tmp_path / "found.json").unlink()
    capsys.readouterr()
    assert run([*words, "--strict"]) == 1
    said = capsys.readouterr()
    assert "missed: " in (last := said.err.splitlines()[-1]) and aim in last
    assert said.out and (tmp_path / "found.json").exists()


@pytest.mark.parametrize("name", ["soak", "schedule"])
def test_a_verdict_that_is_no_fails_the_bench(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Always, and with its name; one that could not be judged does not."""
    found = {"verdicts": {"no wrong byte": False, "all ended well": True, "not judged": None}}
    owner = {"soak": "soak.bench_soak", "schedule": "pod.reuse.bench_schedule"}[name]
    monkeypatch.setattr(f"offstage.testbeds.bench.{owner}", lambda **_: found)
    monkeypatch.setitem(TABLES, name, lambda _: ("", []))
    words = ["bench", name, *(["--trace", "trace"] if name == "schedule" else [])]
    assert run([*words, "--out", str(tmp_path / "found.json")]) == 1
    assert f"bench {name}: no wrong byte: NO; " in capsys.readouterr().err
    assert json.loads((tmp_path / "found.json").read_text()) == found
    found["verdicts"]["no wrong byte"] = True
    assert run(words) == 0


def test_notes_stand_above_the_table_and_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"notes": [Note("trace", "keys [x] have no effect")]}
    monkeypatch.setattr(core, "bench_core", lambda **_: found)
    monkeypatch.setitem(TABLES, "core", lambda _: ("the table", []))
    assert run(["bench", "core", "--out", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == [
        "note: keys [x] have no effect",
        "the table",
    ]
    (note,) = json.loads((tmp_path / "found.json").read_text())["notes"]
    assert note["what"] == "keys [x] have no effect"
