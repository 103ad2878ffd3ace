"""SGLang on the tier: are its pages stored as by its own storage, and is every refusal clear?"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_daemon import Daemon, daemon, frozen, until
from sglang_bed import PAGE, Pool, config, in_sglang, opened

from offstage.bindings.errors import BadInput, OffstageError
from offstage.host.connectors.sglang import Storage

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("sglang"), limits__sessions="64") as running:
        yield running


def test_pages_are_kept_by_all_calls(tier: Daemon) -> None:
    """Every kind of lookup finds the stored pages, up to the first hole, with the right bytes."""
    pool, keys = Pool(), [f"{i:064x}" for i in range(6)]
    storage = opened(tier, pool)
    assert storage.batch_set(keys[:3], list(pool.pages[:3])) and storage.set(keys[4], pool.pages[4])
    assert storage.batch_exists(keys) == 3 and storage.exists(keys[4])
    assert not storage.exists(keys[3])
    got = storage.batch_get(keys)
    assert [one is not None for one in got] == [True] * 3 + [False, True, False]
    assert all(got[i] is None or torch.equal(got[i], pool.pages[i]) for i in range(6))
    target = pool.get_dummy_flat_data_page()
    assert storage.get(keys[1], target) is target and torch.equal(target, pool.pages[1])
    assert not storage.set("small", pool.pages[0][:-1]), "a page of another size"
    before, indices = pool.pages.clone(), torch.arange(6 * PAGE)
    assert storage.batch_set_v1([f"v/{i}" for i in range(6)], indices) == [True] * 6
    pool.pages.zero_()
    assert storage.batch_get_v1([f"v/{i}" for i in range(6)], indices) == [True] * 6
    assert torch.equal(pool.pages, before)
    storage.close()
    storage.close()


def test_a_frozen_daemon_makes_pages_absent(tier: Daemon) -> None:
    """While the daemon is frozen, each call ends at its deadline without pages; they are there
    again once it resumes."""
    pool, keys = Pool(), [f"f/{i}" for i in range(3)]
    storage = opened(tier, pool, extra={"patience_s": 0.3, "timeout_s": 60.0})
    assert storage.batch_set(keys, list(pool.pages[:3]))
    with frozen(tier):
        assert storage.batch_exists(keys) == 0 and storage.batch_get(keys) == [None] * 3
        assert storage._ready().counts()["get_late"] == storage._ready().counts()["look_late"] == 3
    until(lambda: storage.batch_exists(keys) == 3)
    until(lambda: all(one is not None for one in storage.batch_get(keys)))
    got = storage.batch_get(keys)
    assert all(
        one is None or torch.equal(one, page) for one, page in zip(got, pool.pages, strict=False)
    )
    storage.close()
    with pytest.raises(BadInput, match="write seconds above 0"):
        opened(tier, pool, extra={"patience_s": 0})


def test_other_ranks_types_and_models_find_nothing(tier: Daemon) -> None:
    """A page of another rank, type or model is absent; one of a latent is the same in all ranks of
    tensor parallelism."""
    pool = Pool()
    first = opened(tier, pool)
    assert first.set("k", pool.pages[0])
    others = [
        ({"tp_rank": 1}, pool),
        ({"model_name": "n"}, pool),
        ({}, Pool(torch.float16)),
        ({"is_mla_model": True}, pool),
    ]
    for more, memory in others:
        other = opened(tier, memory, **more)
        assert other.get("k") is None and not other.exists("k")
        other.close()
    latents = [opened(tier, pool, is_mla_model=True, tp_rank=rank) for rank in (0, 1)]
    assert latents[0].set("k", pool.pages[1]) and torch.equal(latents[1].get("k"), pool.pages[1])
    for one in (first, *latents):
        one.close()


def test_pages_are_of_the_models_files_and_of_what_computes_them(
    tier: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the model finds pages of the same name; a model with other weights, adapter files,
    KV dtype, quantization, kernels or LoRA misses them."""
    from offstage.host.connectors import sglang

    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(50))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/model.safetensors").write_bytes(bytes(49) + b"x")
    monkeypatch.setattr(sglang, "process_began_ns", lambda: 1 << 62)
    pool, usual = Pool(), {"model_path": str(tmp_path / "a"), "kv_cache_dtype": "auto"}

    def found(**changes: Any) -> bool:
        monkeypatch.setattr(sglang, "_server_args", lambda: SimpleNamespace(**usual | changes))
        storage = opened(tier, pool, extra={"weights_id": ""})
        there = storage.exists("files")
        assert storage.set("files", pool.pages[0])
        storage.close()
        return there

    lora = {"enable_lora": True, "lora_paths": [f"sql={tmp_path / 'b'}"]}
    assert [found(), found(model_path=str(tmp_path / "b"))] == [False, True]
    others = [
        {"model_path": str(tmp_path / "c")},
        {"kv_cache_dtype": "fp8"},
        lora,
        {"quantization": "fp8"},
        {"attention_backend": "x"},
    ]
    assert [found(**one) for one in others * 2] == [False] * len(others) + [True] * len(others)
    (tmp_path / "b/model.safetensors").write_bytes(b"other")
    assert not found(**lora)
    monkeypatch.setattr(sglang, "process_began_ns", lambda: 0)
    with pytest.raises(BadInput, match="start it again"):
        found()


def test_what_cannot_be_kept_is_refused_at_the_start(tier: Daemon) -> None:
    """A wrong setting, a missing model or daemon is one error when SGLang attaches its storage."""
    with pytest.raises(BadInput, match="unknown setting 'endpont'"):
        Storage(config(tier, extra={"endpont": "tcp://x"}))
    with pytest.raises(BadInput, match="weights_id"):
        opened(tier, Pool(), extra={"weights_id": ""}, model_name="org/nowhere")
    with pytest.raises(BadInput, match="no model name"):
        Storage(config(tier, model_name=None))
    with pytest.raises(OffstageError):
        opened(tier, Pool(), extra={"endpoint": "tcp://127.0.0.1:9", "timeout_s": 0.5})


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("failures", ["", "0.3"])
def test_sglangs_factory_makes_it(tier: Daemon, failures: str) -> None:
    """SGLang's factory loads the backend and stores pages with it as with its own files; with
    SGLang's faults injected it never gets wrong bytes."""
    # else a failed set would leave another run's page
    extra = config(tier).extra_config | {"model": f"tiny {failures}"}
    more = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": failures} if failures else {}
    extra |= {} if failures else {"interface_v1": 1}
    found = in_sglang("sglang_storage.py", extra, **more)
    assert found["ours"]["wrong"] == 0
    if not failures:
        assert found["ours"] == found["file"]
        assert found["ours"]["exists"] == 4 and found["ours"]["got"] == [True] * 4 + [False]
        assert found["v1_set"] == found["v1_get"] == [True, True] and found["v1_same"]
