"""Do transfers keep the HBM pool fed, and do they overlap with computation?"""

from typing import Any

from gpu_checks import Run, check

__all__: list[str] = []

NEEDS = ("torch", "numpy")
BLOCK_BYTES = 64 << 10
BLOCKS, ROWS = 4096, 512
AIM = 0.85


def _rows(torch: Any) -> tuple[Any, Any]:
    storage = torch.zeros((BLOCKS, BLOCK_BYTES), dtype=torch.uint8, device="cuda")
    staging = torch.empty((ROWS, BLOCK_BYTES), dtype=torch.uint8, pin_memory=True)
    staging.copy_(torch.randint(0, 256, (ROWS, BLOCK_BYTES), dtype=torch.uint8))
    return storage, staging


@check(point=2, needs=NEEDS, limit_s=60)
def transfers_put_every_byte_in_its_place(run: Run) -> dict[str, object]:
    """Does each kind put what was staged into the blocks that were named, and no other?"""
    import numpy as np
    import torch

    from offstage.host.transfers.available import kinds

    done, absent = [], {}
    for kind in kinds(torch.device("cuda")):
        if kind.open is None:
            absent[kind.name] = kind.reason
            continue
        storage, staging = _rows(torch)
        storage.fill_(0xEE)
        transfer = kind.open(storage, staging)
        random = np.random.default_rng(2)
        places = random.permutation(BLOCKS)[:ROWS].astype(np.int64)
        for first in range(0, ROWS, 37):  # in many moves, the last of them shorter
            transfer.move(transfer.fence(), first, places[first : first + 37])
        got = storage[torch.from_numpy(places).cuda()].cpu()
        assert torch.equal(got, staging), f"{kind.name}: not what was staged"
        others = np.setdiff1d(np.arange(BLOCKS), places)
        rest = storage[torch.from_numpy(others).cuda()]
        assert bool((rest == 0xEE).all()), f"{kind.name}: a block that was not named changed"
        done.append(kind.name)
    return {"kinds": done, "absent": [f"{name}: {why}" for name, why in absent.items()]}


@check(point=2, kind="bench", needs=NEEDS, limit_s=60)
def transfer_bandwidth(run: Run) -> dict[str, object]:
    """Which share of one large pinned copy does each transfer reach, NIXL and GPUDirect too?"""
    import torch

    from offstage.host.arrays.fastest_transfer import chosen, measure

    device, figures = torch.device("cuda"), dict[str, object]()
    for size in (16 << 10, BLOCK_BYTES, 256 << 10):
        for one in measure(device, size):
            name = f"{one.name}_{size >> 10}_kib"
            figures[f"{name}_gb_per_s"], figures[f"{name}_share"] = (
                one.bytes_per_s / 1e9,
                one.share,
            )
            if one.reason:
                figures[f"{one.name}_absent"] = one.reason
    shares = [one.share for one in measure(device, BLOCK_BYTES)]
    run.aim("share of the pinned copy at 64 KiB", max(shares), at_least=AIM)
    return {**figures, "chosen": chosen(device, BLOCK_BYTES).name}


@check(point=2, kind="bench", needs=NEEDS, limit_s=60)
def transfers_beside_compute(run: Run) -> dict[str, object]:
    """How much of the copies is hidden behind a kernel that runs meanwhile?"""
    import numpy as np
    import torch
    from gpu_timing import seconds_of

    from offstage.host.arrays.fastest_transfer import chosen

    storage, staging = _rows(torch)
    kind = chosen(torch.device("cuda"), BLOCK_BYTES)
    assert kind.open is not None
    transfer = kind.open(storage, staging)
    places = np.random.default_rng(3).permutation(BLOCKS)[:ROWS].astype(np.int64)
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def compute() -> None:
        torch.mm(left, left)

    def move() -> None:
        transfer.move(transfer.fence(), 0, places)

    def both() -> None:
        fence = transfer.fence()
        compute()  # launched after the fence: the copy need not wait
        transfer.move(fence, 0, places)

    alone, copies, together = (seconds_of(one, cold=False) for one in (compute, move, both))
    hidden = (alone + copies - together) / min(alone, copies)
    run.aim("share of the shorter one that is hidden", hidden, at_least=0.7)
    return {
        "kind": kind.name,
        "compute_ms": alone * 1e3,
        "copies_ms": copies * 1e3,
        "together_ms": together * 1e3,
        "hidden_share": hidden,
    }


@check(point=2, device="either", needs=NEEDS, limit_s=60)
def quantized_blocks_arrive_as_they_are_stored(run: Run) -> dict[str, object]:
    """Do blocks in fewer bits cross as stored, and are their numbers there the CPU's to the bit?"""
    from offstage.host.model.quantized import HEAD_TYPES

    heads = 5 if run.interpret else 10
    figures: dict[str, object] = {}
    cases = {"mixed": HEAD_TYPES} | {one: (one,) for one in HEAD_TYPES[1:]}
    for name, kinds in cases.items():
        found = _quantized(run, (kinds * heads)[:heads])
        figures |= {f"{name}_{what}": figure for what, figure in found.items()}
    return figures


def _quantized(run: Run, kinds: tuple[Any, ...]) -> dict[str, float]:
    """Blocks with heads of these types land: figures of one fetch."""
    import time

    import numpy as np
    import torch

    from offstage.host.arrays.quantized import QuantizedArrays
    from offstage.host.arrays.torch_arrays import TorchArrays
    from offstage.host.model.geometry import KvGeometry, LayerKv
    from offstage.host.model.quantized import padded

    width, tokens, count = (16, 8, 4) if run.interpret else (128, 64, 128)
    layer = LayerKv("gqa", len(kinds), width)
    geometry = KvGeometry("t", len(kinds), (layer,), tokens, "bfloat16")
    quantizer, random = padded(geometry, [kinds], 512), np.random.default_rng(5)
    values = torch.from_numpy(random.standard_normal((count, *geometry.block_shape(0))))
    blocks = values.to(torch.bfloat16).flatten(1).view(torch.uint8).numpy()
    quantized = quantizer.quantize(0, blocks)
    begun = time.perf_counter()
    expected = quantizer.dequantize(quantized)
    on_the_cpu_s = time.perf_counter() - begun
    arrays = QuantizedArrays(TorchArrays(run.device, staged=True), quantizer)
    memory = arrays.memory(2 * count, geometry.block_bytes(0), count)
    places = random.permutation(2 * count)[:count].astype(np.int32)

    def land() -> None:
        rows = memory.land(places)
        assert rows is not None, "nothing else is out"
        memory.landing[rows] = quantized
        memory.commit(places, rows)

    land()
    assert (memory.read(places) == expected).all(), kinds
    share = quantizer.payload_bytes / geometry.block_bytes(0)
    if run.device == "cpu":
        return {"bytes_share": share}
    from gpu_timing import seconds_of

    fetch_ms = seconds_of(land, cold=False) * 1e3
    return {"bytes_share": share, "fetch_ms": fetch_ms, "on_the_cpu_ms": on_the_cpu_s * 1e3}


@check(point=4, kind="bench", needs=(*NEEDS, "kvikio", "cupy"), limit_s=60)
def kvikio_into_device_memory(run: Run) -> dict[str, object]:
    """How fast does kvikio read 64 KiB blocks of a file into device memory, and by which way?"""
    import time

    import cupy
    import kvikio
    import kvikio.defaults
    import numpy as np

    path = run.folder / "blocks"
    content = np.random.default_rng(4).integers(0, 256, (1024, BLOCK_BYTES), np.uint8)
    path.write_bytes(content.tobytes())
    kvikio.defaults.set({"auto_direct_io_read": True, "num_threads": 8})
    target = cupy.zeros((1024, BLOCK_BYTES), cupy.uint8)
    with kvikio.CuFile(path, "r") as file:
        begun = time.perf_counter()
        flying = [
            file.pread(target[row], file_offset=row * BLOCK_BYTES) for row in range(len(content))
        ]
        read = sum(one.get() for one in flying)
        seconds = time.perf_counter() - begun
    assert read == content.nbytes and bool((cupy.asnumpy(target) == content).all())
    compat = bool(kvikio.defaults.is_compat_mode_preferred())
    return {"gb_per_s": read / seconds / 1e9, "compatibility_mode": compat}
