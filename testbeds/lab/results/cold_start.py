"""What a stream of weights beside KV came to at one point, and what it cost the sessions.

Model: times are those of the stream's side; *alone* is the same stream on the same drive with
nothing of KV, run here. What the sessions lost is the difference to the point without the stream,
which is paired with it after both were measured. Means over seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from offstage.bindings.stream import open_stream
from offstage.testbeds.lab.results.ledger import RunTotals
from offstage.testbeds.lab.results.summary import (
    ColdStart,
    Interval,
    PointInfo,
    PointSummary,
    Undisturbed,
)
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.weights import stream_of

__all__ = ["cold_start", "pair_undisturbed"]

PS_PER_S = 1e12
NS_PER_S = 1e9


def cold_start(spec: Spec, info: PointInfo, runs: Sequence[RunTotals]) -> ColdStart | None:
    """The figures of a point; None without `[weights]`. `runs`: one per seed."""
    if spec.weights is None:
        return None
    stream = stream_of(spec, info.block_bytes, 1, 0, spec.seeds[0])
    read = sum(run.weights["read_bytes"] for run in runs)
    tokens = sum(len(run.stall_ns) for run in runs)
    found = ColdStart(
        bytes=stream.bytes,
        seconds=None,
        alone_seconds=None,
        beside_share=None,
        floor_share=None,
        tokens_per_s=tokens / sum(run.decoded_ns / NS_PER_S for run in runs),
    )
    if not read:
        return found
    side = open_stream(stream)
    side.finish()
    ends = sum(run.weights["end_ps"] for run in runs) / len(runs)
    return msgspec.structs.replace(
        found,
        seconds=(ends - stream.begin_ps) / PS_PER_S,
        alone_seconds=(side.stats()["end_ps"] - stream.begin_ps) / PS_PER_S,
        beside_share=sum(run.weights["read_beside_bytes"] for run in runs) / read,
        floor_share=sum(run.weights["floor_bytes"] for run in runs) / read,
    )


def pair_undisturbed(points: Iterable[PointSummary], without: Mapping[str, str]) -> None:
    """Sets `without` of each point. `without`: by the label of a variant with weights, that of the
    same one without."""
    found = {repr(one.info): one for one in points}
    for point in found.values():
        label = without.get(point.info.workload, "")
        other = found.get(repr(replace(point.info, workload=label)))
        if point.weights is not None and other is not None and other.weights is not None:
            point.weights = msgspec.structs.replace(
                point.weights,
                without=Undisturbed(
                    tokens_per_s=other.weights.tokens_per_s,
                    stall_ms_p50=_value(other.stall_ms_p50),
                    stall_ms_p99=_value(other.stall_ms_p99),
                ),
            )


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value
