"""Front end: the link to the hosts, PCIe, CXL or NVLink, one unit for each direction.

What it does: takes commands and blocks that hosts write, and sends the blocks that they fetch. A
transfer occupies its direction for its payload at the rate that is left of the lanes' raw rate
after headers, acknowledgements and flow control (`efficiency`, from pcie-model), and arrives one
link latency later.

Pipeline: serialise, fly, deliver; the next transfer begins while the last one flies.
Initiation interval: none of its own, the payload's time on the lanes.
State: credits. A transfer holds one until the receiver has taken it, and the credit needs a link
latency to come back.
When full: without a credit nothing begins, transfers wait before the link, and whoever feeds it is
blocked. For hosts that is a full submission ring.

`protocol` changes numbers, not the shape: CXL and NVLink are the same two directions with other
rates and latencies. `memory` is shared memory, where "lanes" are threads that copy.
"""

from typing import Any

from offstage.asic_model.blocks import FrontEnd
from offstage.asic_model.units.cost import per_byte_ps, per_mib_ps
from offstage.bindings.network import Stage, Unit

__all__ = ["front_end", "receive"]

COMMAND_BYTES = 64
SCORE_BYTES = 2
"""An entry of the submission ring, and a score behind it: region.h. Ordinals are few beside."""


def front_end(link: FrontEnd) -> tuple[Unit, ...]:
    """Both directions."""
    rate = _rate(link)
    shared: dict[str, Any] = {
        "kind": "link",
        "queue": "priority",
        "mib_ps": per_mib_ps(rate),
        "item_ps": per_byte_ps(rate, SCORE_BYTES),
        "latency_ps": link.latency.whole,
        "in_flight_max": link.credits.whole,
    }
    # What a host copies out of shared memory itself has no way back: the latency is the command's.
    back: dict[str, Any] = {**shared, "latency_ps": 0} if link.protocol == "memory" else shared
    return Unit("link_in", **shared), Unit("link_out", **back)


def receive(link: FrontEnd) -> Stage:
    """A command comes in: its own bytes and its scores, not those of the blocks that it names."""
    own_ps = per_byte_ps(_rate(link), COMMAND_BYTES)
    return Stage("link_in", bytes_permille=0, items="scores", fixed_ps=own_ps)


def _rate(link: FrontEnd) -> float:
    return link.lane_rate.base * link.lanes.base * link.efficiency.base
