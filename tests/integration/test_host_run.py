"""Does `offstage host run` work with a running daemon, and count only its own demands?"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from damaged import damage_fetches, damage_store

from offstage.bindings.errors import RunFailed
from offstage.host.attention import numpy_kernel
from offstage.host.gpu import interpreted
from offstage.host.request_file import read_requests
from offstage.testbeds.beds.daemon import Daemon, offstage_words, serve
from offstage.testbeds.cli import run

WORDS = [
    *"--tenant lab --geometry tiny --sessions 2".split(),
    *"--context-tokens 4096 --time-per-token 1ms".split(),
]
SERVE = ["dpu", "serve", "--set", "storage.backend=emulated"]
STEPS = 40
WAIT_S = 120.0


def start(
    folder: Path, layers: int = 2, storage: dict[str, Any] | None = None, granule_tokens: int = 0
) -> Any:
    """A daemon with the tiny geometry and its blocks on an emulated drive in memory."""
    sections = {
        "arena": {"size": "3MiB", "payload": "4KiB", "layers": layers, "block_tokens": 16}
        | {"granule_tokens": granule_tokens},
        "storage": storage or {"backend": "emulated", "size": "64MiB"},
        "store": {"segment": "256KiB"},
        "limits": {"sessions": 4, "context_tokens": 8192},
        "tenant": [{"name": "lab"}],
    }
    return serve(sections, folder)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with start(tmp_path_factory.mktemp("daemon")) as one:
        yield one


def words_of(tier: Daemon, *more: str) -> list[str]:
    runtime_dir = str(tier.runtime_dir)
    return ["host", "run", "--endpoint", tier.endpoint, "--runtime-dir", runtime_dir, *WORDS, *more]


def begin_cold(tier: Daemon, **policy: str) -> None:
    with tier.control("operator") as operator:
        operator.policy_set(policy)
        operator.reset()


def drive(tier: Daemon, out: Path, *more: str) -> dict[str, Any]:
    """Run the host; returns the summary's only run, together with the workload."""
    assert run(words_of(tier, "--steps", str(STEPS), "--out", str(out), *more)) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    (one,) = summary["runs"]
    return {**one, "workload": summary["workload"]}


def check_run(one: dict[str, Any]) -> None:
    assert one["provenance"] == "emulated" and one["storage"] == "emulated NVMe"
    assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
    assert one["blocks_verified"] == one["demands"] == sum(one["ends"].values()) > 0
    assert one["hit"] + one["late"] + one["miss"] == pytest.approx(1.0)
    assert len(one["demands_by_step"]) == STEPS and one["attention_checked"] > 0
    assert 0.0 < one["busy_share"] < 1.0, "this user may ask as the operator"


def test_over_each_fabric_and_each_run_for_itself(tier: Daemon, tmp_path: Path) -> None:
    """The second run finds every block in the store, reports the warm arena, demands the same
    blocks over another fabric, and counts nothing of the first run."""
    begin_cold(tier, prefetchers="window,ema,shared", eviction="score")
    first = drive(tier, tmp_path / "shm")
    second = drive(tier, tmp_path / "zmq", "--fabric", "zmq")
    for one, fabric in ((first, "shm"), (second, "zmq")):
        check_run(one)
        assert one["prefetchers"] == ["window", "ema", "shared"]
        assert one["workload"]["fabric"] == fabric
    written = [one["workload"]["prefill_blocks_written"] for one in (first, second)]
    assert written == [2 * (2 * 256 - 64), 0], "a quarter of 256 chunks is shared"
    assert first["demands_by_step"] == second["demands_by_step"]
    assert first["selected"] == second["selected"]
    warm = [any(note["code"] == "warm-start" for note in one["notes"]) for one in (first, second)]
    assert warm == [False, True]


def test_its_requests_are_its_sessions(
    tier: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Does every token of the run have its time in one record, and every demand its end?"""
    begin_cold(tier, prefetchers="window,ema", eviction="score")
    one = drive(tier, tmp_path)
    capsys.readouterr()
    assert run(["requests", str(tmp_path), "--ttft", "1h", "--format", "json"]) == 0
    (found,) = checked("requests", capsys.readouterr().out)["runs"]
    assert (found["requests"], found["refused"]) == (2, 0)
    assert found["ttft_ms"]["count"] == 2 and found["itl_ms"]["count"] == 2 * (STEPS - 1)
    assert found["e2e_ms"]["p50"] > found["ttft_ms"]["p50"] >= found["queue_ms"]["p50"] >= 0
    assert found["span_s"] <= one["wall_s"] and found["objective"]["met"] == 1
    assert found["hit_tokens"] == 1 and found["absent_blocks"] == 0, "prefill stored all of it"
    assert found["late_blocks"] == one["ends"]["late"] and found["unreadable_blocks"] == 0
    assert found["used"]["dpu_cores"] == one["busy_share"]
    assert 0 < found["used"]["gpu"] < 1 and found["used"]["drive"] is None


def test_without_prefetch_it_is_the_lru_it_is_held_against(tier: Daemon, tmp_path: Path) -> None:
    """A run without prefetch and with LRU equals the daemon's LRU shadow."""
    begin_cold(tier, prefetchers="", eviction="lru")
    one = drive(tier, tmp_path)
    check_run(one)
    assert one["name"] == "none" and one["fates"] == {} and one["bytes_read"] > 0
    assert one["traffic_ratio"] == pytest.approx(1.0, abs=0.02)
    assert one["coverage"] == pytest.approx(0.0, abs=0.02)


def test_a_policy_is_named_and_pays_its_traffic(tier: Daemon, tmp_path: Path) -> None:
    begin_cold(tier, prefetchers="window", eviction="lru")
    one = drive(tier, tmp_path)
    check_run(one)
    assert one["name"] == "window" and set(one["fates"]) == {"window"}
    assert one["ends"]["window"] > 0 and one["accuracy"] > 0


@pytest.mark.slow
def test_latents_through_the_gpus_kernels(tmp_path: Path) -> None:
    """With MLA, two sessions of different lengths, and six query heads over one latent of 112 + 16
    numbers, Triton's selection by 8-bit bounds and its attention make numpy's demands. Every block
    has prefill's bytes; sampled outputs equal dense attention in float64."""
    pytest.importorskip("torch", reason="pip install '.[host]'")
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: offstage host run --kernel triton --device cuda")
    trace = tmp_path / "unlike.jsonl"
    trace.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": 0,
                    "input_length": tokens,
                    "output_length": 9,
                    "hash_ids": [number * 100 + one for one in range(-(-tokens // 512))],
                }
            )
            + "\n"
            for number, tokens in enumerate((790, 330))
        )
    )
    words = [
        "--geometry",
        "tiny-mla",
        "--trace",
        str(trace),
        *"--steps 9 --selector quest8".split(),
    ]
    found = []
    with start(tmp_path, layers=3) as tier:
        for kernel in ("numpy", "triton"):
            begin_cold(tier, prefetchers="window,ema", eviction="score")
            out = tmp_path / kernel
            assert run(words_of(tier, *words, "--kernel", kernel, "--out", str(out))) == 0
            summary = json.loads((out / "summary.json").read_text())
            told = {note["code"] for note in summary["notes"]}
            assert told == {"all-staged", "outputs-unused"}, "the arena holds two short contexts"
            (one,) = summary["runs"]
            assert one["blocks_verified"] == one["demands"] > 0 and one["blocks_corrupt"] == 0
            assert one["attention_checked"] > 0 and one["attention_error_max"] < 1e-2
            found.append(one)
    assert found[0]["demands_by_step"] == found[1]["demands_by_step"]


@pytest.mark.parametrize("granule_tokens", [0, 4])
def test_a_model_that_selects_tokens_reads_them_out_of_the_tiers_blocks(
    granule_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Does a model with DSA fetch blocks, or granules, and attend to its top k tokens alone? The
    same latents without DSA make the same demands and are attended whole; sampled outputs equal
    dense attention in float64 over the same tokens."""
    tokens: dict[str, set[int]] = {"tiny-mla": set(), "tiny-dsa": set()}
    decode = numpy_kernel.decode

    def watched(*given: Any) -> Any:
        tokens[given[4].name].add(int(given[3].sum(axis=1).max()))
        return decode(*given)

    monkeypatch.setattr(numpy_kernel, "decode", watched)
    words, found = ["--selector", "mass", "--steps", "9", "--select-blocks", "20"], []
    words += ["--granule-tokens", str(granule_tokens)] if granule_tokens else []
    storage = {"backend": "emulated", "size": "64MiB", "lba": "512"}
    with start(tmp_path, 3, storage, granule_tokens) as tier:
        for name in tokens:
            begin_cold(tier, prefetchers="window,ema", eviction="score")
            out = tmp_path / name
            assert run(words_of(tier, *words, "--geometry", name, "--out", str(out))) == 0
            (one,) = json.loads((out / "summary.json").read_text())["runs"]
            assert one["blocks_verified"] >= one["demands"] > 0 and one["blocks_corrupt"] == 0
            assert one["attention_checked"] > 0 and one["attention_error_max"] < 1e-4
            found.append(one)
    assert found[0]["demands_by_step"] == found[1]["demands_by_step"]
    assert tokens["tiny-dsa"] == {64} and 16 * 19 < min(tokens["tiny-mla"]) <= 16 * 20


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--geometry", "demo"], ["'demo' has 4 layers", "daemon 2 layers", "--geometry tiny"]),
        (["--geometry", "tinny"], ["did you mean 'tiny'?"]),
        (["--geometry", "glm-5.2"], ["layer 3 uses the selection of layer 2"]),
        (["--geometry", "deepseek-v4-pro"], ["hca entries of 128 tokens"]),
        (["--sessions", "5"], ["the daemon allows 4", "[limits] sessions"]),
        (["--context-tokens", "16384"], ["the daemon takes 8,192", "--context-tokens"]),
        (["--tenant", "bob"], ["bob.secret", "give --secret FILE"]),
        (["--secret", "nowhere"], ["nowhere", "give --secret FILE"]),
        (["--trace", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--selector", "quest9"], ["did you mean 'quest'?"]),
        (["--steps", "0"], ["steps = 0", "host run"]),
        (["--sessions", "0"], ["sessions = 0", "host run"]),
        (["--select-blocks", "8,16"], ["'8,16' for sessions that are drawn", "give one number"]),
        (["--select-blocks", "257"], ["257 is more than the 256 blocks", "at most 256"]),
        (["--fabric", "rdma"], ["--fabric"]),
        (["--out", "file/out"], ["give another --out"]),
        (["--endpoint", "nonsense"], ["nonsense", "endpoint"]),
        (["--sessions", "4", "--context-tokens", "81920"], ["bytes, the budget is"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_what_does_not_fit_is_one_line(
    tier: Daemon,
    more: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error names both values and the fix, before anything is prefilled."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    assert run(words_of(tier, *more)) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert [text for text in said if text not in output.err] == []


def test_what_the_stores_checksum_refuses_is_computed_again(tmp_path: Path) -> None:
    """Every third block of a real store is damaged while its daemon is stopped. A run counts each
    demanded one as computed again and none as corrupt, both ends agree on how demands ended, and
    the exit code is 0."""
    store = {"backend": "auto", "path": str(tmp_path / "store.kv"), "size": "64MiB"}
    with start(tmp_path, storage=store) as tier:
        first = drive(tier, tmp_path / "first")
    assert damage_store(tmp_path / "store.kv", every=3) > 300
    with start(tmp_path, storage=store) as tier:
        second = drive(tier, tmp_path / "second")
        refused = device_of(tier)["check_failures"]
    assert first["blocks_recomputed"] == 0 < second["blocks_recomputed"] <= refused
    assert second["blocks_corrupt"] == second["ends_differ"] == 0
    assert second["blocks_verified"] + second["blocks_recomputed"] == second["demands"]
    written = [one["workload"]["prefill_blocks_written"] for one in (first, second)]
    assert written[1] < written[0], "what is in full segments is found when it is read"
    assert second["demands"] == first["demands"] and second["selected"] == first["selected"]


def test_a_second_host_of_a_tenant_is_refused_before_it_prefills(
    tier: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two hosts would count in one ledger, so the second gets an error at once, not after minutes
    of decoding."""
    with tier.control() as other:
        other.attach("shm")
        puts = puts_of(tier)
        assert run(words_of(tier)) == 2
        assert "1 other host of the tenant 'lab' is attached" in capsys.readouterr().err
        assert puts_of(tier) == puts


def puts_of(tier: Daemon) -> int:
    return int(device_of(tier)["puts"])


def device_of(tier: Daemon) -> dict[str, Any]:
    """Return the daemon's own counters."""
    with tier.control("operator") as operator:
        return dict(operator.status()["device"])


def test_with_few_descriptors_it_runs_or_says_so(tier: Daemon) -> None:
    """With 24 descriptors, host and daemon each end well or with one line."""
    said = {}
    for name, words in (("host", words_of(tier, "--steps", "8")), ("serve", SERVE)):
        done = subprocess.run(
            ["sh", "-c", 'ulimit -n 24; exec "$@"', "sh", *offstage_words(), *words],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2), done.stderr
        said[name] = done.stderr
    assert "24 descriptors are allowed" in said["serve"]


def test_a_tenant_with_its_secret_alone(tier: Daemon, tmp_path: Path) -> None:
    """Without the operator's secret all figures are there except the reactor's own time."""
    secret = tmp_path / "lab.secret"
    secret.write_bytes((tier.runtime_dir / "lab.secret").read_bytes())
    secret.chmod(0o600)
    (tmp_path / "elsewhere").mkdir()
    words = ["--secret", str(secret), "--runtime-dir", str(tmp_path / "elsewhere")]
    one = drive(tier, tmp_path / "out", *words, "--fabric", "zmq")
    assert one["busy_share"] == -1.0 and one["blocks_verified"] == one["demands"] > 0


def test_a_daemon_that_goes_away_is_one_line(tmp_path: Path) -> None:
    """Either the port notices first, or a call on the control socket."""
    with pytest.raises(RunFailed, match="status -9"), start(tmp_path) as tier:
        host = subprocess.Popen(
            offstage_words(*words_of(tier, "--steps", "4000")),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            read_until(host, b"decode over shm")
            time.sleep(0.3)
            os.kill(tier.process.pid, signal.SIGKILL)
            tier.process.wait()
            out, err = host.communicate(timeout=WAIT_S)
        finally:
            host.kill()
            host.wait()
    lines = [line for line in err.decode().splitlines() if line.startswith("offstage: ")]
    assert host.returncode in (1, 3) and out == b"" and len(lines) == 1  # the port, or a message
    gone = ("the daemon closed this port", "the daemon does not answer")
    assert any(text in lines[0] for text in gone) and b"Traceback" not in err


def read_until(process: "subprocess.Popen[bytes]", text: bytes) -> None:
    """Read the process's stderr until `text` appears."""
    assert process.stderr is not None
    seen = b""
    until_s = time.monotonic() + WAIT_S
    while text not in seen:
        ready, _, _ = select.select([process.stderr], [], [], until_s - time.monotonic())
        piece = os.read(process.stderr.fileno(), 4096) if ready else b""
        assert piece, seen.decode()
        seen += piece


def test_a_corrupt_block_fails_the_run(
    tier: Daemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If one block of a fetch differs from prefill's bytes, the files are there, the counts are
    right, and the exit code is 1 with a line that says so."""
    damage_fetches(monkeypatch)
    begin_cold(tier, prefetchers="window", eviction="score")
    out = tmp_path / "out"
    assert run(words_of(tier, "--steps", "8", "--out", str(out), "--format", "json")) == 1
    said = capsys.readouterr()
    (line,) = (one for one in said.err.splitlines() if one.startswith("offstage: "))
    assert "were not what prefill wrote" in line
    summary = checked("file summary", (out / "summary.json").read_text())
    (one,) = summary["runs"]
    assert one["blocks_corrupt"] > 0
    assert one["blocks_verified"] + one["blocks_corrupt"] == one["demands"]
    ((_, records),) = read_requests(out / "requests.parquet")
    assert sum(each.unreadable_blocks or 0 for each in records) == one["blocks_corrupt"]
    assert f"of the {one['demands']:,} compared blocks were corrupt" in summary["sentence"]
    assert "were not what prefill wrote" in checked("host run", said.out)["failed"][0]
    assert (out / "report.html").exists()
