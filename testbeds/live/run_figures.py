"""Computes the figures of one run from the device's ledger and the host's record.

Every rate is computed here from counts, once; the report only shows it. Definitions are in
`testbeds/report/run/definitions.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.ledger import Demands, Ledger, quantile, share
from offstage.bindings.notes import Note
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.timeline import Timeline
from offstage.testbeds.live.results import Provenance, RunResult, ShownTick

__all__ = [
    "RunLabel",
    "against_lru",
    "against_reference",
    "emulation_notes",
    "ends_differ",
    "run_result",
    "timeline_of",
]

QUANTILES_MAX = 1_000
EMULATION_LATE_NOTED = 0.05
"""From this share of late I/Os on, a report notes that the emulation fell behind."""


@dataclass(frozen=True)
class RunLabel:
    """The name of a run and the source of its times."""

    name: str
    storage: str
    provenance: Provenance
    prefetchers: tuple[str, ...]


def run_result(
    label: RunLabel,
    ledger: Ledger,
    counters: Mapping[str, int] | None,
    record: AgentRecord,
    decisions_replayed: int,
    notes: Sequence[Note],
) -> RunResult:
    """The figures of one run, from counts of that run alone; `against_reference` or `against_lru`
    fills in `coverage` and `traffic_ratio`. `counters` None: those of the device are unknown."""
    ledger, fetch_ms = ledger.at_end(), np.array(record.fetch_ns, np.float64) / 1e6
    ended, nontrivial = ledger.ended, ledger.nontrivial_ended
    pooled = ledger.selected - ledger.demands
    stall_ms, token_ms = record.stall_ms(), record.token_ms()
    by_step = [Demands.of(row) for row in record.ends_by_step()]
    return RunResult(
        name=label.name,
        storage=label.storage,
        provenance=label.provenance,
        prefetchers=list(label.prefetchers),
        selected=ledger.selected,
        demands=ledger.demands,
        hit=ended.hit_rate,
        nontrivial_hit=nontrivial.hit_rate,
        hit_without_cold=ended.warm_hit_rate,
        hbm_share=share(pooled, ledger.selected),
        selection_hit=share(pooled + ended.hits, ledger.selected),
        late=ended.late_rate,
        miss=ended.miss_rate,
        coverage=0.0,
        accuracy=ledger.accuracy,
        traffic_ratio=0.0,
        stall_ms_p50=quantile(stall_ms, 0.50),
        stall_ms_p99=quantile(stall_ms, 0.99),
        token_ms_p50=quantile(token_ms, 0.50),
        token_ms_p99=quantile(token_ms, 0.99),
        token_ms_mean=float(token_ms.mean()) if token_ms.size else 0.0,
        fetch_ms_p50=quantile(fetch_ms, 0.50),
        fetch_ms_p99=quantile(fetch_ms, 0.99),
        fabric_ms=_quantiles(np.array(record.fabric_ns, np.float64) / 1e6),
        fetch_count=fetch_ms.size,
        kernel_bytes_per_s=share(record.kernel_bytes * 10**9, record.kernel_ns),
        roof_bytes_per_s=record.roof_bytes_per_s,
        tokens_per_s=share(len(record.tokens), record.wall_s),
        bytes_read=ledger.bytes_read,
        read_amplification=ledger.read_amplification,
        bytes_spared=ledger.demand_bytes_spared,
        blocks_verified=record.blocks_verified,
        blocks_corrupt=record.blocks_corrupt,
        blocks_recomputed=record.blocks_recomputed,
        attention_checked=record.attention_checked,
        attention_error_max=record.attention_error_max,
        pollution=ledger.pollution,
        evictions=ledger.evictions,
        shared_chunks=ledger.shared_chunks,
        decisions_replayed=decisions_replayed,
        ends_differ=ends_differ(ledger.ends, record.ends(), record.untold),
        busy_share=_busy_share(counters),
        wall_s=record.wall_s,
        ends=ended.by_end(),
        nontrivial_ends=nontrivial.by_end(),
        fates=ledger.prefetched(),
        hit_rate_by_step=[step.hit_rate if step.total else -1.0 for step in by_step],
        demands_by_step=[step.total for step in by_step],
        lead_ns_log2=ledger.lead_ns_log2,
        late_ns_log2=ledger.late_ns_log2,
        stall_ms_by_token=_quantiles(stall_ms),
        timeline=timeline_of(record.timeline),
        notes=[*notes, *emulation_notes(label, counters)],
    )


def timeline_of(timeline: Timeline) -> ShownTick:
    """The tick to show; empty if there is none."""
    number, spans = timeline.shown()
    if not spans:
        return ShownTick()
    begun_ns = min(span.begin_ns for span in spans)
    shown = sorted((span.begin_ns, span.end_ns, span.lane, span.layer) for span in spans)
    return ShownTick(
        number,
        timeline.source,
        tuple(
            (lane, layer, (begin - begun_ns) / 1e3, (end - begun_ns) / 1e3)
            for begin, end, lane, layer in shown
        ),
    )


def against_reference(run: RunResult, reference: RunResult) -> RunResult:
    """`run` with coverage and traffic against `reference`: no prefetch, LRU, the same buffer."""
    return _against(run, reference.demands - reference.ended.hits, reference.bytes_read)


def against_lru(run: RunResult, ledger: Ledger, block_read_bytes: int) -> RunResult:
    """`run` with coverage and traffic against the demand-only LRU of the same buffer that the
    device simulates during each run (`shadow_misses`), for use without such a run.
    `block_read_bytes`: one block's size on the store, trailer included."""
    return _against(run, ledger.shadow_misses, ledger.shadow_misses * block_read_bytes)


def _against(run: RunResult, missed: int, bytes_read: int) -> RunResult:
    return msgspec.structs.replace(
        run,
        coverage=1.0 - (run.demands - run.ended.hits) / missed if missed else 0.0,
        traffic_ratio=share(run.bytes_read, bytes_read),
    )


def _busy_share(counters: Mapping[str, int] | None) -> float:
    if counters is None:
        return -1.0
    busy_ns = counters["busy_ns"]
    return share(busy_ns, busy_ns + counters["idle_ns"] + counters["sleep_ns"])


def emulation_notes(label: RunLabel, counters: Mapping[str, int] | None) -> list[Note]:
    """How well the emulated drive kept the model's time, which bounds the accuracy of emulated
    figures."""
    if label.provenance != "emulated" or counters is None:
        return []
    total = counters["reads"] + counters["writes"]
    late = share(counters["emulation_late"], total)
    if late < EMULATION_LATE_NOTED:
        return []
    mean_us = share(counters["emulation_late_ns_sum"], total) / 1e3
    return [
        Note(
            "emulation-late",
            "many emulated I/Os ended much later than in the drive's model: this machine "
            "could not keep up",
            figures=f"{late:.0%} of {total:,}, {mean_us:.0f} µs late on average over all",
        )
    ]


def ends_differ(ledger: Sequence[int], told: NDArray[np.int64], untold: int) -> int:
    """A lower bound of the demands on which the device's ledger and the host's counts of each
    fetch disagree; they must be equal. A demand that ended differently is one too many of one
    end and one too few of another. `untold` ones are in the ledger alone, under whatever end."""
    more = told - np.array(ledger, np.int64)
    return max(int(more[more > 0].sum()), abs(int(-more[more < 0].sum()) - untold))


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    """At most QUANTILES_MAX evenly spaced quantiles, ascending."""
    if values.size <= QUANTILES_MAX:
        return [float(value) for value in np.sort(values)]
    shares = np.linspace(0.0, 1.0, QUANTILES_MAX)
    return [float(value) for value in np.quantile(values, shares)]
