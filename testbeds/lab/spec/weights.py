"""A stream of weights beside KV: parameters of its timing side from a spec, and what it refuses.

Model: with `[weights]` the drive of `[tier] storage` holds a model's weights too, and reads them
once, in pieces, through the arbiter that the daemon has (`bindings/stream.py`). A spec that has
weights is run without them too, on the same arbiter: that is what their cost is measured against.

What can fail: `BadInput` for a size, time or rate that is none, and the rules below.
"""

from collections.abc import Iterator

import msgspec

from offstage.bindings import drives
from offstage.bindings.storage import nvme_cost, preset
from offstage.bindings.stream import StreamConfig
from offstage.bindings.units import format_rate, format_size, parse_rate, parse_size, parse_time
from offstage.testbeds.lab.spec.schema import UNLIMITED, Spec, WeightsSpec
from offstage.testbeds.lab.spec.tiers import numbers_of, presets_of_tiers

__all__ = ["OF_STREAM", "stream_of", "undisturbed", "weights_bytes", "weights_rules"]

OF_STREAM = ("weights.bytes", "weights.start", "weights.floor", "weights.cap")
"""Keys that mean nothing to KV alone; the others are of the arbiter."""
PIECE_BYTES = 256 << 10
"""One read of the stream; a block where blocks are larger."""
BLOCK_BYTES_MAX = 16 << 20
IN_FLIGHT_MAX = 1 << 30
NS_PER_S, PS_PER_NS = 10**9, 1_000
RATE_MAX = 10**13
DAY_NS = 86_400 * NS_PER_S

Rule = tuple[bool, str, str, str]


def weights_bytes(weights: WeightsSpec) -> int:
    """Of the stream; 0: there is none."""
    return parse_size(weights.bytes, "[weights] bytes")


def undisturbed(spec: Spec) -> Spec:
    """The spec without its stream, on the same arbiter; unchanged if it has none."""
    old = spec.weights
    if old is None or weights_bytes(old) == 0:
        return spec
    alone = WeightsSpec(bytes=0, in_flight=old.in_flight, kv_weight=old.kv_weight)
    return msgspec.structs.replace(spec, weights=alone)


def _rate(text: str | float, key: str) -> int:
    return 0 if text == UNLIMITED else int(parse_rate(text, f"[weights] {key}"))


def _piece_bytes(block_bytes: int) -> int:
    return max(PIECE_BYTES, block_bytes)


def stream_of(spec: Spec, block_bytes: int, reads: int, hit_ps: int, seed: int) -> StreamConfig:
    """The side of a spec with weights. `reads`: of KV, that are owed at once."""
    weights = spec.weights
    assert weights is not None
    return StreamConfig(
        drive=preset(spec.tier.storage).params,
        bytes=weights_bytes(weights),
        piece_bytes=_piece_bytes(block_bytes),
        in_flight_bytes=parse_size(weights.in_flight, "[weights] in_flight"),
        in_flight_max=reads,
        begin_ps=parse_time(weights.start, "[weights] start") * PS_PER_NS,
        floor_bytes_per_s=_rate(weights.floor, "floor"),
        cap_bytes_per_s=_rate(weights.cap, "cap"),
        kv_weight=weights.kv_weight,
        hit_ps=hit_ps,
        seed=seed,
    )


def _capacity(spec: Spec) -> int | None:
    """Bytes of the drive: as published of it, or of the devices that it stands for in a plan; None:
    nobody says."""
    cited = drives.preset(spec.tier.storage).cited.get("capacity_bytes")
    if cited is not None:
        return cited
    named = (one.device for one in presets_of_tiers().values() if one.drive == spec.tier.storage)
    numbers = numbers_of(spec)
    return next((int(numbers.numbers(one)["capacity"].base) for one in named), None)


def weights_rules(spec: Spec) -> Iterator[Rule]:
    """What contradicts itself in `[weights]`, or the drive."""
    weights = spec.weights
    if weights is None:
        return
    for key, given in (
        ("[workload] kind", spec.workload.kind == "requests"),
        ("[tier] device", bool(spec.tier.device)),
        ("[[tier.below]]", bool(spec.tier.below)),
    ):
        yield given, "weights lie on the one drive of [tier] storage", key, "leave out one of both"
    if spec.tier.storage not in drives.presets():
        return  # another rule says so
    size, capacity = weights_bytes(weights), _capacity(spec)
    yield (
        capacity is not None and size > capacity,
        f"weights of {weights.bytes} on a {spec.tier.storage} of {format_size(capacity or 0)}",
        "[weights] bytes",
        "give fewer, or a larger drive",
    )
    start_ns = parse_time(weights.start, "[weights] start")
    yield start_ns > DAY_NS, "later than a day", "[weights] start", "give less"
    piece, held = (
        _piece_bytes(spec.block_bytes),
        parse_size(weights.in_flight, "[weights] in_flight"),
    )
    yield (
        not piece <= held <= IN_FLIGHT_MAX,
        f"the stream reads {format_size(piece)} at once, and in_flight is {weights.in_flight}",
        "[weights] in_flight",
        f"give {format_size(piece)} to {format_size(IN_FLIGHT_MAX)}",
    )
    yield (
        spec.block_bytes > BLOCK_BYTES_MAX,
        f"blocks of {format_size(spec.block_bytes)} beside weights",
        "[geometry] block_tokens",
        f"give blocks up to {format_size(BLOCK_BYTES_MAX)}",
    )
    yield from _rates(spec, weights, piece)


def _rates(spec: Spec, weights: WeightsSpec, piece: int) -> Iterator[Rule]:
    floor, cap = _rate(weights.floor, "floor"), _rate(weights.cap, "cap")
    cost = nvme_cost(preset(spec.tier.storage).params, [(0, piece)])
    most = round(piece / cost.ns * NS_PER_S)
    yield (
        floor > most,
        f"a floor of {format_rate(floor)}, and {spec.tier.storage} reads {format_rate(most)}",
        "[weights] floor",
        f"give at most {format_rate(most)}",
    )
    for key, rate in (("floor", floor), ("cap", cap)):
        yield 0 < rate < 256, f"{rate} bytes a second", f"[weights] {key}", "give 256B/s or more"
    yield cap > RATE_MAX, "more than any drive has", "[weights] cap", f'give "{UNLIMITED}"'
    yield (
        weights.cap != UNLIMITED and cap < floor,
        f"a cap of {format_rate(cap)} is below the floor of {format_rate(floor)}",
        "[weights] cap",
        "raise it, or lower the floor",
    )
    yield (
        weights.cap != UNLIMITED and cap == 0,
        "a stream that may read nothing never ends",
        "[weights] cap",
        f'give a rate, or "{UNLIMITED}"',
    )
