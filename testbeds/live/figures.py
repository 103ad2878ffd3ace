"""From the device's ledger and the host's record to the figures of one run.

Every rate is computed here from counts, once; the report only shows it. Definitions stand in
`testbeds/report/run/definitions.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.bindings.layouts import CAUSES, ENDS, FATES, HIT_ENDS
from offstage.bindings.notes import Note
from offstage.host.record import AgentRecord
from offstage.host.timeline import Timeline
from offstage.testbeds.live.results import Provenance, RunResult

__all__ = [
    "RunLabel",
    "accuracy",
    "against_baseline",
    "against_lru",
    "emulation_notes",
    "ends_differ",
    "hit_rate_of",
    "ledger_since",
    "on_time",
    "prefetched_blocks",
    "run_result",
    "timeline_of",
]

PREFETCH_CAUSES = CAUSES[CAUSES.index("window") :]
QUANTILES_MAX = 1_000
EMULATION_LATE_NOTED = 0.05
"""From this share of late I/Os on, a report says that the emulation did not keep up."""
MISS_ENDS = ENDS[HIT_ENDS + 1 :]
GAUGES = ("degree_now", "resident_slots")
"""What of a ledger says how things are and does not count."""


@dataclass(frozen=True)
class RunLabel:
    """What a run is called and where its times come from."""

    name: str
    storage: str
    provenance: Provenance
    prefetchers: tuple[str, ...]


def run_result(
    label: RunLabel,
    ledger: Mapping[str, Any],
    counters: Mapping[str, int] | None,
    record: AgentRecord,
    decisions_replayed: int,
    notes: Sequence[Note],
) -> RunResult:
    """The figures of one run, from counts of that run alone; `coverage` and `traffic_ratio` wait
    for `against_baseline` or `against_lru`. `counters` None: the device's own are not known."""
    ends = dict(zip(ENDS, ledger["ends"], strict=True))
    nontrivial = dict(zip(ENDS, ledger["nontrivial_ends"], strict=True))
    demands, hits, fates = int(ledger["demands"]), _hits(ends), _fates(ledger["fates"])
    warm = demands - ends["cold"]
    stall_ms, token_ms = record.stall_ms(), record.token_ms()
    by_step, fetch_ms = record.ends_by_step(), np.array(record.fetch_ns, np.float64) / 1e6
    return RunResult(
        name=label.name,
        storage=label.storage,
        provenance=label.provenance,
        prefetchers=list(label.prefetchers),
        selected=int(ledger["selected"]),
        demands=demands,
        hit=_share(hits, demands),
        nontrivial_hit=_share(_hits(nontrivial), int(ledger["nontrivial"])),
        hit_without_cold=_share(hits, warm),
        hbm_share=_share(int(ledger["selected"]) - demands, int(ledger["selected"])),
        selection_hit=_share(int(ledger["selected"]) - demands + hits, int(ledger["selected"])),
        late=_share(ends["late"], demands),
        miss=_share(sum(ends[end] for end in MISS_ENDS), demands),
        coverage=0.0,
        accuracy=accuracy(fates),
        traffic_ratio=0.0,
        stall_ms_p50=_quantile(stall_ms, 0.50),
        stall_ms_p99=_quantile(stall_ms, 0.99),
        token_ms_p50=_quantile(token_ms, 0.50),
        token_ms_p99=_quantile(token_ms, 0.99),
        fetch_ms_p50=_quantile(fetch_ms, 0.50),
        fetch_ms_p99=_quantile(fetch_ms, 0.99),
        kernel_bytes_per_s=_share(record.kernel_bytes * 10**9, record.kernel_ns),
        roof_bytes_per_s=record.roof_bytes_per_s,
        tokens_per_s=len(record.tokens) / record.wall_s if record.wall_s else 0.0,
        bytes_read=int(ledger["demand_bytes_read"]) + int(ledger["prefetch_bytes_read"]),
        read_amplification=_amplification(ledger),
        bytes_spared=int(ledger.get("demand_bytes_spared", 0)),
        blocks_verified=record.blocks_verified,
        blocks_corrupt=record.blocks_corrupt,
        blocks_recomputed=record.blocks_recomputed,
        attention_checked=record.attention_checked,
        attention_error_max=record.attention_error_max,
        pollution=int(ledger["pollution"]),
        evictions=int(ledger["evictions"]),
        shared_chunks=int(ledger["shared_chunks"]),
        decisions_replayed=decisions_replayed,
        ends_differ=ends_differ(ledger["ends"], record.ends(), record.untold),
        busy_share=_busy_share(counters),
        wall_s=record.wall_s,
        ends=ends,
        nontrivial_ends=nontrivial,
        fates=fates,
        hit_rate_by_step=_rates(by_step),
        demands_by_step=[int(row.sum()) for row in by_step],
        lead_ns_log2=[int(n) for n in ledger["lead_ns_log2"]],
        late_ns_log2=[int(n) for n in ledger["late_ns_log2"]],
        stall_ms_by_token=_quantiles(stall_ms),
        timeline=timeline_of(record.timeline),
        notes=[*notes, *emulation_notes(label, counters)],
    )


def _amplification(ledger: Mapping[str, Any]) -> float:
    return _share(int(ledger["demand_bytes_read"]), int(ledger.get("demand_bytes_wanted", 0)))


def timeline_of(timeline: Timeline) -> dict[str, Any]:
    """The tick that is shown, in microseconds from its begin on; {} where there is none."""
    number, spans = timeline.shown()
    if not spans:
        return {}
    begun_ns = min(span.begin_ns for span in spans)
    shown = sorted((span.begin_ns, span.end_ns, span.lane, span.layer) for span in spans)
    return {
        "tick": number,
        "source": timeline.source,
        "spans": [
            [lane, layer, (begin - begun_ns) / 1e3, (end - begun_ns) / 1e3]
            for begin, end, lane, layer in shown
        ],
    }


def hit_rate_of(ledger: Mapping[str, Any]) -> float:
    """On-time hits / demands of a ledger, live or simulated."""
    ends = dict(zip(ENDS, ledger["ends"], strict=True))
    return _share(_hits(ends), int(ledger["demands"]))


def on_time(run: RunResult) -> int:
    """Demands that ended on time."""
    return _hits(run.ends)


def against_baseline(run: RunResult, baseline: RunResult) -> RunResult:
    """`run` with coverage and traffic against `baseline`: no prefetch, LRU, the same buffer."""
    missed = run.demands - _hits(run.ends)
    missed_without = baseline.demands - _hits(baseline.ends)
    return msgspec.structs.replace(
        run,
        coverage=1.0 - missed / missed_without if missed_without else 0.0,
        traffic_ratio=_share(run.bytes_read, baseline.bytes_read),
    )


def against_lru(run: RunResult, ledger: Mapping[str, Any], block_read_bytes: int) -> RunResult:
    """`run` with coverage and traffic against the demand-only LRU of the same buffer that the
    device keeps count of beside each run (`shadow_misses`), for where no such run was made.
    `block_read_bytes`: what one block is on the store, its trailer included."""
    missed_without = int(ledger["shadow_misses"])
    missed = run.demands - _hits(run.ends)
    return msgspec.structs.replace(
        run,
        coverage=1.0 - missed / missed_without if missed_without else 0.0,
        traffic_ratio=_share(run.bytes_read, missed_without * block_read_bytes),
    )


def ledger_since(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted between two looks at one ledger; gauges as they are now.

    Raises RunFailed where a count went back: somebody has zeroed the ledger in between."""
    since: dict[str, Any] = {}
    for name, now in after.items():
        since[name] = now if name in GAUGES else _less(now, before[name])
        if name not in GAUGES and np.min(since[name], initial=0) < 0:
            raise RunFailed(
                f"{name} went back during the run: the ledger was reset",
                "ledger",
                "run again, with no `offstage dpu reset` beside it",
            )
    return since


def _less(now: Any, then: Any) -> Any:
    """`now - then`, element by element."""
    if isinstance(now, Sequence):
        return [_less(one, other) for one, other in zip(now, then, strict=True)]
    return int(now) - int(then)


def _busy_share(counters: Mapping[str, int] | None) -> float:
    if counters is None:
        return -1.0
    busy_ns = counters["busy_ns"]
    return _share(busy_ns, busy_ns + counters["idle_ns"] + counters["sleep_ns"])


def emulation_notes(label: RunLabel, counters: Mapping[str, int] | None) -> list[Note]:
    """How well the emulated drive kept the model's time: an emulated figure is only as good."""
    if label.provenance != "emulated" or counters is None:
        return []
    total = counters["reads"] + counters["writes"]
    late = _share(counters["emulation_late"], total)
    if late < EMULATION_LATE_NOTED:
        return []
    mean_us = _share(counters["emulation_late_ns_sum"], total) / 1e3
    return [
        Note(
            "emulation-late",
            "many emulated I/Os ended clearly later than the drive's model says: this machine "
            "could not keep up with it",
            figures=f"{late:.0%} of {total:,}, {mean_us:.0f} us late on average over all",
        )
    ]


def ends_differ(ledger: Sequence[int], told: NDArray[np.int64], untold: int) -> int:
    """The device's ledger and what the host got with each fetch must be the same counts: of how
    many demands, at the least, they are not. One that ended otherwise is one too many of one end
    and one too few of another. `untold` ones are in the ledger alone, under whatever end."""
    more = told - np.array(ledger, np.int64)
    return max(int(more[more > 0].sum()), abs(int(-more[more < 0].sum()) - untold))


def _hits(ends: Mapping[str, int]) -> int:
    return sum(ends[end] for end in ENDS[:HIT_ENDS])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _fates(rows: Sequence[Sequence[int]]) -> dict[str, dict[str, int]]:
    """By cause and fate, prefetch causes only, those that never occurred left out."""
    named = {
        cause: dict(zip(FATES, (int(n) for n in row), strict=True))
        for cause, row in zip(CAUSES, rows, strict=True)
        if cause in PREFETCH_CAUSES
    }
    return {cause: row for cause, row in named.items() if any(row.values())}


def accuracy(fates: Mapping[str, Mapping[str, int]]) -> float:
    """Used / prefetched; what was dropped from the queue was never prefetched."""
    used = sum(row["used"] for row in fates.values())
    issued = sum(sum(row.values()) - row["dropped"] for row in fates.values())
    return _share(used, issued)


def prefetched_blocks(ledger: Mapping[str, Any]) -> int:
    """Blocks that were read ahead of need."""
    return sum(int(ledger["issued"][CAUSES.index(cause)]) for cause in PREFETCH_CAUSES)


def _rates(by_step: NDArray[np.int64]) -> list[float]:
    return [float(row[:5].sum() / row.sum()) if row.sum() else -1.0 for row in by_step]


def _quantile(values: NDArray[np.float64], share: float) -> float:
    return float(np.quantile(values, share)) if values.size else 0.0


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    """At most QUANTILES_MAX evenly spaced quantiles, ascending."""
    if values.size <= QUANTILES_MAX:
        return [float(value) for value in np.sort(values)]
    shares = np.linspace(0.0, 1.0, QUANTILES_MAX)
    return [float(value) for value in np.quantile(values, shares)]
