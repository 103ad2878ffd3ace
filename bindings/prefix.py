"""Prefix caching across requests, for Python: numpy arrays in, numpy arrays out.

The walks over a trace run in C from the first access to the last; shapes and meanings are those of
`ofs_prefix.h`. What `run` yields is `modelled`: virtual time over the decision core.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.analysis import core_pointers, ffi, lib
from offstage.bindings.core import Core
from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc
from offstage.bindings.layouts import layout, names

__all__ = ["ADMISSIONS", "REUSE", "ROW", "Counts", "Ideal", "Runs", "distances", "ideal", "run"]

ADMISSIONS = tuple(
    name.replace("_", "-") for name in names("enum ofs_prefix_admission", "OFS_PREFIX_ADMIT_", ffi)
)

ROW = layout("struct ofs_prefix_row", ffi)
REUSE = layout("struct ofs_prefix_reuse", ffi)

_FOREVER = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Runs:
    """The blocks of all requests as runs of consecutive block numbers.

    Request r has the runs `offsets[r]` to `offsets[r + 1]` (uint64 `[requests + 1]`); run i is
    blocks `first[i]` to `first[i] + count[i]` (uint32 `[runs]`), numbered below `block_count`.
    """

    offsets: npt.NDArray[np.uint64]
    first: npt.NDArray[np.uint32]
    count: npt.NDArray[np.uint32]
    block_count: int

    @property
    def request_count(self) -> int:
        """Requests, those without blocks included."""
        return len(self.offsets) - 1

    @property
    def access_count(self) -> int:
        """Blocks of all requests together."""
        return int(self.count.sum(dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Ideal:
    """What an endless cache hits: `ROW` `[requests]`, uint32 uses `[blocks]`, `REUSE` `[n]`."""

    rows: npt.NDArray[np.void]
    uses: npt.NDArray[np.uint32]
    reuses: npt.NDArray[np.void]


@dataclass(frozen=True, eq=False)
class Counts:
    """What a run did: `ROW` `[requests]`, and blocks written, refused, evicted and expired."""

    rows: npt.NDArray[np.void]
    admitted: int
    refused: int
    evicted: int
    expired: int


def distances(runs: Runs) -> npt.NDArray[np.uint64]:
    """LRU stack distances: uint64 `[blocks]`, entry d counts re-accesses at distance d.

    An access hits an LRU cache of C blocks exactly when its distance is below C.
    """
    trace = _Trace(runs)
    found = np.zeros(max(runs.block_count, 1), np.uint64)
    rc = lib.ofs_prefix_distances(trace.struct, _pointer("uint64_t *", found))
    check_rc(rc, "stack distances", "trace", "its runs must be below its number of blocks")
    return found


def ideal(runs: Runs) -> Ideal:
    """The hits of an endless cache, how often each block is used, and which request reuses which.

    `REUSE` rows are consecutive blocks of `request` whose last use was by `previous`.
    """
    trace = _Trace(runs)
    rows = np.zeros(runs.request_count, ROW)
    uses = np.zeros(runs.block_count, np.uint32)
    what = ("an endless cache", "trace", "its runs must be below its number of blocks")
    count = int(
        lib.ofs_prefix_ideal(
            trace.struct,
            _pointer("struct ofs_prefix_row *", rows),
            _pointer("uint32_t *", uses),
            ffi.NULL,
            0,
        )
    )
    check_rc(min(count, 0), *what)
    reuses = np.zeros(count, REUSE)
    pointer = _pointer("struct ofs_prefix_reuse *", reuses)
    again = int(lib.ofs_prefix_ideal(trace.struct, ffi.NULL, ffi.NULL, pointer, count))
    check_rc(min(again, 0), *what)
    return Ideal(rows, uses, reuses)


def run(
    core: Core,
    session: int,
    runs: Runs,
    arrival_ns: npt.NDArray[np.uint64],
    *,
    admission: str = "all",
    ttl_ns: int = 0,
    window_ns: int | None = None,
    tail_first: bool = False,
    sessions: npt.NDArray[np.uint32] | None = None,
    turns: npt.NDArray[np.uint32] | None = None,
) -> Counts:
    """Put the requests through `core`, in order of `arrival_ns` uint64 `[requests]`.

    `session` is an open session of the core without chunks. `ttl_ns` 0: blocks do not expire;
    `window_ns` None: asked at any time before. Admission `turns` needs `sessions` and `turns`,
    uint32 `[requests]`. BadInput for an admission that is not of `ADMISSIONS`.
    """
    if admission not in ADMISSIONS:
        raise BadInput(
            f"no admission {admission!r}", "admission", f"choose one of {', '.join(ADMISSIONS)}"
        )
    trace = _Trace(runs)
    rows = np.zeros(runs.request_count, ROW)
    kept = [np.ascontiguousarray(arrival_ns, np.uint64)]
    assert len(kept[0]) == runs.request_count
    plan: Any = ffi.new("struct ofs_prefix_plan *")
    plan.trace = trace.struct
    plan.arrival_ns = _pointer("uint64_t *", kept[0])
    for name, values in (("sessions", sessions), ("turns", turns)):
        if values is not None:
            kept.append(np.ascontiguousarray(values, np.uint32))
            assert len(kept[-1]) == runs.request_count
            setattr(plan, name, _pointer("uint32_t *", kept[-1]))
    plan.ttl_ns, plan.window_ns = ttl_ns, _FOREVER if window_ns is None else window_ns
    plan.admission, plan.tail_first = ADMISSIONS.index(admission), int(tail_first)
    plan.rows = _pointer("struct ofs_prefix_row *", rows)
    rc = lib.ofs_prefix_run(*core_pointers(core), session, plan)
    check_rc(rc, "prefix caching", "trace", "arrivals must not fall, and the core must have room")
    return Counts(rows, int(plan.admitted), int(plan.refused), int(plan.evicted), int(plan.expired))


class _Trace:
    """The C view of `Runs`, with the arrays it points into."""

    def __init__(self, runs: Runs) -> None:
        self.offsets = np.ascontiguousarray(runs.offsets, np.uint64)
        self.first = np.ascontiguousarray(runs.first, np.uint32)
        self.count = np.ascontiguousarray(runs.count, np.uint32)
        assert len(self.first) == len(self.count) == int(self.offsets[-1])
        struct: Any = ffi.new("struct ofs_prefix_trace *")
        struct.request_count, struct.block_count = runs.request_count, runs.block_count
        struct.offsets = _pointer("uint64_t *", self.offsets)
        struct.run_first = _pointer("uint32_t *", self.first)
        struct.run_count = _pointer("uint32_t *", self.count)
        self.struct = struct


def _pointer(kind: str, array: npt.NDArray[Any]) -> Any:
    return ffi.cast(kind, array.ctypes.data)
