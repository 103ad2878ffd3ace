"""vLLM's adapters on the tier: is KV of one never read for another of the same name?"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from live_daemon import daemon, until
from vllm_bed import FULL, SIZES, Engine, engine, prompt

RANK = 8
LORA = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 2}


def save_adapter(folder: Path, seed: int) -> None:
    """Save a LoRA adapter for pycode-3m that changes its KV. Its weights depend on the seed; names,
    sizes and configuration do not."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    folder.mkdir(exist_ok=True)
    wide, weights = {"q_proj": 256, "k_proj": 64, "v_proj": 64}, {}
    generator = torch.Generator().manual_seed(seed)
    for layer in range(6):
        for name, width in wide.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes = {"lora_A": (RANK, 192), "lora_B": (width, RANK)}
            weights |= {
                f"{stem}.{part}.weight": 0.2 * torch.randn(shape, generator=generator)
                for part, shape in shapes.items()
            }
    safetensors.save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 16,
        "bias": "none",
        "target_modules": sorted(wide),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def stored(one: Engine, **more: Any) -> Any:
    """Return the prompt's answer once all of its blocks are on the tier."""
    until(lambda: one.ask(prompt(0), **more)["reused"] == [FULL])
    return one.ask(prompt(0), **more)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_an_adapter_of_the_same_name_with_other_weights_is_a_miss(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """Across paths, after a change in place under a running engine, and after a restart each answer
    is that of the weights that vLLM holds. KV of equal weights is shared under any path and name;
    KV without an adapter is not shared with an engine started without LoRA."""
    paths = [tmp_path / name for name in ("1", "2")]
    for seed, path in enumerate(paths):
        save_adapter(path, seed)
    first, second = (["sql", n + 1, str(path)] for n, path in enumerate(paths))
    with engine(python, model, tmp_path, None, LORA) as alone:
        expected = [alone.ask(prompt(0), adapter=one)["tokens"] for one in (first, second)]
        plain = alone.ask(prompt(0))["tokens"]
    assert expected[0] != expected[1] != plain, "the adapters do something"
    with daemon(tmp_path, **SIZES) as tier:
        with engine(python, model, tmp_path, tier, LORA) as one:
            assert one.ask(prompt(0), adapter=first) == {"tokens": expected[0], "reused": [0]}
            assert stored(one, adapter=first)["tokens"] == expected[0]
            assert one.ask(prompt(0), adapter=second) == {"tokens": expected[1], "reused": [0]}
            assert stored(one, adapter=second)["tokens"] == expected[1]
            assert one.ask(prompt(0))["reused"] == [0] and stored(one)["tokens"] == plain
            time.sleep(0.1)
            save_adapter(paths[0], 1)  # now equal to the second one
            kept = one.ask(prompt(0), adapter=first)
            assert kept == {"tokens": expected[0], "reused": [0]}, "vLLM holds what it loaded"
        with engine(python, model, tmp_path, tier, LORA) as again:
            again_first = again.ask(prompt(0), adapter=["other", 7, first[2]])
            assert again_first == {"tokens": expected[1], "reused": [FULL]}, "equal weights"
            save_adapter(tmp_path / "3", 2)
            young = again.ask(prompt(0), adapter=["sql", 8, str(tmp_path / "3")])
            assert young["reused"] == [0]
            assert again.ask(prompt(0)) == {"tokens": plain, "reused": [FULL]}
        with engine(python, model, tmp_path, tier) as without:
            assert without.ask(prompt(0))["reused"] == [0], "other kernels, maybe"
