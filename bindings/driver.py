"""The host driver over cffi: one call per layer of a step, numpy arrays in and out, no copies.

A `Fabric` whose calls are the firmware's. Contract: `bindings.fabric` and driver.h.

It is here because both sides use it: `host.fabrics` in the decode loop, and the daemon's ZMQ
fabric, which runs a driver in the daemon for hosts that share no memory with it. One thread
owns a driver; the firmware releases the GIL while it waits.
"""

import errno
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import BadInput, Incompatible, RunFailed
from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.firmware import check_rc, ffi, lib, text_of
from offstage.bindings.granules import Granules
from offstage.bindings.layouts import VALUE_TOLD, bit_counts
from offstage.bindings.lost import gone
from offstage.bindings.stages import StageTimes, driver_stages
from offstage.bindings.value_io import DriverValues, ValueIO

__all__ = ["READ_BATCH", "Driver"]

ERROR_SIZE = 512
FEW = 64  # of which a list is sooner looked through than an array
READ_BATCH = int(lib.OFS_BENCH_READ_BATCH)
"""Payloads that the target of `bench_read` holds."""
GUESS_BYTES = ffi.sizeof("struct ofs_guess")
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]


class Driver(Fabric):
    """One host's way to its region and port, over what its attach gave."""

    _left: "_Left | None" = None
    """What `reopen` took over from the last connection, until `resume`."""
    _driver: Any = None
    _granules: Granules | None = None
    _values: DriverValues | None = None
    _limits: tuple[int, int, int] = (0, 1, 16)
    """What was said with `limit_scores`; it holds for the connections that follow too."""

    def __init__(self, attachment: Attachment) -> None:
        """Dups what it keeps: the caller still closes it. Incompatible: another release's."""
        out: Any = ffi.new("struct ofs_driver **")
        error: Any = ffi.new("char[]", ERROR_SIZE)
        rc = lib.ofs_driver_attach(out, attachment.filled(), error, ERROR_SIZE)
        self._adopt(rc, out, error)

    @classmethod
    def in_virtual_time(
        cls,
        device: Any,
        attachment: Attachment,
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
        filled = attachment.filled()
        rc = lib.ofs_driver_attach_sim(out, device, filled, config, error, ERROR_SIZE)
        driver._adopt(rc, out, error)
        return driver

    def _adopt(self, rc: int, out: Any, error: Any) -> None:
        if rc < 0:
            if text := text_of(error):
                raise Incompatible(text, errno=-rc)
            check_rc(rc, "opening the region", "fabric")
        self._driver = out[0]
        self.granule_count = int(lib.ofs_driver_granule_count(self._driver))
        self.payload_size_bytes = int(lib.ofs_driver_payload_size_bytes(self._driver))
        self.demand_max = int(lib.ofs_driver_demand_max(self._driver))
        self.score_max = int(lib.ofs_driver_score_max(self._driver))
        self.put_slot_count = int(lib.ofs_driver_put_slot_count(self._driver))
        self.dilation = int(lib.ofs_driver_dilation(self._driver))
        self.calls_max = int(lib.ofs_driver_calls_max(self._driver))
        self._calls: dict[int, Fetch | Put] = {}
        self._counted: dict[str, int] = {}  # on connections before this one
        self._registered: list[NDArray[Any]] = []  # kept alive as long as they are registered
        self._tickets: Any = ffi.new("uint64_t[]", self.calls_max)
        self.limit_scores(*self._limits)

    def answer(self) -> bytes | None:
        """The blob that the DPU's end needs of this one before blocks flow; None: nothing."""
        found = Attachment.of_driver(self._driver)
        return None if found is None else found.blob

    def reopen(self, attachment: Attachment) -> None:
        """Leave a connection that was lost for another one to the same port. Tasks on values end.

        The other side may want this end's `answer`; then `resume` goes on. Where opening fails it
        may be tried again, and until then every call is a RunFailed."""
        if self._left is None:
            self._left = _Left(list(self._calls.values()), self._registered, self.stats())
        self.close()
        Driver.__init__(self, attachment)

    def resume(self) -> None:
        """Register what was registered and begin anew what was under way before `reopen`: a fetch
        reads, and a put writes the same bytes, so nothing is changed by doing it twice."""
        left, self._left = self._left, None
        assert left is not None
        self._counted = left.counted
        for array in left.registered:
            self.register(array)
        for call in left.calls:
            fetching = isinstance(call, Fetch)
            begin = lib.ofs_driver_fetch_begin if fetching else lib.ofs_driver_put_begin
            Driver._begin(self, call, begin, "beginning anew")

    @property
    def handle(self) -> Any:
        """`struct ofs_driver *`, for what moves values over it beside `values`."""
        self._check_open("lending the driver")
        return self._driver

    def cut(self, granules: Granules) -> None:
        """Use granules from now on. BadInput if the daemon cuts blocks differently."""
        if self.granule_count != granules.count:
            raise BadInput(
                f"the host cuts blocks into {granules.count} granules, the daemon into "
                f"{max(self.granule_count, 1)}",
                "granule_tokens",
                "give the host the daemon's arena.granule_tokens",
            )
        self._granules = granules

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Begin to bring the demanded blocks, or granules of them; hits are there on return."""
        if self._granules is not None:
            return self._granules.fetch_begin(request, self._fetch_begin)
        return self._fetch_begin(request)

    def _fetch_begin(self, request: FetchRequest) -> Fetch:
        ordinals, keys, target = request.ordinals, request.keys, request.target
        scores, granules = request.scores, request.granules
        count = len(ordinals)
        parts, first, spare = count, None, request.spare
        if granules is not None:
            each = bit_counts(granules)
            parts, first = int(each.sum()), (np.cumsum(each) - each).astype(np.uint32)
        index = request.target_index
        if index is None:
            index = np.arange(parts, dtype=np.uint32)
        assert keys.shape == (count, 2) and len(index) == parts and target.ndim == 2
        assert target.flags.c_contiguous and keys.flags.c_contiguous
        assert granules is not None or target.shape[1] >= self.payload_size_bytes
        rows = len(target) + (0 if spare is None else len(spare))
        assert count == 0 or _largest(index) < rows
        call: Any = ffi.new("struct ofs_fetch *")
        fetch = Fetch(request, call)
        fetch.kept = (index, first)
        if granules is not None:
            call.granules, call.granule_first = (
                _at("uint32_t *", granules),
                _at("uint32_t *", first),
            )
            fetch.checksums = np.zeros(parts, np.uint64)
        if spare is not None:
            assert spare.flags.c_contiguous and spare.shape[1] == target.shape[1]
            call.spare, call.target_rows = _at("uint8_t *", spare), len(target)
        call.session, call.step, call.layer = request.session, request.step, request.layer
        call.demand_count = count
        selected = request.selected_count
        call.selected_count = count if selected is None else selected
        call.ordinals = _at("uint32_t *", ordinals)
        call.keys = _at("struct ofs_key *", keys)
        if scores is not None:
            call.score_count = len(scores)
            call.scores = _at("uint16_t *", scores)
        call.target = _at("uint8_t *", target)
        call.target_index = _at("uint32_t *", index)
        call.target_stride_bytes, call.timeout_ns = target.strides[0], request.timeout_ns
        call.ends, call.rcs = _at("uint8_t *", fetch.ends), _at("int32_t *", fetch.rcs)
        call.lengths = _at("uint32_t *", fetch.lengths)
        call.checksums = _at("uint64_t *", fetch.checksums)
        self._begin(fetch, lib.ofs_driver_fetch_begin, "fetching blocks")
        return fetch

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """Wait for this fetch, moving the others on meanwhile."""
        result = self._fetch_end(fetch)
        return result if self._granules is None else self._granules.fetched(fetch.cut, result)

    def _fetch_end(self, fetch: Fetch) -> FetchResult:
        self._end(fetch, lib.ofs_driver_fetch_end, "fetching blocks")
        call = fetch.work
        return FetchResult(
            fetch.ends,
            fetch.rcs,
            fetch.lengths,
            fetch.checksums,
            call.hit_count,
            call.failed_count,
            call.retry_count,
            call.torn_count,
            call.stall_ns,
            call.copy_ns,
        )

    def fetch_cancel(self, fetch: Fetch) -> None:
        """Give this fetch up, and wait for nothing."""
        if self._driver is not None:
            lib.ofs_driver_fetch_cancel(self._driver, fetch.ticket)
        self._calls.pop(fetch.ticket, None)

    def put_begin(self, request: PutRequest) -> Put:
        """Begin to write blocks."""
        if self._granules is not None:
            return self._granules.put_begin(request, self._put_begin)
        return self._put_begin(request)

    def _put_begin(self, request: PutRequest) -> Put:
        ordinals, source, count = request.ordinals, request.source, len(request.ordinals)
        assert source.ndim == 2 and source.shape[0] == count
        assert count == 0 or source.strides[1] == 1  # numpy has others for no row
        assert request.length <= source.shape[1]
        call: Any = ffi.new("struct ofs_put *")
        put = Put(request, call)
        call.session, call.layer = request.session, request.layer
        call.count, call.length_bytes = count, request.length
        call.ordinals, call.source = _at("uint32_t *", ordinals), _at("uint8_t *", source)
        call.source_stride_bytes, call.timeout_ns = source.strides[0], request.timeout_ns
        call.rcs = _at("int32_t *", put.rcs)
        call.checksums = _at("uint64_t *", put.checksums)
        self._begin(put, lib.ofs_driver_put_begin, "putting blocks")
        return put

    def put_end(self, put: Put) -> I32:
        """Wait for this put, moving the others on meanwhile."""
        if self._granules is not None:
            return self._granules.put_end(put, self._put_end)
        return self._put_end(put)

    def _put_end(self, put: Put) -> I32:
        self._end(put, lib.ofs_driver_put_end, "putting blocks")
        return put.rcs

    def poll(self, timeout_ns: int = 0) -> list[Fetch | Put]:
        """Move all calls on; what has ended and was not reported before."""
        self._check_open("polling")
        count = lib.ofs_driver_poll(self._driver, timeout_ns, self._tickets, self.calls_max)
        return [self._calls[int(self._tickets[i])] for i in range(count)]

    def _begin(self, call: Fetch | Put, begin: Any, doing: str) -> None:
        self._check_open(doing)
        ticket: Any = ffi.new("uint64_t *")
        rc = begin(self._driver, call.work, ticket)
        if rc == -errno.EAGAIN:
            raise self._full()
        if rc < 0:
            gone(rc, doing)
        call.ticket = int(ticket[0])
        self._calls[call.ticket] = call

    def _check_open(self, doing: str) -> None:
        if self._driver is None:
            gone(-errno.EHOSTUNREACH, doing)

    def _end(self, call: Fetch | Put, end: Any, doing: str) -> None:
        self._check_open(doing)
        rc = end(self._driver, call.ticket)
        call.unanswered = rc == -errno.ETIMEDOUT
        self._calls.pop(call.ticket, None)
        if rc not in (0, -errno.ETIMEDOUT):
            gone(rc, doing)

    def register(self, array: NDArray[Any]) -> None:
        """A side that needs it pins the array. RunFailed where locked memory has no room."""
        assert array.flags.c_contiguous
        self._check_open("registering memory")
        rc = lib.ofs_driver_register(self._driver, _at("void *", array), array.nbytes)
        fix = "unregister what is no longer fetched into"
        if rc == -errno.ENOMEM:  # only a fabric that pins it says so
            fix = "raise the limit on locked memory (ulimit -l), or lower the pool"
        check_rc(rc, "registering memory", "fabric", fix)
        self._registered.append(array)

    def unregister(self, array: NDArray[Any]) -> None:
        """Let go of the array. RunFailed where it is not registered."""
        self._registered = [one for one in self._registered if one is not array]
        if self._driver is None:
            return
        rc = lib.ofs_driver_unregister(self._driver, _at("void *", array), array.nbytes)
        check_rc(rc, "unregistering memory", "fabric", "unregister each array once")

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send the guesses that the port has room for now; of granules their blocks, whole."""
        if self._granules is not None:
            guesses = guesses.copy()
            guesses["ordinal"] //= self._granules.count
        self._check_open("sending a hint")
        assert guesses.flags.c_contiguous and guesses.dtype.itemsize == GUESS_BYTES
        pointer = _at("struct ofs_guess *", guesses)
        rc = lib.ofs_driver_hint(self._driver, session, pointer, len(guesses))
        if rc < 0:
            gone(rc, "sending a hint")
        return int(rc)

    def value_io(self, sessions_max: int, timeout_s: float) -> ValueIO:
        """Moved by the driver itself."""
        self._check_open("opening values")
        assert self._values is None or self._values.closed
        self._values = DriverValues(self._driver, sessions_max, timeout_s)
        return self._values

    def ask(self, verb: int, asks: NDArray[np.void], timeout_ns: int) -> NDArray[np.void]:
        """Do this (`bindings.value_io.VERBS`) with each of these values (`VALUE_ASK` `[n]`), and
        wait: what became of each, `VALUE_TOLD` `[n]`."""
        self._check_open("asking for values")
        told = np.zeros(len(asks), VALUE_TOLD)
        asking: Any = ffi.new("struct ofs_asking *")
        asking.verb, asking.count, asking.timeout_ns = verb, len(asks), timeout_ns
        asking.asks, asking.told = (
            _at("struct ofs_value_ask *", asks),
            _at("struct ofs_value_told *", told),
        )
        rc = lib.ofs_driver_values(self._driver, asking)
        if rc in (-errno.EINVAL, -errno.ENOTSUP):
            told["rc"] = rc
        elif rc not in (0, -errno.ETIMEDOUT):
            gone(rc, "asking for values")
        return told

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """It holds for the connections that follow too."""
        self._limits = limits = (scores_max, every_steps, score_bits)
        if self._driver is not None:
            lib.ofs_driver_limit_scores(self._driver, ffi.new("struct ofs_score_limits *", limits))

    def release(self, session: int) -> None:
        """End the session's pins now."""
        self._check_open("releasing a session")
        rc = lib.ofs_driver_release(self._driver, session)
        if rc < 0:
            gone(rc, "releasing a session")

    def stages(self) -> dict[str, StageTimes]:
        """How long the stages that the host sees took; see `bindings.stages`."""
        return driver_stages(self._driver)

    def time_stages(self, on: bool, *, all: bool = False) -> bool:
        """Stage timers on or off, from now on; also the stamps that the reactor uses. `all`:
        every command is timed, and not one in 31."""
        lib.ofs_driver_stages_set(self._driver, 2 if on and all else int(on))
        return True

    def stats(self) -> dict[str, int]:
        """`struct ofs_driver_stats` by field name; those of lost connections count too."""
        if self._driver is None:
            return dict(self._left.counted if self._left is not None else self._counted)
        stats: Any = ffi.new("struct ofs_driver_stats *")
        check_rc(lib.ofs_driver_stats_get(self._driver, stats), "reading the driver's counters")
        return {
            name: int(getattr(stats, name)) + self._counted.get(name, 0)
            for name, _ in ffi.typeof(stats).item.fields
        }

    def bench_nop(self, count: int) -> U64:
        """Round trips of `count` empty commands, timed in C: ns [count]."""
        rtt_ns = np.zeros(count, np.uint64)
        rc = lib.ofs_driver_bench_nop(self._driver, count, _at("uint64_t *", rtt_ns))
        if rc < 0:
            gone(rc, "measuring round trips")
        return rtt_ns

    def bench_values(self, asks: NDArray[np.void], rounds: int) -> U64:
        """Whether these values (`VALUE_ASK` `[n]`) exist, asked so often in C: ns [rounds]."""
        round_ns, told = np.zeros(rounds, np.uint64), np.zeros(len(asks), VALUE_TOLD)
        rc = lib.ofs_driver_bench_values(
            self._driver,
            len(asks),
            _at("struct ofs_value_ask *", asks),
            _at("struct ofs_value_told *", told),
            rounds,
            _at("uint64_t *", round_ns),
        )
        if rc < 0:
            gone(rc, "measuring lookups of values")
        return round_ns

    def bench_fetch(self, fetch: Fetch, count: int) -> int:
        """An ended fetch `count` times more, each as the next step: ns of all together."""
        taken_ns: Any = ffi.new("uint64_t *")
        rc = lib.ofs_driver_bench_fetch(self._driver, fetch.work, count, taken_ns)
        check_rc(rc, "fetching blocks")
        return int(taken_ns[0])

    def bench_read(self, keys: U64, batch_count: int, target: U8) -> U64:
        """ns per block of checked one-sided reads, of memcpy and of unchecked reads, in C.

        `keys` [n >= 48, 2] are published; `target` holds 16 payloads, registered. Returns
        [3, batch_count], each a batch of 16 blocks divided by 16. RunFailed where a read was
        refused, since the figure would then not be of hits.
        """
        assert keys.flags.c_contiguous and keys.shape[1] == 2
        assert target.nbytes >= self.payload_size_bytes * READ_BATCH
        times = np.zeros((3, batch_count), np.uint64)
        refused = lib.ofs_driver_bench_read(
            self._driver,
            len(keys),
            _at("struct ofs_key *", keys),
            batch_count,
            _at("uint8_t *", target),
            *(_at("uint64_t *", row) for row in times),
        )
        check_rc(refused, "measuring one-sided reads", "fabric")
        if refused:
            raise RunFailed(
                f"{refused} reads found no block",
                "bench fabric",
                "make the arena larger than the blocks read",
            )
        per_block: U64 = times // np.uint64(READ_BATCH)
        return per_block

    def bench_link(self, size_bytes: int, batch: int, rounds: int, target: U8) -> U64:
        """`batch` unchecked one-sided reads of `size_bytes`, in parallel, to `target`: ns."""
        assert target.flags.c_contiguous and target.nbytes >= size_bytes * batch
        times = np.zeros(rounds, np.uint64)
        rc = lib.ofs_driver_bench_link(
            self._driver,
            size_bytes,
            batch,
            rounds,
            _at("uint8_t *", target),
            _at("uint64_t *", times),
        )
        if rc < 0:
            gone(rc, "measuring one-sided reads")
        return times

    def close(self) -> None:
        """Unmap everything; calls in flight are forgotten. Closing twice does nothing."""
        if self._driver is not None:
            if self._values is not None:
                self._values.lose()
            lib.ofs_driver_close(self._driver)
            self._driver = None
            self._calls.clear()


@dataclass(frozen=True)
class _Left:
    """What goes over from one connection to the next."""

    calls: list[Fetch | Put]
    registered: list[NDArray[Any]]
    counted: dict[str, int]


def _at(ctype: str, array: Any) -> Any:
    """The address of an array's first element; the array must outlive the call."""
    if array.flags.c_contiguous:  # a quarter of the time that `ctypes` takes
        return ffi.cast(ctype, ffi.from_buffer(array))
    return ffi.cast(ctype, array.ctypes.data)


def _largest(index: U32) -> int:
    return max(index.tolist()) if len(index) < FEW else int(index.max())
