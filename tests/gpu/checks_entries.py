"""Are entries right that are no plain K and V: FP8 rows with scales, DeepSeek-V4's compressed ones?

The kernel is that of `--kernel triton`, by the seam that a decode step calls; the reference is the
seam's own in float64, over the same bytes. What is not read is NaN, or rows of 255.
"""

import sys
from pathlib import Path
from typing import Any

from gpu_checks import Run, check

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

NEEDS = ("numpy", "torch", "triton")


def _error(run: Run, queries: Any, storage: Any, *given: Any) -> float:
    """Of the kernel on the device, over the greatest output."""
    import torch
    from gpu_cases import poisoned, relative_error

    from offstage.host.attention import kernel

    on = torch.from_numpy(queries).to(run.device), torch.from_numpy(storage).to(run.device)
    with poisoned():
        found = kernel("triton")(*on, *given).cpu()
    return relative_error(found, torch.from_numpy(kernel("reference")(queries, storage, *given)))


@check(point=1, device="either", needs=NEEDS, limit_s=150)
def fp8_rows_with_scales_are_right(run: Run) -> dict[str, object]:
    """Is attention over FP8 rows softmax by each token's scales: K and V, latents, sinks?"""
    import numpy as np
    from gpu_cases import ERROR_MAX

    from offstage.host.model.entries import packed
    from offstage.host.model.geometry import KvGeometry
    from offstage.host.model.layer_kv import LayerKv

    seed = int(np.random.default_rng().integers(1 << 30))
    random = np.random.default_rng(seed)
    heads, rotary, dims, size, blocks = (
        (4, 16, (24, 48, 160), 16, 9) if run.interpret else (128, 64, (128, 512, 320), 64, 200)
    )
    latents = (LayerKv("mla", 1, n + rotary, value_dim=n, rotary_dim=rotary) for n in dims[1:])
    shape = KvGeometry(
        "rows", heads, (LayerKv("gqa", 2, dims[0]), *latents), size, "float32", scaled=True
    )
    figures: dict[str, object] = {"seed": seed}
    for layer in range(shape.layer_count):
        values = random.standard_normal((blocks, *shape.block_shape(layer)))
        values *= np.exp(random.normal(0, 1, (*values.shape[:4], 1)))
        content = packed(values, shape, layer).reshape(blocks, -1)
        storage = np.full((blocks, content.shape[1] + 64), 255, np.uint8)
        storage[:, : content.shape[1]] = content
        tables = np.stack([random.permutation(blocks)[: blocks // 2] for _ in range(3)])
        tables = tables.astype(np.int32)
        counts = random.integers(1, size + 1, tables.shape).astype(np.int32)
        dim = shape.layers[layer].head_dim
        queries = random.standard_normal((3, heads, dim), np.float32)
        slots = random.integers(0, size, tables.shape).astype(np.int32)
        sinks = random.standard_normal(heads, np.float32)
        ways = (counts, shape, layer), (np.minimum(counts, 1), shape, layer, slots, sinks)
        worst = max(_error(run, queries, storage, tables, *more) for more in ways)
        assert worst < ERROR_MAX["float8_e4m3fn"], f"layer {layer}: error {worst:.3g}, seed {seed}"
        figures[f"error_{shape.layers[layer].form}_{dim}"] = worst
    return figures


@check(point=1, device="either", needs=NEEDS, limit_s=150)
def a_window_beside_compressed_entries_is_right(run: Run) -> dict[str, object]:
    """Of DeepSeek-V4: is a window, with the entries selected or all, one softmax with its sinks?"""
    import numpy as np
    import torch
    from gpu_cases import ERROR_MAX

    from offstage.host.attention import block_tables
    from offstage.host.decode.attended import of_tokens, readable, slots_of, together
    from offstage.host.model.entries import vectors_of
    from offstage.host.model.geometry import KvGeometry
    from offstage.host.model.layer_kv import LayerKv

    seed = int(np.random.default_rng().integers(1 << 30))
    random = np.random.default_rng(seed)
    heads, dim, size, window, top_k, lengths = (
        (4, 64, 16, 40, 20, (112, 333))
        if run.interpret
        else (64, 512, 64, 128, 512, (8191, 40_000))
    )
    figures: dict[str, object] = {"seed": seed}
    for form, rate in (("csa", 4), ("hca", 128)):
        layer = LayerKv(
            "csa" if form == "csa" else "hca",
            1,
            dim,
            tokens_per_entry=rate,
            window_tokens=window,
            top_k=top_k if form == "csa" else 0,
        )
        shape = KvGeometry("v4", heads, (layer,), max(size, 2 * rate), "float32")
        shape = shape.in_tier(size, "bfloat16")
        read, tables, used = [], [], 0
        for tokens in lengths:
            own = readable(shape, 0, tokens, alone=True)
            there = np.arange(shape.block_count(tokens, 1), dtype=np.int32)
            entries = shape.entries(1, tokens)
            picked = np.arange(entries) if form == "hca" else random.permutation(entries)[:top_k]
            more = of_tokens(shape, np.sort(picked).astype(np.int32), there)
            in_window = shape.block_count(tokens, 0) - shape.first_block(0, tokens)
            read.append(together(own, more, in_window))
            tables.append(used + np.arange(in_window + there.size))
            used += in_window + there.size
        places = random.permutation(used).astype(np.int32)
        # NaN in bfloat16 wherever no token is read
        storage = np.full((used, shape.block_bytes(0)), 255, np.uint8)
        vectors = vectors_of(storage, shape, 0)
        for one, table in zip(read, tables, strict=True):
            drawn = torch.from_numpy(random.standard_normal((one.counts.size, dim), np.float32))
            bits = drawn.bfloat16().view(torch.uint8).numpy()
            where = places[table[one.entries]], 0, 0, one.slots
            vectors[where] = bits.view(vectors.dtype)
        named = block_tables(
            [places[table[one.entries]] for one, table in zip(read, tables, strict=True)]
        )
        counts, queries = block_tables([one.counts for one in read]), (len(lengths), heads, dim)
        sinks = random.standard_normal(heads, np.float32)
        given = named, counts, shape, 0, slots_of(read), sinks
        error = _error(run, random.standard_normal(queries, np.float32), storage, *given)
        assert error < ERROR_MAX["bfloat16"], f"{form}: error {error:.3g}, seed {seed}"
        figures[f"error_{form}"] = error
    return figures
