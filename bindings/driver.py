"""The host driver over cffi: one call per layer of a step, numpy arrays in and out, no copies.

It stands here because both sides use it: `host.fabrics` in the decode loop, and the daemon's ZMQ
fabric, which runs a driver beside the daemon for hosts that share no memory with it. One thread
owns a driver; the firmware releases the GIL while it waits.
"""

import errno
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import Incompatible, RunFailed
from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = ["Driver", "FetchResult", "spin_rtt"]

ERROR_SIZE = 512
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What became of the demands of one layer, in demand order.

    `ends` [n] is `enum ofs_end` (255 where the block failed), `rcs` [n] 0 or -errno, `lengths`
    [n] payload bytes, `checksums` [n] XXH3-64 of what was copied. `stall_ns` is the wait for
    blocks that were not there, `copy_ns` the one-sided reads with their checks.
    """

    ends: U8
    rcs: I32
    lengths: U32
    checksums: U64
    hit_count: int
    failed_count: int
    retry_count: int
    torn_count: int
    stall_ns: int
    copy_ns: int


class Driver:
    """One host's way to its region and port, over the four descriptors the daemon hands out."""

    def __init__(self, region: int, port: int, dpu_wake: int, host_wake: int) -> None:
        """Dups what it keeps: the caller still closes its descriptors. Incompatible: bad region."""
        out: Any = ffi.new("struct ofs_driver **")
        error: Any = ffi.new("char[]", ERROR_SIZE)
        rc = lib.ofs_driver_open_shm(out, region, port, dpu_wake, host_wake, error, ERROR_SIZE)
        self._adopt(rc, out, error)

    @classmethod
    def in_virtual_time(
        cls,
        device: Any,
        region: int,
        port: int,
        *,
        seed: int,
        step_ns: int = 500,
        delay_ns_max: int = 0,
        torn_per_million: int = 0,
        flip_per_million: int = 0,
    ) -> "Driver":
        """A driver over a simulated device in this process (`BareDevice(simulated=True)`).

        Its waits turn the device's reactor; faults are drawn from `seed`, as fabric.h says.
        """
        driver = cls.__new__(cls)
        out: Any = ffi.new("struct ofs_driver **")
        error: Any = ffi.new("char[]", ERROR_SIZE)
        config: Any = ffi.new("struct ofs_fabric_sim_config *")
        config.seed, config.step_ns, config.delay_ns_max = seed, step_ns, delay_ns_max
        config.torn_per_million, config.flip_per_million = torn_per_million, flip_per_million
        rc = lib.ofs_driver_open_sim(out, device, region, port, config, error, ERROR_SIZE)
        driver._adopt(rc, out, error)
        return driver

    def _adopt(self, rc: int, out: Any, error: Any) -> None:
        if rc < 0:
            text = ffi.buffer(error)[:].split(b"\0")[0].decode(errors="replace")
            if text:
                raise Incompatible(text, errno=-rc)
            check_rc(rc, "opening the region", "fabric")
        self._driver: Any = out[0]
        self.payload_size_bytes = int(lib.ofs_driver_payload_size_bytes(self._driver))
        self.demand_max = int(lib.ofs_driver_demand_max(self._driver))

    def fetch(
        self,
        session: int,
        step: int,
        layer: int,
        ordinals: U32,
        keys: U64,
        target: U8,
        *,
        target_index: U32 | None = None,
        selected_count: int | None = None,
        scores: NDArray[np.uint16] | None = None,
        timeout_ns: int = 2_000_000_000,
    ) -> FetchResult:
        """Bring the demanded blocks into `target`.

        `ordinals` [n]; `keys` [n, 2] (lo, hi) block keys; `target` [rows, >= payload bytes]: block
        i lands in row `target_index[i]` (row i by default). `selected_count` is how many blocks
        the kernel reads, those of the HBM pool included. A block that failed or timed out has its
        -errno in `rcs`; RunFailed where the daemon is gone.
        """
        count = len(ordinals)
        index = np.arange(count, dtype=np.uint32) if target_index is None else target_index
        assert keys.shape == (count, 2) and len(index) == count and target.ndim == 2
        assert target.flags.c_contiguous and keys.flags.c_contiguous
        assert target.shape[1] >= self.payload_size_bytes
        assert count == 0 or int(index.max()) < target.shape[0]
        ends = np.full(count, 255, np.uint8)
        rcs = np.zeros(count, np.int32)
        lengths = np.zeros(count, np.uint32)
        checksums = np.zeros(count, np.uint64)
        call: Any = ffi.new("struct ofs_fetch *")
        call.session, call.step, call.layer = session, step, layer
        call.selected_count = count if selected_count is None else selected_count
        call.demand_count = count
        call.ordinals = _at("uint32_t *", ordinals)
        call.keys = _at("struct ofs_key *", keys)
        if scores is not None:
            call.score_count = len(scores)
            call.scores = _at("uint16_t *", scores)
        call.target = _at("uint8_t *", target)
        call.target_index = _at("uint32_t *", index)
        call.target_stride_bytes = target.strides[0]
        call.timeout_ns = timeout_ns
        call.ends, call.rcs = _at("uint8_t *", ends), _at("int32_t *", rcs)
        call.lengths = _at("uint32_t *", lengths)
        call.checksums = _at("uint64_t *", checksums)
        rc = lib.ofs_driver_fetch(self._driver, call)
        if rc not in (0, -errno.ETIMEDOUT):
            _gone(rc, "fetching blocks")
        return FetchResult(
            ends, rcs, lengths, checksums, call.hit_count, call.failed_count, call.retry_count,
            call.torn_count, call.stall_ns, call.copy_ns,
        )  # fmt: skip

    def put(
        self,
        session: int,
        layer: int,
        ordinals: U32,
        source: U8,
        *,
        length_bytes: int | None = None,
        timeout_ns: int = 10_000_000_000,
    ) -> I32:
        """Write blocks of one layer: row i of `source` [n, length] is block `ordinals[i]`.

        Returns [n] 0 or -errno; acknowledged as the daemon's write mode says.
        """
        count = len(ordinals)
        assert source.ndim == 2 and source.shape[0] == count and source.strides[1] == 1
        rcs = np.zeros(count, np.int32)
        length = source.shape[1] if length_bytes is None else length_bytes
        assert length <= source.shape[1]
        rc = lib.ofs_driver_put(
            self._driver, session, layer, count, _at("uint32_t *", ordinals),
            _at("uint8_t *", source), source.strides[0], length, timeout_ns,
            _at("int32_t *", rcs),
        )  # fmt: skip
        if rc not in (0, -errno.ETIMEDOUT):
            _gone(rc, "putting blocks")
        return rcs

    def release(self, session: int) -> None:
        """End the session's pins now instead of at its next step."""
        rc = lib.ofs_driver_release(self._driver, session)
        if rc < 0:
            _gone(rc, "releasing a session")

    def stats(self) -> dict[str, int]:
        """`struct ofs_driver_stats` by field name."""
        stats: Any = ffi.new("struct ofs_driver_stats *")
        check_rc(lib.ofs_driver_stats_get(self._driver, stats), "reading the driver's counters")
        return {name: int(getattr(stats, name)) for name, _ in ffi.typeof(stats).item.fields}

    def bench_nop(self, count: int) -> U64:
        """Round trips of `count` empty commands, timed in C: ns [count]."""
        rtt_ns = np.zeros(count, np.uint64)
        rc = lib.ofs_driver_bench_nop(self._driver, count, _at("uint64_t *", rtt_ns))
        if rc < 0:
            _gone(rc, "measuring round trips")
        return rtt_ns

    def bench_read(self, keys: U64, batch_count: int, target: U8) -> U64:
        """ns per block of checked one-sided reads, of memcpy and of unchecked reads, in C.

        `keys` [n >= 48, 2] are published; `target` holds one payload. Returns [3, batch_count],
        each a batch of 16 blocks divided by 16. RunFailed where a read was refused, since the
        figure would then not be of hits.
        """
        assert keys.flags.c_contiguous and keys.shape[1] == 2
        assert target.nbytes >= self.payload_size_bytes
        times = np.zeros((3, batch_count), np.uint64)
        refused = lib.ofs_driver_bench_read(
            self._driver, len(keys), _at("struct ofs_key *", keys), batch_count,
            _at("uint8_t *", target), *(_at("uint64_t *", row) for row in times),
        )  # fmt: skip
        check_rc(refused, "measuring one-sided reads", "fabric")
        if refused:
            raise RunFailed(f"{refused} reads found no block", "bench fabric",
                            "make the arena larger than the blocks read")  # fmt: skip
        per_block: U64 = times // np.uint64(lib.OFS_BENCH_READ_BATCH)
        return per_block

    def close(self) -> None:
        """Unmap everything. Closing twice does nothing."""
        if self._driver is not None:
            lib.ofs_driver_close(self._driver)
            self._driver = None

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def spin_rtt(count: int) -> U64:
    """Floor of a round trip here: two spinning threads and two words of memory, ns [count]."""
    rtt_ns = np.zeros(count, np.uint64)
    check_rc(lib.ofs_bench_spin_rtt(count, _at("uint64_t *", rtt_ns)), "starting a thread")
    return rtt_ns


def _at(ctype: str, array: NDArray[Any]) -> Any:
    """The address of an array's first element; the array must outlive the call."""
    return ffi.cast(ctype, array.ctypes.data)


def _gone(rc: int, doing: str) -> None:
    if rc == -errno.EPIPE:
        raise RunFailed(
            f"the daemon closed this port while {doing}", "fabric shm",
            "see `offstage dpu status`; attach again", errno=errno.EPIPE,
        )  # fmt: skip
    check_rc(rc, doing, "fabric shm")
