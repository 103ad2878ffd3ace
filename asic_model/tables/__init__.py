"""Tables of the chip's memories and links: what other people's models and papers say.

Each table is a file beside the module that reads it, and each number in it says where it comes
from. Nothing here runs a simulator: `make` writes the request lists that the simulators are run
on, and reads back what they said. How to make each table again: docs/reference/asic-tables.md.
"""

from offstage.asic_model.tables.dram import Channel, channel
from offstage.asic_model.tables.links import coded_bytes_per_s, flit_share, payload_share, published
from offstage.asic_model.tables.sram import Sram, sram

__all__ = [
    "Channel",
    "Sram",
    "channel",
    "coded_bytes_per_s",
    "flit_share",
    "payload_share",
    "published",
    "sram",
]
