"""Is a laboratory's log a run for the chip model, with the decisions that its ledger counts?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.asic_model.load import work_of
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.replay import closed_loop, decision_replay, own_times
from offstage.asic_model.trace import read_trace
from offstage.bindings.errors import BadInput
from offstage.host.model.models import geometry
from offstage.testbeds.lab.results.summary import SeedRun
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.experiment import Experiment, compute, plan
from offstage.testbeds.lab.run.plan import Task
from offstage.testbeds.lab.run.record import chosen, record
from offstage.testbeds.progress import Silent
from offstage.testbeds.report.compare.build import runs_of
from offstage.testbeds.report.compare.carried import models_of
from offstage.testbeds.report.compare.effect import parse_load
from offstage.testbeds.report.compare.recorded import find_runs, read_run

SMALL = {
    "workload.context_tokens": 4096,
    "workload.sessions": 2,
    "workload.steps": 40,
    "geometry.model": "demo",
    "selection.k_blocks": 8,
    "tier.buffer_over_k": [4],
    "policy": [{"use": "warmup+ema"}, {"use": "window+ema"}],
}


def planned(folder: Path, **changes: Any) -> Experiment:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "e.toml").write_text("")
    return plan(folder / "e.toml", SMALL | keys)


def in_ledger(experiment: Experiment, folder: Path, label: str) -> SeedRun:
    """The same point, computed as every run computes it."""
    compute(experiment, folder / "parts", Silent(), jobs=1, stop_at_failure=True)
    (variant,) = experiment.variants
    names = Task(variant.spec, 1, variant.points).parts(experiment.code)
    keys = [(one.label, one.buffer_over_k) for one in variant.points]
    name = dict(zip(keys, names, strict=True))[label, 4.0]
    return parts.read_run(folder / f"parts/{name}.npz")


@pytest.mark.parametrize("sessions", [{}, {"workload__sessions": 5, "workload__concurrent": 2}])
def test_the_log_has_what_the_ledger_counts(tmp_path: Path, sessions: dict[str, Any]) -> None:
    """Every demand's end, every read, the time, of sessions that begin together and after others.
    Times that a chip adds nothing to are the log's own."""
    experiment = planned(tmp_path, **sessions)
    run = in_ledger(experiment, tmp_path, "warmup+ema")
    folder = record(experiment, "warmup+ema", tmp_path, Silent())
    trace = read_trace(tmp_path)
    assert np.array_equal(trace.ends, run.rows["ends"].sum(axis=0))
    assert len(trace.reads) == run.reads > 0 and trace.heads == 2
    assert len(trace.fetches) == len(run.rows)
    steps = {(one.session, one.step) for one in trace.fetches}
    assert len(steps) == experiment.spec.workload.sessions * 40  # a number is another's later
    assert trace.fetches[-1].answered_ns <= run.end_ns
    log = (folder / "decisions.log").read_bytes()
    again = record(planned(tmp_path / "again", **sessions), "warmup+ema", tmp_path / "b", Silent())
    assert (again / "decisions.log").read_bytes() == log
    own, logged = own_times(trace)
    assert own.mean == pytest.approx(logged.mean, rel=0.01)


def test_the_chip_takes_it_like_a_recorded_run(tmp_path: Path) -> None:
    """More sessions and layers than a small recording has, decided by the daemon's core."""
    record(planned(tmp_path, workload__sessions=6), "warmup+ema", tmp_path, Silent())
    trace, chip = read_trace(tmp_path), read_preset("asic_7nm")
    kept = decision_replay(trace, chip)
    assert kept.sessions == 6 and kept.demands == trace.ends.sum() and kept.hits > 0
    assert kept.logged is not None and kept.logged.provenance == "modelled"
    assert closed_loop(trace, chip).demands == kept.demands
    assert work_of(kept, trace).tokens == 6


def test_a_load_has_the_decisions_of_the_laboratory(tmp_path: Path) -> None:
    """The recorded run stays what the models are checked on; the load is another's, in its words.
    A run of the laboratory alone is refused: no machine was measured."""
    record(planned(tmp_path, workload__sessions=3), "window+ema", tmp_path, Silent())
    load = parse_load(f"gpus=2,from={tmp_path}")
    (path,) = find_runs(tmp_path)
    other = read_run(path)
    trace = read_trace(path)
    loaded = load.trace(trace, other)
    work = load.of(work_of(decision_replay(loaded, read_preset("bluefield3")), loaded), loaded)
    said = load.said(2, work, loaded)
    assert said.startswith("2 GPUs, each decoding 3 sessions of the model demo at 40 ms")
    assert "the laboratory (e, policy window+ema, seed 1)" in said
    wide = parse_load(f"from={tmp_path},model=llama-3-70b").trace(trace, other)
    assert wide.block_bytes == 64 * 2 * 2 * 8 * 128 and wide.heads == 8
    packed = parse_load(f"from={tmp_path},model=deepseek-v4-pro").trace(trace, other)
    shape = geometry("deepseek-v4-pro")  # compressed entries, and keys of an indexer
    assert packed.block_bytes == round(64 * shape.bytes_per_token() / shape.layer_count)
    with pytest.raises(BadInput, match="no machine was measured"):
        runs_of([tmp_path])
    assert other.provenance == "modelled"


def test_what_leaves_no_log_is_refused_before_it_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'warmup"):
        chosen(planned(tmp_path).variants[0], "warmup+em")
    tiers = [{"use": "nvme", "capacity": "4GiB"}]
    with pytest.raises(BadInput, match="no tiers"):
        chosen(planned(tmp_path, tier__below=tiers).variants[0], "warmup+ema")


TWO = {
    "tier__hbm_pool_over_k": 1,
    "policy": [{"use": "none"}],
    "sweep": {
        "model": [
            {"label": "dense", "geometry": {"model": "demo"}},
            {
                "label": "sparse",
                "workload": {"profile": "indexer", "indexers": 1},
                "geometry": {"model": "tiny-dsa", "staged": "selected", "block_tokens": 1},
                "selection": {"k_blocks": 64, "sink_blocks": 0, "window_blocks": 0},
            },
        ]
    },
}


def test_a_sweep_leaves_a_load_for_each_model(tmp_path: Path) -> None:
    """Each combination has a log, each log is a load of its whole model, and a device carries the
    least that its rate, its memory and its drives allow."""
    out = record(planned(tmp_path, **TWO), "none", tmp_path, Silent())
    assert out == tmp_path and len(find_runs(out)) == 2
    loads = parse_load(f"gpus=4,sessions=2,pace=10ms,from={out}").each()
    presets = [read_preset(name) for name in ("bluefield3", "asic_7nm")]
    recorded = read_run(find_runs(out)[0])
    run = (read_trace(find_runs(out)[0]), recorded)
    rows = models_of(loads, loads[0].trace(*run), run, presets, 1, 1.2, Silent())
    assert [one.model for one in rows] == ["demo", "tiny-dsa"]  # the larger first
    dense, sparse = rows
    shape = geometry("tiny-dsa")
    assert sparse.resident_bytes == 4096 * 3 * 16 * 2 and dense.resident_bytes == 0
    assert sparse.session_bytes == shape.session_bytes(4096)
    trace = loads[1].trace(*run)
    drawn = trace.config.layer_count
    assert trace.record.layers == 3 and drawn == 1
    steps = len({(one.session, one.step) for one in trace.fetches})
    assert sparse.reads_per_token == pytest.approx(3 * len(trace.reads) / steps)
    assert trace.block_bytes == 256 == sparse.read_bytes_per_token / sparse.reads_per_token
    for row in rows:
        for one in row.devices:
            most = one.load.tokens_per_s_max
            assert most is not None and one.by_need["rate"] == pytest.approx(most * 0.010)
            assert one.by_need[one.binds] == min(filter(None, one.by_need.values()))
            assert one.load.gpus == 4 and one.load.tokens_per_s.value <= 4 * 2 / 0.010
    paced = parse_load(f"from={out}").each()[1]  # a third of the layers has a third of the pace
    work = paced.of(work_of(decision_replay(trace, presets[0]), trace), trace)
    assert work.host_s == pytest.approx(0.040, rel=0.01)
    with pytest.raises(BadInput, match="single entries of tiny-dsa"):
        parse_load(f"from={loads[1].source},model=demo").trace(*run)
    assert models_of(loads[:1], trace, run, presets, 1, 1.2, Silent()) == []


def test_tenants_share_no_prefix_and_no_slot(tmp_path: Path) -> None:
    """Four sessions with one prefix: two tenants keep it twice, and the log names them both."""
    kept = []
    for tenants in (1, 2):
        many: dict[str, Any] = {"workload__sessions": 4, "workload__shared_prefix_tokens": 2048}
        many["policy"] = [{"use": "window+shared"}]
        found = planned(tmp_path / str(tenants), workload__tenants=tenants, **many)
        record(found, "window+shared", tmp_path / str(tenants), Silent())
        trace = read_trace(tmp_path / str(tenants))
        assert {one.session: one.tenant for one in trace.fetches} == {
            number: number % tenants for number in range(4)
        }
        assert trace.weights == (1,) * tenants
        found_known = closed_loop(trace, read_preset("asic_7nm")).prefixes
        assert found_known is not None and not trace.writes_ns  # prefills take no time
        kept.append(found_known.known)
    assert kept == [3 * 32, 2 * 32]
    with pytest.raises(BadInput, match="3 tenants for 4 sessions"):
        planned(tmp_path / "3", workload__sessions=4, workload__tenants=3)
