"""Tables of the chip's memories and links, from published models and papers.

Each table is a file next to the module that reads it, and each number in it names its source.
Nothing here runs a simulator: `make` writes the request lists for the simulators and reads back
their answers. How to remake each table: docs/reference/asic-tables.md.
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
