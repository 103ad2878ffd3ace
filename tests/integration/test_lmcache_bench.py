"""Do LMCache's own bench and tests pass over the tier, and are the rates of its bench right?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from live_daemon import daemon
from lmcache_bed import params

from offstage.bindings.errors import RunFailed
from offstage.testbeds.bench.engines.l2 import APART_BYTES, provided, rates_of
from offstage.testbeds.cli import run

FIX = "the environment of LMCache: OFFSTAGE_LMCACHE=its folder (docs/how-to/engines.md)"


def own_bytes() -> int:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Anonymous:"))) << 10


def test_of_the_memory_that_was_used_one_page_in_each_part_is_kept() -> None:
    """Does the bench hold little of the memory that it had provided, but some of all of it?"""
    most, before = 64 << 20, own_bytes()
    with provided(most):
        kept = own_bytes() - before
    assert most // APART_BYTES * 4096 <= kept < most // 8
    assert own_bytes() - before < most // 8


@pytest.mark.engine
@pytest.mark.parametrize("plugin", ["plugin", "native_plugin"])
def test_lmcache_bench_verifies_every_object(tmp_path: Path, plugin: str) -> None:
    """`lmcache bench l2` stores, finds and verifies every object through the daemon."""
    program = Path(os.environ.get("OFFSTAGE_LMCACHE", "")) / "bin/lmcache"
    if not program.is_file():
        pytest.skip(f"needs {FIX}")
    with daemon(
        tmp_path,
        limits__sessions="128",
        arena__size="64MiB",
        arena__payload="32KiB",
        arena__layers="1",
        storage__size="1GiB",
        store__segment="4MiB",
    ) as tier:
        name = "OffstageL2" if plugin == "plugin" else "NativeClient"
        spec = {
            "type": plugin,
            "module_path": "offstage.host.connectors.lmcache",
            "class_name": name,
            "adapter_params": params(tier),
        }
        words = [
            "bench",
            "l2",
            "--l2-adapter",
            json.dumps(spec),
            *"--num-keys 4 --in-flight 8 --data-size-kb 512".split(),
            *"--rounds 2 --no-skip-verify --lookup-max-hit-rate 0.5".split(),
            *"--format json".split(),
        ]
        path = os.pathsep.join(one for one in sys.path if one)
        done = subprocess.run(
            [program, *words],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "All 32 keys data verified OK" in done.stdout
    found = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("\n{") + 1 :])[0]
    rows = {row["operation"]: row for name, row in found["metrics"].items() if "op_" in name}
    assert rows["Store"]["total_success"] == rows["Load"]["total_success"] == 64
    assert rows["Lookup"]["total_success"] == 32


@pytest.mark.engine
def test_the_bench_has_both_beside_files(capsys: pytest.CaptureFixture[str]) -> None:
    """A small run of `offstage bench l2`: every adapter, operation and state has a rate."""
    program = Path(os.environ.get("OFFSTAGE_LMCACHE", "")) / "bin/lmcache"
    if not program.is_file():
        pytest.skip(f"needs {FIX}")
    words = ["--lmcache", str(program), "--in-flight", "2", "--rounds", "2", "--turns", "1"]
    assert run(["bench", "l2", *words, "--format", "json"]) == 0
    found = checked("bench l2", capsys.readouterr().out)
    for state in ("page cache", "direct"):
        rates = found["median_mb_per_s"][state]
        assert list(rates) == ["fs", "plugin", "native_plugin"]
        assert all(one[operation] > 0 for one in rates.values() for operation in ("store", "load"))


def test_a_bench_without_lmcache_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "l2", "--lmcache", "/nowhere/lmcache"]) == 2
    assert "/nowhere/lmcache: not LMCache's program" in capsys.readouterr().err


def told(verified: str, stored: int) -> str:
    """Return the output of LMCache's bench for 4 objects of 1 MB in two rounds."""
    row = {"keys_per_round": 2, "duration_p50_ms": 4.0}
    rows = {
        "op_0": row | {"operation": "Store", "total_success": stored},
        "op_1": row | {"operation": "Lookup", "total_success": 4},
        "op_2": row | {"operation": "Load", "total_success": 4},
    }
    return f"[Verify] {verified}\n" + json.dumps({"metrics": rows}, indent=2) + "\ndone\n"


def test_rates_are_of_what_was_stored_and_verified() -> None:
    """There is no rate if an object was not stored, or bytes were not compared."""
    good = "All 2 keys data verified OK."
    rates = rates_of(told(good, 4), 4, 1000, "fs")
    assert rates == {name: pytest.approx(2 * 1.024 / 0.004) for name in ("store", "load")}
    with pytest.raises(RunFailed, match="3 of 4 objects"):
        rates_of(told(good, 3), 4, 1000, "fs")
    with pytest.raises(RunFailed, match="did not verify"):
        rates_of(told("2 keys differ", 4), 4, 1000, "fs")


OWN = (
    "test_mock_l2_adapter.py",
    "test_fault_inject_l2_adapter.py",
    "test_l2_adapter_base.py",
    "test_store_controller.py",
    "test_prefetch_controller.py",
    "test_prefetch_policy.py",
    "test_distributed_storage_manager.py",
    "test_runtime_adapters.py",
    "test_l1_l2_state_metrics.py",
    "serde/test_serde_e2e.py",
)
SLOW = "Bandwidth or in_flight_load or in_flight_locks or during_drain or inflight_loads"
"""Tests of the mock's bandwidth, or that need it as slow as they set it."""


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_lmcaches_own_tests_of_adapters_pass(tmp_path: Path) -> None:
    """LMCache's tests of an adapter and of its fault injector, and those of its controllers, groups
    of layers and coders over an adapter, pass with ours in place of its mock."""
    folder = Path(os.environ.get("OFFSTAGE_LMCACHE_TESTS", "")) / "tests/v1/distributed"
    if not folder.is_dir():
        pytest.skip(f"needs {FIX}, and OFFSTAGE_LMCACHE_TESTS=its source distribution, unpacked")
    words = ["-m", "pytest", "-q", "-p", "lmcache_ours", "-p", "no:cacheprovider"]
    words += ["-o", "log_cli=false", "-k", f"not ({SLOW})", *(str(folder / one) for one in OWN)]
    done = in_lmcache(tmp_path, words, cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "245 passed" in done.stdout, done.stdout[-300:]


@pytest.mark.engine
def test_objects_of_several_groups_and_tensors_come_back(tmp_path: Path) -> None:
    """Of KV, latents with index keys, a window with scales and recurrent states, each with other
    tensors, LMCache's controller finds the prefix that all have, and loads its bytes."""
    script = Path(__file__).parents[1] / "reference/lmcache_groups.py"
    done = in_lmcache(tmp_path, [str(script), "PARAMS"])
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [[0, 1, 2, 3], [0, 1, 2, 3], [2, 3], [3]]
    expected = {"rows": rows, "right": [True] * sum(map(len, rows))}
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(
        ("plugin", "native_plugin"), expected
    )


def in_lmcache(tmp_path: Path, words: list[str], **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run LMCache's Python over a daemon: its address is in OFFSTAGE_L2 and in place of PARAMS."""
    python = Path(os.environ.get("OFFSTAGE_LMCACHE", "")) / "bin/python"
    if not python.is_file():
        pytest.skip(f"needs {FIX}")
    path = [*(one for one in sys.path if one), str(Path(__file__).parents[1] / "reference")]
    with daemon(
        tmp_path,
        limits__sessions="128",
        arena__size="64MiB",
        arena__payload="32KiB",
        arena__layers="1",
        storage__size="256MiB",
        store__segment="4MiB",
        limits__ports="128",
    ) as tier:
        given = json.dumps(params(tier))
        return subprocess.run(
            [python, *(given if one == "PARAMS" else one for one in words)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OFFSTAGE_L2": given},
            capture_output=True,
            text=True,
            timeout=800,
            **more,
        )
