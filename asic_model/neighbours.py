"""Two readers that share a chip: a victim that reads little, and an aggressor that reads ever more.

Model: blocks are read from the drives. The drives get no more reads than keep them busy; the rest
waits before them. With QoS, the firmware's own scheduler orders the wait: deficit round robin
between tenants of equal weight and the preset's rounds between the sessions of one. Without it the
order is arrival, and the aggressor's identity makes no difference. The aggressor is another tenant
or another session of the victim's tenant, and all reads are equally urgent. Arrivals are Poisson,
from a seed. The device's capacity is measured by overloading it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from offstage.asic_model.chip import network
from offstage.asic_model.parameters import Preset
from offstage.bindings.chip import REQUEST, Array, Chip, Limits, Network
from offstage.bindings.ledger import quantile
from offstage.bindings.qos import QosConfig, TenantShare

__all__ = ["Neighbours", "neighbours"]

PS_PER_S = 10**12
SECONDS = 0.01
READS_AT_DRIVE = 96
"""Reads per drive: about what keeps its flash busy."""
VICTIM_SHARE = 0.05
SEED = 1


@dataclass(frozen=True)
class Neighbours:
    """The victim's 99th percentile while the aggressor offers `aggressor_share` of the capacity.
    `same_tenant`: the aggressor is a session of the victim's tenant; makes no difference without
    QoS."""

    qos: bool
    same_tenant: bool
    aggressor_share: float
    victim_ns_p99: float


def neighbours(preset: Preset, shares: Sequence[float], block_bytes: int) -> Iterator[Neighbours]:
    """Every share: with QoS against either aggressor, and without."""
    for qos, same_tenant in ((True, False), (True, True), (False, False)):
        net = _network(preset, qos, block_bytes)
        capacity = _capacity(net, block_bytes)
        for share in shares:
            p99 = _victim_p99(net, capacity, share, block_bytes, same_tenant)
            yield Neighbours(qos, same_tenant, share, p99)


def _network(preset: Preset, qos: bool, block_bytes: int) -> Network:
    """The preset's network, with a short queue at the drives and the arbiter before it."""
    whole = network(preset)
    drives = preset.nvme.drives.whole
    units = []
    for unit in whole.units:
        if unit.name == "qos":
            assert preset.qos is not None
            config = QosConfig(
                quantum_bytes=block_bytes,
                session_count=2,
                queue_max=1 << 15,
                session_max=1 << 15,
                session_quantum_bytes=round(block_bytes * preset.qos.session_rounds.base),
            )
            unit = replace(
                unit,
                queue="qos" if qos else "fifo",
                queue_max=1 << 15,
                in_flight_max=1,  # a granted read without a drive yet blocks the next grant
                qos=config if qos else None,
                tenants=(TenantShare(), TenantShare()) if qos else (),
            )
        elif unit.name == "drive":
            assert unit.drive is not None, "a chip has drives of known parameters"
            depth = {**unit.drive, "queue_depth_max": READS_AT_DRIVE * drives}
            unit = replace(unit, queue_max=1, drive=depth, in_flight_max=READS_AT_DRIVE * drives)
        elif unit.name == "nvme_command":
            unit = replace(unit, queue_max=1)
        units.append(unit)
    first, *rest = whole.routes["read"]
    route = (replace(first, coded=False), *rest)
    return Network(tuple(units), {"read": route}, whole.coded_permille)


def _capacity(net: Network, block_bytes: int) -> float:
    """Blocks a second of a saturated device."""
    count = 20_000
    requests = np.zeros(count, REQUEST)
    requests["tag"] = np.arange(count)
    _spread_over_medium(requests, block_bytes)
    chip = _open(net)
    ends = chip.run(requests)
    half = np.sort(ends["end_ps"])
    return (count / 2) / float(half[-1] - half[count // 2]) * PS_PER_S


def _victim_p99(
    net: Network, capacity: float, share: float, block_bytes: int, same_tenant: bool
) -> float:
    draw = np.random.default_rng(SEED)
    parts = []
    for session, rate in ((0, VICTIM_SHARE * capacity), (1, share * capacity)):
        count = max(int(rate * SECONDS), 1)
        part = np.zeros(count, REQUEST)
        part["at_ps"] = np.sort(draw.integers(0, int(SECONDS * PS_PER_S), count))
        part["session"], part["tenant"] = session, 0 if same_tenant else session
        parts.append(part)
    requests = np.concatenate(parts)
    requests = requests[np.argsort(requests["at_ps"], kind="stable")]
    requests["tag"] = np.arange(len(requests))
    _spread_over_medium(requests, block_bytes)
    ends = _open(net).run(requests)
    victim = ends[requests["session"][ends["tag"]] == 0]
    waits = (victim["end_ps"] - victim["at_ps"]).astype(np.float64)
    return quantile(waits, 0.99) / 1000


def _spread_over_medium(requests: Array, block_bytes: int) -> None:
    draw = np.random.default_rng(SEED + 1)
    requests["size_bytes"], requests["count"] = block_bytes, 1
    requests["key"] = requests["tag"]
    requests["offset_bytes"] = draw.integers(0, 1 << 20, len(requests)) * block_bytes


def _open(net: Network) -> Chip:
    limits = Limits(in_flight_max=1 << 16, piece_max=1 << 18, end_max=1 << 16)
    return Chip(net, seed=SEED, limits=limits)
