"""Rows of runs, written into a tracker: as runs of MLflow, or as gauges of OpenTelemetry.

A row is one of `listing.py`: the words of an arm or a point, and its figures. Both libraries are
extras, loaded when they are asked for: `Missing` names the one that brings them. `Unreachable` if
the tracker does not take what it is given.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import offstage
from offstage.bindings.errors import Missing, Unreachable
from offstage.testbeds.report.listing import DATE_FORMAT, Row

__all__ = ["TRACKERS", "write_mlflow", "write_otel"]

EXPERIMENT = "offstage"
ROW_TAG = "offstage.row"
METRICS_PATH = "/v1/metrics"
CHECK = "check --at, and whether its server runs"


def _parts(row: Row) -> tuple[dict[str, str], dict[str, float]]:
    """What a row says in words, and its numbers; a figure that it lacks is in neither."""
    words = {key: str(value) for key, value in row.items() if isinstance(value, str | bool)}
    known = {key: value for key, value in row.items() if key not in words and value is not None}
    return words, {key: float(value) for key, value in known.items()}


def write_mlflow(rows: Sequence[Row], at: str) -> int:
    """Each row as a run of the experiment `offstage` (`MLFLOW_EXPERIMENT_NAME`) on the tracking
    server `at`, or `MLFLOW_TRACKING_URI`; gives how many are new. A row that is there already, with
    the same figures, is left as it is."""
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise Missing("mlflow", "MLflow is not installed", "--to mlflow") from None
    try:
        client = MlflowClient(tracking_uri=at or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        return sum(_new_run(client, experiment, row) for row in rows)
    except MlflowException as error:
        said = str(error).strip().rstrip(".")
        raise Unreachable(f"MLflow does not take it ({said})", at or "MLflow", CHECK) from None


def _new_run(client: Any, experiment: str, row: Row) -> bool:
    from mlflow.entities import Metric, Param

    own = {key: value for key, value in row.items() if key != "date"}  # a copied file has another
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:32]
    there = client.search_runs([experiment], f"tags.`{ROW_TAG}` = '{digest}'", max_results=1)
    if there and there[0].info.status == "FINISHED":
        return False
    words, numbers = _parts(row)
    begun = datetime.strptime(words["date"], DATE_FORMAT).replace(tzinfo=UTC)
    begun_ms = int(begun.timestamp() * 1000)
    named = ", ".join(words[key] for key in ("run", "arm", "setting"))
    # One whose writing broke off goes on.
    mine = there or [client.create_run(experiment, begun_ms, {ROW_TAG: digest}, named)]
    client.log_batch(
        mine[0].info.run_id,
        [Metric(key, value, begun_ms, 0) for key, value in numbers.items()],
        [Param(key, value) for key, value in words.items()],
    )
    client.set_terminated(mine[0].info.run_id, end_time=begun_ms)
    return True


def write_otel(rows: Sequence[Row], at: str) -> int:
    """Each figure as a gauge `offstage.KEY` whose attributes are the row's words, by OTLP over HTTP
    to the collector `at`, or where the variables of OpenTelemetry say; gives how many rows."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        raise Missing("otel", "OpenTelemetry is not installed", "--to otel") from None
    reader = InMemoryMetricReader()
    about = Resource.create({"service.name": "offstage", "service.version": offstage.__version__})
    meter = MeterProvider([reader], resource=about).get_meter("offstage", offstage.__version__)
    gauges: dict[str, Any] = {}
    for row in rows:
        words, numbers = _parts(row)
        for key, value in numbers.items():
            if key not in gauges:
                gauges[key] = meter.create_gauge(f"offstage.{key}")
            gauges[key].set(value, words)
    url = f"{at.rstrip('/').removesuffix(METRICS_PATH)}{METRICS_PATH}" if at else None
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # its tries are not ours
    sender = OTLPMetricExporter(endpoint=url)
    if sender.export(reader.get_metrics_data()) is not MetricExportResult.SUCCESS:
        raise Unreachable("no collector took the figures", at or "OTLP", CHECK)
    return len(rows)


TRACKERS: dict[str, Callable[[Sequence[Row], str], int]] = {
    "mlflow": write_mlflow,
    "otel": write_otel,
}
