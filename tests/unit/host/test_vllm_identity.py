"""Which identity does the vLLM connector give KV, and when does it share nothing?"""

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.connectors.vllm import _client_of, _threads


def config_of(model: str, extra: dict[str, Any], **more: Any) -> Any:
    """Return the parts of vLLM's configuration that determine the identity of KV."""
    text = json.dumps({"rope_theta": more.pop("rope_theta", 1), "_name_or_path": model})
    fields: dict[str, Any] = {
        "model": model,
        "dtype": "bf16",
        "quantization": None,
        "revision": None,
        "model_weights": "",
        "hf_config": SimpleNamespace(to_json_string=lambda: text),
    }
    fields |= {name: more.pop(name) for name in tuple(more) if name in fields}
    load = {"load_format": "auto", "download_dir": None}
    load |= {name: more.pop(name) for name in tuple(more) if name in load}
    kv = SimpleNamespace(cache_dtype=more.pop("cache_dtype", "auto"))
    kernels = {
        f"{name}_config": SimpleNamespace(compute_hash=lambda text=text: text)
        for name, text in more.items()
    }
    return SimpleNamespace(
        model_config=SimpleNamespace(**fields),
        load_config=SimpleNamespace(**load),
        cache_config=kv,
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
        **kernels,
    )


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Stand in for vLLM; return the identity that an object client gets for a configuration."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    platform = SimpleNamespace(is_cpu=lambda: False, device_name="some GPU")
    names = {
        "vllm": SimpleNamespace(__version__="0.32.0"),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
        "torch": SimpleNamespace(__version__="2"),
    }
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    monkeypatch.setattr("offstage.host.connectors.vllm.process_began_ns", lambda: 1 << 62)
    told: list[str] = []
    monkeypatch.setattr(
        "offstage.host.connectors.vllm.ObjectClient",
        lambda where, *, model, layout, late: told.append(layout),
    )

    def layout(model: Path, **more: Any) -> str:
        _client_of(config_of(str(model), more.pop("extra", {}), **more), "layers")
        return told.pop()

    return layout


def test_what_kv_is_of_is_weights_and_all_that_computes_it(
    layouts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a model gives the same identity. Other weights under the same configuration, path
    and revision, or other RoPE, KV dtype, quantization, kernels or LoRA give another."""
    model = tmp_path / "m"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(100))
    first = layouts(model)
    copy = Path(shutil.copytree(model, tmp_path / "n"))
    assert layouts(copy) == first
    others: list[dict[str, Any]] = [
        {"rope_theta": 2},
        {"cache_dtype": "fp8"},
        {"quantization": "awq"},
        {"dtype": "fp16"},
        {"lora": "on"},
        {"attention": "other"},
        {"compilation": "eager"},
        {"kernel": "other"},
        {"load_format": "dummy"},
        {"extra": {"weights_id": "w"}},
    ]
    found = {layouts(model, **more) for more in others}
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    found.add(layouts(model))
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    times = (model / "model.safetensors").stat()
    (model / "model.safetensors").write_bytes(bytes([1]) * 100)
    os.utime(model / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    found.add(layouts(model))
    assert len(found | {first}) == len(others) + 3


@pytest.mark.parametrize("value", [None, False, 0, ["w"], "two\nlines"])
def test_weights_are_named_by_text_alone(value: Any, layouts: Any, tmp_path: Path) -> None:
    """A setting that a template leaves `null` would be one name for all weights: is it refused?"""
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    for name in ("weights_id", "model"):
        with pytest.raises(BadInput, match=f"{name} is .*; write it as text in quotes"):
            layouts(tmp_path, extra={name: value})


def test_how_many_threads_count_and_not_on_which_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines bound to different halves of a machine share; engines with more or fewer threads do
    not."""
    found = []
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for bound in ("0-3", "4-7", "4,5,6,7", "0-2", "0-3|4-7", "auto", "nobind"):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bound)
        found.append(_threads())
    assert found[0] == found[1] == found[2] and len(set(found)) == 5
    assert found[-1] == "nobind 3"


@pytest.mark.parametrize("invariant", ["0", "1"])
def test_the_log_says_when_a_hit_changes_nothing(
    invariant: str,
    layouts: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line has the identity of KV and the cost of reading it; another says whether a hit can
    change a token."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", invariant)
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    layouts(tmp_path)
    cost, condition = caplog.messages
    assert "KV is of the weights" in cost and "1 files, 0 MB" in cost and " s)" in cost
    assert ("a hit changes no token" if invariant == "1" else "a hit can change") in condition


def test_no_daemon_and_an_unknown_version_are_a_line_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If no daemon answers yet, vLLM starts without the tier, says so, and goes on trying. Where
    nothing says what KV is of it does not. An untried version is logged, and an unknown setting is
    refused."""
    platform = SimpleNamespace(is_cpu=lambda: False, device_name="some GPU")
    names = {
        "vllm": SimpleNamespace(__version__="9.9.9+cpu"),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
    }
    names["torch"] = SimpleNamespace(__version__="2")
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    extra: dict[str, Any] = {"endpoint": "tcp://127.0.0.1:9", "timeout_s": 0.5, "choose": False}
    config = config_of("m", extra | {"weights_id": "w"})
    early = _client_of(config, "layers")
    assert early is not None and early.away
    early.close()
    untried, named, away, *_ = (one.getMessage() for one in caplog.records)
    assert "vLLM 9.9.9 was not tried" in untried and "called 'w'" in named
    assert "the tier is away" in away and "nothing listens there" in away and "\n" not in away
    caplog.clear()
    config = config_of("m", extra)
    assert _client_of(config, "layers") is None, "nothing says what KV is of"
    assert 'set "weights_id"' in caplog.messages[-1]
    assert "no tier until the engine is started again" in caplog.messages[-1]
    extra["endpont"] = "tcp://x"
    with pytest.raises(BadInput, match="unknown setting 'endpont'"):
        _client_of(config, "layers")
