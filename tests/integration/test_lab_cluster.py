"""Does a dask cluster of processes give the same bytes as this machine, and fail in one line?"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from asic_logs import recorded, written
from lab_runs import LAB, SPEC, WAIT_S, ledger, shell, wait_for

from offstage.testbeds.cli import run
from offstage.testbeds.report.page.files import read_lab_summary

pytest.importorskip("distributed", reason="needs the extra cluster")

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


class Cluster:
    """A scheduler and its workers, each started as its user would start it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.folder = folder
        self.begun: list[subprocess.Popen[bytes]] = []

    def scheduler(self, failures: int = 0) -> "subprocess.Popen[bytes]":
        """Start `dask scheduler`; it gives a task up after this many killed workers."""
        address = ("--host", "127.0.0.1", "--port", str(self.port))
        return self._begin("scheduler", *address, failures=failures)

    def workers(self, count: int) -> "subprocess.Popen[bytes]":
        """Start `dask worker` with this many processes, restarted when they die."""
        sizes = ["--nworkers", str(count), "--nthreads", "1", "--local-directory", str(self.folder)]
        return self._begin("worker", self.address, *sizes)

    def _begin(self, *words: str, failures: int = 0) -> "subprocess.Popen[bytes]":
        changes = {
            "PYTHONPATH": f"{REFERENCE}:{os.environ.get('PYTHONPATH', '')}",
            "LAB_MARK": str(self.folder / "mark"),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(failures),
        }
        with (self.folder / f"log.{len(self.begun)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *words, "--no-dashboard"],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **changes},
            )
        self.begun.append(process)
        return process

    def end(self) -> None:
        """Kill all processes that were started, and their children."""
        for process in reversed(self.begun):
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=WAIT_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers on loopback."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.scheduler()
    made.workers(2)
    yield made
    made.end()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A `Cluster` for one test that destroys it; none of its processes runs yet."""
    made = Cluster(tmp_path)
    yield made
    made.end()


def test_a_cluster_writes_the_same_bytes(
    cluster: Cluster, lab_folder: Path, lab_whole: Path
) -> None:
    done = shell("run", "e.toml", "--out", "out", "--cluster", cluster.address)
    assert done.returncode == 0, done.stderr
    assert ledger(lab_folder / "out") == ledger(lab_whole)


def test_a_sweep_of_chips_has_the_same_table(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asic sweep` writes it alike on a cluster and on this machine."""
    written(tmp_path, recorded())
    spec = tmp_path / "sweep.toml"
    spec.write_text('run = "run"\n[grid]\n"codec.lanes" = [1, 8, 32]\n')
    tables = []
    for name, more in (("own", ["--jobs", "1"]), ("dask", ["--cluster", cluster.address])):
        assert run(["asic", "sweep", str(spec), "--out", str(tmp_path / name), *more]) == 0
        tables.append((tmp_path / name / "sweep.parquet").read_bytes())
    assert tables[0] == tables[1] and "3 chips" in capsys.readouterr().out


@pytest.mark.slow
def test_what_kills_a_worker_costs_its_own_point_only(cluster: Cluster, lab_folder: Path) -> None:
    killers = [f'\n[[policy]]\nuse = "lab_policies:{name}"\n' for name in ("Kills", "Raises")]
    axis = '\n[sweep]\n"selection.k_blocks" = [8]\n'
    (lab_folder / "e.toml").write_text("".join([SPEC, *killers, axis]).replace("[1, 2]", "[1]"))
    done = shell("run", "e.toml", "--out", "out", "--cluster", cluster.address)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    summary = read_lab_summary(lab_folder / "out")
    failed = {one.point: one.message for one in summary.failed}
    assert set(failed) == {
        f"k_blocks=8: lab_policies:{name}, B = 2k" for name in ("Kills", "Raises")
    }
    assert "no worker could run" in failed["k_blocks=8: lab_policies:Kills, B = 2k"]
    assert len(summary.points) == 4 and all(point.bounds for point in summary.points)


def test_a_scheduler_that_goes_away_is_one_line(own: Cluster, lab_folder: Path) -> None:
    """If the scheduler disappears in the middle of a point, the error is one line, and finished
    parts are kept."""
    scheduler = own.scheduler()
    own.workers(1)
    (lab_folder / "e.toml").write_text(SPEC.replace("lab_policies:Silent", "lab_policies:Waits"))
    words = ["run", "e.toml", "--out", "out", "--cluster", own.address]
    begun = subprocess.Popen([*LAB, *words], stderr=subprocess.PIPE, text=True)
    wait_for((own.folder / "mark.reached").exists)
    kill(scheduler)
    _, output = begun.communicate(timeout=WAIT_S)
    assert begun.returncode == 3, output
    line = f"offstage: --cluster {own.address}: the scheduler stopped answering;"
    assert [one.startswith(line) for one in output.splitlines()] == [False, True], output
    assert list((lab_folder / "out/parts").glob("*.npz"))


def test_a_cluster_without_a_worker_any_more_is_one_line(
    own: Cluster,
    lab_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("offstage.testbeds.lab.run.cluster.CLUSTER_POLL_S", 0.5)
    own.scheduler(failures=9)
    workers = own.workers(1)
    (lab_folder / "e.toml").write_text(SPEC.replace("lab_policies:Silent", "lab_policies:Waits"))

    def end_in_the_middle() -> None:
        wait_for((own.folder / "mark.reached").exists)
        monkeypatch.setattr("offstage.testbeds.lab.run.cluster.CONNECT_S", 1)
        kill(workers)

    killer = threading.Thread(target=end_in_the_middle)
    killer.start()
    code = run(["lab", "run", "e.toml", "--out", "out", "--cluster", own.address])
    killer.join()
    assert code == 3
    assert "the cluster has lost all workers" in capsys.readouterr().err.splitlines()[-1]


def test_no_cluster_and_an_empty_one_are_one_line(
    own: Cluster,
    lab_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("offstage.testbeds.lab.run.cluster.CONNECT_S", 1)
    words = ["lab", "run", "e.toml", "--out", "out", "--cluster", own.address]
    assert run(words) == 3
    assert "the scheduler does not answer" in capsys.readouterr().err.splitlines()[-1]
    own.scheduler()
    monkeypatch.setattr("offstage.testbeds.lab.run.cluster.CONNECT_S", 5)
    assert run(words) == 3
    assert "the cluster has no worker" in capsys.readouterr().err.splitlines()[-1]
