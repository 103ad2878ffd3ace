"""The decision core, for Python: one method per event, numpy arrays for its output.

A `Core` is used from one thread. Events take the time in ns, which must not decrease. `actions()`
returns what the core wants done; call it after every event. Refused input raises `BadInput`, a full
table `StoreFull`. Shapes and meanings are those of `ofs_core.h`, which is the reference.
"""

import errno
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.bindings.figures import EventWork, read_struct
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import (
    CAUSES,
    ENDS,
    EVICTIONS,
    FATES,
    PREFETCHERS,
    layout,
    names,
    numbered,
)
from offstage.bindings.ledger import Ledger

if TYPE_CHECKING:  # collections.abc has it from Python 3.12
    from _typeshed import ReadableBuffer as Buffer

__all__ = [
    "ACTION",
    "CAUSES",
    "CHUNK_KEYS",
    "ENDS",
    "EVENTS",
    "EVICTIONS",
    "FATES",
    "GUESS",
    "INFO",
    "KEY",
    "PREFETCHERS",
    "RECORD",
    "TABLES",
    "Core",
    "CoreConfig",
    "Policy",
    "Replay",
    "SessionConfig",
    "prefetcher_bits",
    "replay",
    "siphash",
    "work_by_event",
]


KEY = layout("struct ofs_key")
CHUNK_KEYS = layout("struct ofs_chunk_keys")
ACTION = layout("struct ofs_action")
RECORD = layout("struct ofs_ledger_record")
GUESS = layout("struct ofs_guess")
"""One guess, 16 bytes: passed after `after_layer` of a step, that `layer` will demand `ordinal` in
`steps` steps (0: this one), with a probability of `probability` / 65535. `cause`, of `CAUSES` from
window on, is how the ledger names it. The core does not use `after_layer`."""
INFO = layout("struct ofs_chunk_info")

EVENTS = numbered("enum ofs_event_type", "OFS_EVENT_")
TABLES = names("enum ofs_table", "OFS_TABLE_")

READ, PUBLISH, RETRACT, COMPLETE = (
    int(getattr(lib, f"OFS_ACTION_{name}")) for name in ("READ", "PUBLISH", "RETRACT", "COMPLETE")
)
SEEN_MISS, SEEN_UNKNOWN = int(lib.OFS_SEEN_MISS), int(lib.OFS_SEEN_UNKNOWN)
RETRY, NONE = int(lib.OFS_STEP_RETRY), int(lib.OFS_NONE)


@dataclass(frozen=True)
class CoreConfig:
    """Sizes fixed at open; `chunk_max` counts twice what is not shared."""

    slot_count: int
    chunk_max: int
    session_chunk_max: int
    layer_count: int = 1
    tenant_max: int = 1
    session_max: int = 1
    block_size_bytes: int = 65536
    io_max: int = 128
    queue_max: int = 1024
    demand_max: int = 256
    log_size_bytes: int = 0
    record_max: int = 0
    seed: int = 0
    granule_count: int = 0
    granule_size_bytes: int = 0


@dataclass(frozen=True)
class Policy:
    """`prefetchers`: of `PREFETCHERS`, joined by `+`, or `none`; `eviction`: of `EVICTIONS`."""

    prefetchers: str = "none"
    eviction: str = "lru"
    window_blocks: int = 0
    ema_shift: int = 1
    admit_named_min: int = 0
    residency_percent: int = 800
    degree_max: int = 2
    next_n: int = 1
    prefetch_in_flight_max: int = 32
    prefetch_bytes_per_s_max: int = 0
    accuracy_permille_min: int = 0
    keep_minutes: int = 0
    lateness_permille_max: int = 0
    return_tokens_min: int = 0
    lease_ns: int = 0
    probability_permille_min: int = 100
    hint_scores_max: int = 0
    hint_every_steps: int = 1
    hint_score_bits: int = 16

    def with_(self, **changes: Any) -> "Policy":
        """A copy with other values."""
        return replace(self, **changes)


@dataclass(frozen=True)
class SessionConfig:
    """What the core must know of a session; blocks are counted per layer."""

    tenant: int
    select_blocks: int
    sink_blocks: int = 0
    window_blocks: int = 0
    step_ns: int = 20_000_000


def prefetcher_bits(names: str) -> int:
    """Bits of `OFS_PREFETCH_*` for names joined by `+`."""
    bits = 0
    for name in names.split("+"):
        if name == "none":
            continue
        if name not in PREFETCHERS:
            raise BadInput(
                f"no prefetcher {name!r}",
                "policy.prefetchers",
                f"choose from {', '.join(PREFETCHERS)}, joined by +, or none",
            )
        bits |= PREFETCHERS[name]
    return bits


def siphash(secret: bytes, data: bytes) -> bytes:
    """SipHash-2-4-128 of `data` under the 16-byte `secret`."""
    out: Any = ffi.new("struct ofs_key *")
    lib.ofs_siphash(_key(secret), data, len(data), out)
    return bytes(ffi.buffer(out))


def work_by_event(work: Any) -> dict[str, EventWork]:
    """`struct ofs_work` `[OFS_EVENT_COUNT]` by name, of the kinds of event that there were."""
    return {
        name: read_struct(
            work + kind,
            EventWork,
            table_bytes=dict(zip(TABLES, map(int, work[kind].table_bytes), strict=True)),
        )
        for kind, name in EVENTS.items()
        if work[kind].events
    }


@dataclass(frozen=True)
class Replay:
    """`agreed` decisions came out the same; `diverged_at` is the byte of the first that did not.

    `work` is what the events cost, as `Core.work()`.
    """

    agreed: int
    diverged_at: int | None
    work: dict[str, EventWork]


def replay(log: "Buffer", where: str = "log") -> Replay:
    """Feed a whole decision log to a fresh core. `Corrupt` for one that is torn or foreign."""
    diverged: Any = ffi.new("uint64_t *")
    work: Any = ffi.new("struct ofs_work[]", lib.OFS_EVENT_COUNT)
    with ffi.from_buffer(log) as view:
        agreed = int(lib.ofs_core_replay(view, len(view), diverged, work))
    check_rc(min(agreed, 0), "replaying a decision log", where, "it is torn, or not one of ours")
    at = None if diverged[0] == 2**64 - 1 else int(diverged[0])
    return Replay(agreed, at, work_by_event(work))


class Core:
    """One decision core, closed with the object."""

    def __init__(self, config: CoreConfig, policy: Policy) -> None:
        out: Any = ffi.new("struct ofs_core **")
        struct: Any = ffi.new("struct ofs_core_config *", asdict(config))
        check_rc(
            lib.ofs_core_open(out, struct, filled_policy(policy)),
            "opening the decision core",
            "core",
            "check the sizes and the policy",
        )
        self.config = config
        self.handle: Any = ffi.gc(out[0], lib.ofs_core_close)
        self._actions = np.zeros(1024, ACTION)

    def set_policy(self, now_ns: int, policy: Policy) -> None:
        """Change the policy; sharing changes for sessions opened afterwards."""
        rc = lib.ofs_core_set_policy(self.handle, now_ns, filled_policy(policy))
        check_rc(rc, "a policy change")

    def reset(self, now_ns: int) -> None:
        """A cold arena and an empty ledger; what the store has, and the sessions, stay."""
        check_rc(lib.ofs_core_reset(self.handle, now_ns), "a reset")

    def tenant_add(self, now_ns: int, secret: bytes, slot_count: int, weight: int = 1) -> int:
        """The new tenant's number. `StoreFull` when the arena or the table has no room."""
        config: Any = ffi.new("struct ofs_tenant_config *")
        config.secret = _key(secret)[0]
        config.slot_count, config.weight = slot_count, weight
        out: Any = ffi.new("uint32_t *")
        check_rc(lib.ofs_core_tenant_add(self.handle, now_ns, config, out), "adding a tenant")
        return int(out[0])

    def session_open(self, now_ns: int, config: SessionConfig) -> int:
        """The new session's number."""
        struct: Any = ffi.new("struct ofs_session_config *", asdict(config))
        out: Any = ffi.new("uint32_t *")
        check_rc(lib.ofs_core_session_open(self.handle, now_ns, struct, out), "opening a session")
        return int(out[0])

    def session_append(
        self, now_ns: int, session: int, contents: npt.NDArray[np.void]
    ) -> npt.NDArray[np.void]:
        """Append chunks by content hash, `KEY` `[n]`; gives `INFO` `[n]`."""
        contents = np.ascontiguousarray(contents, KEY)
        infos = np.zeros(len(contents), INFO)
        check_rc(
            lib.ofs_core_session_append(
                self.handle,
                now_ns,
                session,
                len(contents),
                _pointer("struct ofs_key *", contents),
                _pointer("struct ofs_chunk_info *", infos),
            ),
            "appending chunks",
        )
        return infos

    def session_append_keys(
        self, now_ns: int, session: int, keys: npt.NDArray[np.void]
    ) -> npt.NDArray[np.void]:
        """Append chunks by the keys that a log has of them, `CHUNK_KEYS` `[n]`; gives `INFO`
        `[n]`."""
        keys = np.ascontiguousarray(keys, CHUNK_KEYS)
        infos = np.zeros(len(keys), INFO)
        rc = lib.ofs_core_session_append_keys(
            self.handle,
            now_ns,
            session,
            len(keys),
            _pointer("struct ofs_chunk_keys *", keys),
            _pointer("struct ofs_chunk_info *", infos),
        )
        check_rc(rc, "appending chunks by their keys")
        return infos

    def session_set_generating(self, now_ns: int, session: int, generating: bool) -> None:
        """A generating session is the last victim."""
        rc = lib.ofs_core_session_set_generating(self.handle, now_ns, session, int(generating))
        check_rc(rc, "starting or stopping a session")

    def session_close(self, now_ns: int, session: int) -> None:
        """Drop references and pins; waiting demands complete with -ECANCELED."""
        check_rc(lib.ofs_core_session_close(self.handle, now_ns, session), "closing a session")

    def session_release(self, now_ns: int, session: int) -> None:
        """End the session's pins now."""
        check_rc(lib.ofs_core_session_release(self.handle, now_ns, session), "releasing pins")

    def block_stored(self, now_ns: int, chunk: int, layer: int) -> None:
        """The store has the block."""
        check_rc(lib.ofs_core_block_stored(self.handle, now_ns, chunk, layer), "a stored block")

    def block_lost(self, now_ns: int, chunk: int, layer: int) -> None:
        """The store lost the block."""
        check_rc(lib.ofs_core_block_lost(self.handle, now_ns, chunk, layer), "a lost block")

    def block_restore(self, now_ns: int, tenant: int, store_key: bytes, layer: int) -> int:
        """The store's recovery found the block; gives its chunk."""
        out: Any = ffi.new("uint32_t *")
        rc = lib.ofs_core_block_restore(self.handle, now_ns, tenant, _key(store_key), layer, out)
        check_rc(rc, "restoring a block")
        return int(out[0])

    def block_forget(self, now_ns: int, tenant: int, store_key: bytes, layer: int) -> bool:
        """The block expired in the store; False when no chunk is known by that key."""
        rc = lib.ofs_core_block_forget(self.handle, now_ns, tenant, _key(store_key), layer)
        if rc == -errno.ENOENT:
            return False
        check_rc(rc, "forgetting a block")
        return True

    def block_stage(self, now_ns: int, chunk: int, layer: int) -> tuple[int, int] | None:
        """(slot, generation) of a dirty slot for a written block; None: write through."""
        out: Any = ffi.new("uint32_t[2]")
        rc = lib.ofs_core_block_stage(self.handle, now_ns, chunk, layer, out, out + 1)
        if rc == -errno.EAGAIN:
            return None
        check_rc(rc, "staging a written block")
        return int(out[0]), int(out[1])

    def block_clean(self, now_ns: int, chunk: int, layer: int) -> None:
        """The dirty block is in the store."""
        check_rc(lib.ofs_core_block_clean(self.handle, now_ns, chunk, layer), "a flushed block")

    def block_drop(self, now_ns: int, chunk: int, layer: int) -> bool:
        """Let the staged copy go before its turn; False when there is none, or it is held."""
        rc = lib.ofs_core_block_drop(self.handle, now_ns, chunk, layer)
        if rc in (-errno.ENOENT, -errno.EAGAIN):
            return False
        check_rc(rc, "dropping a staged block")
        return True

    def step(
        self,
        now_ns: int,
        session: int,
        step: int,
        layer: int,
        demands: npt.ArrayLike,
        *,
        seen: npt.ArrayLike | None = None,
        scores: npt.ArrayLike | None = None,
        selected_count: int | None = None,
        waiter: int = 0,
        retry: bool = False,
        granules: npt.ArrayLike | None = None,
    ) -> npt.NDArray[np.uint8]:
        """One layer of one step: ordinals `[n]`, what the host saw `[n]`, scores by ordinal, and
        where the core has granules, which of each demand `[n]`, bit i the i-th, 0 all.

        Gives the end of every demand, `[n]`, numbered as `ENDS`.
        """
        ordinals = np.ascontiguousarray(demands, np.uint32)
        ends = np.zeros(len(ordinals), np.uint8)
        struct: Any = ffi.new("struct ofs_step *")
        struct.session, struct.step, struct.layer = session, step, layer
        struct.selected_count = len(ordinals) if selected_count is None else selected_count
        struct.demand_count = len(ordinals)
        struct.waiter, struct.flags = waiter, RETRY if retry else 0
        struct.demands = _pointer("uint32_t *", ordinals)
        if granules is not None:
            masks = np.ascontiguousarray(granules, np.uint32)
            assert len(masks) == len(ordinals)
            struct.granules = _pointer("uint32_t *", masks)
        if seen is not None:
            seen_array = np.ascontiguousarray(seen, np.uint8)
            assert len(seen_array) == len(ordinals)
            struct.seen = _pointer("uint8_t *", seen_array)
        if scores is not None:
            score_array = np.ascontiguousarray(scores, np.uint16)
            struct.score_count = len(score_array)
            struct.scores = _pointer("uint16_t *", score_array)
        rc = lib.ofs_core_step(self.handle, now_ns, struct, _pointer("uint8_t *", ends))
        check_rc(rc, "a decode step", "step", "ordinals, layer and seen must be in range")
        return ends

    def hint(self, now_ns: int, session: int, guesses: npt.NDArray[np.void]) -> None:
        """Guesses of the host, `GUESS` `[n]`, no more than `queue_max`: what will be demanded."""
        guesses = np.ascontiguousarray(guesses, GUESS)
        pointer = _pointer("struct ofs_guess *", guesses)
        rc = lib.ofs_core_hint(self.handle, now_ns, session, pointer, len(guesses))
        check_rc(rc, "a hint", "guesses", "count, layers, ordinals and causes must be in range")

    def io_done(self, now_ns: int, io: int, rc: int = 0) -> None:
        """The read `io` ended with 0 or -errno."""
        check_rc(lib.ofs_core_io_done(self.handle, now_ns, io, rc), "the end of a read")

    def slot_free(self, now_ns: int, tenant: int, slot: int) -> None:
        """The device let go of a quarantined slot."""
        check_rc(lib.ofs_core_slot_free(self.handle, now_ns, tenant, slot), "freeing a slot")

    def tick(self, now_ns: int) -> int | None:
        """Issue what may be issued; when to call again, None for never."""
        out: Any = ffi.new("uint64_t *")
        check_rc(lib.ofs_core_tick(self.handle, now_ns, out), "a tick")
        return None if out[0] == 2**64 - 1 else int(out[0])

    def actions(self) -> npt.NDArray[np.void]:
        """All actions since they were last taken, `ACTION` `[n]`, in order."""
        taken = []
        pointer = _pointer("struct ofs_action *", self._actions)
        while count := lib.ofs_core_actions(self.handle, pointer, len(self._actions)):
            check_rc(count, "taking actions")
            taken.append(self._actions[:count].copy())
        return np.concatenate(taken) if taken else np.zeros(0, ACTION)

    def ledger(self, tenant: int | None = None) -> Ledger:
        """Of one tenant; None: of all together."""
        struct: Any = ffi.new("struct ofs_ledger *")
        rc = lib.ofs_core_ledger(self.handle, NONE if tenant is None else tenant, struct)
        check_rc(rc, "reading the ledger")
        return read_struct(struct, Ledger)

    def work(self) -> dict[str, EventWork]:
        """What the events cost since open or the last reset: `struct ofs_work` by kind of event."""
        work: Any = ffi.new("struct ofs_work[]", lib.OFS_EVENT_COUNT)
        check_rc(lib.ofs_core_work(self.handle, work), "reading the core's work")
        return work_by_event(work)

    def records(self) -> npt.NDArray[np.void]:
        """Ledger records since they were last taken, `RECORD` `[n]`."""
        records = np.zeros(self.config.record_max, RECORD)
        pointer = _pointer("struct ofs_ledger_record *", records)
        count = check_rc(lib.ofs_core_records(self.handle, pointer, len(records)), "records")
        return records[:count]

    def log(self) -> bytes:
        """Decision-log bytes since they were last taken; the first call gives the header too."""
        buffer = bytearray(self.config.log_size_bytes)
        view: Any = ffi.from_buffer(buffer)
        count = check_rc(lib.ofs_core_log(self.handle, view, len(buffer)), "taking the log")
        return bytes(buffer[:count])

    def verify(self) -> bool:
        """Whether every table agrees with every other; what does not is named on stderr."""
        return int(lib.ofs_core_verify(self.handle)) == 0


def _key(data: bytes) -> Any:
    key: Any = ffi.new("struct ofs_key *")
    ffi.buffer(key)[:] = data
    return key


def filled_policy(policy: Policy) -> Any:
    """`struct ofs_policy`; BadInput where it names no prefetcher or eviction of ours."""
    if policy.eviction not in EVICTIONS:
        raise BadInput(
            f"no eviction policy {policy.eviction!r}",
            "policy.eviction",
            f"choose one of {', '.join(EVICTIONS)}",
        )
    fields: dict[str, int] = {**asdict(policy)}
    fields["prefetchers"] = prefetcher_bits(policy.prefetchers)
    fields["eviction"] = EVICTIONS.index(policy.eviction)
    return ffi.new("struct ofs_policy *", fields)


def _pointer(kind: str, array: npt.NDArray[Any]) -> Any:
    return ffi.cast(kind, array.ctypes.data)
