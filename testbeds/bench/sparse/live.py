"""Sparse decode against a live daemon: on this machine's disk, and on a device model's drives.

Model: a daemon takes the prefill of a context. Then every setting has a fresh daemon, which finds
the store and begins with a cold arena, and one session decodes: in a batch a token would wait for
the slowest of all sessions. Every block that arrives is checked. Drives are those of a modelled
device in the loop, in dilated time, in which this machine's processor hardly counts; how much kept
the device's pace is in the row.

What can fail: `BadInput` for a setting; RunFailed for a daemon that ends, or a wrong block.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from offstage.bindings.errors import RunFailed
from offstage.bindings.ledger import hits_of
from offstage.bindings.stages import Stages
from offstage.bindings.units import parse_time
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.session import Context
from offstage.host.model.models import geometry
from offstage.testbeds.beds.local import DaemonSizes, LocalBed
from offstage.testbeds.bench.sparse.replay import replay
from offstage.testbeds.bench.sparse.result import Point
from offstage.testbeds.bench.sparse.virtual import Setting, later, point_of
from offstage.testbeds.live import checks
from offstage.testbeds.live.arm_bed import MEASURED, ArmBed, Attached, Storage
from offstage.testbeds.live.demo_options import Arm
from offstage.testbeds.live.drive import decode, prefill
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload, prepare
from offstage.testbeds.progress import Silent

__all__ = ["LIVE_MODEL", "live_points"]

LIVE_MODEL = "demo"
WAITS = {
    "drive": ("read_service",),
    "core": ("ring_wait", "decide", "read_queue", "publish"),
    "link": ("model_command", "model_hit"),
    "host": ("answer", "copy", "check"),
}
"""Stages of a demand that waits, by the part that a row names."""


def live_points(
    settings: Sequence[Setting], dilation: int, folder: Path
) -> Iterator[tuple[Setting, Point]]:
    """Every setting, on this machine's disk where it names no device. The files are in `folder`, on
    the disk that is measured."""
    bed = LocalBed(folder)
    for held_of in dict.fromkeys((one.context_tokens, one.capture) for one in settings):
        own = [one for one in settings if (one.context_tokens, one.capture) == held_of]
        held = _Held.of(own[0], bed)
        for one in own:
            yield one, held.run(one, _storage(one, dilation))


def _storage(setting: Setting, dilation: int) -> Storage:
    if not setting.device:
        return MEASURED
    device = f"{setting.device},nvme.drives={setting.drives}"
    keys = {"backend": "emulated", "inner": "posix", "direct": False, "seed": setting.seed}
    model = {"device": device, "dilation": dilation}
    return Storage(device, "emulated", {**keys, "nvme": setting.drive}, model)


@dataclass(frozen=True)
class _Held:
    """One context in a store."""

    options: DriveOptions
    workload: Workload
    bed: LocalBed
    contexts: Mapping[int, Context]

    @classmethod
    def of(cls, setting: Setting, bed: LocalBed) -> "_Held":
        options = _options(setting)
        bed.clear()
        bed.runtime.mkdir(exist_ok=True)
        held = cls(options, prepare(options), bed, {})
        found: dict[int, Context] = {}

        def write(host: Attached) -> None:
            filled = prefill(options, held.workload, host.control, host.fabric, Silent())
            found.update(filled.contexts)

        ArmBed(bed, held.sizes(setting)).prefill(MEASURED, write)
        return cls(options, held.workload, bed, found)

    def sizes(self, setting: Setting) -> DaemonSizes:
        geometry = self.options.geometry
        slots = round(setting.buffer_over_k * setting.selected) * geometry.layer_count
        return DaemonSizes(
            payload_bytes=geometry.block_bytes(0),
            layers=geometry.layer_count,
            block_tokens=geometry.block_tokens,
            slots=slots,
            window_tokens=4_096,
            context_tokens=setting.context_tokens + setting.steps,
            stored_bytes=self.workload.plan.stored_bytes,
            sessions=1,
        )

    def run(self, setting: Setting, storage: Storage) -> Point:
        options = _options(setting)
        kept: list[AgentRecord] = []
        for context in self.contexts.values() if setting.capture else ():
            replay(setting, context)
        prefetchers = tuple(one for one in setting.policy.split("+") if one != "none")
        arm = Arm(setting.policy, prefetchers, "score" if "ema" in prefetchers else "lru")

        def drive(host: Attached) -> AgentRecord:
            kept.append(
                decode(
                    options,
                    self.workload,
                    dict(self.contexts),
                    host.control,
                    host.fabric,
                    "sparse",
                    Silent(),
                )
            )
            return kept[0]

        bed = ArmBed(self.bed, self.sizes(setting))
        found = bed.measure(storage, arm, "sparse", self.bed.work / "record", drive)
        late = None if found.pace_overruns < 0 else found.pace_overruns
        found.pace_overruns = -1.0  # the row says it
        if told := checks.found(found, storage.name):
            raise RunFailed(told[0], "bench sparse", "do not use the figures of this run")
        tokens = kept[0].tokens
        missed = [[one.demands - int(hits_of(one.ends)) for one in tokens]]
        return point_of(
            np.array([[one.stall_ns / 1e6 for one in tokens]]),
            provenance=storage.provenance,
            device=f"{setting.drive}, {setting.device}" if setting.device else found.storage,
            context_tokens=setting.context_tokens,
            selected=setting.selected,
            drives=setting.drives,
            sessions=1,
            token_ms=options.time_per_token_s * 1e3,
            missed_per_token=float(later(np.array(missed)).mean()),
            reads_per_token=None,
            used=_waits(found.stages),
            late=late,
            capture=setting.captured,
        )


def _waits(stages: Stages) -> dict[str, float]:
    """The share of each part in the mean wait of a demand that is read."""
    spent = {
        part: sum(stages[name].ns_mean for name in names if name in stages)
        for part, names in WAITS.items()
    }
    whole = sum(spent.values())
    return {part: one / whole for part, one in spent.items()} if whole else spent


def _options(setting: Setting) -> DriveOptions:
    own = geometry(LIVE_MODEL)
    layers = own.layers[:1] * setting.layers if setting.layers else own.layers
    found = DriveOptions(
        geometry=replace(own, layers=layers, block_tokens=setting.block_tokens),
        sessions=1,
        seed=setting.seed,
        context_tokens=setting.context_tokens,
        shared_prefix_tokens=0,
        steps=setting.steps,
        select_blocks=setting.selected,
        pool_ratio=setting.pool_over_k,
        time_per_token_s=parse_time(setting.time_per_token, "bench sparse") / 1e9,
    )
    found.check()
    return found
