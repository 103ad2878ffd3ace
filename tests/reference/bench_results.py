"""Small results of every bench, judged by its own rules: some targets are met, some missed."""

import msgspec

from offstage.bindings.layouts import ENDS
from offstage.bindings.ledger import Ledger
from offstage.testbeds.bench import (
    asic,
    cmx,
    codec,
    core,
    fabric,
    links,
    prefetch,
    qos,
    soak,
    tenants,
)
from offstage.testbeds.bench import storage_result as storage
from offstage.testbeds.bench.codec_store import StoreFigures, StoreSide
from offstage.testbeds.bench.engines.l2 import ADAPTERS, L2Result, compare
from offstage.testbeds.bench.engines.result import Arm, Decision, EngineResult
from offstage.testbeds.bench.lab import LabFigures
from offstage.testbeds.bench.pod import reuse
from offstage.testbeds.bench.pod.result import FaultFigures, Figures, PodResult, TraceResult
from offstage.testbeds.bench.rows import BenchResult, Row, aimed
from offstage.testbeds.bench.soak_hosts import HostSaw
from offstage.testbeds.bench.sparse import result as sparse
from offstage.testbeds.bench.spdk import CaseFigures, SpdkResult
from offstage.testbeds.bench.spdk import rows_of as spdk_rows
from offstage.testbeds.bench.staged_value import StagedValue
from offstage.testbeds.bench.stages import StageTimers
from offstage.testbeds.lab.pod import point_figures
from offstage.testbeds.lab.pod.spec import PodSpec
from offstage.testbeds.machine import machine

__all__ = [
    "CORE",
    "ENGINE",
    "FABRIC",
    "LINKS",
    "POD",
    "RESULTS",
    "SOAK",
    "SPARSE",
    "STORAGE",
    "fabric_of",
]

SAMPLE = storage.Sample(1.731e9, 1.073e6, 2e6)
READS = fabric.Reads(
    block_bytes=65_536,
    region_bytes=1 << 29,
    hit_ns=8_607,
    memcpy_ns=6_830,
    hit_unchecked_ns=6_819,
    hit_bytes_per_s=7.6e9,
    memcpy_bytes_per_s=9.6e9,
    ratio=1.06,
    ratio_range=(1.0, 1.2),
    ratio_unchecked=1.0,
)
RING = fabric.Ring(448, 689, 280, 304, 1.6, 2_025, 20_000, 31_000)
TIMERS = StageTimers("timers", 1, 4_096, 2_312, 2_246, 0.991, 280, 100)
LAYER = fabric.Layer(8, 4, 65_536, 3e6, 1e6, 0.33)
VALUE = StagedValue(524_288, 65_536, 34_000.0, 28_000.0, 1.21)


def fabric_of(ring: fabric.Ring = RING) -> fabric.FabricResult:
    """The bench's result for these figures."""
    return fabric.result_of([READS], ring, VALUE, [TIMERS], LAYER, rounds=7, seed=1)


FABRIC = fabric_of()
LINK = links.LinkFigures(
    link="nixl",
    block_bytes=65_536,
    latency_ns=18_700.0,
    floor_latency_ns=17_900.0,
    latency_ratio=1.04,
    latency_ratio_range=(1.0, 1.1),
    bytes_per_s=2.5e9,
    floor_bytes_per_s=3.6e9,
    bandwidth_ratio=0.69,
    bandwidth_ratio_range=(0.6, 0.7),
    fetch_ns=2.1e6,
)
LINKS = links.LinksResult(links=[LINK], rows=links.rows_of(LINK), rounds=5, seed=1)
CASES = [
    storage.CaseFigures(
        block_bytes=65_536,
        queue_depth=depth,
        pages=pages,
        count=64,
        ours=SAMPLE,
        fio=SAMPLE,
        bandwidth_ratio=1.0,
        bandwidth_ratio_range=(1.0, 1.0),
        latency_ratio=ratio,
        latency_ratio_range=(ratio, ratio),
    )
    for depth, pages, ratio in ((32, "base pages", 1.0), (1, "reserved huge pages", 1.2))
]
DRIVE = storage.Drive("gen5-tlc", {"read_iops": storage.Cited(1e6, 3.3e6, 0.3, 0.98)})
STORAGE = storage.StorageResult(
    cases=CASES,
    emulated=[DRIVE],
    granules=storage.Granules(),
    reference="fio",
    path="file",
    rounds=2,
    seed=1,
    rows=[row for one in CASES for row in storage.rows_of(one)] + storage.rows_of_drive(DRIVE),
)
FLAT = [
    core.Flat(
        name=name,
        eviction="lru",
        ours_per_s=ours,
        reference_per_s=9e6,
        ratio=ours / 9e6,
        hits=9,
        reference_hits=9,
    )
    for name, ours in (("zipf", 8.5e6), ("other", 4e6))
]
FLAT.append(core.Flat(name="mooncake", eviction="random", ours_per_s=4e6, hits=9))
DECODE, REPLAY = core.Decode("ema", 64, 2_048, 8.4e6), core.Replay(5e6)
LAB = LabFigures("ema", 80, 2_048, 1_000, 3.1, 3.2e6, 97 << 20)
CORE = core.CoreResult(
    flat=FLAT,
    decode=DECODE,
    replay=REPLAY,
    lab=LAB,
    rounds=7,
    seed=1,
    rows=core.rows_of(FLAT, DECODE, REPLAY, LAB),
)
SERVED = [
    qos.Served([1] * 4, [0.0667, 0.1333, 0.2667, 0.5333], jain, 3, 54_000_000, 98_000_000)
    for jain in (0.99, 0.9)
]
QOS = qos.QosResult(
    provenance="modelled",
    services=2_000,
    seed=1,
    disciplines=dict(zip(("qos", "fifo"), SERVED, strict=True)),
    rows=qos.rows_of(*SERVED),
)
SIDE = StoreSide(36_864.0, 36_864.0, 1.23e-4, 12_345.0)
RATIOS = [
    codec.RatioFigures("pycode-3m", "bfloat16", "K", layer, 0.67 + layer / 100, 0.8)
    for layer in (0, 1)
]
RATES = [codec.RateFigures("pycode-3m", "bfloat16", 4.19e8, 6.37e8, 7.3e9, 3.05e7, 1.07e8)]
STORE = [StoreFigures("fp8_e4m3", "gen5-tlc", 32_768, SIDE, SIDE)]
LOSSY = [codec.LossyFigures("pycode-3m", "K", "int4 per channel", 0.28125, 12345.6, 0.51, 0.06)]
CODEC = codec.CodecResult(
    sources=[],
    ratios=RATIOS,
    rates=RATES,
    store=STORE,
    lossy=LOSSY,
    machine=machine(),
    rounds=5,
    seed=1,
    rows=codec.rows_of(RATIOS, RATES, STORE, LOSSY),
)
STAGES = asic.Stages(6.1e6, 1.5e6, 2.0e5, 5.1e4, 30.1, 29.9)
CHIPS = [
    asic.ChipFigures(name, 14, 65_536, 12.0, 9e6, per_s)
    for name, per_s in (("hits, whole blocks", 1.2e6), ("mix, whole blocks", 0.9e6))
]
LONG = asic.Long(2_000_000, 4.0, 3.0, 1 << 20, 1 << 18)
ASIC = asic.AsicResult(
    stages=STAGES, chips=CHIPS, long=LONG, rounds=5, seed=1, rows=asic.rows_of(STAGES, CHIPS, LONG)
)
SPDK_CASES = [CaseFigures("TCP", 65_536, 32, 64, 1_200_000.0, 1_300_000.0, 0.92, (0.9, 1.0), 0.95)]
SPDK = SpdkResult(cases=SPDK_CASES, rows=spdk_rows(SPDK_CASES), reference="perf", rounds=3, seed=1)
PARTS = dict.fromkeys(tenants.PARTS, 123_456.0)
PHASES = {
    name: tenants.Phase(
        ns_p50=1e6,
        ns_p99=3e6 if name == "all ways" else 1.1e6,
        fetches=9,
        single_ns_p50=2e5,
        hit_percent=66.7,
        steps=tenants.Steps(9, PARTS, PARTS),
        taken_in_ns_mean=2_345.0,
        no_core={"reactor": 0.25, "victim": 0.125},
    )
    for name in tenants.NAMES
}
SHARES = tenants.Shares(["flood", "heavy"], [1, 3], [1, 3], [0.0, 0.1], 1e9, [1.0, 1.2], 0.99)
TENANTS = tenants.TenantsResult(
    phases=PHASES,
    shares=SHARES,
    storage="io_uring",
    seconds=3.0,
    seed=1,
    rows=tenants.rows_of(PHASES, SHARES),
)
LEVEL = soak.Level(100 << 20, 9, 40)
SAW = HostSaw("red-0", "red", 1_234_567, 0, 0, 7, 1_234, 9, [0] * len(ENDS), {"full": 3})
SOAK = soak.SoakResult(
    seconds=600.0,
    seed=1,
    storage="io_uring",
    before=LEVEL,
    after=LEVEL,
    samples=[soak.Look(at, LEVEL, 7, 0.1, 1_234_567) for at in (0.0, 300.0, 600.0)],
    hosts=[SAW],
    rounds=3,
    exits=[0],
    complaints="",
    attacks={"red-0": 1_234, soak.GRANTED: 1, "a message that is no message": 123_456},
    ledgers={name: Ledger() for name in soak.HONEST},
    status={},
    daemon_exit=0,
    daemon_said=[],
)
soak.judge(SOAK)
L2 = L2Result(
    size_kib=512,
    in_flight=16,
    rounds=20,
    turns=1,
    seed=1,
    mb_per_s={
        state: {name: {operation: [rate]} for name, rate in zip(ADAPTERS, rates, strict=True)}
        for state, operation, rates in (
            ("page cache", "store", (1_000.0, 1_234.0, 12_345.0)),
            ("direct", "load", (1_000.0, 2_850.0, 2_849.0)),
        )
    },
    drive_mb_per_s=[3_000.0],
)
compare(L2)
ENGINE = EngineResult(
    trace="t.jsonl",
    scale=0.0625,
    hurry=10.0,
    requests=3,
    reuse=0.4,
    rounds=1,
    tokens=[10, 20, 30],
    storage="io_uring",
    seed=1,
    arms={
        "recompute": Arm([0.4]),
        "looked up when scheduled": Arm(
            [0.1, 0.2, 0.9],
            [0],
            {"objects_on_time": 7, "objects_late": 2},
            [Decision(0.5, 0.1, True), Decision(-1.0, 0.1, True)],
        ),
    },
)
ENGINE.compare()
ALONE = Figures(
    requests=12_854,
    asked=12_854,
    known=0,
    hits=12_854,
    hit_rate=None,
    request_s_p50=0.0294,
    request_s_p99=0.0926,
    request_s_max=0.1,
    without_tier=0,
    late_s_max=0.01,
    misses={"ETIMEDOUT of dpu1": 1_234, "at dpu1, asked of dpu0": 7},
)
DEATH = FaultFigures(
    requests=240,
    asked=2_400,
    known=2_000,
    hits=1_869,
    hit_rate=0.9345,
    request_s_p50=0.0294,
    request_s_p99=0.0926,
    request_s_max=0.1,
    without_tier=0,
    late_s_max=0.01,
    misses={},
    fault="death",
    member="dpu1",
    struck_s=1.0,
    ended_s=9.0,
    detected_first_s=1.1,
    detected_last_s=1.2,
    in_map_s=5.69,
    answer_s=0.1,
    hit_s=4.5,
    hits_lost=1_200,
    hits_lost_share=0.1,
    share_of_member=0.25,
    back_s=None,
    blocks_put_again=1_234,
    blocks_put_again_least=1_000,
    blocks_filled=123_456,
    blocks_asked=2_400,
    waited_s=1.0,
    others_suspected=0,
)
VERDICTS = {"every_block_right": True, "every_miss_has_a_reason": False, "not_seen": None}
POD = PodResult(
    phases={"no fault": ALONE, "death dpu1": DEATH},
    seconds=12.0,
    hosts=2,
    deadline_s=0.5,
    rate_hz=8.0,
    seed=1,
    with_etcd=True,
    seen=[],
    done=[],
    verdicts=dict(VERDICTS),
    rows=[
        Row(
            "death dpu1: a connection waited", "seconds", 1.0, aim=aimed(1.0, "<=", 0.55, "seconds")
        ),
        Row("death dpu1: hits back", "seconds", None, aim=aimed(None, "<=", 10, "seconds")),
    ],
)
TRACE = TraceResult(
    figures=ALONE,
    trace="weka.jsonl.gz",
    span_s=3_600.0,
    seconds=600.0,
    compression=6.0,
    hosts=4,
    deadline_s=0.5,
    seed=1,
    wrong=0,
    refused=0,
    put=1,
    put_again=6_360,
    late_s_p50=0.0,
    late_s_p99=0.5,
    waited_s_max=1.0,
    faults={"death": 7, "drain": 6},
    unexplained=[],
    seen=[],
    done=[],
    verdicts=dict(VERDICTS),
)
MET = point_figures.Served(
    requests=150, refused=0, hit=0.4567, pool_hit=0.3, first_ms_p50=1_234.5, first_ms_p99=9_876.5
)
SCHEDULE = reuse.ScheduleResult(
    trace="weka.jsonl.gz",
    requests=150,
    seconds=90.0,
    compression=40.0,
    saturated=40.0,
    kept_blocks=1_024,
    seed=1,
    blocks_distinct=9,
    block_ms=0.5,
    look_ms=0.1,
    look_cpu_ms=0.02,
    prefill_tokens_per_s=10_000,
    arms=[reuse.Arm("round-robin", "as it came", MET, MET)],
    verdicts=dict(VERDICTS),
)


def cmx_arm(name: str) -> cmx.Arm:
    """One arm; without a tier it has no shares."""
    asked = name != "no tier"
    hinted = 180_498 if name == "hints" else 0
    return cmx.Arm(
        name=name,
        first_ms_p50=936.4,
        first_ms_p99=11_512.3,
        hit=0.33,
        refused=0,
        values=1_617_264 if asked else 0,
        on_time=0.108 if asked else None,
        late=0.0001 if asked else None,
        missing=0.1729 if asked else None,
        absent=0.709 if asked else None,
        behind=0.01 if asked else None,
        hinted=hinted,
        wasted=0.728 if hinted else None,
        read_bytes=4_926_740_345_651 if asked else 0,
    )


CMX = cmx.CmxResult(
    seed=1,
    spec=PodSpec(),
    cases=[
        cmx.Case(
            "mooncake_conversation_0-2400s.jsonl.gz",
            4_000,
            cmx.Keys(1_142_784, 0, 1.92e-27),
            [cmx_arm(name) for name in cmx.ARMS],
        )
    ],
)


def moment(name: str) -> prefetch.Moment:
    """One arm; without hints none is wasted."""
    hinted = 0 if name in ("none", "perfect") else 180_498
    return prefetch.Moment(
        name=name,
        first_ms_mean=1_234.5,
        first_ms_p50=936.4,
        first_ms_p90=5_512.3,
        first_ms_p99=11_512.3,
        gained=0.5,
        refused=1,
        on_time=0.108,
        late=0.0001,
        missing=0.1729,
        absent=0.709,
        hinted=hinted,
        dropped=7,
        wasted=0.728 if hinted else None,
        read_bytes=4_926_740_345_651,
    )


PREFETCH = prefetch.PrefetchResult(
    seed=1,
    spec=PodSpec(),
    cases=[
        prefetch.PrefetchCase(
            "mooncake_conversation_0-2400s.jsonl.gz",
            4_000,
            [prefetch.Load(rate=1.0, gpu=0.99, drive=None, moments=[moment("none")])],
            {"on pause": prefetch.NO_PAUSES},
        )
    ],
)
AT = {"context_tokens": 131_072, "selected": 32, "drives": 1}
SPARSE_POINT = sparse.Point(
    provenance="modelled",
    device="bluefield3",
    **AT,
    sessions=16,
    token_ms=40.0,
    first_ms=675.8,
    stall_ms_mean=14.23,
    stall_ms_p50=13.57,
    stall_ms_p99=44.28,
    missed_per_token=98.7,
    reads_per_token=188.2,
    used={"drive": 0.936, "core": 0.414, "memory": 0.426, "link": 0.252},
    binds="drive",
)
SPARSE = sparse.SparseResult(
    seed=1,
    model="llama-3-70b",
    live_model="demo",
    device="bluefield3",
    drive="gen5-tlc",
    policy="window+ema",
    block_bytes=262_144,
    layers=80,
    waits=0.2,
    load_before=9.6,
    pairs=[sparse.Pair(msgspec.structs.replace(SPARSE_POINT, late=0.09), SPARSE_POINT)],
    points=[SPARSE_POINT],
    carried=[
        sparse.Carried(
            **AT,
            sessions=12.4,
            more=False,
            binds="drive",
            reads_per_token=186.0,
            drive_reads_per_s=46_233.1,
            core=0.348,
        )
    ],
)
RESULTS: dict[str, BenchResult] = {
    "asic": ASIC,
    "cmx": CMX,
    "codec": CODEC,
    "core": CORE,
    "engine": ENGINE,
    "fabric": FABRIC,
    "l2": L2,
    "links": LINKS,
    "pod": POD,
    "pod, of a trace": TRACE,
    "prefetch": PREFETCH,
    "qos": QOS,
    "schedule": SCHEDULE,
    "soak": SOAK,
    "sparse": SPARSE,
    "spdk": SPDK,
    "storage": STORAGE,
    "tenants": TENANTS,
}
