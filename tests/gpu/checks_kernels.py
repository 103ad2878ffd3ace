"""Are the kernels right, and how close do they come to the memory's bandwidth?

The cases are those of the tests (tests/reference/gpu_cases.py): small under the interpreter, full
size on a GPU.
"""

import sys
from pathlib import Path
from typing import Any

from gpu_checks import Run, check

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

NEEDS = ("numpy", "torch", "triton")
SESSIONS, SELECTED, BLOCK_TOKENS = 64, 128, 64
TOKENS = 2048
"""Single tokens of a session, of SELECTED * BLOCK_TOKENS: index_topk of DeepSeek-V3.2."""


@check(point=1, device="either", needs=NEEDS, limit_s=150)
def attention_is_right(run: Run) -> dict[str, object]:
    """Is paged attention dense softmax, in every type, over blocks and tokens, with sinks too?"""
    import numpy as np
    from gpu_cases import (
        ERROR_MAX,
        Shape,
        attention_case,
        by_token,
        poisoned,
        relative_error,
        with_sinks,
    )

    random = np.random.default_rng()  # fresh inputs with every run; the seed is in the figures
    seed = int(random.integers(1 << 30))
    if run.interpret:
        shapes = [Shape(2, 4, 32, 16), Shape(1, 5, 24, 7, value_dim=16)]
        many = [[3, 0, 1]]
    else:
        shapes = [
            Shape(8, 4, 128, 64),
            Shape(3, 1, 80, 5),
            Shape(1, 128, 576, 64, value_dim=512),
            Shape(1, 7, 72, 33, value_dim=64),
        ]
        many = [[1], [0, 40, 3, 17], [int(one) for one in random.integers(0, 24, 64)]]
    errors: dict[str, float] = {}
    for value_type, limit in ERROR_MAX.items():
        worst = 0.0
        for shape in shapes:
            for widths in many:
                whole = attention_case(shape, value_type, widths, seed)
                tokens = by_token(whole, 20 if run.interpret else 300, seed)
                for case in (whole, tokens, with_sinks(whole, seed), with_sinks(tokens, seed)):
                    with poisoned():
                        found = case.run(run.device)
                    worst = max(worst, relative_error(found, case.expected()))
        assert worst < limit, f"{value_type}: error {worst:.3g}, seed {seed}"
        errors[f"error_{value_type}"] = worst
    return {**errors, "seed": seed}


@check(point=1, device="either", needs=NEEDS, limit_s=60)
def selection_is_right(run: Run) -> dict[str, object]:
    """Are bounds, scores, the best blocks and their runners-up those of the host's selectors?"""
    import numpy as np
    import torch
    from gpu_cases import numbers_of, poisoned

    from offstage.host.gpu.bounds import Table, summarise
    from offstage.host.gpu.scores import best, score
    from offstage.host.model.outward import rounded_outwards
    from offstage.host.selection import ScoreScale, quantize, select

    seed = int(np.random.default_rng().integers(1 << 30))
    draw = torch.Generator().manual_seed(seed)
    blocks, heads, group, dim = (9, 2, 3, 24) if run.interpret else (2049, 8, 4, 128)
    worst = 0.0
    kinds = torch.bfloat16, torch.float8_e4m3fn
    for dtype, stored in [(one, one) for one in kinds] + [(one, torch.int8) for one in kinds]:
        keys = torch.randn((blocks, heads, 16, dim), generator=draw).to(dtype)
        queries = torch.randn((3, heads * group, dim), generator=draw)
        lengths = torch.tensor([blocks, 0, blocks - 2], dtype=torch.int32)
        rows = torch.randperm(blocks, generator=draw).int()
        numbers, on = keys.float(), [one.to(run.device) for one in (queries, lengths, rows)]
        table = Table.new(blocks, 2, heads, dim, stored, run.device)
        begin = torch.zeros(blocks, dtype=torch.int32, device=run.device)
        which = torch.arange(blocks, dtype=torch.int32, device=run.device)
        pool = keys.to(run.device)
        summarise(pool, table, which, on[2], begin, begin + 9)
        summarise(pool, table, which, on[2], begin + 9, begin + 7)
        held = torch.from_numpy(numbers_of(table))[rows.long()]
        low, high = numbers.amin(2).numpy(), numbers.amax(2).numpy()
        if stored == torch.int8:
            low, high = rounded_outwards(low, high)
        assert (held[:, 0].numpy() == low).all() and (held[:, 1].numpy() == high).all()
        with poisoned():
            scores = score(on[0], table, on[2].repeat(3, 1), on[1])
        one = torch.ones(3, device=run.device)
        found = best(scores, on[1], 8, 5, 1, 2, one, one)
        expected = _bounds(queries, held, group)
        for session, length in enumerate(lengths.tolist()):
            own = scores[session].cpu().numpy()
            if length:
                error = np.abs(own[:length] - expected[session, :length].numpy()).max()
                worst = max(worst, float(error / expected[session].abs().max()))
            first = select(own, 5, 1, 2, length)
            more = np.setdiff1d(select(own, 10, 1, 2, length), first)
            row = found.ordinals[session].cpu().numpy()
            assert row[: first.size].tolist() == first.tolist(), f"session {session}, seed {seed}"
            assert row[8 : 8 + more.size].tolist() == more.tolist(), f"seed {seed}"
            levels = found.levels[session].cpu().numpy()[:length]
            # The device may round a product and a sum at once, where the host rounds twice.
            gap = levels.astype(int) - quantize(own[:length], ScoreScale(1.0, 1.0)).astype(int)
            assert np.abs(gap).max(initial=0) <= 1, f"levels, seed {seed}"
    assert worst < 1e-4, f"error of scores {worst:.3g}, seed {seed}"
    return {"error_scores": worst, "seed": seed}


def _bounds(queries: Any, held: Any, group: int) -> Any:
    """The sum over channels of max(q * min, q * max), mean over the query heads, in float64."""
    grouped = queries.double().unflatten(1, (held.shape[2], group))
    low = (grouped.clamp(max=0).sum(2)[:, None] * held[None, :, 0]).sum((2, 3))
    high = (grouped.clamp(min=0).sum(2)[:, None] * held[None, :, 1]).sum((2, 3))
    return (low + high) / queries.shape[1]


@check(point=1, device="cuda", needs=NEEDS, limit_s=60)
def the_kernel_of_the_seam_is_right(run: Run) -> dict[str, object]:
    """Does `--kernel triton` on this device give what the numpy reference gives?"""
    import numpy as np
    import torch

    from offstage.host.attention import kernel
    from offstage.host.model.models import geometry

    kind = geometry("demo")
    random = np.random.default_rng()
    storage = random.standard_normal((40, kind.block_bytes(0) // 2)).astype(np.float16)
    queries = random.standard_normal((3, kind.q_heads, 64), np.float32)
    tables = np.stack([random.permutation(40)[:12] for _ in range(3)]).astype(np.int32)
    counts = random.integers(0, 65, (3, 12)).astype(np.int32)
    rows = storage.view(np.uint8)
    on = torch.from_numpy(queries).cuda(), torch.from_numpy(rows).cuda()
    found = kernel("triton")(*on, tables, counts, kind, 0).cpu().numpy()
    expected = kernel("reference")(queries, rows, tables, counts, kind, 0)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    assert error < 1e-2
    return {"error": error}


def _pool(value_type: str, latent: bool) -> tuple[Any, ...]:
    """Keys, values, tables and counts of 64 sessions x 128 blocks of 64 tokens, scattered."""
    import torch

    dtype = getattr(torch, value_type)
    blocks = SESSIONS * SELECTED
    heads, dim = (1, 576) if latent else (8, 128)
    keys = torch.empty((blocks, heads, BLOCK_TOKENS, dim), dtype=dtype, device="cuda")
    values = keys[..., :512] if latent else torch.empty_like(keys)
    for pool in (keys,) if latent else (keys, values):
        for part in pool.split(1024):
            part.copy_(torch.randn(part.shape, device="cuda"))
    tables = torch.randperm(blocks, device="cuda").int().view(SESSIONS, SELECTED)
    counts = torch.full_like(tables, BLOCK_TOKENS)
    return keys, values, tables, counts, torch.full_like(tables[:, 0], SELECTED)


def _single(pool: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """The same pool by `TOKENS` single tokens of each session, scattered over its blocks; and their
    slots."""
    import torch

    keys, values, tables, *_ = pool
    drawn = [torch.randperm(SELECTED * BLOCK_TOKENS)[:TOKENS] for _ in range(SESSIONS)]
    places = torch.stack(drawn).cuda()
    blocks = tables.gather(1, places // BLOCK_TOKENS)
    counts, lengths = torch.ones_like(blocks), torch.full_like(tables[:, 0], TOKENS)
    return (keys, values, blocks, counts, lengths), (places % BLOCK_TOKENS).int()


def _attention_figures(
    run: Run, value_type: str, latent: bool, single: bool = False
) -> dict[str, object]:
    import torch
    from gpu_timing import copy_rate, seconds_of

    from offstage.host.gpu.attention import Tiling, attend, tiling_of

    pool, slots = _pool(value_type, latent), None
    keys = pool[0]
    queries = torch.randn((SESSIONS, 128 if latent else 32, keys.shape[3]), device="cuda")
    read_bytes = keys.numel() * keys.element_size() * (1 if latent else 2)
    if single:
        pool, slots = _single(pool)
        read_bytes = read_bytes * TOKENS // (SELECTED * BLOCK_TOKENS)
    roof = copy_rate(1 << 30)
    first = tiling_of(keys.shape[3], keys.element_size())
    tried = {"as chosen": first}
    for tokens, warps, stages in ((64, 4, 3), (64, 4, 5), (64, 8, 4), (128, 8, 3), (32, 4, 5)):
        for splits in (1, 4):
            wide = Tiling(tokens, first.heads, splits, warps, stages)
            tried[f"{tokens} tokens, {warps} warps, {stages} stages, {splits} splits"] = wide
    seconds: dict[str, float] = {}
    for name, tiling in tried.items():
        try:
            seconds[name] = seconds_of(
                lambda tiling=tiling: attend(queries, *pool, slots=slots, tiling=tiling)
            )
        except Exception as error:  # skip a tiling that does not fit the device
            if "resource" not in str(error).lower():
                raise
    fastest = min(seconds, key=lambda name: seconds[name])
    rates = {name: read_bytes / one / 1e9 for name, one in seconds.items()}
    run.aim("share of the copy bandwidth", rates["as chosen"] * 1e9 / roof, at_least=0.8)
    return {
        "gb_per_s": rates["as chosen"],
        "copy_gb_per_s": roof / 1e9,
        "read_bytes": read_bytes,
        "fastest": fastest,
        "gb_per_s_fastest": rates[fastest],
        "gb_per_s_by_tiling": rates,
    }


@check(point=1, kind="bench", needs=NEEDS, limit_s=90)
def attention_bandwidth_bfloat16(run: Run) -> dict[str, object]:
    """Does attention over selected blocks read them at 80 % of the copy bandwidth?"""
    return _attention_figures(run, "bfloat16", latent=False)


@check(point=1, kind="bench", needs=NEEDS, limit_s=90)
def attention_bandwidth_float8(run: Run) -> dict[str, object]:
    """Does attention over blocks of 8-bit numbers read them at 80 % of the copy bandwidth?"""
    return _attention_figures(run, "float8_e4m3fn", latent=False)


@check(point=1, kind="bench", needs=NEEDS, limit_s=90)
def attention_bandwidth_latent(run: Run) -> dict[str, object]:
    """How near to the copy bandwidth does attention over latents come, at 128 query heads?"""
    return _attention_figures(run, "bfloat16", latent=True)


@check(point=1, kind="bench", needs=NEEDS, limit_s=90)
def attention_bandwidth_tokens(run: Run) -> dict[str, object]:
    """How near to the copy bandwidth does attention over scattered single latents come?"""
    return _attention_figures(run, "bfloat16", latent=True, single=True)


@check(point=1, kind="bench", needs=NEEDS, limit_s=60)
def attention_beside_others(run: Run) -> dict[str, object]:
    """Is attention in place no slower than torch's over blocks gathered for it beforehand?"""
    import torch
    from gpu_timing import seconds_of

    from offstage.host.gpu.attention import attend

    keys, values, tables, counts, lengths = _pool("bfloat16", latent=False)
    queries = torch.randn((SESSIONS, 32, 128), device="cuda")
    own = seconds_of(lambda: attend(queries, keys, values, tables, counts, lengths))
    figures: dict[str, object] = {"ms": own * 1e3}
    flat = tables.long().flatten()
    gathered = [
        pool[flat].view(SESSIONS, SELECTED, 8, BLOCK_TOKENS, 128).transpose(1, 2).flatten(2, 3)
        for pool in (keys, values)
    ]
    narrow = queries.bfloat16()[:, :, None]
    dense = torch.nn.functional.scaled_dot_product_attention
    others = {"sdpa": lambda: dense(narrow, *gathered, enable_gqa=True)}
    # Each group's query heads are the rows of one product, which suits torch's kernels better.
    rows = narrow.view(SESSIONS, 8, 4, 128)
    others["sdpa_grouped"] = lambda: dense(rows, *gathered)
    for name, call in others.items():
        figures[f"ms_{name}"] = seconds_of(call) * 1e3
    least = min(float(str(figures[f"ms_{name}"])) for name in others)
    run.aim("time over torch's without its gather", own * 1e3 / least, at_most=1.0)
    expected = dense(rows, *gathered).reshape(SESSIONS, 32, 128).float()
    found = attend(queries, keys, values, tables, counts, lengths)
    assert float((found - expected).abs().max() / expected.abs().max()) < 2e-2
    del expected
    return {
        **figures,
        **_flashinfer(keys, values, tables, narrow),
        **_flash(keys, values, tables, narrow),
    }


def _flashinfer(keys: Any, values: Any, tables: Any, queries: Any) -> dict[str, object]:
    """FlashInfer's decode over the same pages, in its own layout of heads."""
    import torch
    from gpu_timing import seconds_of

    try:
        import flashinfer
    except ImportError as error:
        return {"flashinfer": f"skipped: {error}"}
    try:
        work = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(work, "HND")
        begins = torch.arange(0, tables.numel() + 1, SELECTED, dtype=torch.int32, device="cuda")
        last = torch.full((SESSIONS,), BLOCK_TOKENS, dtype=torch.int32, device="cuda")
        wrapper.plan(
            begins,
            tables.flatten(),
            last,
            32,
            8,
            128,
            BLOCK_TOKENS,
            q_data_type=queries.dtype,
            kv_data_type=keys.dtype,
        )
        narrow = queries[:, :, 0].contiguous()
        return {"ms_flashinfer": seconds_of(lambda: wrapper.run(narrow, (keys, values))) * 1e3}
    except Exception as error:
        return {"flashinfer": f"skipped: {type(error).__name__}: {error}"}


def _flash(keys: Any, values: Any, tables: Any, queries: Any) -> dict[str, object]:
    """FlashAttention's decode over pages of 256 tokens, with the heads inside each token."""
    import torch
    from gpu_timing import seconds_of

    try:
        from flash_attn import flash_attn_with_kvcache
    except ImportError as error:
        return {"flash_attn": f"skipped: {error}"}
    try:
        pages = [one.transpose(1, 2).reshape(-1, 256, 8, 128) for one in (keys, values)]
        table = torch.randperm(len(pages[0]), device="cuda").int().view(SESSIONS, -1)
        lengths = torch.full((SESSIONS,), SELECTED * BLOCK_TOKENS, device="cuda").int()
        one = queries.transpose(1, 2).contiguous()
        run = lambda: flash_attn_with_kvcache(  # noqa: E731
            one, *pages, cache_seqlens=lengths, block_table=table
        )
        return {"ms_flash_attn": seconds_of(run) * 1e3}
    except Exception as error:
        return {"flash_attn": f"skipped: {type(error).__name__}: {error}"}


@check(point=1, kind="bench", needs=NEEDS, limit_s=60)
def scoring_bandwidth(run: Run) -> dict[str, object]:
    """Does scoring 8,192 blocks x 8 heads take less than twice the time of reading the bounds?"""
    import torch
    from gpu_timing import copy_rate, seconds_of

    from offstage.host.gpu.bounds import Table
    from offstage.host.gpu.scores import best, score

    figures: dict[str, object] = {}
    blocks, rule = 8192, (128, 128, 1, 4)
    for sessions, bits in ((1, 16), (16, 16), (1, 8), (16, 8)):
        stored = torch.bfloat16 if bits == 16 else torch.int8
        table = Table.new(sessions * blocks, 2, 8, 128, stored, "cuda")
        table.numbers.copy_(torch.randn(table.numbers.shape, device="cuda") * 20)
        rows = torch.randperm(len(table.numbers), device="cuda").int().view(sessions, blocks)
        lengths = torch.full((sessions,), blocks, dtype=torch.int32, device="cuda")
        queries = torch.randn((sessions, 32, 128), device="cuda")
        read = seconds_of(lambda table=table.numbers: table.sum(dtype=torch.float32))
        scores, ones = score(queries, table, rows, lengths), torch.ones(sessions, device="cuda")
        times = {
            "read": read,
            "score": seconds_of(lambda given=(queries, table, rows, lengths): score(*given)),
            "best": seconds_of(lambda given=(scores, lengths, *rule, ones, ones): best(*given)),
        }
        name = f"{sessions}_sessions_{bits}_bits"
        figures |= {f"us_{what}_{name}": one * 1e6 for what, one in times.items()}
        read_bytes = table.numbers.nbytes + (table.exponents.nbytes if table.groups else 0)
        figures[f"gb_per_s_{name}"] = read_bytes / times["score"] / 1e9
        # Summing bytes may be slower than reading them, so the roof is the copy's bandwidth.
        roof = read if bits == 16 else read_bytes / copy_rate(1 << 30)
        figures[f"us_roof_{name}"] = roof * 1e6
        run.aim(f"scoring over reading, {name}", times["score"] / roof, at_most=2.0)
    return figures


@check(point=1, kind="bench", needs=NEEDS, limit_s=30)
def summary_bandwidth(run: Run) -> dict[str, object]:
    """How long do the bounds of a token of each of 64 sessions take, and those of whole blocks?"""
    import torch
    from gpu_timing import seconds_of

    from offstage.host.gpu.bounds import Table, summarise

    keys = torch.randn((4096, 8, BLOCK_TOKENS, 128), device="cuda").bfloat16()
    which = torch.randperm(4096, device="cuda").int()
    none = torch.zeros_like(which)
    some, one = which[:64], none[:64] + 1
    figures: dict[str, object] = {}
    for bits, stored in ((16, torch.bfloat16), (8, torch.int8)):
        table = Table.new(4096, 2, 8, 128, stored, "cuda")
        given = keys, table, which, which, none, none + BLOCK_TOKENS
        whole = seconds_of(lambda given=given: summarise(*given))
        given = keys, table, some, some, 17 * one, one
        grown = seconds_of(lambda given=given: summarise(*given))
        figures[f"us_a_token_of_64_{bits}_bits"] = grown * 1e6
        figures[f"gb_per_s_whole_{bits}_bits"] = keys.numel() * 2 / whole / 1e9
    return figures
