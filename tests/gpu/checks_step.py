"""Is a decode step of CUDA graphs right, and what do Offstage's hooks add to it?"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from gpu_checks import Run, check

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

NEEDS = ("numpy", "torch", "triton")
SELECTED = 128
"""Blocks of 64 tokens that a layer reads of a session."""


@check(point=7, device="cpu", needs=("numpy",))
def share_of_bounds_computed(run: Run) -> dict[str, object]:
    """By the bytes, what does reading the bounds add to a step of Llama-3-8B at 128K tokens?"""
    figures: dict[str, object] = {}
    for sessions in (1, 4, 8, 16):
        for bits in (16, 8):
            share = _computed(sessions, 131_072, bits)
            figures[f"share_{sessions}_sessions_{bits}_bits"] = share
            if bits == 8:
                run.aim(f"computed share, {sessions} sessions, 8 bits", share, at_most=0.05)
    return figures


def _computed(sessions: int, context: int, bits: int) -> float:
    from step_bytes import layer_bytes

    from offstage.host.model.models import geometry

    widths = 4096, 14336
    given = geometry("llama-3-8b"), widths, sessions, context, SELECTED
    return layer_bytes(*given, bound_bytes=bits // 8).share


@check(point=7, device="either", needs=NEEDS, limit_s=60)
def a_step_of_graphs_is_right(run: Run) -> dict[str, object]:
    """Does a captured step attend to what was selected, after what was missing came in?"""
    from gpu_step import StepCase

    size = {} if run.interpret else {"kv_heads": 8, "group": 4, "head_dim": 128, "block_tokens": 64}
    blocks, select = (7, 5) if run.interpret else (120, 40)
    case = StepCase(2, blocks, 2, select, run.device, **size)
    case.forget(1, 0)
    lacking = case.run()
    assert [layer for layer, _ in lacking] == [1] and lacking[0][1][0][1].size == select
    assert case.run() == []
    worst = max(case.error(layer) for layer in range(2))
    assert worst < 1e-2
    return {"error": worst}


@check(point=7, kind="bench", needs=NEEDS, limit_s=180)
def hooks_of_a_step(run: Run) -> dict[str, object]:
    """Do selection, hint and checks cost 5 % of a step at most, where all blocks are in HBM?"""
    figures: dict[str, object] = {}
    sizes = (16, 32768), (64, 16384), (1, 131072), (4, 131072), (8, 131072), (16, 131072)
    for (sessions, context), bits in itertools.product(sizes, (16, 8)):
        times = _step_times(sessions, context, bits)
        name = f"{sessions}x{context // 1024}k_{bits}_bits"
        figures[f"computed_{name}"] = _computed(sessions, context, bits)
        figures |= {f"ms_{what}_{name}": one * 1e3 for what, one in times.items()}
        for what in ("hooks", "selection_and_hooks"):
            figures[f"cost_{what}_{name}"] = times[what] / times["step"] - 1
        cost = times["selection_and_hooks"] / times["step"] - 1
        run.aim(f"cost of selection, hint and checks, {name}", cost, at_most=0.05)
    return figures


def _step_times(sessions: int, context: int, bits: int) -> dict[str, float]:
    """Return seconds of a step of four layers of Llama-3-8B: as one graph over fixed tables; with
    hooks that find a selection made before; and with the selection too."""
    import torch
    from gpu_step import StepCase

    from offstage.host.gpu.step import Layer, Step

    model = _rest_of_a_layer(sessions)
    case = StepCase(
        sessions,
        context // 64,
        4,
        SELECTED,
        "cuda",
        kv_heads=8,
        group=4,
        head_dim=128,
        block_tokens=64,
        model=model,
        bounds=torch.int8 if bits == 8 else torch.bfloat16,
    )
    case.run()
    bare = Step([Layer(lambda: None, layer.after) for layer in case.layers], "cuda")
    outputs: list[Any] = case.outputs
    flags = torch.zeros(4, dtype=torch.bool, pin_memory=True)

    def hook(layer: int) -> None:
        """Do what an agent does if nothing is missing: look, take the hint, check an output."""
        assert not case.selected[layer].missing()
        case.selected[layer].hint.copy()
        flags[layer].copy_(outputs[layer - 1].isfinite().all(), non_blocking=True)

    return {
        "step": _median(lambda: bare.run(lambda layer: None)),
        "hooks": _median(lambda: bare.run(hook)),
        "selection_and_hooks": _median(lambda: case.step.run(hook)),
    }


def _rest_of_a_layer(sessions: int) -> Any:
    """Return the projections and MLP of one layer of Llama-3-8B, with random weights."""
    import torch

    def weights(rows: int, columns: int) -> Any:
        return torch.randn((rows, columns), device="cuda", dtype=torch.bfloat16) / 64

    attended = weights(4096, 4096)
    projected, gate, up, down = (
        weights(4096, 6144),
        weights(4096, 14336),
        weights(4096, 14336),
        weights(14336, 4096),
    )
    state = weights(sessions, 4096)
    out = torch.empty_like(state)

    def work() -> None:
        mixed = state @ attended
        spread = torch.nn.functional.silu(mixed @ gate) * (mixed @ up)
        out.copy_(spread @ down)
        out @ projected

    return work


def _median(call: Any) -> float:
    """Return the median seconds of a step, from its first launch until the device is done."""
    import statistics

    import torch

    times = []
    for number in range(25):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number >= 5:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)
