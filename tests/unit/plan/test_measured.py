"""Do inputs from recorded runs and comparisons replace built-in ones, and is that reported?"""

import json
from pathlib import Path

import msgspec
import pytest
from bench_results import SPARSE

from offstage import __version__
from offstage.bindings.errors import BadInput
from offstage.testbeds.plan.inputs import Inputs, gather
from offstage.testbeds.plan.measured import with_runs
from offstage.testbeds.plan.question import read_spec
from offstage.testbeds.prices import catalog

STAGES = ("ring_wait", "decide", "read_queue", "publish", "read_service")


def run(folder: Path, storage: str = "io_uring", count: int = 10) -> Path:
    """A folder as `dpu serve --record` writes it, with round stage times."""
    folder.mkdir()
    (folder / "decisions.log").write_bytes(b"")
    stages = {
        name: {"count": count, "ns_p50": 1_000 * (at + 1), "ns_p90": 9_000 * (at + 1)}
        for at, name in enumerate(STAGES)
    }
    record = {"version": __version__, "storage": storage, "stages": stages, "closed": True}
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def ours() -> Inputs:
    return gather(read_spec(None, {}), catalog())


def test_a_run_gives_the_time_of_a_read_and_of_the_firmware(tmp_path: Path) -> None:
    found = with_runs(ours(), [run(tmp_path / "a")], "bluefield3")
    read, firmware = found.of["tlc.latency"], found.of["bluefield3.latency"]
    assert read.kind == firmware.kind == "measured"
    assert (read.number.base, read.number.high) == (pytest.approx(5e-6), pytest.approx(45.0))
    assert firmware.number.base == pytest.approx(10e-6)
    assert found.of["tlc.read"] == ours().of["tlc.read"], "a run says no rate"


def test_an_emulated_drive_is_modelled(tmp_path: Path) -> None:
    found = with_runs(ours(), [run(tmp_path / "a", "emulated")], "bluefield3")
    assert found.of["tlc.latency"].kind == "modelled"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        with_runs(ours(), [tmp_path / "none"], "bluefield3")
    with pytest.raises(BadInput, match="read nothing"):
        with_runs(ours(), [run(tmp_path / "a", count=0)], "bluefield3")
    broken = tmp_path / "b"
    broken.mkdir()
    (broken / "compare.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="not a comparison"):
        with_runs(ours(), [broken], "bluefield3")


def test_a_bench_gives_what_a_drive_and_a_core_served(tmp_path: Path) -> None:
    """Its base setting replaces ours, and is modelled; one that no session reaches is refused."""
    path = tmp_path / "sparse.json"
    path.write_text(json.dumps(SPARSE.document()), encoding="utf-8")
    found = with_runs(ours(), [path], "bluefield3")
    assert {found.of[f"sparse.{key}"].kind for key in ("carried", "missed", "core")} == {"modelled"}
    v = found.values
    assert v["sparse.carried"] == pytest.approx(46_233.1 * 262_144)
    assert v["sparse.missed"] == pytest.approx(186 / 80) and v["sparse.waits"] == 0.2
    assert v["sparse.core"] == pytest.approx(0.348 / (46_233.1 / 186 * 80))
    (none,) = [msgspec.structs.replace(one, sessions=0.0) for one in SPARSE.carried]
    empty = msgspec.structs.replace(SPARSE, carried=[none])
    path.write_text(json.dumps(empty.document()), encoding="utf-8")
    with pytest.raises(BadInput, match="no session decodes"):
        with_runs(ours(), [path], "bluefield3")
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="not a result of bench sparse"):
        with_runs(ours(), [path], "bluefield3")
