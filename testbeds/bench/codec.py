"""`offstage bench codec`: compression ratios and rates of KV, and the errors of lossy modes.

KV comes from two sources, and every row names its source: the synthetic KV of the demo's host,
and the cache of a real model that has read a text. Each layer's keys and values are cut into
blocks as the store has them and coded block by block, so that headers count. A ratio is bytes
after over bytes before and does not depend on the machine; rates are seconds of one core,
compared with memcpy and zlib on the same bytes in the same run, in turns. Both are `measured`.
The effect of `store.codec` on a store is `emulated`: see codec_store.py.
"""

import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.asic_model.codec import reference
from offstage.bindings import codec
from offstage.bindings.errors import RunFailed
from offstage.bindings.units import format_rate
from offstage.host.model import lossy
from offstage.host.model.drawn_kv import KvPools
from offstage.host.model.models import geometry
from offstage.testbeds.bench.codec_store import StoreFigures, store_row
from offstage.testbeds.bench.rows import BenchResult, Row
from offstage.testbeds.capture.kv import model_kv
from offstage.testbeds.live.demo_options import DOCUMENT
from offstage.testbeds.machine import Machine, machine

__all__ = [
    "HALVES",
    "CodecResult",
    "LossyFigures",
    "RateFigures",
    "RatioFigures",
    "Source",
    "bench_codec",
    "model_source",
    "ratio_rows",
    "rows_of",
    "synthetic_source",
]

SYNTHETIC_BLOCKS = 32
BLOCK_TOKENS = 64
STORE_DTYPES = ("bfloat16", "fp8_e4m3")
STORE_DRIVES = ("gen5-tlc", "qlc")
RATE_BYTES = 4 << 20
BLOCK_BYTES = 32 << 10
HALVES = ("K", "V")

Floats = npt.NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """KV and its source. `values`: float32 `[layers, 2, blocks, kv_heads, tokens, head_dim]`,
    keys then values; `label` names it in rows, `origin` tells how to reproduce it."""

    label: str
    kind: str
    values: Floats
    origin: dict[str, str | int]


class RatioFigures(msgspec.Struct, frozen=True):
    """One layer's keys or values in a dtype: coded size over size, in total and by KV head."""

    source: str
    dtype: str
    half: str
    layer: int
    ratio: float
    zlib_ratio: float
    heads: list[float] = []


class RateFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of KV a second, before coding, of one core."""

    source: str
    dtype: str
    encode_bytes_per_s: float
    decode_bytes_per_s: float
    memcpy_bytes_per_s: float
    zlib_encode_bytes_per_s: float = 0.0
    zlib_decode_bytes_per_s: float = 0.0
    block_bytes: int = 0


class LossyFigures(msgspec.Struct, frozen=True):
    """A lossy mode on bfloat16: size, and errors of nonzero values."""

    source: str
    half: str
    mode: str
    ratio: float
    relative_max: float
    relative_mean: float
    norm: float


class CodecResult(BenchResult, kw_only=True):
    """Ratios of every source and layer, rates, a store with and without, errors of lossy modes."""

    sources: list[dict[str, str | int]]
    ratios: list[RatioFigures]
    rates: list[RateFigures]
    store: list[StoreFigures]
    lossy: list[LossyFigures]
    machine: Machine
    rounds: int = 0

    def about(self) -> list[str]:
        memcpy = max(one.memcpy_bytes_per_s for one in self.rates)
        return [
            "ratios: coded size over size, least and most of the layers, against zlib level 6; "
            f"rates of {self.rates[0].source} against zlib level 1, {self.rounds} rounds; memcpy "
            f"of the same bytes {format_rate(memcpy)}; measured, seed {self.seed}",
            "synthetic: the KV of the demo, whose V has one exponent by construction",
            "** a store with store.codec against one without, blocks of 32 KiB: bytes read, a get "
            "alone, gets 16 at a time by one thread; emulated drive, real codec",
            "* lossy, never used by the store: size over bfloat16's, then mean and greatest error "
            "of values that are not zero, relative to themselves",
        ]


def synthetic_source(seed: int) -> Source:
    """Blocks of the demo's host, float16 by construction."""
    shape = geometry("demo")
    pools = KvPools(seed, shape)
    blocks = [
        pools.blocks(layer, range(1, SYNTHETIC_BLOCKS + 1), np.arange(SYNTHETIC_BLOCKS))
        for layer in range(shape.layer_count)
    ]
    values = np.stack(blocks).astype(np.float32).swapaxes(1, 2)
    origin: dict[str, str | int] = {
        "geometry": shape.name,
        "seed": seed,
        "blocks": SYNTHETIC_BLOCKS,
    }
    return Source("synthetic", "synthetic", np.ascontiguousarray(values), origin)


def model_source(model: Path, text: Path, tokens: int) -> Source:
    """The cache of a model after `tokens` tokens of a text, in blocks of 64."""
    tokens = tokens // BLOCK_TOKENS * BLOCK_TOKENS
    found = model_kv(model, text, tokens)
    layers, halves, heads, _, width = found.values.shape
    cut = found.values.reshape(layers, halves, heads, -1, BLOCK_TOKENS, width).swapaxes(2, 3)
    origin: dict[str, str | int] = {
        "model": found.model,
        "computed_as": found.computed_as,
        "config_sha256": found.config_sha256,
        "text": text.name,
        "text_sha256": found.text_sha256,
        "tokens": tokens,
    }
    return Source(found.model, "model", np.ascontiguousarray(cut), origin)


def as_dtype(values: Floats, dtype: str) -> npt.NDArray[Any]:
    """The bits of `values` in a dtype of the codec, rounded to nearest. FP8 is not scaled."""
    if dtype == "bfloat16":
        return lossy.to_bfloat16_lossy(values)
    if dtype == "float16":
        return values.astype(np.float16)
    return lossy.to_fp8_lossy(values, dtype)


def ratio_rows(source: Source) -> Iterator[RatioFigures]:
    """One row for each dtype, layer and half; `heads`: each KV head's part of the blocks coded
    separately, as a chip with a lane per head would. `RunFailed` if a block does not decode to
    its input."""
    for dtype in codec.DTYPES:
        bits = as_dtype(source.values, dtype)
        for layer, half in np.ndindex(bits.shape[:2]):
            blocks = [np.ascontiguousarray(block).tobytes() for block in bits[layer, half]]
            coded = [codec.encode(dtype, block) for block in blocks]
            _check(dtype, blocks, coded)
            raw = sum(map(len, blocks))
            yield RatioFigures(
                source=source.label,
                dtype=dtype,
                half=HALVES[half],
                layer=layer,
                ratio=sum(map(len, coded)) / raw,
                heads=[
                    _coded_share(dtype, bits[layer, half, :, head]) for head in range(bits.shape[3])
                ],
                zlib_ratio=sum(len(zlib.compress(block)) for block in blocks) / raw,
            )


def _coded_share(dtype: str, parts: npt.NDArray[Any]) -> float:
    data = [np.ascontiguousarray(part).tobytes() for part in parts]
    return sum(len(codec.encode(dtype, one)) for one in data) / sum(map(len, data))


def _check(dtype: str, blocks: list[bytes], coded: list[bytes]) -> None:
    """Every block decodes to its input, and the first equals the reference's output."""
    for block, one in zip(blocks, coded, strict=True):
        if codec.decode(one, len(block)) != block:
            raise RunFailed("a block did not decode to its input", "bench codec", "run the tests")
    if reference.encode(dtype, blocks[0]) != coded[0]:
        raise RunFailed("C and numpy produce different bytes", "bench codec", "run the tests")


def bench_codec(
    *,
    models: Sequence[Path] = (),
    text: Path | None = None,
    tokens: int = 4096,
    seed: int = 1,
    rounds: int = 5,
    say: Say = lambda _: None,
) -> CodecResult:
    """Ratios of every source, rates, and errors of lossy modes.

    `models` are folders in Hugging Face's format; each reads `text`, by default the demo's.
    Without one there is synthetic KV alone. Raises Missing("capture") for models without torch,
    BadInput for a text that is too short.
    """
    sources = [synthetic_source(seed)]
    for model in dict.fromkeys(models):
        say(f"{model.name} reads {tokens} tokens")
        sources.append(model_source(model, text or DOCUMENT, tokens))
    ratios = []
    for source in sources:
        say(f"ratios: {source.label}")
        ratios += list(ratio_rows(source))
    say("rates")
    rates = [_rate_row(sources[-1], dtype, rounds) for dtype in codec.DTYPES]
    say("a store on emulated drives, plain and coded")
    stores = [
        store_row(dtype, _blocks(sources[-1], dtype), drive, rounds)
        for dtype in STORE_DTYPES
        for drive in STORE_DRIVES
    ]
    lossy_rows = [row for source in sources for row in _lossy_rows(source)]
    return CodecResult(
        seed=seed,
        rounds=rounds,
        machine=machine(),
        sources=[{"label": one.label, "kind": one.kind, **one.origin} for one in sources],
        ratios=ratios,
        rates=rates,
        store=stores,
        lossy=lossy_rows,
        rows=rows_of(ratios, rates, stores, lossy_rows),
    )


def rows_of(
    ratios: list[RatioFigures],
    rates: list[RateFigures],
    stores: list[StoreFigures],
    lossy_rows: list[LossyFigures],
) -> list[Row]:
    """Compression ratios, least and most of all layers, and rates, against zlib; stores against
    uncompressed ones; lossy modes apart, with their errors."""
    layers: dict[str, list[RatioFigures]] = {}
    for one in ratios:
        layers.setdefault(f"{one.source} {one.dtype} {one.half}", []).append(one)
    rows = []
    for name, some in layers.items():
        ours, theirs = [one.ratio for one in some], [one.zlib_ratio for one in some]
        both = (min(ours), max(ours)), (min(theirs), max(theirs))
        rows.append(Row(name, "part", *both, sum(ours) / sum(theirs)))
    for rate in rates:
        for way, ours_per_s, zlib_per_s in (
            ("encode", rate.encode_bytes_per_s, rate.zlib_encode_bytes_per_s),
            ("decode", rate.decode_bytes_per_s, rate.zlib_decode_bytes_per_s),
        ):
            name = f"{way} {rate.dtype}"
            rows.append(Row(name, "bytes/s", ours_per_s, zlib_per_s, ours_per_s / zlib_per_s))
    for store in stores:
        coded, plain = store.coded, store.plain
        for what, unit, with_it, without in (
            ("bytes", "bytes", coded.read_bytes_per_block, plain.read_bytes_per_block),
            ("get", "seconds", coded.get_s, plain.get_s),
            ("gets/s", "count", coded.gets_per_s, plain.gets_per_s),
        ):
            name = f"{store.dtype} {store.drive} {what}**"
            rows.append(Row(name, unit, with_it, without, with_it / without))
    for mode in lossy_rows:
        errors = f"{mode.relative_mean:.2g}, {mode.relative_max:.2g}"
        name = f"{mode.source} {mode.half} {mode.mode}*"
        rows.append(Row(name, "part", mode.ratio, note=errors))
    return rows


def _blocks(source: Source, dtype: str) -> list[bytes]:
    """KV cut as by the daemon's default, whatever the geometry."""
    data = as_dtype(source.values, dtype).tobytes()[:RATE_BYTES]
    return [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]


def _rate_row(source: Source, dtype: str, rounds: int) -> RateFigures:
    """Bytes of KV (before coding) a second, of one core; memcpy and zlib at its fastest level."""
    blocks = _blocks(source, dtype)
    coded = [codec.encode(dtype, block) for block in blocks]
    packed = [zlib.compress(block, 1) for block in blocks]
    out = np.empty(codec.size_max(len(blocks[0])), np.uint8)
    views = [np.frombuffer(block, np.uint8) for block in blocks]
    target = np.empty(len(blocks[0]), np.uint8)

    def copy(block: npt.NDArray[np.uint8]) -> None:
        target[:] = block

    timed: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
        "encode": (lambda block: codec.encode_into(dtype, block, out), blocks),
        "decode": (lambda one: codec.decode_into(one, out), coded),
        "memcpy": (copy, views),
        "zlib_encode": (lambda block: zlib.compress(block, 1), blocks),
        "zlib_decode": (zlib.decompress, packed),
    }
    spent: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, (call, items) in timed.items():
            began = time.thread_time()
            for item in items:
                call(item)
            spent[name].append(time.thread_time() - began)
    size = sum(map(len, blocks))
    rates = {f"{name}_bytes_per_s": size / statistics.median(one) for name, one in spent.items()}
    return RateFigures(source.label, dtype, block_bytes=len(blocks[0]), **rates)


def _lossy_rows(source: Source) -> Iterator[LossyFigures]:
    """Size and errors of each lossy mode on bfloat16, over all layers of a half."""
    values = source.values
    exact = (as_dtype(values, "bfloat16").astype(np.uint32) << 16).view(np.float32)
    for half, name in enumerate(HALVES):
        for dtype in lossy.FP8:
            back = lossy.from_fp8(lossy.to_fp8_lossy(exact[:, half], dtype), dtype)
            yield _lossy_row(source.label, name, dtype, 8.0, exact[:, half], back)
        for per in ("channel", "token"):
            back, bits = lossy.int4_lossy(exact[:, half], per)
            yield _lossy_row(source.label, name, f"int4 per {per}", bits, exact[:, half], back)


def _lossy_row(
    source: str, half: str, mode: str, bits: float, exact: Floats, back: Floats
) -> LossyFigures:
    found = lossy.errors(exact, back)
    return LossyFigures(
        source=source,
        half=half,
        mode=mode,
        ratio=bits / 16,
        relative_max=found.relative_max,
        relative_mean=found.relative_mean,
        norm=found.norm,
    )
