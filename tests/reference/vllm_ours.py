"""vLLM's own tests of connectors, with our connector in place of theirs.

A pytest plug-in for a copy of vLLM's test tree, in its environment: `pytest -p vllm_ours FILES`.

- A configuration for which a test names no connector gets ours, and the policy "recompute" unless
  the test sets another. It logs in as OFFSTAGE_VLLM_WHERE says (a connector's extra configuration);
  the model is OFFSTAGE_VLLM_MODEL.
- Of a request that a test says another engine has prefilled, all tokens match and load.
- A mock of a connector wraps the scheduler's own, which is ours: what a test dictates, as the
  tokens that match, is the test's, and every other call runs our code.
- Of connectors that take the hybrid cache, which a test names, SimpleCPUOffloadConnector is ours.

At the end it names the tests in which a connector of ours was, and how each ended.
"""

import json
import os
from typing import Any
from unittest.mock import Mock

import pytest
from tests.v1.kv_connector.unit import utils
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from offstage.host.connectors import vllm as ours

WHERE = json.loads(os.environ["OFFSTAGE_VLLM_WHERE"])
SWAPPED = "SimpleCPUOffloadConnector"
CONFIG, CONNECTOR = utils.create_vllm_config, KVConnectorFactory.create_connector
MADE: list[Any] = []  # of a test: connectors of ours, None for one that refused
ENDED: dict[str, str] = {}  # of tests with one: how


def told() -> type:
    """Our class; of a request that a test says another engine has prefilled, all tokens match."""

    class Told(ours._offstage_connector()):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, computed: int) -> Any:
            params = request.kv_transfer_params or {}
            if params.get("do_remote_prefill"):
                return request.num_tokens - computed, True
            while True:  # they count steps, and a lookup may take more than one
                tokens, apart = super().get_num_new_matched_tokens(request, computed)
                if tokens is not None:
                    return tokens, apart

        def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
            if tokens:
                (request.kv_transfer_params or {}).pop("do_remote_prefill", None)
            super().update_state_after_alloc(request, blocks, tokens)

    return Told


def config(*args: Any, **more: Any) -> Any:
    """Their configuration, with our connector where the test names none."""
    more["model"] = os.environ["OFFSTAGE_VLLM_MODEL"]
    if "kv_connector" not in more:
        more = {"kv_load_failure_policy": "recompute"} | more
        more |= {
            "kv_connector": "OffstageConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": WHERE,
        }
    return CONFIG(*args, **more)


def connector(config: Any, role: Any, kv_cache_config: Any) -> Any:
    """Their connector, noted where it is ours."""
    kind = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
    if not issubclass(kind, ours.Connector):
        return CONNECTOR(config, role, kv_cache_config)
    MADE.append(None)
    MADE[-1] = CONNECTOR(config, role, kv_cache_config)
    return MADE[-1]


def mock() -> Mock:
    """The scheduler's connector, of which a test may override calls."""
    wrapped = Mock(wraps=MADE[-1])
    wrapped.supports_divergent_local_hybrid_hits = False
    wrapped.get_external_cache_hit_sources.side_effect = lambda request, count: (
        {CacheHitSource.EXTERNAL_UNSPECIFIED: count} if count else {}
    )
    return wrapped


def by_name() -> type:
    """Our class under the name of theirs."""
    MADE.append(None)
    return ours._offstage_connector()


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "cpu_test: vLLM's own")


def pytest_runtest_logreport(report: Any) -> None:
    if MADE and (report.when == "call" or report.failed):
        ENDED[report.nodeid] = report.outcome


def pytest_runtest_teardown() -> None:
    for one in MADE:
        if one is not None:
            one.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    MADE.clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, outcome in ENDED.items():
        terminalreporter.write_line(f"OURS {outcome} {name}")


utils.create_vllm_config, utils.create_mock_connector = config, mock
KVConnectorFactory.create_connector = connector
KVConnectorFactory._registry["OffstageConnector"] = told
KVConnectorFactory._registry[SWAPPED] = by_name
