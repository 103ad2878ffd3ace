"""Kernels compiled for an absent GPU: every launch is compiled instead of run.

Triton includes an assembler, so a machine without a GPU can produce GPU machine code. Run this file
as a separate process, without TRITON_INTERPRET: `python gpu_compile.py` compiles each kernel in the
shapes of the GPU run, and prints one line of JSON for each with its shared memory.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from offstage.host import gpu  # noqa: E402
from offstage.host.gpu import attention, bounds, scores, step  # noqa: E402
from offstage.host.model.layer_kv import LayerKv  # noqa: E402
from offstage.host.model.rows import row_of  # noqa: E402
from offstage.host.selection import SelectionRule  # noqa: E402

CAPABILITY = 90
TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.uint16: "u16",
    torch.int64: "i64",
    torch.int8: "i8",
}
DIVISIBLE = [["tt.divisibility", 16]]


class Compiler:
    """Replaces a kernel: a launch compiles it for the given arguments."""

    def __init__(self, function: Callable[..., Any], *parts: Callable[..., Any]) -> None:
        self.function, self.parts = function, parts

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *given: Any, **named: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        options = {key: named.pop(key) for key in ("num_warps", "num_stages") if key in named}
        kernel = gpu.compiled(self.function, *self.parts)
        arguments = dict(zip(kernel.arg_names, given, strict=False)) | named
        signature, constants, attributes = {}, {}, {}
        for index, name in enumerate(kernel.arg_names):
            value = arguments[name]
            if name in named or (isinstance(value, int) and value == 1):
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name], attributes[(index,)] = f"*{TYPES[value.dtype]}", DIVISIBLE
            elif isinstance(value, int):
                signature[name] = "i32"
                if value % 16 == 0:
                    attributes[(index,)] = DIVISIBLE
            else:
                signature[name] = "fp32"
        made = triton.compile(
            ASTSource(kernel, signature, constants, attributes),
            target=GPUTarget("cuda", CAPABILITY, 32),
            options=options,
        )
        said = {"kernel": self.function.__name__, "shared_bytes": made.metadata.shared}
        print(json.dumps({**said, **options, "cubin_bytes": len(made.asm["cubin"])}), flush=True)


def attention_shapes() -> None:
    """Llama's and DeepSeek's layers, as the launcher tiles them; blocks, and single tokens."""
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        keys = torch.empty((8, 8, 64, 128), dtype=dtype)
        latent = torch.empty((8, 1, 64, 576), dtype=dtype)
        tables = torch.zeros((2, 128), dtype=torch.int32)
        lengths = torch.zeros(2, dtype=torch.int32)
        for shape, pool, values in (
            ((2, 32, 128), keys, torch.empty_like(keys)),
            ((2, 128, 576), latent, latent[..., :512]),
        ):
            tiling = attention.tiling_of(pool.shape[3], pool.element_size(), splits=8)
            given = torch.empty(shape), pool, values, tables, tables, lengths
            sinks = torch.zeros(shape[1])
            for slots, more in ((None, None), (tables, None), (tables, sinks)):
                attention.attend(*given, slots=slots, sink_logits=more, tiling=tiling)


def row_shapes() -> None:
    """FP8 rows with scales, of Llama's heads and of DeepSeek's latent: 656 B."""
    tables = torch.zeros((2, 128), dtype=torch.int32)
    lengths = torch.zeros(2, dtype=torch.int32)
    for heads, q_heads, layer in (
        (8, 32, LayerKv("gqa", 8, 128)),
        (1, 128, LayerKv("mla", 1, 576, value_dim=512, rotary_dim=64)),
    ):
        row = row_of(layer, 0, "")
        blocks = torch.zeros((8, layer.planes, heads, 64, row.size_bytes), dtype=torch.uint8)
        numbers = blocks[..., : row.values].view(torch.float8_e4m3fn)
        pool = numbers[:, 0], numbers[:, -1, ..., : layer.value_dim or layer.head_dim]
        given = torch.empty((2, q_heads, layer.head_dim)), *pool, tables, tables, lengths
        tiling = attention.tiling_of(layer.head_dim, 1, splits=8)
        for slots in (None, tables):
            attention.attend(*given, slots=slots, scale_values=row.scale_values, tiling=tiling)


def selection_shapes() -> None:
    """128K tokens of Llama's blocks, and 8,192 blocks of a latent: bounds, scores, the best."""
    for dtype, heads, group, dim, blocks in (
        (torch.bfloat16, 8, 4, 128, 2048),
        (torch.float8_e4m3fn, 1, 128, 576, 8192),
    ):
        keys = torch.empty((8, heads, 64, dim), dtype=dtype)
        which = torch.zeros(4, dtype=torch.int32)
        rows = torch.zeros((2, blocks), dtype=torch.int32)
        for planes, stored in ((2, dtype), (2, torch.int8), (1, torch.float32)):
            table = bounds.Table.new(blocks, planes, heads, dim, stored, "cpu")
            bounds.summarise(keys, table, which, which, which, which)
            rule = SelectionRule(select_blocks=128)
            selected = step.Selected(2, blocks, 64, rule, 32, "cpu")
            selected.find(torch.empty((2, heads * group, dim)), table, rows)


if __name__ == "__main__":
    for module in (attention, bounds, scores, step):
        module.compiled = Compiler  # type: ignore[attr-defined]
    attention_shapes()
    row_shapes()
    selection_shapes()
