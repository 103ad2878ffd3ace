"""Baselines of the machine itself, for comparison with benches of the driver; driver.h."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = ["memcpy_times", "spin_rtt"]


def spin_rtt(count: int) -> NDArray[np.uint64]:
    """Floor of a round trip here: two spinning threads and two words of memory, ns [count]."""
    rtt_ns = np.zeros(count, np.uint64)
    check_rc(lib.ofs_bench_spin_rtt(count, _at("uint64_t *", rtt_ns)), "starting a thread")
    return rtt_ns


def memcpy_times(
    source: NDArray[np.uint8], size_bytes: int, batch: int, rounds: int, target: NDArray[np.uint8]
) -> NDArray[np.uint64]:
    """`batch` memcpys of `size_bytes` out of `source`, far from each other: ns [rounds]."""
    assert target.nbytes >= size_bytes * batch and source.nbytes >= size_bytes
    times = np.zeros(rounds, np.uint64)
    lib.ofs_bench_memcpy(
        _at("uint8_t *", source),
        source.nbytes // size_bytes,
        size_bytes,
        batch,
        rounds,
        _at("uint8_t *", target),
        _at("uint64_t *", times),
    )
    return times


def _at(ctype: str, array: Any) -> Any:
    return ffi.cast(ctype, ffi.from_buffer(array))
