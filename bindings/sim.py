"""The decision core in virtual time: a flat trace, or sessions that decode over a modelled drive.

`flat` and `decode` run in C from the first access to the last; an `Engine` is fed a few steps at a
time. Times are simulated ns, results are `modelled`, and equal inputs give equal results on every
machine.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings import analysis
from offstage.bindings.core import GUESS, Core
from offstage.bindings.engine import ROW, Engine, EngineConfig, HbmPool
from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.timing import Costs, Timing, open_timing

__all__ = [
    "ROW",
    "DecodePlan",
    "DecodeResult",
    "Engine",
    "EngineConfig",
    "HbmPool",
    "decode",
    "flat",
    "populate",
    "populate_contents",
]


def populate(core: Core, session: int, count: int, content: int = 0) -> None:
    """Append `count` made-up chunks, stored in every layer; equal `content` is a shared prefix."""
    check_rc(lib.ofs_sim_populate(core.handle, session, content, count), "populating a session")


def populate_contents(
    core: Core, session: int, contents: npt.NDArray[np.uint64], now_ns: int = 0
) -> npt.NDArray[np.uint32]:
    """Append chunks by content hash, uint64 `[n, 2]` (low, high), stored in every layer. Gives the
    chunks under whose store keys they are read, uint32 `[n]`."""
    contents = np.ascontiguousarray(contents, np.uint64)
    assert contents.ndim == 2 and contents.shape[1] == 2
    pointer = ffi.cast("struct ofs_key *", contents.ctypes.data)
    homes = np.zeros(len(contents), np.uint32)
    rc = lib.ofs_sim_populate_contents(
        core.handle,
        now_ns,
        session,
        len(contents),
        pointer,
        ffi.cast("uint32_t *", homes.ctypes.data),
    )
    check_rc(rc, "populating a session", "contents", "enlarge chunk_max or session_chunk_max")
    return homes


def flat(core: Core, session: int, ordinals: npt.NDArray[np.uint32]) -> int:
    """Hits of a flat trace `[n]` of ordinals through layer 0, demand only, without latency."""
    ordinals = np.ascontiguousarray(ordinals, np.uint32)
    hits: Any = analysis.ffi.new("uint64_t *")
    pointer = analysis.ffi.cast("uint32_t *", ordinals.ctypes.data)
    rc = analysis.lib.ofs_flat_run(
        *analysis.core_pointers(core), session, pointer, len(ordinals), hits
    )
    check_rc(rc, "a flat trace", "trace", "every ordinal must be below the session's chunks")
    return int(hits[0])


@dataclass(frozen=True)
class DecodePlan:
    """What every session demands, and how long things take.

    Row `(session, step, layer)` demands `demands[offsets[row]:offsets[row + 1]]`; `scores`, where
    given, is uint16 `[sessions, steps, layers, blocks]`, of which session i has the first
    `score_counts[i]` blocks (None: all), no more than it has chunks. `guesses`, where given, are
    `GUESS` `[n]` of each session's first step, which demands `lead_ns` after they were passed.
    `hit_ns`, `nvme`, `seed` and `timing` are those of `EngineConfig`. Times in ns; a chunk is
    appended every `append_steps` steps (0: never).
    """

    sessions: tuple[int, ...]
    step_count: int
    offsets: npt.NDArray[np.uint64]
    demands: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.uint16] | None = None
    selected_count: int = 0
    append_steps: int = 0
    compute_ns: int = 500_000
    hit_ns: int = 0
    retry_ns: int = 10_000
    stagger_ns: int = 0
    nvme: dict[str, int] | None = None
    seed: int = 0
    score_counts: tuple[int, ...] | None = None
    guesses: tuple[npt.NDArray[np.void], ...] | None = None
    lead_ns: int = 0
    timing: str | Timing = "nvme"


@dataclass(frozen=True)
class DecodeResult:
    """`stall_ns` `[sessions, steps]`: waited beyond compute; `failed`: demands without data."""

    stall_ns: npt.NDArray[np.uint64]
    end_ns: int
    reads: int
    failed: int


_NUMBERS = ("selected_count", "append_steps", "compute_ns", "retry_ns", "stagger_ns", "lead_ns")


def decode(core: Core, plan: DecodePlan) -> DecodeResult:
    """Run the plan on `core` in virtual time. The ledger and the log are the core's."""
    rows = len(plan.sessions) * plan.step_count * core.config.layer_count
    offsets = np.ascontiguousarray(plan.offsets, np.uint64)
    demands = np.ascontiguousarray(plan.demands, np.uint32)
    if len(offsets) != rows + 1 or offsets[-1] > len(demands) or (offsets[1:] < offsets[:-1]).any():
        raise BadInput(
            f"{len(offsets)} offsets for {rows} rows of demands",
            "decode plan",
            "give one more offset than rows, ascending, ending within the demands",
        )
    sessions = np.asarray(plan.sessions, np.uint32)
    stall_ns = np.zeros((len(plan.sessions), plan.step_count), np.uint64)
    struct: Any = ffi.new("struct ofs_sim_decode *")
    struct.session_count, struct.step_count = len(sessions), plan.step_count
    for name in _NUMBERS:
        setattr(struct, name, getattr(plan, name))
    costs = Costs(hit_ns=plan.hit_ns, nvme=plan.nvme, seed=plan.seed)
    timing = open_timing(plan.timing, costs)
    struct.timing = timing.handle
    struct.sessions = ffi.cast("uint32_t *", sessions.ctypes.data)
    struct.offsets = ffi.cast("uint64_t *", offsets.ctypes.data)
    struct.demands = ffi.cast("uint32_t *", demands.ctypes.data)
    struct.stall_ns = ffi.cast("uint64_t *", stall_ns.ctypes.data)
    if plan.scores is not None:
        scores = np.ascontiguousarray(plan.scores, np.uint16).reshape(rows, -1)
        struct.score_count = scores.shape[1]
        struct.scores = ffi.cast("uint16_t *", scores.ctypes.data)
        counts = _score_counts(plan, scores.shape[1])
        struct.score_counts = ffi.cast("uint32_t *", counts.ctypes.data)
    if plan.guesses is not None:
        guesses, guess_offsets = _joined(plan.guesses, len(plan.sessions))
        struct.guesses = ffi.cast("struct ofs_guess *", guesses.ctypes.data)
        struct.guess_offsets = ffi.cast("uint64_t *", guess_offsets.ctypes.data)
    rc = lib.ofs_sim_decode(core.handle, struct)
    check_rc(rc, "simulating decode", "decode plan", "sessions, ordinals and sizes must fit")
    return DecodeResult(stall_ns, int(struct.end_ns), int(struct.reads), int(struct.failed))


def _joined(
    guesses: tuple[npt.NDArray[np.void], ...], sessions: int
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint64]]:
    """All guesses in a row, and where each session's begin."""
    if len(guesses) != sessions:
        raise BadInput(
            f"guesses of {len(guesses)} sessions for {sessions}",
            "decode plan",
            "give guesses for every session, or none at all",
        )
    offsets = np.cumsum([0, *map(len, guesses)]).astype(np.uint64)
    return np.ascontiguousarray(np.concatenate(guesses), GUESS), offsets


def _score_counts(plan: DecodePlan, blocks: int) -> npt.NDArray[np.uint32]:
    """Blocks of each session's rows of scores, uint32 `[sessions]`."""
    given = [blocks] * len(plan.sessions) if plan.score_counts is None else plan.score_counts
    if len(given) != len(plan.sessions) or not all(0 <= count <= blocks for count in given):
        raise BadInput(
            f"score_counts {tuple(given)} for {len(plan.sessions)} sessions of {blocks} blocks",
            "decode plan",
            "give each session 0 up to the blocks of a row",
        )
    return np.array(given, np.uint32)
