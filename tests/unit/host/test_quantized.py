"""Do blocks in fewer bits come back as close as their types promise, and in as many bytes?"""

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.arrays.quantized import QuantizedArrays
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.quantized import HEAD_TYPES, BlockQuantizer, HeadType, head_bytes, uniform
from offstage.host.model.values import ValueType, narrowed, stored, widen

TOKENS, WIDTH, HEADS = 16, 8, 3
ROUNDING: dict[ValueType, float] = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def shape_of(value_type: ValueType = "float32", layers: int = 2) -> KvGeometry:
    return KvGeometry("t", 6, (LayerKv("gqa", HEADS, WIDTH),) * layers, TOKENS, value_type)


def drawn(geometry: KvGeometry, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Blocks, and their numbers in float32: one channel of K is loud, as in trained models."""
    values = np.random.default_rng(4).normal(size=(count, 2, HEADS, TOKENS, WIDTH))
    values[:, 0, :, :, 3] = 50 + 5 * values[:, 0, :, :, 3]
    numbers = narrowed(values.astype(np.float32), geometry.value_type)
    return numbers.reshape(count, -1).view(np.uint8), wide(numbers, geometry)


def wide(numbers: np.ndarray, geometry: KvGeometry) -> np.ndarray:
    found = np.empty(numbers.shape, np.float32)
    widen(found, numbers, geometry.value_type)
    return found


def back(quantizer: BlockQuantizer, layer: int, blocks: np.ndarray) -> np.ndarray:
    geometry = quantizer.geometry
    numbers = stored(quantizer.dequantize(quantizer.quantize(layer, blocks)), geometry.value_type)
    return wide(numbers.reshape(len(blocks), *geometry.block_shape()), geometry)


@pytest.mark.parametrize("value_type", ROUNDING)
@pytest.mark.parametrize("kind", HEAD_TYPES)
def test_what_comes_back_is_within_the_types_step(kind: HeadType, value_type: ValueType) -> None:
    """FP8 within half a step of a number of its size; integers within half a step of what shares
    one: a channel of K, a token of V. The model's own type comes back to the bit."""
    geometry = shape_of(value_type)
    blocks, values = drawn(geometry)
    quantizer = uniform(geometry, kind, 1)
    error = np.abs(back(quantizer, 0, blocks) - values)
    rounding = np.abs(values) * ROUNDING[value_type]
    if kind == "model":
        assert not error.any()
    elif kind.startswith("fp8"):
        most = np.abs(values).max(axis=(3, 4), keepdims=True)
        bits, smallest = (4, 2.0**-9 / 448) if kind == "fp8-e4m3" else (3, 2.0**-16 / 57344)
        assert (error <= np.abs(values) * 2.0**-bits * 1.001 + most * smallest + rounding).all()
    else:
        levels = 255 if kind == "int8" else 15
        for plane, axis in ((0, 2), (1, 3)):
            own = values[:, plane]
            spread = own.max(axis, keepdims=True) - own.min(axis, keepdims=True)
            bound = spread / levels * 0.51 + np.abs(own).max() * 2.0**-10 + rounding[:, plane]
            assert (error[:, plane] <= bound).all()
            assert error[:, plane].any()


def test_bytes_are_counted_scales_included() -> None:
    geometry = shape_of("bfloat16")
    count = TOKENS * WIDTH
    assert head_bytes(geometry, "model") == 4 * count
    assert head_bytes(geometry, "fp8-e4m3") == head_bytes(geometry, "fp8-e5m2") == 2 * (count + 4)
    assert head_bytes(geometry, "int8") == 2 * count + 4 * (WIDTH + TOKENS)
    assert head_bytes(geometry, "int4") == count + 4 * (WIDTH + TOKENS)
    quantizer = uniform(geometry, "int4", 512)
    assert quantizer.block_bytes(0) == HEADS * (1 + head_bytes(geometry, "int4"))
    assert quantizer.payload_bytes == -(-quantizer.block_bytes(0) // 512) * 512
    quantized = quantizer.quantize(0, drawn(geometry)[0])
    assert (
        quantized.shape[1] == quantizer.payload_bytes
        and not quantized[:, quantizer.block_bytes(0) :].any()
    )


def test_heads_of_several_types_and_blocks_of_several_layers_are_read_together() -> None:
    """Each head comes back as in a block of its type alone."""
    geometry = shape_of()
    blocks, _ = drawn(geometry)
    mixed: tuple[tuple[HeadType, ...], ...] = (
        ("int4", "model", "fp8-e4m3"),
        ("int8", "int8", "int4"),
    )
    quantizer = BlockQuantizer(geometry, mixed, 4096)
    quantized = np.concatenate([quantizer.quantize(layer, blocks) for layer in (1, 0)])
    found = (
        quantizer.dequantize(quantized)
        .view(np.float32)
        .reshape(2, len(blocks), *geometry.block_shape())
    )
    for place, layer in enumerate((1, 0)):
        for head, kind in enumerate(mixed[layer]):
            alone = back(uniform(geometry, kind, 1), 0, blocks)[:, :, head]
            assert (found[place][:, :, head] == alone).all()
    assert (quantizer.keys(quantized) == found.reshape(-1, *geometry.block_shape())[:, 0]).all()


def test_what_is_no_coded_block_is_read_as_zeros() -> None:
    """A row in which nothing has landed, or anything at all: no error, and no number."""
    quantizer = uniform(shape_of(), "int8", 512)
    rows = np.zeros((3, quantizer.payload_bytes), np.uint8)
    rows[1] = 255
    rows[2] = quantizer.quantize(0, drawn(quantizer.geometry, 1)[0])
    found = quantizer.dequantize(rows)
    assert not found[:2].any() and found[2].any()
    assert quantizer.dequantize(rows[:0]).shape == (0, quantizer.geometry.block_bytes(0))


def test_a_block_that_cannot_hold_its_types_is_refused() -> None:
    geometry = shape_of()
    with pytest.raises(BadInput, match="needs 3,075 B a block"):
        BlockQuantizer(geometry, (("model",) * HEADS,) * 2, 3072)
    odd = KvGeometry("t", 2, (LayerKv("gqa", 2, 7),), TOKENS, "float32")
    with pytest.raises(BadInput, match="even head_dim"):
        uniform(odd, "int4", 512)


@pytest.mark.parametrize("value_type", [*ROUNDING, "float8_e4m3fn"])
@pytest.mark.parametrize("kind", HEAD_TYPES)
def test_a_device_gives_the_same_bits(kind: HeadType, value_type: ValueType) -> None:
    """torch's way back, on the CPU, for blocks of one type, of several, and for bytes that are no
    block."""
    torch = pytest.importorskip("torch", reason="needs the extra host")
    from offstage.host.arrays.torch_quantized import dequantize

    geometry = shape_of(value_type)
    blocks, _ = drawn(geometry)
    several: tuple[HeadType, ...] = (kind, "int4", kind)
    quantizer = BlockQuantizer(geometry, (several, (kind,) * HEADS), 4096)
    rows = np.concatenate([quantizer.quantize(layer, blocks) for layer in (1, 0)])
    rows[2], rows[7] = 255, 0
    for some in (rows, rows[3:4], rows[:0]):
        found = dequantize(quantizer, torch.from_numpy(some), some[:, :HEADS])
        assert (found.numpy() == quantizer.dequantize(some)).all()
    assert found.shape == (0, geometry.block_bytes(0))


def arrays_of(library: str) -> Arrays:
    """`batch`: a device of the tests that copies as late as it may."""
    if library == "numpy":
        return open_arrays()
    pytest.importorskip("torch", reason="needs the extra host")
    if library == "torch":
        return open_arrays("torch")
    from later_runtime import LaterBatchArrays

    return LaterBatchArrays()


@pytest.mark.parametrize("library", ["numpy", "torch", "batch"])
def test_what_lands_coded_is_attended_to_as_the_models_own(library: str) -> None:
    """By commit and by write; rows that are out leave too little room for others, and rows that
    are used again bring what landed last."""
    geometry = shape_of()
    quantizer = uniform(geometry, "int8", 512)
    blocks, _ = drawn(geometry, 5)
    quantized = quantizer.quantize(0, blocks)
    memory = QuantizedArrays(arrays_of(library), quantizer).memory(6, geometry.block_bytes(0), 3)
    assert memory.landing.shape == (3, quantizer.payload_bytes)
    rows = memory.land(np.array([4, 1], np.int32))
    assert rows is not None and memory.land(np.array([2, 3], np.int32)) is None
    memory.landing[rows] = quantized[:2]
    memory.commit(np.array([4, 1], np.int32), rows)
    memory.write(np.array([5], np.int32), quantized[2:3])
    again = memory.land(np.array([0, 3], np.int32))
    assert again is not None
    memory.landing[again] = quantized[3:]
    memory.commit(np.array([0, 3], np.int32), again)
    found = memory.read(np.array([4, 1, 5, 0, 3], np.int32))
    assert (found == quantizer.dequantize(quantized)).all()
    assert memory.land(np.arange(3, dtype=np.int32)) is not None
