"""Does a tracker get every figure of the runs listed, once, and is one line said where it cannot?

Against the real libraries where they are installed: MLflow with its own store in a folder,
OpenTelemetry with a collector of ours that reads what its exporter sends.
"""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.cli import run
from offstage.testbeds.lab.results.summary import LabSummary
from offstage.testbeds.report import write_summary
from offstage.testbeds.report.page.files import write_lab_summary

MODULES = {"mlflow": "mlflow", "otel": "opentelemetry"}


def needs(extra: str) -> None:
    pytest.importorskip(MODULES[extra], reason=f"{extra} is missing: pip install '.[{extra}]'")


@pytest.fixture
def folder(made: SimpleNamespace, whole: LabSummary, tmp_path: Path) -> Path:
    """A demo's run, and a lab's below it."""
    write_summary(made.summary(), tmp_path / "runs/demo/summary.json")
    write_lab_summary(whole, tmp_path / "runs/lab/summary.json")
    return tmp_path / "runs"


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The rows with all of their figures, as a script reads them."""
    from offstage.testbeds.report.listing import rows_below

    assert run(["results", str(folder), "--format", "json"]) == 0
    rows, _ = rows_below(folder)
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows) > 5
    return rows


@pytest.mark.parametrize("tracker", MODULES)
def test_without_the_library_one_line_names_its_extra(
    tracker: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is listed."""
    for name in [one for one in sys.modules if one.partition(".")[0] == MODULES[tracker]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, MODULES[tracker], None)
    assert run(["results", str(folder), "--to", tracker]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"is not installed; in a checkout of Offstage: pip install '.[{tracker}]'" in err


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a store in a folder, which is named by MLflow's own variable."""
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'kept'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    from mlflow import MlflowClient

    return MlflowClient()


def kept(store: Any, experiment: str = "offstage") -> list[Any]:
    found = store.get_experiment_by_name(experiment)
    return [] if found is None else list(store.search_runs([found.experiment_id]))


def test_each_row_is_a_run_of_mlflow_and_is_written_once(
    store: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words are parameters, numbers metrics at the time of the run; what was there stays."""
    rows = listed(folder, capsys)
    assert run(["results", str(folder), "--to", "mlflow", "--where", "kind=run"]) == 0
    demo = [row for row in rows if row["kind"] == "run"]
    assert capsys.readouterr().err == f"offstage: {len(demo)} rows written to mlflow\n"
    assert run(["results", str(folder), "--to", "mlflow", "--columns", "run"]) == 0
    lab = len(rows) - len(demo)
    said = f"offstage: {lab} rows written to mlflow, {len(demo)} were there\n"
    assert capsys.readouterr().err == said
    runs = {one.info.run_name: one for one in kept(store)}
    assert len(runs) == len(kept(store)) == len(rows)
    for row in rows:
        one = runs[f"{row['run']}, {row['arm']}, {row['setting']}"]
        numbers = {
            key: value
            for key, value in row.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        assert one.data.metrics == numbers
        words = {key for key, value in row.items() if value is not None} - set(numbers)
        assert one.data.params == {key: str(row[key]) for key in words}
        assert one.info.status == "FINISHED" and one.info.start_time == one.info.end_time
        assert f"{one.info.start_time / 1000 % 60:.0f}" == "0"  # a row's date has minutes


def test_other_figures_and_a_broken_write_are_written_again(
    store: Any,
    folder: Path,
    made: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that was made anew is another one; in an experiment of the user's choice."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    words = ["results", str(folder / "demo"), "--to", "mlflow"]
    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(words)
    assert run(words) == 0
    summary = made.summary()
    count = len(summary.runs)
    assert len(kept(store, "mine")) == count and kept(store) == []
    assert all(one.data.metrics for one in kept(store, "mine"))
    os.utime(folder / "demo/summary.json", (0, 0))  # as of a copy
    assert run(words) == 0 and len(kept(store, "mine")) == count
    summary.runs[0].hit *= 0.5
    write_summary(summary, folder / "demo/summary.json")
    assert run(words) == 0 and len(kept(store, "mine")) == count + 1
    capsys.readouterr()


def test_a_server_that_is_not_there_is_one_line_and_exit_3(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert run(["results", str(folder), "--to", "mlflow", "--at", "http://127.0.0.1:9"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("offstage: http://127.0.0.1:9: MLflow does not take it (")
    assert err.endswith("check --at, and whether its server runs\n")


@pytest.fixture
def collector() -> Iterator[Any]:
    """Its address, and what was posted to it."""
    posted: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        """Takes everything."""

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            posted.append((self.path, gzip.decompress(data) if packed else data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", posted=posted)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("named", ["by --at", "in full", "by its variable"])
def test_each_figure_is_a_gauge_of_opentelemetry(
    named: str,
    folder: Path,
    collector: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the row's words as its attributes; a collector is named as OpenTelemetry does, too."""
    needs("otel")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    rows = listed(folder, capsys)
    words = {"by --at": ["--at", collector.url], "in full": ["--at", f"{collector.url}/v1/metrics"]}
    if named == "by its variable":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    assert run(["results", str(folder), "--to", "otel", *words.get(named, [])]) == 0
    assert capsys.readouterr().err == f"offstage: {len(rows)} rows written to otel\n"
    ((path, data),) = collector.posted
    assert path == "/v1/metrics"
    (resource,) = ExportMetricsServiceRequest.FromString(data).resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "offstage"
    found = {
        (
            metric.name,
            *(
                {one.key: one.value.string_value for one in point.attributes}[key]
                for key in ("run", "arm", "setting")
            ),
        ): point.as_double
        for metric in resource.scope_metrics[0].metrics
        for point in metric.gauge.data_points
    }
    wanted = {
        (f"offstage.{key}", row["run"], row["arm"], row["setting"]): float(value)
        for row in rows
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert found == wanted


def test_a_collector_that_is_not_there_is_one_line_and_exit_3(folder: Path) -> None:
    """What its exporter logs of its tries is not shown."""
    needs("otel")
    done = subprocess.run(
        offstage_words("results", str(folder), "--to", "otel", "--at", "http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
    )
    said = "no collector took the figures; check --at, and whether its server runs"
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"offstage: http://127.0.0.1:9: {said}\n"
