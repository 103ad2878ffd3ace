"""Front end: the link to the hosts, PCIe, CXL or NVLink, one unit for each direction.

What it does: receives commands and written blocks from hosts, and sends fetched blocks. A transfer
occupies its direction for its payload's time at the lanes' raw rate less headers, acknowledgements
and flow control (`efficiency`, from pcie-model), and arrives one link latency later.

Pipeline: serialise, fly, deliver; the next transfer begins while the last one flies.
Initiation interval: the payload's time on the lanes.
State: credits. A transfer holds one until the receiver has taken it, and the credit needs a link
latency to return.
When full: without a credit nothing starts, transfers wait before the link, and the unit that feeds
it is blocked. For hosts that is a full submission ring.

`protocol` changes numbers, not the structure: CXL and NVLink have the same two directions with
other rates and latencies. `memory` is shared memory, where "lanes" are threads that copy.
"""

from dataclasses import replace

from offstage.asic_model.blocks import FrontEnd
from offstage.asic_model.units.cost import per_byte_ps, per_mib_ps
from offstage.bindings.network import Stage, Unit

__all__ = ["ask", "front_end", "receive"]

COMMAND_BYTES = 64
SCORE_BYTES = 2
"""An entry of the submission ring, and a score behind it: region.h. Ordinals add little."""
READ_BYTES = 74
"""The request of a one-sided read: 58 B of RoCE v2 and Ethernet headers (links.toml) and 16 B that
name the memory."""


def front_end(link: FrontEnd) -> tuple[Unit, ...]:
    """Both directions."""
    rate = _rate(link)
    there = Unit(
        "link_in",
        kind="link",
        queue="priority",
        mib_ps=per_mib_ps(rate),
        item_ps=per_byte_ps(rate, SCORE_BYTES),
        latency_ps=link.latency.whole,
        in_flight_max=link.credits.whole,
    )
    # A host's own copy out of shared memory has no return path: only the command has latency.
    latency_ps = 0 if link.protocol == "memory" else there.latency_ps
    return there, replace(there, name="link_out", latency_ps=latency_ps)


def receive(link: FrontEnd) -> Stage:
    """A command arrives: its own bytes and its scores, not those of the blocks it names."""
    own_ps = per_byte_ps(_rate(link), COMMAND_BYTES)
    return Stage("link_in", bytes_permille=0, items="scores", fixed_ps=own_ps)


def ask(link: FrontEnd) -> tuple[Stage, ...]:
    """The requests of one-sided reads, one for each block. A host that shares the memory sends
    none, as it has its copy without a return path."""
    if link.protocol == "memory":
        return ()
    more_ps = per_byte_ps(_rate(link), READ_BYTES - SCORE_BYTES)  # than the unit's item, a score
    return (Stage("link_in", bytes_permille=0, items="blocks", item_ps=more_ps),)


def _rate(link: FrontEnd) -> float:
    return link.lane_rate.base * link.lanes.base * link.efficiency.base
