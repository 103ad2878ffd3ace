"""Do the alert rules and the dashboard fit what a daemon really exports, as Prometheus sees it?

A private Prometheus on loopback, with its data in a scratch folder, scrapes a running daemon.
"""

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from live_daemon import CHUNKS, LAYERS, Daemon, daemon, open_text, put, scrape, until
from prometheus_client.parser import text_string_to_metric_families

from offstage.dpu import protocol as p
from offstage.host.connectors.vllm.stats import COUNTERS
from offstage.host.fabrics.shm import open_driver

PRESETS = Path(__file__).resolve().parents[2] / "testbeds/presets"
WATCHERS = ("grafana/offstage.json", "prometheus/offstage.rules.yml")
METRIC = re.compile(r"offstage_[a-z_]+")
FIX = "no prometheus; apt-get install --no-install-recommends prometheus"


def query(base: str, path: str, **words: str) -> Any:
    with urllib.request.urlopen(f"{base}/api/v1/{path}?{urllib.parse.urlencode(words)}") as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    return found["data"]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("daemon"), daemon__metrics_endpoint="127.0.0.1:0") as tier:
        with tier.control() as control, open_driver(control.attach("shm")) as driver:
            text = open_text(control, 1)
            for layer in range(LAYERS):  # enough for timed stages, one in 31
                for first in range(0, CHUNKS, 8):
                    put(driver, text, layer, list(range(first, first + 8)))
        yield tier


@pytest.fixture(scope="module")
def prometheus(tier: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shipped configuration, except address, token and interval."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip(FIX)
    folder = tmp_path_factory.mktemp("prometheus")
    text = (PRESETS / "prometheus/prometheus.yml").read_text()
    for shipped, own in (
        ("/etc/prometheus/offstage.token", str(tier.runtime_dir / "metrics.token")),
        ("127.0.0.1:9411", f"127.0.0.1:{tier.metrics_port}"),
        ("15s", "1s"),
    ):
        assert shipped in text
        text = text.replace(shipped, own)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(PRESETS / "prometheus/offstage.rules.yml", folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        base = f"127.0.0.1:{probe.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={base}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: process.poll() is not None or answers(f"http://{base}"))
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://{base}"
    finally:
        process.kill()
        process.wait()


def answers(base: str) -> bool:
    try:
        return bool(query(base, "query", query='up{job="offstage"} == 1')["result"])
    except OSError:
        return False


def test_every_alert_is_evaluated_and_one_is_raised_by_its_cause(
    tier: Daemon, prometheus: str
) -> None:
    """promtool and the server accept the rules; only the expressions for refused logins and a drain
    match."""
    rules = PRESETS / "prometheus/offstage.rules.yml"
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True, capture_output=True)
    until(lambda: all(one["lastEvaluation"][0] != "0" for one in listed(prometheus)))
    found = {one["name"]: one for one in listed(prometheus)}
    assert len(found) == rules.read_text().count("- alert:")
    assert {one["health"] for one in found.values()} == {"ok"}
    assert {name for name in found if seen(prometheus, found[name])} == set()
    guess_logins(tier.endpoint, 12)
    with tier.control(p.OPERATOR) as operator:
        operator.drain(10.0)
        expected = {"OffstageLoginsRefused", "OffstageStaysDrained"}
        until(lambda: {name for name in found if seen(prometheus, found[name])} == expected)
        until(lambda: states(prometheus)["OffstageStaysDrained"] == "pending")
        operator.undrain()
    until(lambda: states(prometheus)["OffstageStaysDrained"] == "inactive")


CAUSES = {
    "vllm:offstage_load_failed_blocks_total": "OffstageLoadsFailed",
    "vllm:offstage_get_unreadable_total": "OffstageLoadsFailed",
    "vllm:offstage_get_away_total": "OffstageDaemonAway",
    "vllm:offstage_put_away_total": "OffstageDaemonAway",
    "vllm:offstage_load_late_blocks_total": "OffstageLoadsLate",
    "offstage_get_late_total": "OffstageLoadsLate",
    "vllm:offstage_get_absent_total": "",
}
"""Counters of engines, and the alert that each raises."""


def test_alerts_on_engines_are_raised_by_their_counters_alone(tmp_path: Path) -> None:
    """promtool evaluates the rules on series of its own: a counter that grows raises its alert, one
    that does not raises none, and a Prometheus without a daemon says so after a minute."""
    if shutil.which("promtool") is None:
        pytest.skip(FIX)
    assert {one.split("offstage_")[1].removesuffix("_total") for one in CAUSES} <= set(COUNTERS)
    up = {'up{job="offstage"}': "1x10"}
    cases = [case({}, "OffstageAbsent"), case(up | dict.fromkeys(CAUSES, "7x10"), "")]
    cases += [case(up | {name: "0+1x10"}, alert) for name, alert in CAUSES.items()]
    told = {"rule_files": [str(PRESETS / WATCHERS[1])], "tests": cases}
    (tmp_path / "test.yml").write_text(json.dumps(told))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def case(series: dict[str, str], alert: str) -> dict[str, Any]:
    """One test of promtool: this alert, or none, fires after ten minutes of these series."""
    fired = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": "10m", "exp_samples": fired}],
    }


def guess_logins(endpoint: str, count: int) -> None:
    """Log in over a raw socket: a `Control` with a wrong secret stops before it sends its proof."""
    hello = p.Hello(versions=list(p.VERSIONS), name="host", tenant="red", nonce=bytes(16))
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.connect(endpoint)
        for _ in range(count):
            raw.send_multipart([b"", p.encode(hello)])
            said = p.decode_reply(raw.recv_multipart()[-1])
            assert isinstance(said, p.Challenge)
            raw.send_multipart([b"", p.encode(p.Prove(nonce=said.nonce, proof=bytes(32)))])
            refused = p.decode_reply(raw.recv_multipart()[-1])
            assert isinstance(refused, p.Error) and refused.code == "unauthenticated"


def listed(base: str) -> list[Any]:
    return list(query(base, "rules")["groups"][0]["rules"])


def states(base: str) -> dict[str, str]:
    return {one["name"]: one["state"] for one in listed(base)}


def seen(base: str, rule: Any) -> bool:
    """Whether the rule's expression matches now, whatever its duration before an alert."""
    return bool(query(base, "query", query=rule["query"])["result"])


def test_panels_and_rules_name_metrics_that_a_daemon_exports(tier: Daemon) -> None:
    """A renamed metric leaves no panel empty and no alert silent. This needs no Prometheus, so no
    machine skips it."""
    token = (tier.runtime_dir / "metrics.token").read_text().strip()
    until(lambda: "offstage_stage_seconds_bucket" in scrape(tier, token))  # the puts are counted
    said = scrape(tier, token)
    known = {one.name for kind in text_string_to_metric_families(said) for one in kind.samples}
    text = "".join((PRESETS / one).read_text() for one in WATCHERS)
    named = set(METRIC.findall(text)) - {"offstage_"}
    assert named and named <= known, named - known


def test_the_dashboard_asks_what_prometheus_takes(prometheus: str) -> None:
    """This covers each panel's query, and the variables."""
    board = json.loads((PRESETS / WATCHERS[0]).read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) >= len(board["panels"]) > 10
    for expression in asked:
        plain = expression.replace("$tenant", ".*").replace("$__rate_interval", "1m")
        query(prometheus, "query", query=plain)
    assert query(prometheus, "label/tenant/values") == ["red"]
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
    assert len(set(places)) == len(places)
