"""A comparison with known synthetic figures, for the tests of its page."""

import random

from offstage import __version__
from offstage.asic_model.result import Times, times_of
from offstage.bindings.notes import Note
from offstage.testbeds.report.compare.columns import (
    Carried,
    Column,
    Comparison,
    Crossover,
    Effect,
    LoadFigures,
    LoadPoint,
    ModelLoad,
    NeighbourPoint,
    Range,
    Tornado,
    UnitFigures,
)

UNITS = ("front end", "metadata", "scheduler", "DMA", "codec", "HBM", "NVMe")


LOAD = "64 made-up GPUs"


def times(hit_ns: float, miss_ns: float, seed: int) -> Times:
    """Return times with two modes, like those of a run."""
    draw = random.Random(seed)
    humps = ((hit_ns, 4000, 0.2), (miss_ns, 1000, 0.5))
    return times_of([b * draw.lognormvariate(0.0, s) for b, n, s in humps for _ in range(n)])


def load_at(tokens: Range, knee: float, busiest: float = 0.5) -> LoadFigures:
    """A device that 64 GPUs share."""
    return LoadFigures(
        gpus=64,
        tokens_per_s=tokens,
        token_ms=Range(25.0, 24.0, 30.0),
        dollars=Range(2.0, 1.0, 4.0),
        device_dollars=Range(0.1, 0.05, 0.2),
        joule=Range(4e6, 3e6, 6e6),
        device_joule=Range(4e4, 3e4, 6e4),
        binds="NVMe" if busiest >= 0.2 else "nothing",
        busiest_share=busiest,
        knee_gpus=knee,
        knee_unit="NVMe",
        tokens_per_s_max=80.0 * knee,
        curve=[(many, 80.0 * min(many, knee)) for many in (1.0, 8.0, 64.0, 512.0)],
    )


def model_load(model: str, size: int, binds: str) -> ModelLoad:
    """A model at 1M tokens of which bluefield3 carries 10 sessions, or 4 where memory binds."""
    served = {"bluefield3": Range(90.0, 80.0, 100.0), "asic_7nm": Range(400.0, 300.0, 500.0)}
    if binds == "memory":
        served["asic_7nm"] = served["bluefield3"]
    devices = [
        Carried(
            device=device,
            by_need={"rate": 10.0, "memory": 4.0 if binds == "memory" else 40.0, "capacity": None},
            binds=binds,
            load=load_at(tokens, 8.0),
        )
        for device, tokens in served.items()
    ]
    return ModelLoad(
        load=f"{LOAD}, each decoding 4 sessions",
        model=model,
        context_tokens=1 << 20,
        session_bytes=size,
        resident_bytes=1 << 20,
        buffer_bytes=1 << 30,
        read_bytes_per_token=1e6,
        reads_per_token=1000.0,
        devices=devices,
    )


MODELS = [model_load("large", 320 << 30, "memory"), model_load("small", 10 << 30, "rate")]


def column(device: str, provenance: str, hit_ns: float, miss_ns: float, seed: int) -> Column:
    modelled = provenance == "modelled"
    draw = random.Random(seed)
    units = [
        UnitFigures(
            name=name,
            busy_share=(at + 1) / 20,
            busy_by_bin=[min(1.0, draw.random() * (at + 1) / 8) for _ in range(120)],
            bin_ms=100.0,
            ns_p50=hit_ns * (at + 1) / 28 if at < 6 else 0.0,
            ns_p99=miss_ns * (0.02 * (at + 1) if at < 6 else 2.0),
        )
        for at, name in enumerate(UNITS)
    ]
    return Column(
        device=device,
        provenance=provenance,
        calibrated=False if modelled else None,
        storage="made up",
        demands=5000,
        hits=4000,
        late=100,
        misses=900,
        fetch_ns=times(hit_ns, miss_ns, seed),
        stall_ns=times(miss_ns, 3 * miss_ns, seed),
        seconds=12.0,
        bytes_read=5000 * 32768,
        bytes_per_s=5000 * 32768 / 12.0,
        deadlines_missed=seed * 10,
        tokens=1200,
        joule_per_gb=Range(1.5, 0.5, 4.0) if modelled else None,
        joule_per_token=Range(0.003, 0.001, 0.01) if modelled else None,
        area_mm2=Range(40.0, 20.0, 80.0) if modelled else None,
        watt=Range(25.0, 12.0, 40.0) if modelled else None,
        arm_cores=Range(90.0, 30.0, 300.0) if device.startswith("asic") else None,
        binds_first="NVMe",
        units=units if modelled else units[:4],
        speed_up_mean=Range(9.0, 5.0, 14.0) if modelled else None,
        speed_up_p99=Range(6.0, 4.0, 8.0) if modelled else None,
        speed_up_same_drives=Range(1.4, 1.1, 2.0) if modelled else None,
        load=load_at(Range(5000.0 + seed, 4000.0, 5100.0), 64.0 * seed) if modelled else None,
        notes=[Note("one", "made up")],
    )


def crossover() -> Crossover:
    """A speed-up over the codec's rate and ratio."""
    xs, ys = [10.0, 30.0, 100.0, 300.0], [0.4, 0.6, 0.8, 1.0]
    return Crossover(
        device="asic_7nm",
        what="speed-up over no codec",
        x_name="codec rate",
        x_unit="GB/s",
        y_name="compressed size",
        y_unit="of raw",
        xs=xs,
        ys=ys,
        speed_up=[[(x / 100) ** 0.3 / y**0.5 for x in xs] for y in ys],
        x=62.5,
        y=0.53,
    )


def comparison() -> Comparison:
    columns = [
        column("measured DPU", "measured", 9e3, 2.1e6, 1),
        column("dpu_x86_measured", "modelled", 8.6e3, 2.0e6, 2),
        column("bluefield3", "modelled", 6e3, 1.1e5, 3),
        column("asic_7nm", "modelled", 1.4e3, 8e4, 4),
    ]
    loads = [
        [
            LoadPoint(
                copies=many,
                bytes_per_s=limit * many / (1 + many),
                ns_p50=one.fetch_ns.p50,
                ns_p99=one.fetch_ns.p99 * (1 + (many / 16) ** 2),
            )
            for many in (1, 4, 16, 64)
        ]
        for one, limit in zip(columns, (2e8, 2e8, 8e9, 4e10), strict=True)
    ]
    effects = [
        Effect(
            parameter=f"unit{at}.rate",
            unit="GB/s",
            low=1.0,
            high=4.0,
            at_low=9.0 - 3 / (at + 1),
            at_high=9.0 + 2 / (at + 1),
        )
        for at in range(20)
    ]
    neighbours = [
        NeighbourPoint(
            qos=qos,
            same_tenant=same,
            aggressor_share=share,
            victim_ns_p99=2e4 * (1 + share**3 * step),
        )
        for qos, same, step in ((True, False, 1.0), (True, True, 1.2), (False, False, 40.0))
        for share in (0.1, 0.5, 0.9, 1.2)
    ]
    return Comparison(
        run="made up",
        sentence="On made-up decisions asic_7nm serves more; the model is off by -5 %.",
        setup="Nothing was run.",
        columns=columns,
        load=LOAD,
        models=MODELS,
        loads=loads,
        tornados=[Tornado(device="asic_7nm", base=9.0, effects=effects)],
        crossovers=[crossover()],
        neighbours=neighbours,
        neighbours_device="asic_7nm",
        workload={"sessions": 4},
        samples=32,
        command="offstage compare made-up",
        version=__version__,
    )
