"""The model of an NVMe drive, and what a read costs of it (`nvme_model.h`).

Times are integer picoseconds. Bad parameters, and what a drive with zones refuses, raise `BadInput`
with the firmware's line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc, ffi, lib, text_of

__all__ = ["LATER", "NvmeCost", "NvmeModel", "nvme_cost", "struct_fields"]

LATER, REFUSED = (1 << 64) - 1, (1 << 64) - 2
"""Of the drive's model: an end that `NvmeModel.poll` tells."""
POLL_MAX = 256


@dataclass(frozen=True)
class NvmeCost:
    """What reads take of a drive that is never idle, in ns of each resource. The slowest one says
    how many there are in a second: `bound`, and `ns` between two."""

    command: float
    media: float
    channel: float
    link: float

    @property
    def bound(self) -> str:
        """The resource that is asked most."""
        return max(("command", "media", "channel", "link"), key=lambda name: getattr(self, name))

    @property
    def ns(self) -> float:
        """The least time between two such reads."""
        return float(getattr(self, self.bound))


def nvme_cost(params: dict[str, int], stretches: Iterable[tuple[int, int]]) -> NvmeCost:
    """Cost of reads (offset, bytes) that belong together, each a command; `BadInput` for 0 B."""
    struct, cost = ffi.new("struct ofs_nvme_params *", params), ffi.new("struct ofs_nvme_cost *")
    sums = dict.fromkeys(("command", "media", "channel", "link"), 0)
    for offset, size in stretches:
        check_rc(lib.ofs_nvme_cost(struct, offset, size, cost), "working out a read", "nvme")
        for name in sums:
            sums[name] += int(getattr(cost, f"{name}_ps"))
    return NvmeCost(**{name: total / 1e3 for name, total in sums.items()})


class NvmeModel:
    """The timing model alone. Times are integer picoseconds; `now_ps` never goes back."""

    def __init__(self, params: dict[str, int], seed: int = 0) -> None:
        out = ffi.new("struct ofs_nvme_model **")
        struct = ffi.new("struct ofs_nvme_params *", params)
        wrong = lib.ofs_nvme_params_wrong(struct)
        if wrong != ffi.NULL:
            what, _, fix = text_of(wrong).partition("; ")
            raise BadInput(what, "nvme", fix)
        check_rc(lib.ofs_nvme_model_open(out, struct, seed), "opening the NVMe model", "nvme")
        self._handles = max(1, params.get("handle_count", 0))
        self._zones = params.get("zone_count", 0)
        self._model = ffi.gc(out[0], lib.ofs_nvme_model_close)
        self._ends = ffi.new(f"struct ofs_nvme_end[{POLL_MAX}]")

    def submit(
        self,
        now_ps: int,
        offset_bytes: int,
        size_bytes: int,
        write: bool = False,
        tag: int = 0,
        *,
        handle: int = 0,
        discard: bool = False,
        zone: bool = False,
    ) -> int:
        """When the I/O ends, in ps; of a drive with schedulers `LATER`, and `poll` tells.
        `zone`: a write to a zone, or, with `discard`, the reset of the one that begins there.
        `BadInput` for bytes that no drive has an address of, a handle that this one lacks, and what
        its zones refuse."""
        if not 0 <= handle < self._handles:
            raise BadInput(
                f"the drive has no placement handle {handle}",
                "nvme",
                f"give 0 to {self._handles - 1}, or raise handle_count",
            )
        if offset_bytes < 0 or not 0 <= size_bytes < 1 << 32 or (offset_bytes | size_bytes) % 512:
            raise BadInput(
                f"{size_bytes} bytes at {offset_bytes} are no I/O of a drive",
                "nvme",
                "give multiples of 512 bytes, at most 4 GiB",
            )
        if zone and not self._zones:
            raise BadInput("the drive has no zones", "nvme", "give zone_count and zone_size_bytes")
        kind = lib.OFS_NVME_DISCARD if discard else 1 + handle if write else 0
        if zone and kind:
            kind = lib.OFS_NVME_ZONE_RESET if discard else lib.OFS_NVME_ZONE_WRITE
        end_ps = lib.ofs_nvme_model_submit(self._model, now_ps, kind, tag, offset_bytes, size_bytes)
        if end_ps == REFUSED:
            what, _, fix = text_of(lib.ofs_nvme_model_refusal(self._model)).partition("; ")
            raise BadInput(what, "nvme", fix)
        return int(end_ps)

    def zone(self, number: int) -> tuple[str, int]:
        """A zone's state, `empty`, `open`, `closed` or `full`, and the bytes written to it."""
        found: Any = ffi.new("struct ofs_nvme_zone *")
        check_rc(lib.ofs_nvme_model_zone(self._model, number, found), "looking at a zone", "nvme")
        return ("empty", "open", "closed", "full")[found.state], int(found.written_bytes)

    def poll(self, now_ps: int) -> list[tuple[int, int]]:
        """(tag, end in ps) of what a drive with schedulers has ended by now."""
        found: list[tuple[int, int]] = []
        while count := lib.ofs_nvme_model_poll(self._model, now_ps, self._ends, POLL_MAX):
            found += [(end.tag, end.end_ps) for end in self._ends[0:count]]
        return found

    def first(self) -> tuple[int, int] | None:
        """(tag, end in ps) of what ends first in a drive with schedulers, if nothing else is
        submitted before; None: nothing is on its way. Time goes there."""
        if not lib.ofs_nvme_model_poll(self._model, LATER - 1, self._ends, 1):
            return None
        return self._ends[0].tag, self._ends[0].end_ps

    def wear(self) -> dict[str, int]:
        """Pages written by the host, moved by collections and valid; and blocks erased."""
        wear = ffi.new("struct ofs_nvme_wear *")
        lib.ofs_nvme_model_wear(self._model, wear)
        return struct_fields(wear)

    def next_ps(self) -> int:
        """When `poll` may next have something; `LATER`: nothing is on its way."""
        return int(lib.ofs_nvme_model_next_ps(self._model))


def struct_fields(struct: Any) -> dict[str, int]:
    """The numbers of a C struct by name."""
    return {name: int(getattr(struct, name)) for name, _ in ffi.typeof(struct[0]).fields}
