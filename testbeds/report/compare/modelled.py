"""A model's run as a column: a `ChipRun` in the comparison's terms."""

from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import ChipRun, UnitRun
from offstage.asic_model.result import Range as Known
from offstage.asic_model.trace import Trace
from offstage.testbeds.report.compare.columns import Column, Range, UnitFigures

__all__ = ["arm_cores", "modelled_column"]

PS_PER_S = 10**12


def modelled_column(run: ChipRun, calibrated: bool, device: str = "") -> Column:
    """The column of one preset; pass `calibrated` only if a calibration on measured runs passed."""
    return Column(
        device=device or run.preset,
        provenance=run.provenance,
        calibrated=calibrated,
        storage=run.storage,
        demands=run.demands,
        hits=run.hits,
        late=run.late,
        misses=run.misses,
        diverged=run.diverged,
        fetch_ns=run.fetch_ns,
        stall_ns=run.stall_ns,
        seconds=run.seconds,
        bytes_read=run.bytes_read,
        bytes_per_s=run.bandwidth_bytes_per_s,
        deadlines_missed=run.deadlines_missed,
        tokens=run.tokens,
        tokens_per_s=run.tokens_per_s,
        joule_per_gb=_total(run.energy, run.bytes_to_hosts / 1e9),
        joule_per_token=_total(run.energy, run.tokens),
        area_mm2=_total(run.area, 1.0),
        watt=_total(run.power, 1.0),
        binds_first=run.binds_first,
        units=[_unit(one, run) for one in run.units],
        notes=list(run.notes),
    )


def arm_cores(run: ChipRun, trace: Trace, card: Preset) -> Range | None:
    """Cores of `card` needed for the command rate that the device can reach: the capacity of its
    busiest unit, times the software's cost per command."""
    busiest = max((unit.utilisation for unit in run.units), default=0.0)
    count = len(trace.fetches)
    if not busiest or not run.seconds or card.cores is None:
        return None
    commands_per_s = count / (run.seconds * busiest)
    scores = sum(one.scores for one in trace.fetches) / count
    reads = len(trace.reads) / count
    demands = run.demands / count
    times = {"command": 1.0, "demand": demands, "score": scores, "read": reads, "publish": reads}
    found = [
        sum(
            getattr(getattr(card.cores, name), end) * getattr(card.cores, name).scale * times[name]
            for name in times
        )
        / PS_PER_S
        for end in ("value", "low", "high")
    ]
    return Range(*(commands_per_s * seconds for seconds in found))


def _unit(unit: UnitRun, run: ChipRun) -> UnitFigures:
    return UnitFigures(
        name=unit.name,
        busy_share=unit.utilisation,
        busy_by_bin=list(unit.busy),
        bin_ms=unit.bin_ns / 1e6,
        ns_p50=unit.share_p50 * run.fetch_ns.p50,
        ns_p99=unit.share_p99 * run.fetch_ns.p99,
    )


def _total(parts: list[Known], per: float) -> Range | None:
    """The sum of the parts per `per`; None if nothing is known or `per` is 0."""
    if not parts or not per:
        return None
    sums = [sum(getattr(one, end) for one in parts) / per for end in ("value", "low", "high")]
    return Range(*sums)
