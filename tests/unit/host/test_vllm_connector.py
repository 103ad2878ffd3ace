"""Does the vLLM connector refuse invalid settings, and do its processes exchange their messages?"""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.connectors.vllm import BOUNDS, Connector, _bounds_of
from offstage.host.connectors.vllm.stats import stats_class
from offstage.host.connectors.vllm.steps import Report, Step


def test_bounds_that_are_no_time_are_refused() -> None:
    """Bounds are accepted as given, and an invalid time is refused in one line."""
    bounds = {"patience_s": 2, "patience_min_s": 0.1}
    assert _bounds_of({}) == BOUNDS and _bounds_of(bounds) == bounds
    for value in (0, -1.0, "1", True, None, float("inf"), float("nan"), 1e12):
        with pytest.raises(BadInput, match="write seconds above 0"):
            _bounds_of({"patience_min_s": value})


class FullAttentionSpec:
    """A stand-in for vLLM's class."""

    block_size, real_page_size_bytes = 32, 100


class MLAAttentionSpec(FullAttentionSpec):
    """Latents, which vLLM's CPU kernels do not read before a prompt."""


class MambaSpec(FullAttentionSpec):
    """Another."""


@pytest.mark.parametrize(
    ("workers", "policy", "specs", "what"),
    [
        ((4, 2, 1), "recompute", [FullAttentionSpec()], "tensor parallelism only"),
        ((2, 2, 2), "recompute", [FullAttentionSpec()], "tensor parallelism only"),
        ((2, 2, 1), "fail", [FullAttentionSpec()], "would fail its request"),
        (
            (1, 1, 1),
            "recompute",
            [FullAttentionSpec(), MambaSpec()],
            "keeps MambaSpec, which",
        ),
        ((1, 1, 1), "recompute", [], "keeps no layers"),
        ((1, 1, 1), "recompute", [MLAAttentionSpec()], "behind latents"),
    ],
)
def test_what_it_cannot_keep_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
    workers: tuple[int, int, int],
    policy: str,
    specs: list[Any],
    what: str,
) -> None:
    """Workers that share more than tensors, another policy, and other kinds of KV are each refused
    in one line when vLLM starts."""

    class Base:
        def __init__(self, *_: Any) -> None:
            pass

    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: True))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)  # type: ignore[arg-type]
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            world_size=workers[0],
            tensor_parallel_size=workers[1],
            decode_context_parallel_size=workers[2],
        ),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=False),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy),
    )
    groups = [SimpleNamespace(kv_cache_spec=one, layer_names=["a"]) for one in specs]
    with pytest.raises(BadInput, match=what) as told:
        type("It", (Connector, Base), {})(config, "role", SimpleNamespace(kv_cache_groups=groups))
    assert "\n" not in str(told.value)


@pytest.fixture
def vllms_stats(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for vLLM's base class of connector statistics."""

    class KVConnectorStats:
        def __init__(self, data: dict[str, float]) -> None:
            self.data = data

    module = SimpleNamespace(KVConnectorStats=KVConnectorStats)
    name = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
    monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    stats_class.cache_clear()
    yield
    stats_class.cache_clear()


@pytest.mark.usefixtures("vllms_stats")
def test_what_goes_between_processes_is_found_by_its_name() -> None:
    """vLLM's worker may be a separate process: each class that it sends or receives can be imported
    from its module on the other side, and a worker's counters add up with the scheduler's."""
    for kind in (stats_class(), Step, Report):
        assert getattr(sys.modules[kind.__module__], kind.__qualname__) is kind
    ours, other = stats_class()({"get_bytes": 1.0}), stats_class()({"get_bytes": 2, "put_done": 3})
    assert ours.aggregate(other).reduce() == {"get_bytes": 3.0, "put_done": 3}
