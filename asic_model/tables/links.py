"""The payload share of a PCIe link's rate, in closed form; and published figures of other links.

A PCIe link of generations 3 to 5 carries TLPs in frames, and sends acknowledgements and credits in
separate packets. Of the rate after line coding, payload is

    payload / (payload + header) × (1 - acknowledgements - credits - clock compensation)

The header of a TLP is 8 bytes of framing, sequence number and checksum, 4 common bytes, and 8 (a
completion, or a write to a 32-bit address) or 12 (64-bit) of its type. One acknowledgement and one
credit update, 8 bytes each, are counted per the longest interval that the specification allows,
((payload_max + 28) × factor / lanes + delay) symbols. Nothing here is measured, so a link may do
better. Reads also send requests the other way; these never need more than the completions do.

Generation 6 has flits of 256 bytes, 236 of them for TLPs, with acknowledgements inside
(`flit_share`); `payload_share` counts it in frames, as pcie-model does, whose author calls that a
guess. How both compare with pcie-model: docs/reference/asic-tables.md.

NVLink, CXL and RDMA are in links.toml, each number with source, tag and range.
"""

from functools import lru_cache
from math import ceil
from pathlib import Path

from offstage.asic_model.blocks import Number
from offstage.asic_model.tables.numbers import read_numbers
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known

__all__ = ["coded_bytes_per_s", "flit_share", "payload_share", "published"]

TABLE = Path(__file__).resolve().parent / "links.toml"

# GT/s of a lane, and the share left by line coding (from generation 6: flits).
RATES = {3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
CODING = {3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
LANES = (1, 2, 4, 8, 16)
PAYLOADS = (128, 256, 512, 1024, 2048, 4096)
FRAME_BYTES = 8
COMMON_BYTES = 4
DLLP_BYTES = 8
INTERNAL_DELAY = 115  # symbols, at 8 GT/s and above
TLP_OVERHEAD = 28
CLOCK_COMPENSATION = 4 / 1538
FLIT_BYTES, FLIT_TLP_BYTES = 256, 236
FLIT_HEADER_BYTES = 16  # of a write to a 64-bit address; a completion has 12, and no framing


def coded_bytes_per_s(generation: int, lanes: int) -> float:
    """Bytes a second per direction after line coding."""
    _check(generation, lanes, PAYLOADS[0])
    return RATES[generation] * CODING[generation] * lanes / 8 * 1e9


def payload_share(
    generation: int,
    lanes: int,
    *,
    payload_max: int = 256,
    size_bytes: int = 65536,
    write: bool = False,
) -> float:
    """Payload share of the coded rate, for transfers of `size_bytes` in one direction at full
    rate."""
    _check(generation, lanes, payload_max)
    packets = ceil(size_bytes / payload_max)
    header = FRAME_BYTES + COMMON_BYTES + (12 if write else 8)
    carried = size_bytes / (size_bytes + packets * header)
    upkeep = 2 * DLLP_BYTES / _update_symbols(lanes, payload_max)
    return carried * (1 - upkeep - CLOCK_COMPENSATION)


def flit_share(*, payload_max: int = 256) -> float:
    """Payload share of the raw rate in flit mode (generation 6), for long writes."""
    return FLIT_TLP_BYTES / FLIT_BYTES * payload_max / (payload_max + FLIT_HEADER_BYTES)


def published(name: str) -> dict[str, Number]:
    """`lane_rate`, `lanes`, `efficiency` and `latency` of a link in links.toml."""
    check_known(name, _links(), "links.toml", "link")
    return _links()[name]


@lru_cache(maxsize=1)
def _links() -> dict[str, dict[str, Number]]:
    return read_numbers(TABLE, ("GB/s", "ns", "1"))


def _update_symbols(lanes: int, payload_max: int) -> int:
    """The longest interval between two acknowledgements, in symbols of one lane."""
    small = {1: 1.4, 2: 1.4, 4: 1.4, 8: 2.5, 16: 3.0}
    large = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 2.0}
    factor = (small if payload_max <= 256 else large)[lanes]
    return int((payload_max + TLP_OVERHEAD) * factor / lanes + INTERNAL_DELAY)


def _check(generation: int, lanes: int, payload_max: int) -> None:
    for value, known, what in (
        (generation, tuple(RATES), "PCIe generation"),
        (lanes, LANES, "number of lanes"),
        (payload_max, PAYLOADS, "largest payload"),
    ):
        if value not in known:
            raise BadInput(
                f"no {what} {value}", "link", f"choose one of {', '.join(map(str, known))}"
            )
