"""Does a real model decode from the tier on this device, and what does one of its steps cost?"""

import importlib.util
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_checks import Run, check

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
BLOCK_TOKENS = 64


@dataclass(frozen=True)
class Size:
    """A Llama with random weights: its shape, how much it reads, and its dtype."""

    config: Mapping[str, int]
    context_tokens: int
    steps: int
    dtype: str


LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LARGE = Size(LLAMA_8B, 131_072, 4, "bfloat16")
SMALL = Size(
    {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
    },
    1_024,
    4,
    "float32",
)
WEIGHT_SHARE = 0.9
"""Of the device's memory at most: model, dense KV, pool and the blocks in memory together."""


@check(point=6, kind="bench", needs=("torch", "msgspec"), device="either", limit_s=60)
def cost_of_a_decode_step(run: Run) -> dict[str, object]:
    """What does a layer of Llama-3-8B take here: projections, MLP, attention?"""
    from offstage.host.decode.calibrate import Plan, calibrate
    from offstage.host.model.models import geometry

    triton = not run.interpret and importlib.util.find_spec("triton") is not None
    large = geometry("llama-3-8b"), (4096, 14336), "bfloat16", (1, 16, 64), (2048, 8192)
    small = geometry("tiny"), (128, 448), "float32", (1, 2), (64, 128)
    shape, widths, dtype, batches, tokens = small if run.interpret else large
    cost = calibrate(
        Plan(
            shape,
            widths,
            "triton" if triton else "torch",
            run.device,
            dtype,
            batches,
            tokens,
            "CPU",
            "run_all.py",
            selectors=("quest", "quest8"),
            context_tokens=4_096 if run.interpret else 131_072,
        )
    )
    parts = {
        f"{part}_us_{row.batch}_sessions_{row.tokens}_tokens": getattr(row, f"{part}_ns") / 1e3
        for row in cost.rows
        for part in ("projection", "mlp", "attention")
    }
    return parts | {
        f"{row.selector}_us_{row.batch}_sessions_of_{row.context_tokens}": row.selection_ns / 1e3
        for row in cost.selection
    }


@check(
    point=5,
    needs=("torch", "transformers", "model", "firmware", "tomli_w"),
    device="cuda",
    limit_s=150,
)
def a_trained_model_decodes_from_the_tier(run: Run) -> dict[str, object]:
    """Does the given model, in float32, decode from the tier what its dense attention gives?"""
    from offstage.testbeds.capture.model import load, look

    assert run.model is not None
    loaded = load(look(run.model), run.device, "float32")
    text = "".join(path.read_text() for path in sorted((ROOT / "host").rglob("*.py")))
    tokens = list(loaded.tokenizer(text)["input_ids"])
    context = min(8_192, len(tokens) - 65) // BLOCK_TOKENS * BLOCK_TOKENS
    few, every = decode(run, loaded, tokens, context, 64).passes
    assert every.bit_equal is True and every.blocks_corrupt == 0
    run.aim("largest difference of a logit", every.logit_error_max, at_most=1e-3)
    run.aim("same most likely token", every.top1_agreement, at_least=1.0)
    return {
        "context_tokens": context,
        "perplexity": every.perplexity,
        "logit_error_max": every.logit_error_max,
        "share_read": few.share_read,
        "perplexity_few": few.perplexity,
        "hit_rate_few": few.hit,
        "predicted": [layer.predicted for layer in few.predicted],
        "step_before": [layer.step_before for layer in few.predicted],
    }


@check(point=7, needs=("torch", "transformers", "model"), device="either", limit_s=60)
def bounds_in_8_bits_select_the_same(run: Run) -> dict[str, object]:
    """Of the given model's selections by BF16 bounds, what do bounds in 8 bits select too?"""
    import numpy as np
    import torch

    from offstage.host.arrays import open_arrays
    from offstage.host.selection import select, selector
    from offstage.host.transformer.attention import installed
    from offstage.host.transformer.dense import DenseKv, kv_geometry
    from offstage.host.transformer.resident import ResidentAttention
    from offstage.testbeds.capture.model import load, look

    assert run.model is not None
    if run.device == "cpu":
        torch.set_num_threads(1)  # several threads wait for each other on a busy CPU
    loaded = load(look(run.model), run.device, "float32")
    text = "".join(path.read_text() for path in sorted((ROOT / "host").rglob("*.py")))
    tokens = list(loaded.tokenizer(text[:40_000])["input_ids"])
    context, steps = min(4_096 if run.interpret else 8_192, len(tokens) - 33) // 16 * 16, 32
    shape = kv_geometry("model", loaded.model.config, 16, "float32")
    kv, blocks = DenseKv(loaded.model, shape), range(context // 16)
    kv.prefill(tokens[:context], 512, lambda count: None)
    pairs = []
    for layer in range(shape.layer_count):
        keys = torch.from_numpy(kv.keys_of(kv.blocks(layer, 0, blocks), layer)).bfloat16().float()
        pairs.append([selector(name, shape, layer) for name in ("quest", "quest8")])
        for one in pairs[-1]:
            one.write(0, keys.numpy())
    chosen = {k: np.zeros((shape.layer_count, steps)) for k in (8, 16, 32, 64, 128)}

    class Watched(ResidentAttention):
        step = 0

        def attend(self, layer: int, query: Any, entry: Any, *more: Any) -> Any:
            scores = [one.scores(query.float().cpu().numpy()) for one in pairs[layer]]
            assert (scores[1] >= scores[0] - 1e-5 * np.abs(scores[0]).max()).all()
            for k, shares in chosen.items():
                exact, coded = (select(one[1:-4], k, 0, 0, one.size - 5) for one in scores)
                shares[layer, self.step] = np.isin(exact, coded).mean()
            return super().attend(layer, query, entry, *more)

    memory = open_arrays("torch", run.device)
    attention = Watched(
        memory, "torch", shape, lambda layer: kv.blocks(layer, 0, blocks), context + steps
    )
    with installed(loaded.model, attention) as decode:
        for attention.step in range(steps):
            attention.begin_token()
            decode(tokens[context + attention.step], context + attention.step)
    attention.close()
    return {
        "context_tokens": context,
        **{f"overlap_{k}_of_{len(blocks)}": float(one.mean()) for k, one in chosen.items()},
        "overlap_32_by_layer": [round(float(one), 4) for one in chosen[32].mean(1)],
        "overlap_32_worst_step": float(chosen[32].mean(0).min()),
    }


@check(
    point=5, needs=("torch", "transformers", "firmware", "tomli_w"), device="either", limit_s=300
)
def the_largest_model_decodes_from_the_tier(run: Run) -> dict[str, object]:
    """Is a model of Llama 3's shape at 128K the same from the tier as from memory, to the bit?"""
    import torch
    import transformers

    size = SMALL if run.interpret else LARGE
    config = transformers.LlamaConfig(
        **size.config, max_position_embeddings=262_144, rope_theta=500_000.0
    )
    loaded = random_model(config, size.dtype, run)
    kv_bytes = block_bytes(loaded) // BLOCK_TOKENS * len(loaded.model.model.layers)
    context = size.context_tokens
    if run.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        # Dense KV, a copy of it in memory, and a pool of the same size.
        room = (free - (1 - WEIGHT_SHARE) * total) / (3.5 * kv_bytes)
        while context > room:
            context //= 2
    ids = random.Random(3)
    tokens = [ids.randrange(3, 290) for _ in range(context + size.steps + 1)]
    summary = decode(run, loaded, tokens, context, size.steps)
    few, every = summary.passes
    assert every.bit_equal is True and every.share_read == 1.0
    assert few.blocks_corrupt == every.blocks_corrupt == 0
    return {
        "context_tokens": context,
        "dtype": size.dtype,
        "device": run.device,
        "logit_error_max": every.logit_error_max,
        "kl_max": every.kl_max,
        "top1_agreement": every.top1_agreement,
        "demands": every.demands,
        "share_read": few.share_read,
        "kl_mean_few": few.kl_mean,
        "token_ms_p50": few.token_ms_p50,
        "stall_ms_p50": few.stall_ms_p50,
    }


@check(
    point=5,
    needs=("torch", "transformers", "triton", "firmware", "tomli_w"),
    device="either",
    limit_s=150,
)
def recurrent_hybrids_decode_from_the_tier(run: Run) -> dict[str, object]:
    """Do Qwen3-Next and Kimi Linear decode from the tier and their states what memory gives?

    One session to the bit, again after a new start of the daemon from a checkpoint, and two in one
    pass; by the kernels of `--kernel triton`.
    """
    from offstage.testbeds.live.model.options import ALL_BLOCKS

    context, steps, size = (256, 2, 16) if run.interpret else (32_768, 8, BLOCK_TOKENS)
    every = context // size // 4
    figures: dict[str, object] = {"context_tokens": context}
    for kind in HYBRIDS:
        loaded, folder = hybrid(kind, run), run.folder / kind
        folder.mkdir()
        ids = random.Random(3)
        tokens = [ids.randrange(3, 290) for _ in range(2 * (context + steps + 1))]
        given = {
            "steps": steps,
            "context_tokens": (context,),
            "selections": (ALL_BLOCKS,),
            "kernel": "triton",
            "checkpoint_blocks": every,
        }
        each = given, given, given | {"sessions": 2}
        first, again, both = (decoded(run, folder, loaded, tokens, size, one, 4) for one in each)
        (one,), (other,), (pair,) = first.passes, again.passes, both.passes
        assert one.bit_equal is other.bit_equal is True, kind
        assert one.blocks_corrupt == other.blocks_corrupt == pair.blocks_corrupt == 0, kind
        assert again.states.returned_tokens == context - every * size, kind
        assert again.workload.prefill_blocks_written == again.states.checkpoints_written == 0, kind
        assert both.states.returned_tokens == again.states.returned_tokens, kind
        run.aim(f"KL beside dense attention, {kind}", one.kl_max, at_most=1e-2)
        run.aim(f"KL of two sessions together, {kind}", pair.kl_max, at_most=1e-2)
        figures |= {
            f"{kind}_state_bytes": one.state_bytes,
            f"{kind}_checkpoint_bytes": first.states.bytes_written,
            f"{kind}_logit_error_max": one.logit_error_max,
            f"{kind}_kl_max": one.kl_max,
            f"{kind}_kl_max_together": pair.kl_max,
            f"{kind}_token_ms_p50": one.token_ms_p50,
            f"{kind}_token_ms_p50_together": pair.token_ms_p50,
        }
    return figures


HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {"num_experts": 16},
    "kimi_linear": {"num_local_experts": 16},
}
"""With fewer experts than published, and one layer with KV in four; other sizes are published."""


def hybrid(kind: str, run: Run) -> Any:
    """Return the model with random weights: tiny under the interpreter, else of eight layers."""
    import transformers
    from tiny_models import CONFIGS
    from tiny_models import SMALL as TINY

    name, own = CONFIGS[kind]
    given = {**TINY, "head_dim": 16, **own, "max_position_embeddings": 4096}
    if not run.interpret:
        layers = [*["linear_attention"] * 3, "full_attention"] * 2
        given = {"num_hidden_layers": 8, "layer_types": layers, **HYBRIDS[kind]}
        given |= {"max_position_embeddings": 262_144, "bos_token_id": 1, "eos_token_id": 2}
        given |= {"pad_token_id": 0}
    config = getattr(transformers, name)(**given)
    return random_model(config, "float32" if run.interpret else "bfloat16", run)


def random_model(config: Any, dtype: str, run: Run) -> Any:
    """Return a model on the device, as if it had been loaded from a folder."""
    import torch
    import transformers

    from offstage.host.model.config import geometry_of
    from offstage.testbeds.capture.model import Loaded, Shape

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(run.device):
            model = transformers.AutoModelForCausalLM.from_config(config)
            model.eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    shape = Shape(
        run.folder,
        "random",
        config.model_type,
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.max_position_embeddings,
        config.vocab_size,
        "random",
        geometry_of(config.to_dict(), "random", "config.json"),
    )
    return Loaded(shape, model, SimpleNamespace(bos_token_id=None), dtype, ())


def block_bytes(loaded: Any) -> int:
    from offstage.host.transformer.dense import kv_geometry

    config, dtype = loaded.model.config, loaded.dtype
    return kv_geometry("model", config, BLOCK_TOKENS, dtype).block_bytes(0)


def decode(run: Run, loaded: Any, tokens: list[int], context: int, steps: int) -> Any:
    """Decode with a sixteenth of the blocks, then with all, from a store in the check's folder."""
    from offstage.testbeds.live.model.options import ALL_BLOCKS

    given = {
        "steps": steps,
        "context_tokens": (context,),
        "selections": (max(8, context // BLOCK_TOKENS // 16), ALL_BLOCKS),
        "kernel": "torch",
        "prefill_piece": 1024,
        "pool_ratio": 1.0,
        "predict": True,
    }
    return decoded(run, run.folder, loaded, tokens, BLOCK_TOKENS, given)


def decoded(
    run: Run,
    folder: Path,
    loaded: Any,
    tokens: list[int],
    block_tokens: int,
    given: Mapping[str, Any],
    contexts: int = 1,
) -> Any:
    """Decode by these options from a daemon with its store in `folder`, which may be there and has
    room for as many contexts."""
    from offstage.host.model.identity import Weights
    from offstage.host.transformer.dense import kv_geometry
    from offstage.testbeds.beds.daemon import serve
    from offstage.testbeds.live.model.options import ModelOptions
    from offstage.testbeds.live.model.run import decode_text
    from offstage.testbeds.progress import Silent

    shape = kv_geometry("model", loaded.model.config, block_tokens, loaded.dtype)
    payload, layers = shape.block_bytes(0), shape.layer_count
    (context,) = given["context_tokens"]
    stored = contexts * layers * (context // block_tokens + 8) * (payload + 4096)
    sections: dict[str, Any] = {
        "arena": {
            "size": max(64 << 20, min(4 << 30, stored // 4)),
            "payload": payload,
            "layers": layers,
            "block_tokens": block_tokens,
        },
        "storage": {
            "path": str(folder / "store.kv"),
            "size": (stored * 5 // 4 >> 22) + 65 << 22,
        },
        "store": {"segment": 4 << 20, "durable": False},
        "limits": {"sessions": 4, "context_tokens": context + 1024},
        "tenant": [{"name": "gpu"}],
    }
    # The daemon is a process of this checkout, with the packages that this process has.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, paths)])
    options = ModelOptions(model=folder, text=folder, device=run.device, **given)
    with serve(sections, folder) as tier:
        link = tier.at()
        with link.attached() as (control, fabric):
            made = Weights("made here", (), 0, 0, 0.0)
            return decode_text(options, loaded, made, tokens, link, control, fabric, Silent())
