"""The chip's blocks in Verilog: sizes, cycles, and what synthesis made of them.

Model: `BLOCKS` is the one place that says how large each file of `rtl/` is built, how many cycles
an answer takes and how many lie between two. The tests of the RTL hold these cycles to the Verilog
and to the engine's units; `synth.py` reads the sizes and writes `tables/synth.toml`, which presets
are checked against: a clock that no synthesis has closed is not `synthesized`.

What can fail: `BadInput` for a table that is damaged.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from offstage.bindings.settings import read_toml

__all__ = ["BLOCKS", "RTL", "TABLE", "Rtl", "Synthesis", "size_text", "synthesis"]

RTL = Path(__file__).resolve().parent / "rtl"
TABLE = Path(__file__).resolve().parent / "tables/synth.toml"


@dataclass(frozen=True)
class Rtl:
    """One block. `cycles`: from the handshake to the answer; `interval`: between two handshakes.
    `tested`: the parameters of the tests; `larger`: those beside it in the table of synthesis.
    `busy`: the inputs that are held to keep it busy while the others are drawn, where that measures
    its energy: it has no SRAM, and its inputs are as good as random."""

    cycles: int
    interval: int = 1
    tested: dict[str, int] = field(default_factory=dict)
    larger: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] | None = None


BLOCKS: dict[str, Rtl] = {
    "metadata_lookup": Rtl(
        cycles=9,
        tested={"SET_BITS": 5, "WAY_BITS": 2, "QUEUE_BITS": 3, "CREDIT_BITS": 4},
        larger={"SET_BITS": 16, "WAY_BITS": 3, "QUEUE_BITS": 8, "CREDIT_BITS": 4},
    ),
    "qos_arbiter": Rtl(
        cycles=4,
        tested={
            "TENANT_BITS": 2,
            "DEPTH_BITS": 5,
            "SESSION_BITS": 4,
            "COST_BITS": 16,
            "INTERVAL": 7,
        },
        larger={
            "TENANT_BITS": 2,
            "DEPTH_BITS": 10,
            "SESSION_BITS": 10,
            "COST_BITS": 17,
            "INTERVAL": 11,
        },
    ),
    "codec_lane": Rtl(cycles=7),
    "encode_lane": Rtl(cycles=17),
    "channel_queue": Rtl(
        cycles=0,
        tested={"QUEUE_BITS": 3, "CREDITS": 12, "CREDIT_BITS": 4, "CYCLES_BITS": 8},
        larger={"QUEUE_BITS": 6, "CREDITS": 256, "CREDIT_BITS": 9, "CYCLES_BITS": 16},
    ),
    "chunk_key": Rtl(
        cycles=37,
        tested={"ID_BITS": 8, "CREDITS": 48, "CREDIT_BITS": 6},
        larger={"ID_BITS": 20, "CREDITS": 64, "CREDIT_BITS": 7},
    ),
    "block_hash": Rtl(cycles=18, busy={"in_valid": 1, "in_last": 0}),
    "candidate_heap": Rtl(
        cycles=3,
        interval=4,
        tested={"LEVELS": 6, "QUEUE_BITS": 2},
        larger={"LEVELS": 12, "QUEUE_BITS": 3},
    ),
    # From the end of the last beat to the first candidate.
    "candidate_compare": Rtl(
        cycles=3,
        tested={"LANES": 4, "CELLS": 4, "COUNT_BITS": 3},
        larger={"LANES": 16, "CELLS": 16, "COUNT_BITS": 5},
    ),
    "dma_engines": Rtl(
        cycles=2,
        tested={
            "ENGINE_BITS": 2,
            "SLOT_BITS": 3,
            "QUEUE_BITS": 3,
            "PIECE_BITS": 9,
            "WIDTH_BITS": 5,
            "SETUP": 5,
        },
        larger={
            "ENGINE_BITS": 3,
            "SLOT_BITS": 5,
            "QUEUE_BITS": 8,
            "PIECE_BITS": 13,
            "WIDTH_BITS": 5,
            "SETUP": 120,
        },
    ),
}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block at one size. `path_ps`: the longest path between flops, without wires and without
    the flops' own delay, so that the clock it allows is an upper bound. `cycle_pj`: the energy of a
    cycle by its gates' toggles, a lower bound; None where random inputs would not measure it."""

    block: str
    size: str
    area_um2: float
    flops: int
    path_ps: float
    cycle_pj: float | None = None

    @property
    def clock_ghz(self) -> float:
        """The highest clock, at most."""
        return 1000 / self.path_ps


class Synthesis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """synth.toml: the cell library by its own name, its node, the program, and the rows."""

    library: str
    node_nm: int
    program: str
    rows: list[Row]

    @property
    def clock_ghz(self) -> float:
        """The highest clock of the chip at which every block closes, at most."""
        return min(row.clock_ghz for row in self.rows)


@lru_cache(maxsize=1)
def synthesis() -> Synthesis:
    """The table that `make synth` wrote last."""
    return msgspec.convert(read_toml(TABLE, "run make synth"), Synthesis)


def size_text(sizes: dict[str, int]) -> str:
    """A block's parameters as a row names them."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
