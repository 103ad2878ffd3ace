"""How long a modelled device takes, in virtual time: the sides of `timing.h`, and how to add one.

A `Timing` is one side with its state; a simulator, such as an `Engine`, asks it when a read, a
write, a command or a hit ends. `TIMINGS` is the registry: a name, and a function that opens the
side from one `Costs`, of which each side uses the fields it knows. A side of another extension is a
pointer: it is registered with a function that returns `Timing(address, keep)`. Times of the seam
are integer ps.

What can fail: `BadInput` for a name that is not registered or costs out of range, `Incompatible`
for a side that was built for another version of the header.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = ["IN_FLIGHT_MAX", "KINDS", "TIMINGS", "Costs", "Timing", "open_timing"]

KINDS = ("read", "write", "hit", "command")
"""What can be asked: a block from the medium or to it, staged blocks handed to a host, and a
command taken and decided."""

IN_FLIGHT_MAX = 1 << 16
"""Completions that a queueing side may owe at a time, unless `Costs` says otherwise."""

_PS_PER_NS = 1000


@dataclass(frozen=True)
class Costs:
    """What a side is opened with. The four in ns are constants; `nvme` takes those that are not
    the drive's. `nvme`: the drive, as in `bindings.storage.preset`; None: reads take `read_ns`.
    `writes`: whether the drive writes, or a write takes `write_ns` instead. `seed`: its draws."""

    read_ns: int = 0
    write_ns: int = 0
    hit_ns: int = 0
    command_ns: int = 0
    nvme: dict[str, int] | None = None
    writes: bool = False
    seed: int = 0
    in_flight_max: int = IN_FLIGHT_MAX


class Timing:
    """One side at `address`; `keep` is what must live as long, the owner of its memory for one.
    `stuck` says why a side that owes ends has nothing scheduled, where the side can tell."""

    def __init__(
        self,
        address: int,
        keep: Any = None,
        stuck: Callable[[], OffstageError | None] | None = None,
    ) -> None:
        self.handle: Any = ffi.cast("struct ofs_timing *", address)
        self._keep = keep
        self.stuck = stuck or (lambda: None)
        check_rc(
            lib.ofs_timing_check(self.handle),
            "looking at a timing side",
            "timing",
            "build it against this release's timing.h",
        )

    @property
    def address(self) -> int:
        """Where the side lies: what another extension takes."""
        return int(ffi.cast("uintptr_t", self.handle))

    @property
    def name(self) -> str:
        """The name of the side."""
        name: Any = ffi.string(self.handle.ops.name)
        return str(name.decode())

    def ask(
        self,
        kind: str,
        now_ps: int,
        *,
        tag: int = 0,
        offset_bytes: int = 0,
        size_bytes: int = 0,
        count: int = 1,
        deadline_ps: int = 0,
        score_count: int = 0,
        tenant: int = 0,
        cause: int = 0,
        session: int | None = None,
        layer: int = 0,
        chunk: int = 0,
        blocks: Iterable[int] | None = None,
    ) -> int | None:
        """When one of `KINDS` ends, asked at now_ps; None: `poll` will hand the end out.
        `session`: for whom, a number of the core; None: for none in particular. `blocks`: those of
        a command, `count` ordinals; None: unknown."""
        request: Any = ffi.new("struct ofs_timing_request *")
        request.tag, request.offset_bytes, request.size_bytes = tag, offset_bytes, size_bytes
        request.count, request.deadline_ps = count, deadline_ps
        request.score_count, request.tenant, request.cause = score_count, tenant, cause
        request.session = lib.OFS_NONE if session is None else session
        request.layer, request.chunk = layer, chunk
        named: Any = ffi.NULL if blocks is None else ffi.new("uint32_t[]", list(blocks))
        request.blocks = named
        end_ps = int(getattr(self.handle.ops, kind)(self.handle, now_ps, request))
        return None if end_ps == lib.OFS_TIMING_LATER else end_ps

    def next_ps(self) -> int | None:
        """The time until which `poll` returns nothing; None: until the next request."""
        next_ps = int(self.handle.ops.next_ps(self.handle))
        return None if next_ps == lib.OFS_TIMING_LATER else next_ps

    def poll(self, now_ps: int, limit: int = 64) -> list[tuple[int, int]]:
        """At most `limit` ends up to now_ps that were owed, (tag, end in ps), in order of time."""
        ends: Any = ffi.new("struct ofs_timing_end[]", limit)
        count = int(self.handle.ops.poll(self.handle, now_ps, ends, limit))
        return [(int(ends[i].tag), int(ends[i].end_ps)) for i in range(count)]

    def reset(self) -> None:
        """As opened: what is owed never ends, and time may begin at 0 again."""
        self.handle.ops.reset(self.handle)


def _open(side: str, costs: Costs) -> Timing:
    config: Any = ffi.new("struct ofs_timing_config *")
    config.side = side.encode()
    config.in_flight_max, config.writes, config.seed = costs.in_flight_max, costs.writes, costs.seed
    for name in KINDS:
        setattr(config, f"{name}_ps", getattr(costs, f"{name}_ns") * _PS_PER_NS)
    if costs.nvme is not None:
        config.nvme = costs.nvme
    out: Any = ffi.new("struct ofs_timing **")
    rc = lib.ofs_timing_open(out, config)
    check_rc(rc, f"opening {side} timing", "timing", "costs up to 1000 s, and a whole drive")
    owner: Any = ffi.gc(out[0], _close)
    return Timing(int(ffi.cast("uintptr_t", owner)), owner)


def _close(timing: Any) -> None:
    timing.ops.close(timing)


def _nvme(costs: Costs) -> Timing:
    return _open("free" if costs.nvme is None else "nvme", costs)


TIMINGS: dict[str, Callable[[Costs], Timing]] = {
    "nvme": _nvme,
    "free": lambda costs: _open("free", costs),
    "skeleton": lambda costs: _open("skeleton", costs),
}
"""The sides by name: a drive behind a DPU (with no drive, as `free`), constants alone, and the
commented example, which is a queue."""


def open_timing(side: "str | Timing", costs: Costs) -> Timing:
    """The side of that name, opened; one that is open already is given back, whatever `costs`."""
    if isinstance(side, Timing):
        return side
    if side not in TIMINGS:
        raise BadInput(f"no timing {side!r}", "timing", f"choose one of {', '.join(TIMINGS)}")
    return TIMINGS[side](costs)
