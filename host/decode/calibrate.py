"""Measures what one layer of a decode step costs on this device, part by part.

The parts are what a layer does for one token of each session of a batch: the projections to query,
key and value and back, the gated MLP, and the paged kernel over blocks scattered in a pool, as it
is called in a decode step. Weights and KV are random; times do not depend on their values. Each
part is timed alone and warm, as the median of several runs; on a CUDA device with CUDA events. One
layer is in memory at a time. On request it also times selection over a context's blocks, as a
decode step does it with that kernel. Can fail: Missing without torch, BadInput for an absent device
or a layer without K and V, RunFailed when memory does not suffice.
"""

import copy
import datetime
import importlib.metadata
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offstage.bindings.errors import BadInput, Missing, RunFailed
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.attention import arrays_of, kernel
from offstage.host.decode.step_cost import FORMAT, CostRow, DecodeCost, SelectionRow
from offstage.host.gpu.selector import BatchBest, on_device, selectors_of
from offstage.host.model.geometry import KvGeometry
from offstage.host.selection import ScoreScale, SelectionRule, quantize, select, selector

__all__ = ["WIDTHS", "Plan", "calibrate"]

WIDTHS: dict[str, tuple[int, int]] = {"llama-3-8b": (4096, 14336), "llama-3-70b": (8192, 28672)}
"""Hidden width and width of the MLP, by geometry: config.json of meta-llama's models."""

REPEATS, REPEATS_MIN = 9, 3
SHORTEST_S, LONGEST_S = 2e-3, 2.0
"""Least time of one measurement, which repeats the call; limit for all measurements of a part."""
BATCH_MAX, TOKENS_MAX = 1 << 16, 1 << 24
"""Sessions of a batch, and tokens of a context."""
WRITTEN_BLOCKS = 32
"""Blocks written per batch when a context for selection is filled."""


@dataclass(frozen=True)
class Plan:
    """What to measure. `widths`: widths of hidden state and MLP."""

    geometry: KvGeometry
    widths: tuple[int, int]
    kernel: str
    device: str
    dtype: str
    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    processor: str
    """Name of the CPU."""
    command: str
    selectors: tuple[str, ...] = ()
    """Selectors to measure."""
    context_tokens: int = 131_072
    """Context of each session, for selection."""

    @property
    def steps(self) -> int:
        """How often `calibrate` reports progress."""
        return len(self.batches) * (len(self.tokens) + len(self.selectors))

    def check(self) -> None:
        """Raises BadInput for impossible numbers."""
        planes, *_ = self.geometry.block_shape(0)
        if planes != 2:
            raise BadInput(
                f"a layer of {self.geometry.name!r} stores latents, whose projections differ",
                "host calibrate",
                "calibrate a geometry whose layers store K and V",
            )
        for name in self.selectors:
            selector(name, self.geometry)
        if min(self.widths) < 1:
            raise BadInput("a width below 1", "host calibrate", "give 1 or up")
        for option, given, most in (
            ("--batch", self.batches, BATCH_MAX),
            ("--tokens", self.tokens, TOKENS_MAX),
            ("--context-tokens", (self.context_tokens,), TOKENS_MAX),
        ):
            wrong = [one for one in given if not 1 <= one <= most]
            if wrong:
                raise BadInput(str(wrong[0]), option, f"give 1 to {most:,}")


def calibrate(plan: Plan, advance: Callable[[int], None] = lambda count: None) -> DecodeCost:
    """Measure every batch at every number of tokens; `advance` is called after each row."""
    plan.check()
    if importlib.util.find_spec("torch") is None:
        raise Missing("host", "torch is not installed", "host calibrate")
    import torch

    arrays = open_arrays(arrays_of(plan.kernel), plan.device)
    open_arrays("torch", plan.device)  # where projections and MLP run
    seconds = _seconds_cuda if plan.device.startswith("cuda") else _seconds_cpu
    rows, selection = [], []
    try:
        with torch.inference_mode():
            layer = _Layer(plan)
            for batch in plan.batches:
                projection, mlp = layer.calls(batch)
                parts = seconds(projection), seconds(mlp)
                for tokens in plan.tokens:
                    attend = _attention(plan, arrays, batch, tokens)
                    found = [round(one * 1e9) for one in (*parts, seconds(attend))]
                    rows.append(
                        CostRow(
                            batch=batch,
                            tokens=tokens,
                            projection_ns=found[0],
                            mlp_ns=found[1],
                            attention_ns=found[2],
                        )
                    )
                    advance(1)
                for name in plan.selectors:
                    took = round(seconds(_selection(plan, batch, name)) * 1e9)
                    selection.append(
                        SelectionRow(
                            batch=batch,
                            context_tokens=plan.context_tokens,
                            selector=name,
                            selection_ns=took,
                        )
                    )
                    advance(1)
    except (MemoryError, RuntimeError) as error:
        # The allocator of a CPU has no class of its own for it.
        known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not known and "DefaultCPUAllocator" not in str(error):
            raise
        raise RunFailed(
            "not enough memory", plan.device, "give a smaller --batch or fewer --tokens"
        ) from None
    return _named(plan, rows, selection)


class _Layer:
    """The weights of one layer, and its computation for a batch of tokens."""

    def __init__(self, plan: Plan) -> None:
        import torch

        self._plan = plan
        self._options = {"dtype": getattr(torch, plan.dtype), "device": plan.device}
        shape, (hidden, mlp) = plan.geometry, plan.widths
        own = shape.layers[0]
        queries, pairs = shape.q_heads * own.head_dim, 2 * own.kv_heads * own.head_dim
        self._qkv = self._random(hidden, queries + pairs)
        self._out = self._random(queries, hidden)
        self._up, self._down = self._random(hidden, 2 * mlp), self._random(mlp, hidden)

    def calls(self, batch: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Projections and MLP of `batch` tokens."""
        import torch

        given = self._random(batch, self._plan.widths[0])
        attended = self._random(batch, self._out.shape[0])

        def projection() -> Any:
            return given @ self._qkv, attended @ self._out

        def mlp() -> Any:
            gate, up = (given @ self._up).chunk(2, dim=-1)
            return (torch.nn.functional.silu(gate) * up) @ self._down

        return projection, mlp

    def _random(self, rows: int, columns: int) -> Any:
        import torch

        return torch.randn(rows, columns, **self._options).mul_(rows**-0.5)


def _check_fits(plan: Plan, size_bytes: int) -> None:
    """MemoryError for more than this machine has: the system would hand it out, and then kill the
    process that touches it."""
    if plan.device == "cpu" and size_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    ):
        raise MemoryError


def _attention(plan: Plan, arrays: Arrays, batch: int, tokens: int) -> Callable[[], Any]:
    """The kernel over `tokens` tokens of each session, in scattered blocks."""
    shape = plan.geometry
    blocks = shape.block_count(tokens)
    _check_fits(plan, batch * blocks * shape.block_bytes(0))
    memory = arrays.memory(batch * blocks, shape.block_bytes(0), 1)
    pool = arrays.paged(memory.storage, shape.block_shape(0), shape.value_type)
    random = np.random.default_rng(0)
    some = random.standard_normal((1, *shape.block_shape(0)), dtype=np.float32)
    pool[:] = arrays.from_host(some)
    tables = random.permutation(batch * blocks).astype(np.int32).reshape(batch, blocks)
    counts = np.full((batch, blocks), shape.block_tokens, np.int32)
    counts[:, -1] = tokens - (blocks - 1) * shape.block_tokens
    head_dim = shape.layers[0].head_dim
    queries = random.standard_normal((batch, shape.q_heads, head_dim), dtype=np.float32)
    given, decode = arrays.from_host(queries), kernel(plan.kernel)
    return lambda: decode(given, memory.storage, tables, counts, shape, 0)


def _selection(plan: Plan, batch: int, name: str) -> Callable[[], Any]:
    """Scores of all blocks of each session, the best of them and the hint."""
    shape, rule, random = plan.geometry, SelectionRule(name), np.random.default_rng(0)
    keys = random.standard_normal((WRITTEN_BLOCKS, *shape.block_shape(0)[1:]), dtype=np.float32)
    blocks = shape.block_count(plan.context_tokens)
    _check_fits(plan, batch * blocks * shape.block_bytes(0) // shape.block_tokens)
    first = selectors_of(plan.kernel, plan.device)(name, shape)
    for begin in range(0, blocks, WRITTEN_BLOCKS):
        first.write(begin, keys[: blocks - begin])
    all_of = [first, *(copy.deepcopy(first) for _ in range(batch - 1))]
    head_dim = shape.layers[0].head_dim
    queries = list(random.standard_normal((batch, shape.q_heads, head_dim), dtype=np.float32))
    scales = [ScoreScale.fit(first.scores(queries[0]))] * batch
    if on_device(all_of):
        finder = BatchBest(
            all_of[0].summaries,
            batch,
            blocks,
            rule.select_blocks,
            rule.sink_blocks,
            rule.window_blocks,
        )
        return lambda: finder.find(all_of, queries, scales)

    def choose() -> None:
        for one, query, scale in zip(all_of, queries, scales, strict=True):
            scores = one.scores(query)
            select(scores, rule.top_blocks, rule.sink_blocks, rule.window_blocks, blocks)
            quantize(scores, scale)

    return choose


def _seconds_cpu(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    once = time.perf_counter() - begun
    calls = max(1, round(SHORTEST_S / max(once, 1e-9)))
    times: list[float] = []
    while len(times) < REPEATS and (sum(times) * calls < LONGEST_S or len(times) < REPEATS_MIN):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begun) / calls)
    return statistics.median(times)


def _seconds_cuda(call: Callable[[], Any]) -> float:
    import torch

    for _ in range(3):
        call()
    times: list[float] = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            call()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e4)
    return statistics.median(times)


def _named(plan: Plan, rows: Sequence[CostRow], selection: Sequence[SelectionRow]) -> DecodeCost:
    import torch

    shape = plan.geometry
    on_cuda = plan.device.startswith("cuda")
    name = torch.cuda.get_device_name(plan.device) if on_cuda else plan.processor
    versions = {one: importlib.metadata.version(one) for one in ("torch", "numpy")}
    if on_cuda:
        versions["cuda"] = str(torch.version.cuda)
    else:
        versions["threads"] = str(torch.get_num_threads())
    return DecodeCost(
        format=FORMAT,
        geometry=shape.name,
        q_heads=shape.q_heads,
        kv_heads=shape.layers[0].kv_heads,
        head_dim=shape.layers[0].head_dim,
        layer_count=shape.layer_count,
        block_tokens=shape.block_tokens,
        hidden=plan.widths[0],
        mlp=plan.widths[1],
        dtype=plan.dtype,
        value_type=shape.value_type,
        kernel=plan.kernel,
        device=name,
        versions=versions,
        command=plan.command,
        rows=tuple(rows),
        selection=tuple(selection),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
