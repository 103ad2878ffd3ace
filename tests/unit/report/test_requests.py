"""Is a request's record the same everywhere, and does every figure follow from it by hand?"""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from against_schema import checked
from hypothesis import given
from hypothesis import strategies as st
from lab_runs import here
from prometheus_client.parser import text_string_to_metric_families

from offstage.host.request_file import read_requests, write_requests
from offstage.host.request_record import Found, RequestRecord, ServedRun, Used
from offstage.testbeds.cli import run as command
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.lab.pod.run import simulate
from offstage.testbeds.lab.pod.spec import Point, load_spec
from offstage.testbeds.report.served.prometheus import exposition
from offstage.testbeds.report.served.records import records_of
from offstage.testbeds.workloads.requests.served import served_figures

S, MS = 10**9, 10**6
RUN = ServedRun(label="by hand", provenance="modelled", used=Used(gpu=0.5))
LAB = """
name = "small"
[workload]
context_tokens = 4096
sessions = 1
steps = 24
[geometry]
model = "tiny"
block_tokens = 64
[selection]
k_blocks = 8
[tier]
buffer_over_k = [2]
hbm_pool_over_k = 4
time_per_token = "10ms"
[[policy]]
use = "none"
"""


def record(number: int, begin_ms: int, first_ms: int, gaps_ms: list[int]) -> RequestRecord:
    """A request on host 0 that was taken 10 ms after it came, with half of its prompt found."""
    begin_ns, first_ns = begin_ms * MS, (begin_ms + first_ms) * MS
    return RequestRecord(
        request=number,
        host=0,
        input_tokens=1000,
        output_tokens=1 + len(gaps_ms),
        arrival_ns=begin_ns,
        scheduled_ns=begin_ns + 10 * MS,
        asked_ns=begin_ns,
        found=[Found("hbm", 100 * number), Found("drive", 50)],
        first_token_ns=first_ns,
        gaps_ns=[(gap * MS, 1) for gap in gaps_ms],
        end_ns=first_ns + sum(gaps_ms) * MS,
        absent_blocks=number,
    )


THREE = [record(0, 0, 100, [20, 40]), record(1, 500, 300, [30]), record(2, 2000, 200, [])]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """`offstage requests WORDS`, held to its schema."""
    capsys.readouterr()
    assert command(["requests", *words, "--format", "json"]) == 0
    return checked("requests", capsys.readouterr().out)


def kept(folder: Path, records: list[RequestRecord], about: ServedRun = RUN) -> str:
    write_requests(folder / "requests.parquet", [(about, records)])
    return str(folder)


def test_every_figure_is_its_sum_by_hand() -> None:
    found = served_figures(RUN, THREE, ttft_ms_max=250)
    for name, times in {
        "ttft_ms": [100, 200, 300],
        "tpot_ms": [30, 30],
        "itl_ms": [20, 30, 40],
        "e2e_ms": [160, 200, 330],
        "queue_ms": [10, 10, 10],
    }.items():
        one = getattr(found, name)
        assert one.count == len(times) and one.mean == pytest.approx(np.mean(times)), name
        assert [one.p50, one.p90, one.p99] == pytest.approx(np.quantile(times, [0.5, 0.9, 0.99]))
    assert found.span_s == 2.2 and found.unloaded == 3
    assert found.objective is not None and found.objective.met == 2 / 3
    assert found.goodput_per_s == pytest.approx(2 / 2.2)
    assert found.hit_tokens == (50 + 150 + 250) / 3000 and found.hit_requests == 1
    assert found.hit_by_tier == {"hbm": 300 / 3000, "drive": 150 / 3000}
    assert found.absent_blocks == 3 and found.late_blocks is None
    assert found.absent["late_blocks"] and "absent_blocks" not in found.absent


def test_a_token_counts_as_found_where_every_group_has_it() -> None:
    one = record(0, 0, 1, [])
    one.found = [Found("hbm", 300, "full"), Found("hbm", 100, "window"), Found("drive", 50, "full")]
    assert one.found_tokens() == 100 and one.found_tokens(["drive"]) == 0


def test_an_objective_of_twice_the_unloaded_needs_requests_that_were_alone() -> None:
    """A request that overlaps another on its host is loaded, on another host it is not."""
    alone = [record(at, 1000 * at, 100, [20]) for at in range(5)]
    two = [record(5, 9000, 400, [20]), record(6, 9100, 400, [20])]
    found = served_figures(RUN, [*alone, *two])
    assert found.unloaded == 5 and found.objective is not None
    assert (found.objective.ttft_ms, found.objective.tpot_ms) == (200, 40)
    assert found.objective.met == 5 / 7 and not found.objective.given
    two[1].host = 1
    assert served_figures(RUN, [*alone, *two]).unloaded == 7
    few = served_figures(RUN, alone[:4])
    assert few.objective is None and few.goodput_per_s is None
    assert "fewer than 5" in few.absent["goodput_per_s"]


def test_an_objective_over_a_time_that_nobody_recorded_is_not_judged() -> None:
    """Neither 0 % of requests without an arrival nor 100 % of tokens without times is a share."""
    unseen = [RequestRecord(request=at, output_tokens=9) for at in range(3)]
    for limits in ({"ttft_ms_max": 1e9}, {"tpot_ms_max": 1e-9}):
        found = served_figures(RUN, unseen, **limits)
        assert found.objective is None, limits
    single = [record(at, 1000 * at, 100, []) for at in range(3)]
    found = served_figures(RUN, single, tpot_ms_max=1)
    assert found.objective is not None and found.objective.met == 1, "they have no TPOT to miss"


def test_the_records_of_a_run_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = kept(tmp_path, THREE), tmp_path / "requests.parquet"
    before = path.read_bytes()
    for which in (run, str(path)):
        assert command(["requests", which, "--prometheus", str(path)]) == 2
        assert "would replace what the command reads" in capsys.readouterr().err
    assert path.read_bytes() == before


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1))
def test_runs_of_equal_gaps_have_the_quantiles_of_their_tokens(gaps: list[tuple[int, int]]) -> None:
    one = RequestRecord(request=0, gaps_ns=[(gap * MS, count) for gap, count in gaps])
    itl = served_figures(RUN, [one]).itl_ms
    flat = np.repeat(*np.array(gaps).T)
    assert itl is not None and itl.count == len(flat)
    assert [itl.p50, itl.p90, itl.p99] == pytest.approx(np.quantile(flat, [0.5, 0.9, 0.99]))


def test_a_pods_records_are_its_model_by_hand() -> None:
    """One host that keeps nothing, one daemon: a prompt of 4 blocks that is computed, and the same
    again, 10 s later, which the arena has. Its last block is half full."""
    keys = {"pool": "0B", "prefill_tokens_per_s": 1792, "deadline": "0s", "link": "1GB/s"}
    spec = load_spec(None, {**keys, "time_per_token": "10ms", "first_shard_tokens": 0})
    requests = Requests(
        arrival_ns=np.array([0, 10 * S]),
        input_tokens=np.array([1792, 1792]),
        output_tokens=np.array([101, 1]),
        session=np.array([-1, -1]),
        offsets=np.array([0, 4, 8]),
        blocks=np.tile(np.arange(4, dtype=np.uint32), 2),
        block_count=4,
    )
    ran = simulate(spec, Point(1, "least-loaded", "none", 1), requests, 1)
    first, again = ran.records
    assert (first.scheduled_ns, first.asked_ns, first.last_block_ns) == (0, 0, None)
    assert (first.absent_blocks, first.found_tokens()) == (4, 0)
    assert first.prefilled_ns == first.first_token_ns == S
    assert first.gaps_ns == [(10 * MS, 100)] and first.end_ns == 2 * S
    read_ns = 4 * spec.block_bytes  # at 1 GB/s
    assert again.found == [Found("hbm", 0), Found("arena", 1792), Found("drive", 0)]
    assert again.last_block_ns == again.first_token_ns == again.end_ns == 10 * S + read_ns
    span_ns = 10 * S + read_ns
    assert ran.used.gpu == 2 * S / span_ns and ran.used.link == read_ns / span_ns
    assert ran.used.drive == 0 and ran.used.hbm_pool is ran.used.dpu_cores is None
    assert ran.used.absent.keys() == {"hbm_pool", "dpu_cores"}
    figures = served_figures(ServedRun(label="a pod", provenance="modelled"), ran.records)
    assert figures.hit_tokens == figures.hit_requests == 0.5


def test_the_command_reads_what_a_pod_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "pod", tmp_path / "metrics.txt"
    words = ("--set", "sessions=20", "--daemons", "2", "--requests", "--out", str(out))
    assert here("pod", *words, "--format", "json") == 0
    told = checked("lab pod", capsys.readouterr().out)
    assert told["requests"] == str(out / "requests.parquet")
    runs = shown(capsys, str(out), "--prometheus", str(text))["runs"]
    assert [one["label"].split(", ")[2] for one in runs] == ["fault none", "fault death"]
    points = pq.read_table(out / "points.parquet").to_pylist()
    for one, point in zip(runs, points, strict=True):
        assert one["hit_tokens"] == point["hit"]
        assert one["ttft_ms"]["p99"] == pytest.approx(point["first_ms_p99"])
    found = {one.name: one for one in text_string_to_metric_families(text.read_text())}
    first = found["offstage_time_to_first_token_seconds"].samples
    counts = [one.value for one in first if one.name.endswith("_count")]
    assert counts == [one["ttft_ms"]["count"] for one in runs]
    assert command(["requests", str(out)]) == 0
    assert "goodput" in capsys.readouterr().out


def test_a_bucket_has_what_is_at_most_its_limit() -> None:
    found = {one.name: one for one in text_string_to_metric_families(exposition([(RUN, THREE)]))}
    first = {
        one.labels["le"]: one.value
        for one in found["offstage_time_to_first_token_seconds"].samples
        if one.name.endswith("_bucket")
    }
    assert [first[at] for at in ("0.08", "0.1", "0.25", "0.5", "10.0", "+Inf")] == [
        0,
        1,
        2,
        3,
        3,
        3,
    ]
    hits = {one.labels["tier"]: one.value for one in found["offstage_prefix_cache_hits"].samples}
    assert hits == {"hbm": 300, "drive": 150}
    (absent,) = found["offstage_prefix_blocks"].samples
    assert (absent.labels["fate"], absent.value) == ("absent", 3), "others are not recorded"


def test_tokens_of_a_lab_run_add_up_to_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger's stalls, the GPU's time and the fabric's are all the time of the only session;
    what such a run does not have is absent with a reason, and not 0."""
    (tmp_path / "lab.toml").write_text(LAB)
    out = tmp_path / "out"
    assert here("run", str(tmp_path / "lab.toml"), "--out", str(out)) == 0
    (one,) = shown(capsys, str(out))["runs"]
    point = json.loads((out / "summary.json").read_text())["points"][0]
    metas = [json.loads(np.load(path)["meta"].tobytes()) for path in (out / "parts").glob("*.npz")]
    rows = pq.read_table(out / "ledger.parquet", columns=["demands"]).column(0).to_numpy()
    assert 0 < (rows == 0).sum() < len(rows), "some layers demand nothing, and take no hit"
    took_ns = {meta["decoded_ns"] for meta in metas if "decoded_ns" in meta}
    about, records = records_of(out)[0]
    assert {records[0].end_ns} == took_ns
    assert about.used.gpu == 24 * 10 * MS / records[0].end_ns  # type: ignore[operator]
    assert one["itl_ms"]["count"] == 23 and one["tpot_ms"]["count"] == 1
    for name in ("ttft_ms", "e2e_ms", "goodput_per_s", "hit_tokens", "absent_blocks"):
        assert one[name] is None and "stored" in one["absent"][name], name
    assert one["late_blocks"] == point["ends"]["late"]
    (judged,) = shown(capsys, str(out), "--ttft", "1h", "--tpot", "1h")["runs"]
    assert judged["objective"] is None, "nobody saw a first token late"
    (judged,) = shown(capsys, str(out), "--tpot", "1h")["runs"]
    assert judged["objective"]["met"] == 1


def test_every_point_of_a_lab_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Two points of one name would be one series."""
    (tmp_path / "lab.toml").write_text(LAB.replace('"none"', '"window+ema"'))
    axes = ("--set", 'tier.bandwidth=["unlimited", "1GB/s"]', "--set", "tier.buffer_over_k=[2, 4]")
    out = tmp_path / "out"
    assert here("run", str(tmp_path / "lab.toml"), *axes, "--out", str(out)) == 0
    labels = [about.label for about, _ in records_of(out)]
    assert len(set(labels)) == len(labels) == 2 + 4, "none, and window+ema under each cap"


def test_a_sweep_of_the_pace_leaves_the_times_of_tokens_absent(tmp_path: Path) -> None:
    """The summary has one spec for all points, which would give some of them another's pace."""
    (tmp_path / "lab.toml").write_text(LAB + '[sweep]\n"tier.time_per_token" = ["5ms", "9ms"]\n')
    assert here("run", str(tmp_path / "lab.toml"), "--out", str(tmp_path / "out")) == 0
    for about, records in records_of(tmp_path / "out"):
        assert "differs" in about.absent["itl_ms"] and about.used.gpu is None
        assert not any(one.gaps_ns or one.end_ns for one in records)


def test_a_chips_hits_leave_the_times_of_tokens_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lab.toml").write_text(LAB)
    out = tmp_path / "out"
    words = ("--device", "ideal", "--out", str(out))
    assert here("run", str(tmp_path / "lab.toml"), *words) == 0
    (one,) = shown(capsys, str(out))["runs"]
    assert one["itl_ms"] is one["used"]["gpu"] is None and "chip" in one["absent"]["itl_ms"]
    assert one["used"]["drive"] is not None


def test_records_survive_their_file(tmp_path: Path) -> None:
    one = msgspec.structs.replace(THREE[0], refused=True, found=None)
    kept(tmp_path, [*THREE, one])
    path = tmp_path / "requests.parquet"
    assert read_requests(path) == [(RUN, [*THREE, one])]
    whole = path.read_bytes()
    kept(tmp_path, [*THREE, one])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({"first_token_ns": 5 * MS}, (), "5.000 ms before scheduled_ns: clocks differ"),
        ({"asked_ns": 7, "arrival_ns": 8}, (), "before arrival_ns: clocks differ"),
        ({"gaps_ns": [(-1, 2)]}, (), "clocks differ"),
        ({"end_ns": None}, (), "is cut: it has no end, first_token_ns is its last moment"),
        ({"gaps_ns": [(20 * MS, 1)]}, (), "is cut: 2 of 3 tokens have times"),
        ({}, ("--ttft", "10ms"), "--ttft 10ms is below the 100 ms of an unloaded request"),
        ({}, ("--tpot", "soon"), "--tpot"),
    ],
)
def test_bad_records_are_one_line(
    change: dict[str, Any],
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = [record(at, 1000 * at, 100, [20, 20]) for at in range(5)]
    alone[3] = msgspec.structs.replace(alone[3], **change)
    assert command(["requests", kept(tmp_path, alone), *words]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


def test_a_folder_without_records_and_half_a_file_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["requests", str(tmp_path)]) == 2
    assert "has no records of requests" in capsys.readouterr().err
    (tmp_path / "model.json").write_text("{}")
    for name in ("requests", "report", "accept"):
        assert command([name, str(tmp_path)]) == 2
        assert "holds model.json of `host run --model`" in capsys.readouterr().err
    (tmp_path / "model.json").unlink()
    kept(tmp_path, THREE)
    path = tmp_path / "requests.parquet"
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[:60] + bytes(60) + whole[120:]):
        path.write_bytes(damaged)
        assert command(["requests", str(tmp_path)]) == 2
        line = capsys.readouterr().err
        assert "requests.parquet" in line and line.count("\n") == 1
