"""Flat traces through the decision core and through libCacheSim, one eviction policy at a time.

A flat trace is one block an access, all of one size, demand only, without latency. Both sides run
in C from the first access to the last. libCacheSim is GPL and comes with the extra `test`: it is an
oracle and a reference, never shipped. `Missing` without it.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import Missing
from offstage.bindings.sim import flat, populate

__all__ = [
    "REFERENCES",
    "S3FIFO_CAPACITY_MIN",
    "Ids",
    "dense",
    "reference_run",
    "run",
    "write_oracle",
]

Ids = npt.NDArray[np.uint32]

REFERENCES = {
    "lru": "LRU",
    "fifo": "FIFO",
    "s3fifo": "S3FIFO",
    "sieve": "Sieve",
    "lru_k": "LRUK",
    "arc": "ARC",
}
"""libCacheSim's class for each eviction policy that both have; hit counts must be equal. LRUK at
its default K = 2. `random` draws from another generator, and `score` has no equivalent."""

S3FIFO_CAPACITY_MIN = 20
"""Below it libCacheSim's S3FIFO keeps nothing: its small queue, a tenth rounded down, refuses an
object as large as itself. Ours has a small queue of at least one slot."""

ORACLE = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


def dense(ids: npt.ArrayLike) -> Ids:
    """Any integer ids `[n]` as numbers from 0 without gaps, uint32 `[n]`."""
    return np.unique(np.asarray(ids), return_inverse=True)[1].astype(np.uint32)


def run(ids: Ids, capacity: int, eviction: str) -> tuple[int, float]:
    """(hits, seconds of one core) of ours; opening and filling the tables is not timed."""
    unique = int(ids.max()) + 1
    core = Core(CoreConfig(capacity, unique, unique, demand_max=16), Policy("shared"))
    tenant = core.tenant_add(0, b"\0" * 16, capacity)
    session = core.session_open(0, SessionConfig(tenant, 1))  # shared: one number for each chunk
    core.set_policy(0, Policy(eviction=eviction))
    populate(core, session, unique)
    began = time.thread_time()
    hits = flat(core, session, ids)
    return hits, time.thread_time() - began


def write_oracle(path: Path, ids: npt.NDArray[np.integer[Any]]) -> None:
    """libCacheSim's oracleGeneral: time, id, size, next access (-1: unknown; none here asks)."""
    records = np.zeros(len(ids), ORACLE)
    records["time"], records["id"] = np.arange(len(ids)), ids
    records["size"], records["next"] = 1, -1
    path.write_bytes(records.tobytes())


def reference_run(path: Path, count: int, capacity: int, eviction: str) -> tuple[int, float]:
    """(hits, seconds of one core) of libCacheSim over the `count` accesses of the file."""
    try:
        import libcachesim as lcs
    except ImportError:
        raise Missing("test", "libcachesim is not installed", "bench core") from None
    parameters = lcs.ReaderInitParam(ignore_obj_size=True)
    reader = lcs.TraceReader(str(path), lcs.TraceType.ORACLE_GENERAL_TRACE, parameters)
    # Its default hash table (2^24 entries) is larger than any cache level; this is its best.
    hashpower = (2 * capacity).bit_length()
    cache = getattr(lcs, REFERENCES[eviction])(cache_size=capacity, hashpower=hashpower)
    began = time.thread_time()
    miss_ratio, _ = cache.process_trace(reader)
    spent = time.thread_time() - began
    return count - round(miss_ratio * count), spent
