"""Sessions that decode in virtual time, fed a few steps at a time, and the HBM pool above the tier.

An `Engine` owns the clock of one `Core`, asks a `Timing` how long the device takes, and runs in C
until it needs the caller: a batch slot wants its next slab of steps, or its session has ended.
Between two runs the caller may call the core, at `now_ns`; the core's actions from such calls are
carried out when the next run begins. How the steps are cut into slabs does not affect the results.
Times are simulated ns, results are `modelled`.

What can fail: `BadInput` for shapes that do not fit or input that the core refuses, and the error
of a timing side that never delivers a completion it owes. After an error in `run` the engine is
unusable.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.core import GUESS, Core
from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import layout
from offstage.bindings.timing import Costs, Timing, open_timing

__all__ = ["ABSENT", "ROW", "ROW_FAILED", "ROW_RETRIED", "Engine", "EngineConfig", "HbmPool"]

ABSENT = np.uint32(0xFFFFFFFF)
"""Fills rows of a selection behind the last ordinal."""

ROW = layout("struct ofs_row")
"""What one layer of one step did. `session`: the batch slot at which it ran. `pool_hits`: selected
blocks that the HBM pool served; the rest are `demands`. `ends`: how they ended, by `ENDS`; the
first five are on-time hits, `late` is not. `shadow_misses`: what a demand-only LRU of the same size
would have missed. `pollution`: misses of blocks that a prefetch had evicted. Reads are counted in
the row of the session, its step at hand and the block's layer that caused them. `stall_ns`: waited
beyond compute and hit. Counts stop at the highest value of their type."""

ROW_RETRIED = int(lib.OFS_ROW_RETRIED)
"""Flag of a row: some of it was asked again because every slot was pinned."""
ROW_FAILED = int(lib.OFS_ROW_FAILED)
"""Flag of a row: a demand ended without its block."""

_EVENTS = {int(lib.OFS_ENGINE_ROWS): "rows", int(lib.OFS_ENGINE_ENDED): "ended"}


@dataclass(frozen=True)
class EngineConfig:
    """How long things take, in ns. `batch_slot_max`: concurrent sessions. `append_steps`: a session
    writes a new chunk after this many steps, 0 never. `timing`: the device, by its name in
    `bindings.timing.TIMINGS`, opened with `hit_ns`, `nvme` (parameters of the drive as in
    `bindings.storage.preset`; None: a read takes no time) and `seed`; or one that is open."""

    batch_slot_max: int
    compute_ns: int = 500_000
    hit_ns: int = 0
    retry_ns: int = 10_000
    append_steps: int = 0
    nvme: dict[str, int] | None = None
    seed: int = 0
    timing: str | Timing = "nvme"


class Engine:
    """One engine over one core, closed with the object."""

    def __init__(self, core: Core, config: EngineConfig) -> None:
        struct: Any = ffi.new("struct ofs_engine_config *")
        for name in ("batch_slot_max", "append_steps", "compute_ns", "retry_ns"):
            setattr(struct, name, getattr(config, name))
        costs = Costs(hit_ns=config.hit_ns, nvme=config.nvme, seed=config.seed)
        self.timing = open_timing(config.timing, costs)
        struct.timing = self.timing.handle
        out: Any = ffi.new("struct ofs_engine **")
        check_rc(
            lib.ofs_engine_open(out, core.handle, struct),
            "opening the engine",
            "engine",
            "check batch_slot_max, the core's demand_max (at most 65535) and the timing's limit",
        )
        assert ffi.sizeof("struct ofs_row") == ROW.itemsize
        self.core, self.config = core, config
        self._handle: Any = ffi.gc(out[0], lib.ofs_engine_close)
        self._begun: dict[int, npt.NDArray[np.void]] = {}
        self._fed: dict[int, tuple[Any, ...]] = {}

    def start(
        self,
        batch_slot: int,
        session: int,
        at_ns: int,
        guesses: npt.NDArray[np.void] | None = None,
        lead_ns: int = 0,
    ) -> None:
        """The core's open `session` begins to decode at `batch_slot`.

        Its first guesses (`GUESS` `[n]`, `steps` counting from its first step) are passed at
        `at_ns`, its first layer demands at `at_ns + lead_ns`. `BadInput`: the batch slot is taken,
        the session runs already, or `at_ns` has passed."""
        begun = np.ascontiguousarray(np.zeros(0, GUESS) if guesses is None else guesses, GUESS)
        rc = lib.ofs_engine_start(
            self._handle,
            batch_slot,
            session,
            at_ns,
            lead_ns,
            ffi.cast("struct ofs_guess *", begun.ctypes.data),
            len(begun),
        )
        where = f"batch slot {batch_slot}"
        check_rc(rc, "starting a session", where, "a free batch slot, not in the past")
        self._begun[batch_slot] = begun

    def feed(
        self,
        batch_slot: int,
        selected: npt.NDArray[np.uint32],
        served: npt.NDArray[Any] | None = None,
        scores: npt.NDArray[np.uint16] | None = None,
        guess_offsets: npt.NDArray[Any] | None = None,
        guesses: npt.NDArray[np.void] | None = None,
        last: bool = False,
        units: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        """The next steps of the session at `batch_slot`; they need not be copied until they are
        run.

        selected: uint32 `[steps, layers, width]`, `ABSENT` behind the last. served: bool, the same
        shape, where the HBM pool has the block: it is not demanded. scores: uint16 `[steps, layers,
        blocks]`; blocks that are not written yet are left out. guesses: `GUESS` `[n]` sorted by
        (step, after_layer), passed right after that layer's demands went in; guess_offsets:
        integers `[steps * layers + 1]` into them. last: the session ends with these steps, of which
        there may be none. units: uint64, as `selected`: bit i is the i-th unit of a block that is
        read, for `uses`. `BadInput`: shapes that do not fit, or a batch slot that does not ask.
        """
        layers = self.core.config.layer_count
        selected = np.ascontiguousarray(selected, np.uint32)
        if selected.ndim != 3 or selected.shape[1] != layers:
            raise _misfit("selected", selected.shape, f"[steps, {layers}, width]")
        steps, _, width = selected.shape
        struct: Any = ffi.new("struct ofs_slab *")
        struct.step_count, struct.width, struct.last = steps, width, int(last)
        struct.selected = ffi.cast("uint32_t *", selected.ctypes.data)
        kept: list[Any] = [selected]
        if served is not None:
            kept.append(_shaped("served", served, np.uint8, selected.shape))
            struct.served = ffi.cast("uint8_t *", kept[-1].ctypes.data)
        if scores is not None:
            kept.append(_shaped("scores", scores, np.uint16, (steps, layers, scores.shape[-1])))
            struct.scores = ffi.cast("uint16_t *", kept[-1].ctypes.data)
            struct.score_stride = struct.score_count = scores.shape[-1]
        if units is not None:
            kept.append(_shaped("units", units, np.uint64, selected.shape))
            struct.units = ffi.cast("uint64_t *", kept[-1].ctypes.data)
        if guesses is not None and len(guesses):
            kept += _checked_guesses(guesses, guess_offsets, steps * layers)
            struct.guesses = ffi.cast("struct ofs_guess *", kept[-2].ctypes.data)
            struct.guess_offsets = ffi.cast("uint64_t *", kept[-1].ctypes.data)
        check_rc(
            lib.ofs_engine_feed(self._handle, batch_slot, struct),
            "feeding a session",
            f"batch slot {batch_slot}",
            "feed a batch slot that asks, with steps or as the last",
        )
        self._fed[batch_slot] = tuple(kept)

    def run(self) -> tuple[str, int] | None:
        """Run until it needs the caller: ("rows", slot) wants its next slab, ("ended", slot) has
        computed its last layer, None: nothing is left to do."""
        batch_slot: Any = ffi.new("uint32_t *")
        rc = int(lib.ofs_engine_run(self._handle, batch_slot))
        if rc < 0 and (stuck := self.timing.stuck()) is not None:
            raise stuck
        event = check_rc(
            rc,
            "simulating decode",
            f"at {self.now_ns} ns",
            "ordinals, guesses and demands of a layer must fit the core",
        )
        return (_EVENTS[event], int(batch_slot[0])) if event else None

    def take_rows(self, batch_slot: int) -> npt.NDArray[np.void]:
        """`ROW` `[steps * layers]` of the whole steps run since they were last taken. A step is
        whole when the next begins or the session has ended."""
        rc = lib.ofs_engine_rows(self._handle, batch_slot, ffi.NULL, 0)
        count = check_rc(rc, "counting rows")
        rows = np.zeros(count, ROW)
        pointer = ffi.cast("struct ofs_row *", rows.ctypes.data)
        check_rc(lib.ofs_engine_rows(self._handle, batch_slot, pointer, count), "taking rows")
        return rows

    def uses(self) -> npt.NDArray[np.uint64]:
        """Blocks staged, by how many of their units were demanded since they were staged: uint64
        `[2, 65]`, those that have left the arena and those that are in it and were demanded. All 0
        if no slab had `units`."""
        uses = np.zeros((2, int(lib.OFS_ENGINE_UNITS_MAX) + 1), np.uint64)
        lib.ofs_engine_uses(self._handle, ffi.cast("uint64_t(*)[65]", uses.ctypes.data))
        return uses

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        return int(self._state().now_ns)

    @property
    def reads(self) -> int:
        """Reads of the device so far."""
        return int(self._state().reads)

    @property
    def failed(self) -> int:
        """Demands that ended without their block."""
        return int(self._state().failed)

    def _state(self) -> Any:
        state: Any = ffi.new("struct ofs_engine_state *")
        lib.ofs_engine_describe(self._handle, state)
        return state


class HbmPool:
    """Which selected blocks the HBM pool of one session would have had.

    `pool_blocks` of the `blocks` of each of `layers` layers; what was selected longest ago leaves
    first, never what is selected. 0: nothing is ever served. It holds names, not bytes; for one
    layer it decides as `offstage.host.decode.pool.HbmPool`.
    """

    def __init__(self, layers: int, blocks: int, pool_blocks: int) -> None:
        out: Any = ffi.new("struct ofs_pool **")
        rc = lib.ofs_pool_open(out, layers, blocks, pool_blocks)
        check_rc(rc, "opening an HBM pool", "hbm pool", "give at least one layer and one block")
        self._handle: Any = ffi.gc(out[0], lib.ofs_pool_close)
        self.layers, self.blocks, self.pool_blocks = layers, blocks, pool_blocks

    def served(self, selected: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Run selections uint32 `[steps, layers, width]` through the pool: bool, the same shape,
        where it had the block. `BadInput`, nothing changed: a width above `pool_blocks`, or an
        ordinal from `blocks` on."""
        selected = np.ascontiguousarray(selected, np.uint32)
        if selected.ndim != 3 or selected.shape[1] != self.layers:
            raise _misfit("selected", selected.shape, f"[steps, {self.layers}, width]")
        served = np.zeros(selected.shape, np.bool_)
        rc = lib.ofs_pool_serve(
            self._handle,
            selected.shape[0],
            selected.shape[2],
            ffi.cast("uint32_t *", selected.ctypes.data),
            ffi.cast("uint8_t *", served.ctypes.data),
        )
        check_rc(
            rc,
            f"selecting {selected.shape[2]} blocks through {self.pool_blocks}",
            "hbm pool",
            "the pool must hold one selection of a layer, and ordinals be in range",
        )
        return served

    def held(self) -> npt.NDArray[np.uint32]:
        """What it holds now: uint32 `[layers, pool_blocks]` of ordinals, `ABSENT` behind the last,
        those that were selected longest ago first."""
        ordinals = np.empty((self.layers, self.pool_blocks), np.uint32)
        lib.ofs_pool_held(self._handle, ffi.cast("uint32_t *", ordinals.ctypes.data))
        return ordinals


def _misfit(name: str, shape: tuple[int, ...], wanted: str) -> BadInput:
    return BadInput(f"{name} of shape {list(shape)}", "slab", f"give {wanted}")


def _shaped(
    name: str, array: npt.NDArray[Any], kind: type[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    if array.shape != shape:
        raise _misfit(name, array.shape, str(list(shape)))
    return np.ascontiguousarray(array, kind)


def _checked_guesses(
    guesses: npt.NDArray[np.void], offsets: npt.NDArray[Any] | None, rows: int
) -> list[npt.NDArray[Any]]:
    """Guesses and their uint64 offsets, checked."""
    whole = np.zeros(0, np.uint64) if offsets is None else np.ascontiguousarray(offsets, np.uint64)
    rising = len(whole) == rows + 1 and bool((whole[1:] >= whole[:-1]).all())
    if not rising or int(whole[-1]) > len(guesses):
        raise BadInput(
            f"{len(whole)} offsets for guesses of {rows} rows",
            "slab",
            "give one more offset than rows, ascending, ending within the guesses",
        )
    return [np.ascontiguousarray(guesses, GUESS), whole]
