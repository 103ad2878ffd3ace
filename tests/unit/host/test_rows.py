"""Are FP8 rows of the published sizes, as close as FP8 promises, and read by every kernel?"""

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.host.arrays import open_arrays
from offstage.host.attention import arrays_of, kernel
from offstage.host.model import formats
from offstage.host.model.entries import packed, unpacked, vectors_of
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.models import GEOMETRIES
from offstage.host.model.quantized_rows import rows_of
from offstage.host.model.rows import Row, row_of

LAYERS = {
    "K and V": LayerKv("gqa", 2, 20),
    "a window": LayerKv("window", 2, 32, window_tokens=64),
    "a latent": LayerKv("mla", 1, 48 + 16, value_dim=48, rotary_dim=16),
    "a latent of two scales": LayerKv("mla", 1, 160 + 8, value_dim=160, rotary_dim=8),
}
TOKENS, BLOCKS = 8, 6
KERNELS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(library) is None, reason="pip install '.[host]'"
        ),
    )
    for name, library in (("reference", "numpy"), ("numpy", "numpy"), ("torch", "torch"))
]


def scaled(layer: LayerKv) -> KvGeometry:
    return KvGeometry("t", 6, (layer,), TOKENS, "float32", scaled=True)


def drawn(*shape: int) -> np.ndarray:
    """Vectors of sizes that differ from token to token by orders of magnitude."""
    random = np.random.default_rng(3)
    sizes = np.exp(random.normal(0, 2, (*shape[:-1], 1)))
    found: np.ndarray = (sizes * random.standard_normal(shape)).astype(np.float32)
    return found


def from_bits(bits: np.ndarray) -> np.ndarray:
    """E4M3 by its definition (OCP OFP8 1.0), in float64."""
    sign, exponent, mantissa = bits >> 7, (bits >> 3 & 15).astype(int), (bits & 7) / 8
    size = np.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - 7), mantissa * 2.0**-6)
    return np.where(sign, -size, size)


def read(rows: np.ndarray, own: int, rotary: int) -> np.ndarray:
    """The vectors of rows by the layout as it is published, in float64."""
    scales = -(-own // 128) if rotary else 1
    found = from_bits(rows[..., :own])
    scale = rows[..., own : own + 4 * scales].copy().view("<f4").astype(np.float64)
    for at in range(own):
        found[..., at] *= scale[..., at // 128 if rotary else 0]
    halves = rows[..., own + 4 * scales :].copy().view("<u2").astype(np.uint32) << 16
    return np.concatenate([found, halves.view("<f4").astype(np.float64)], axis=-1)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_published_models_rows_have_the_bytes_that_plans_count(name: str) -> None:
    """One layout for what is planned and what is stored: FlashMLA's 656 B of DeepSeek's latents
    among them."""
    shape = GEOMETRIES[name]
    try:
        found = replace(shape, scaled=True)
    except BadInput as error:
        assert "for which no FP8 row is built" in str(error) and "v4" in name
        return
    for number, layer in enumerate(found.layers):
        if not layer.has_entries:
            continue
        group = next(one for one in found.groups if number in one.layers and one.values)
        assert found.entry_bytes(number) == formats.entry_bytes(group, "fp8").high
        assert found.entry_bytes(number) == 656 or (layer.form, layer.head_dim) != ("mla", 576)
    growth = [formats.growth(one, "fp8").high for one in found.groups]
    assert found.bytes_per_token() == sum(growth)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_comes_back_is_within_half_a_step(kind: str) -> None:
    """Of 4 bits of a number, or of the smallest that the scale leaves; rotary values of 9 bits. Big
    neighbours in other tokens or behind another scale cost nothing."""
    row, layer = row_of(LAYERS[kind], 0, ""), LAYERS[kind]
    values = drawn(5, layer.head_dim)
    rows = row.pack(values)
    assert rows.shape == (5, row.size_bytes)
    back = np.empty(values.shape, np.float64)
    row.unpack(back, rows)
    np.testing.assert_allclose(back, read(rows, row.values, row.rotary), rtol=1e-6)
    error, own = np.abs(back - values), row.values
    for begin in range(0, own, row.scale_values):
        part = slice(begin, min(own, begin + row.scale_values))
        most = np.abs(values[:, part]).max(axis=1, keepdims=True)
        bound = np.abs(values[:, part]) * 2.0**-4 * 1.001 + most / 448 * 2.0**-10
        assert (error[:, part] <= bound).all() and error[:, part].any()
    assert (error[:, own:] <= np.abs(values[:, own:]) * 2.0**-8).all()


def test_a_vector_of_zeros_comes_back() -> None:
    row, back = Row(8, 4, 2), np.full((1, 10), np.nan, np.float32)
    row.unpack(back, row.pack(np.zeros((1, 10), np.float32)))
    assert not back.any()


@pytest.mark.parametrize("tokens", [False, True], ids=["blocks", "tokens"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_read_rows(name: str, kind: str, tokens: bool) -> None:
    """Is it softmax attention in float64 over what the rows hold, with sink logits and without,
    whatever stands beside the tokens that are read? Rows there are of NaN, scales too."""
    geometry, layer = scaled(LAYERS[kind]), LAYERS[kind]
    values = drawn(BLOCKS, *geometry.block_shape())
    storage = np.full((BLOCKS, geometry.block_bytes(0) + 12), 255, np.uint8)
    vectors = vectors_of(storage, geometry, 0)
    random = np.random.default_rng(5)
    tables = np.array([[4, 1, 2], [5, 0, 0]], np.int32)
    counts = np.array([[8, 3, 8], [5, 0, 0]], np.int32)
    slots = None
    if tokens:
        slots, counts = np.array([[7, 0, 3], [2, 0, 0]], np.int32), np.minimum(counts, 1)
    begins = np.zeros_like(tables) if slots is None else slots
    stored = packed(values, geometry, 0)
    places = [
        [(block, slice(begin, begin + count)) for block, begin, count in zip(*rows, strict=True)]
        for rows in zip(tables, begins, counts, strict=True)
    ]
    for block, span in (place for own in places for place in own):
        vectors[block, :, :, span] = stored[block, :, :, span]
    queries = random.standard_normal((2, 6, layer.head_dim)).astype(np.float32)
    arrays = open_arrays(arrays_of(name))
    for sinks in (None, random.standard_normal(6).astype(np.float32)):
        given = arrays.from_host(queries), arrays.from_host(storage), tables, counts, geometry
        found = arrays.to_host(kernel(name)(*given, 0, slots, sinks))
        for session, own in enumerate(places):
            parts = [stored[block, :, :, span] for block, span in own]
            held = read(np.concatenate(parts, axis=2), *_split(layer))
            held = held.repeat(6 // layer.kv_heads, axis=1)
            logits = np.einsum("hd,htd->ht", queries[session], held[0]) / layer.head_dim**0.5
            sink = np.full(6, -np.inf) if sinks is None else sinks.astype(np.float64)
            top = np.maximum(logits.max(axis=1), sink)[:, None]
            raw, taken = np.exp(logits - top), held[-1][..., : geometry.value_dim()]
            sums = raw.sum(axis=1, keepdims=True) + np.exp(sink[:, None] - top)
            expected = np.einsum("ht,htd->hd", raw / sums, taken)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found[session] / scale, expected / scale, atol=2e-5)


def _split(layer: LayerKv) -> tuple[int, int]:
    return layer.head_dim - layer.rotary_dim, layer.rotary_dim


@pytest.mark.parametrize("kind", LAYERS)
def test_torch_reads_the_same_bits(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")
    from offstage.host.arrays.torch_rows import unpack

    row, layer = row_of(LAYERS[kind], 0, ""), LAYERS[kind]
    rows = row.pack(drawn(5, 3, layer.head_dim))
    expected = np.empty((5, 3, layer.head_dim), np.float32)
    row.unpack(expected, rows)
    assert (unpack(row, torch.from_numpy(rows)).numpy() == expected).all()


def test_blocks_are_written_in_whole_logical_blocks() -> None:
    """A block that decoding filled row by row has the bytes of one that was quantized at once, and
    its keys are what attention reads."""
    geometry = replace(scaled(LAYERS["K and V"]), scaled=False)
    values = drawn(3, *geometry.block_shape())
    quantizer = rows_of(geometry, 512)
    assert quantizer.payload_bytes == 1024 > quantizer.block_bytes(0) == 2 * 2 * TOKENS * 24
    written = quantizer.quantize(0, values.reshape(3, -1).view(np.uint8))
    grown = np.full((3, 1024), 255, np.uint8)
    for token in range(TOKENS):
        one = packed(values[:, :, :, token], quantizer.geometry, 0)
        vectors_of(grown, quantizer.geometry, 0)[:, :, :, token] = one
    assert (quantizer.filled(0, grown) == written).all()
    assert not written[:, quantizer.block_bytes(0) :].any()
    back = np.empty(values.shape, np.float32)
    unpacked(back, vectors_of(written, quantizer.geometry, 0), quantizer.geometry, 0)
    assert (quantizer.keys(written) == back[:, 0]).all()
    assert np.linalg.norm(back - values) < 0.04 * np.linalg.norm(values)


REFUSED: dict[str, tuple[Any, str]] = {
    "compressed entries": (
        LayerKv("csa", 1, 512, tokens_per_entry=4, window_tokens=64),
        "csa entries, for which no FP8 row is built",
    ),
    "an odd head": (LayerKv("gqa", 2, 18), "scales of FP8 lie at multiples of 4 B"),
    "a latent without its rotary part": (
        LayerKv("mla", 1, 64, value_dim=48),
        "reads 48 of its 64 values in FP8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_layer_without_rows_is_refused(case: str) -> None:
    layer, says = REFUSED[case]
    with pytest.raises(BadInput, match=says):
        scaled(layer)
