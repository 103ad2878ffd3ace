"""Fabrics: how a host gets blocks from the daemon it is logged in to.

`shm` maps region and port on the same machine, `verbs` reads and writes them by RDMA, `nixl`
through that library, `zmq` sends messages where nothing better exists, `sim` runs a device in
virtual time inside this process. All have the calls of `Fabric`, and one contract suite runs over
them. To add one: a module with `connect`, and a line in FABRICS.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.driver import Fetch, FetchResult, Put
from offstage.bindings.errors import BadInput
from offstage.bindings.verbs import Rdma
from offstage.host.control import Control
from offstage.host.fabrics import nixl, shm, sim, verbs, zmq

__all__ = ["FABRICS", "DaemonFabric", "Fabric", "open_fabric"]


class Fabric(Protocol):
    """What the decode loop needs of a fabric.

    Contract: one thread owns it. Up to `calls_max` calls are in flight, each with its deadline: a
    fetch ends within about `timeout_ns`, if its owner polls or ends one. Whatever it says came
    (`rcs` 0) is byte for byte what was put, checked on this side of the link. A block that did not
    come has its -errno in `rcs`, and 255 in `ends`. RunFailed: the daemon is gone, attach again.
    `bindings.driver.blocking` makes of a begin and its end the calls that wait, `fetch` and `put`.
    """

    payload_size_bytes: int
    demand_max: int
    calls_max: int
    dilation: int  # how many of the machine's seconds the device's and this side's second takes

    def fetch_begin(
        self,
        session: int,
        step: int,
        layer: int,
        ordinals: NDArray[np.uint32],
        keys: NDArray[np.uint64],
        target: NDArray[np.uint8],
        *,
        target_index: NDArray[np.uint32] | None = None,
        selected_count: int | None = None,
        scores: NDArray[np.uint16] | None = None,
        timeout_ns: int = 2_000_000_000,
    ) -> Fetch:
        """Begin to bring the blocks `ordinals` [n], named by `keys` [n, 2], into rows of `target`.

        No array may change before the end. RunFailed with EAGAIN: `calls_max` are in flight.
        """
        ...

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """Wait for this fetch, moving the others on meanwhile."""
        ...

    def poll(self, timeout_ns: int = 0) -> list[Fetch | Put]:
        """Move all calls on, waiting up to `timeout_ns` for one to end; what newly ended."""
        ...

    def put_begin(
        self,
        session: int,
        layer: int,
        ordinals: NDArray[np.uint32],
        source: NDArray[np.uint8],
        *,
        length_bytes: int | None = None,
        timeout_ns: int = 10_000_000_000,
    ) -> Put:
        """Begin to write row i of `source` [n, length] as block `ordinals[i]`."""
        ...

    def put_end(self, put: Put) -> NDArray[np.int32]:
        """Wait for this put: [n] 0 or -errno."""
        ...

    def register(self, array: NDArray[Any]) -> None:
        """Fetches go into rows of `array` (contiguous) from now on: a fabric may have to pin it."""
        ...

    def unregister(self, array: NDArray[Any]) -> None:
        """The same array, before its memory goes."""
        ...

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send guesses (`bindings.core.GUESS` `[n]`) for layers to come, and wait for nothing: how
        many were sent. They are advice; where there is no room for them now they are left out."""
        ...

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """From the next fetch on send no more of its scores than the tier takes in; its decisions
        are the same whether all come or these. `Sessions.hints` says what."""
        ...

    def release(self, session: int) -> None:
        """End the session's pins now."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters since open, by the field names of `struct ofs_driver_stats`."""
        ...

    def stages(self) -> dict[str, dict[str, Any]]:
        """How long the stages that this end sees took, as `bindings.stages` shows them."""
        ...

    def close(self) -> None:
        """Let go of everything; closing twice does nothing. Before the control connection ends."""
        ...


class DaemonFabric(Fabric, Protocol):
    """A fabric to one daemon, where a fetch may be given up."""

    def fetch_cancel(self, fetch: Fetch) -> None:
        """Give this fetch up, ended or not, and wait for nothing: none of its arrays is written any
        more, whatever the daemon does, and others go on. The daemon does what it was asked for all
        the same, so the same session's next step should be a later one."""
        ...


# By name: what `connect` takes is a Control, for `sim` a BareDevice in virtual time.
FABRICS: dict[str, Callable[[Any], DaemonFabric]] = {
    "shm": shm.connect,
    "verbs": verbs.connect,
    "nixl": nixl.connect,
    "zmq": zmq.connect,
    "sim": sim.connect,
}


def open_fabric(control: Control, name: str = "shm", rdma: Rdma | None = None) -> DaemonFabric:
    """Attach over the fabric `name`; BadInput where there is none of this name. `rdma`: the adapter
    of verbs; None: the machine's first."""
    if name not in FABRICS or name == "sim":
        known = ", ".join(sorted(set(FABRICS) - {"sim"}))
        raise BadInput(f"{name!r} is no fabric to a daemon", "fabric", f"choose one of {known}")
    if rdma is not None and name == "verbs":
        return verbs.connect(control, rdma)
    return FABRICS[name](control)
