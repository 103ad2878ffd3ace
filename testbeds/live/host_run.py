"""`offstage host run`: a workload against a daemon that is already running.

The daemon may have served others before: its ledger is read before and after, and every figure
is computed from the difference. The policy, the storage and the size of the buffer are the
daemon's; the run reports them.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

import offstage
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import Ledger, share
from offstage.bindings.notes import Note
from offstage.host.decode.record import AgentRecord
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.host.link.granular import GranularSessions
from offstage.host.link.tier_sessions import Sessions
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.models import GEOMETRIES
from offstage.host.request_file import Recorded
from offstage.host.request_record import ServedRun, Used
from offstage.testbeds.beds.status import counters_since, device_counters, stages, wear
from offstage.testbeds.live.drive import Prefilled, decode, prefill
from offstage.testbeds.live.model_results import PolicyKeys
from offstage.testbeds.live.options import STORE_BYTES_MAX, DriveOptions
from offstage.testbeds.live.results import Provenance, RunResult, RunWorkload, Summary
from offstage.testbeds.live.run_figures import RunLabel, against_lru, run_result
from offstage.testbeds.live.vacuous import warm_start
from offstage.testbeds.live.wear import run_wear, written
from offstage.testbeds.live.workload import Workload, describe, prepare
from offstage.testbeds.machine import memory_peak_bytes, run_machine
from offstage.testbeds.progress import Progress, note_hit

__all__ = [
    "AGAINST",
    "check_alone",
    "check_fit",
    "machine_notes",
    "overruns",
    "run",
    "serve_with",
    "served_of",
    "store_bytes",
]

EMULATED = "emulated"
AGAINST = "against-lru"
"""The code of the note that names the reference of coverage and traffic."""
RUN_NAME = "host-run"
"""Prefix of the chunks written while decoding: the same seed writes the same blocks again, so a
store does not grow with each run."""


def run(
    options: DriveOptions,
    link: Endpoint,
    progress: Progress,
    served: list[Recorded] | None = None,
) -> Summary:
    """Prefill what the tier lacks, decode, and compute the figures of this run alone; the report
    puts them into words. `served` gets the records of its requests. BadInput: options, the login,
    or a workload that the daemon's sizes do not fit. RunFailed, StoreFull, DeviceTimeout: the
    daemon went away, is full, or its ledger was reset."""
    begun = time.monotonic()
    options.check()
    with link.attached() as (control, fabric):
        check_alone(control, link.tenant)
        check_fit(options.geometry, control)
        tier, way, own = _tier(options, control, fabric)
        workload = replace(prepare(own, store_bytes(control)), granules=options.granules)
        _check_limits(options, workload, control)
        empty = wear(link)
        filled = prefill(own, workload, tier, way, progress)
        before, counters = Ledger.of(control.ledger()), device_counters(link)
        begun_wear = wear(link)
        sessions = workload.plan.sessions
        progress.start(
            f"decode over {link.fabric}", sum(one.decode_steps for one in sessions), "steps"
        )
        record = decode(own, workload, filled.contexts, tier, way, RUN_NAME, progress)
        ledger = Ledger.of(control.ledger()).since(before)
        counters = counters_since(counters, device_counters(link))
        policy, status = control.policy(), control.status()
        prefetchers = msgspec.convert(policy["prefetchers"], tuple[str, ...])
        label = RunLabel(
            "+".join(prefetchers) or "none",
            _shown(control.storage, status),
            _provenance(control.storage),
            prefetchers,
        )
        notes = [*machine_notes(status), *warm_start(before), _reference_note(ledger)]
        result = run_result(label, ledger, counters, record, -1, notes)
        note_hit(progress, result.hit)
        result.pace_overruns = overruns(str(status["model"]), counters)
        result.stages = stages(link, fabric)
        ended = wear(link)
        result.wear = run_wear(
            result.ended.hits, written(empty, begun_wear), written(begun_wear, ended), ended
        )
        sizes = control.geometry
        result = against_lru(result, ledger, sizes.payload_size_bytes + sizes.lba_size_bytes)
        about = _describe(options, workload, link, control, policy, filled)
    if served is not None:
        served.append(served_of(result, record))
    return _summary(options, result, workload, about, time.monotonic() - begun)


def served_of(result: RunResult, record: AgentRecord) -> Recorded:
    """The records of a run's requests, and what they are of."""
    absent = {
        **dict.fromkeys(("link", "drive"), "busy time is not counted: see the stages of a report"),
        "hbm_pool": "sessions leave the pool when they end",
    }
    if result.busy_share < 0:
        absent["dpu_cores"] = "the daemon's counters are its operator's"
    used = Used(
        gpu=record.computed_share(),
        dpu_cores=result.busy_share if result.busy_share >= 0 else None,
        absent=absent,
    )
    about = ServedRun(
        label=f"{result.name} on {result.storage}",
        provenance=result.provenance,
        used=used,
        absent={"wasted_blocks": "the ledger counts it by run, not by request"},
    )
    return about, list(record.requests.values())


def _tier(
    options: DriveOptions, control: Control, fabric: Fabric
) -> tuple[Sessions, Fabric, DriveOptions]:
    """The tier of the decode loop, and the options in the same units: blocks or granules."""
    if options.granules == 1:
        return control, fabric, options
    if not isinstance(fabric, Driver):
        raise BadInput(
            "this fabric reads whole blocks", "granule_tokens", "attach over shm, verbs or nixl"
        )
    own = options.in_granules()
    layers = own.geometry.layer_count
    sizes = {own.geometry.block_bytes(layer) for layer in range(layers)}
    if len(sizes) > 1:
        raise BadInput(
            "the blocks of its layers differ in size",
            f"geometry {own.geometry.name!r}",
            "leave out --granule-tokens",
        )
    sessions = GranularSessions(control, fabric, options.granules, layers, sizes.pop())
    return sessions, fabric, own


def check_alone(control: Control, tenant: str) -> None:
    """BadInput if another host of the tenant is attached: the ledger is the tenant's, and would
    count the work of both."""
    others = int(control.status().get("tenant_hosts", 1)) - 1
    if others > 0:
        raise BadInput(
            f"{others} other host{'s' * (others > 1)} of the tenant {tenant!r} "
            f"{'are' if others > 1 else 'is'} attached, and the figures would be of all together",
            control.endpoint,
            "wait until it ends, or give each host a separate tenant with --tenant",
        )


def store_bytes(control: Control) -> int:
    """The KV capacity of the daemon's store in bytes, the limit of what a run may write,
    whatever it contains now."""
    return int(control.status().get("store_payload_bytes", 0)) or STORE_BYTES_MAX


def check_fit(geometry: KvGeometry, control: Control) -> None:
    """BadInput, naming both, if the daemon's block sizes are not those of `geometry`."""
    theirs = control.geometry
    daemon = (theirs.layer_count, theirs.payload_size_bytes, theirs.block_tokens)
    own = _shape(geometry)
    if own == daemon:
        return
    fitting = [name for name, one in GEOMETRIES.items() if _shape(one) == daemon]
    raise BadInput(
        f"the geometry {geometry.name!r} has {_shape_text(own)}, the daemon {_shape_text(daemon)}",
        control.endpoint,
        f"give --geometry {fitting[0]}"
        if fitting
        else serve_with(*own, math.gcd(own[1], theirs.lba_size_bytes)),
    )


def serve_with(layer_count: int, payload_bytes: int, block_tokens: int, lba_bytes: int) -> str:
    """The fix if a daemon has other blocks: a configuration that takes these, with as many extra
    tokens as make the payload whole logical blocks, in a separate store, since a store's sizes
    are fixed."""
    times = lba_bytes // math.gcd(payload_bytes, lba_bytes)
    return (
        f"serve with --set arena.layers={layer_count} --set arena.payload="
        f"{payload_bytes * times} --set arena.block_tokens={block_tokens * times} "
        "--set storage.path=NEW_FILE"
    )


def _shape(geometry: KvGeometry) -> tuple[int, int, int]:
    """Layers, bytes of the largest block, tokens of a block."""
    largest = max(map(geometry.block_bytes, range(geometry.layer_count)))
    return geometry.layer_count, largest, geometry.block_tokens


def _shape_text(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} layers and blocks of {shape[1]:,} B for {shape[2]} tokens"


def _check_limits(options: DriveOptions, workload: Workload, control: Control) -> None:
    """Check limits before prefill; the daemon would check these too, but only after it."""
    limits, sessions = control.limits, workload.plan.sessions
    at_once = min(len(sessions), workload.plan.sessions_max)
    if at_once > limits.session_max:
        raise BadInput(
            f"{at_once} sessions at once, but the daemon allows {limits.session_max}",
            control.endpoint,
            "lower --sessions, or raise [limits] sessions of the daemon",
        )
    tokens = options.geometry.block_tokens
    blocks = max(-(-(one.context_tokens + one.decode_steps) // tokens) for one in sessions)
    if blocks > limits.session_chunk_max:
        raise BadInput(
            f"contexts grow to {blocks * tokens:,} tokens, and the daemon takes "
            f"{limits.session_chunk_max * tokens:,}",
            control.endpoint,
            "lower --context-tokens, or raise [limits] context_tokens of the daemon",
        )


def machine_notes(status: Mapping[str, Any]) -> list[Note]:
    """What the daemon reports about its machine."""
    return [Note("machine", status["warning"])] if status["warning"] else []


def _reference_note(ledger: Ledger) -> Note:
    """The note on the reference of coverage and traffic."""
    beside = "the daemon's shadow, a demand-only LRU of the same buffer"
    if ledger.shadow_misses == 0:
        return Note(
            "lru-missed-nothing",
            f"{beside}, missed nothing: coverage and traffic are shown as 0 and mean nothing",
        )
    return Note(AGAINST, f"coverage and traffic compare with {beside}, not with a separate run")


def overruns(model: str, counters: Mapping[str, int] | None) -> float:
    """The share of requests for which the software did not keep the pace of the modelled device;
    -1 if it models none, or its counters are not known."""
    if not model or counters is None:
        return -1.0
    total = counters["reads"] + counters["writes"] + counters["paced"]
    return share(counters["emulation_late"] + counters["paced_late"], total)


def _provenance(storage: str) -> Provenance:
    return "emulated" if storage == EMULATED else "measured"


def _shown(storage: str, status: Mapping[str, Any]) -> str:
    if status["model"]:
        slower = f", {status['dilation']} times slower" if status["dilation"] > 1 else ""
        return f"{status['model']}{slower}"
    return "emulated NVMe" if storage == EMULATED else storage


def _describe(
    options: DriveOptions,
    workload: Workload,
    link: Endpoint,
    control: Control,
    policy: PolicyKeys,
    filled: Prefilled,
) -> RunWorkload:
    geometry = options.geometry
    slots, layers = control.geometry.slot_count, geometry.layer_count
    per_layer = len(workload.plan.sessions) * layers * options.select_blocks
    return msgspec.structs.replace(
        describe(options, workload),
        fabric=link.fabric,
        slot_count=slots,
        buffer_ratio=slots / per_layer,
        policy=policy,
        window_tokens=policy["window_tokens"],
        prefill_blocks=filled.block_count,
        prefill_blocks_written=filled.blocks_written,
    )


def _summary(
    options: DriveOptions,
    result: RunResult,
    workload: Workload,
    about: RunWorkload,
    wall_s: float,
) -> Summary:
    return Summary(
        runs=[result],
        workload=about,
        machine=run_machine({"host": memory_peak_bytes()}, wall_s),
        seed=options.seed,
        sentence="",
        curve=[],
        definitions={},
        command=options.command,
        version=offstage.__version__,
        notes=workload.noted(
            about.slot_count or 0, options.geometry.layer_count, options.pool_layer_blocks
        ),
    )
