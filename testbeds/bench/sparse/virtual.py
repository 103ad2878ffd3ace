"""Sparse decode in virtual time: one setting, and how many sessions decode until tokens wait.

Model: the laboratory's point of a drawn workload: the daemon's decision core over a modelled device
with one core. Sessions are added, by doubling, until tokens wait for more than the stated share of
their time, or their blocks fill the device's memory; the number lies between the last two runs. The
sessions begin together with a cold arena, and their first tokens read all that they select. That is
what resuming costs, and is listed apart: stalls, reads and use are of the second half of a run.

What can fail: `BadInput` of the settings, as of a spec's.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.asic_model.parameters import read_preset
from offstage.asic_model.result import binding
from offstage.bindings.ledger import hits_of
from offstage.testbeds.bench.sparse.result import Carried, Point
from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.plan import points_of
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.run.source import build, fitted
from offstage.testbeds.lab.spec.load import built
from offstage.testbeds.lab.spec.schema import Spec

__all__ = ["Setting", "carried", "decoded", "later", "point_of"]

SESSIONS_MAX = 256
"""Most that are run."""
PARTS = {
    "link_in": "link",
    "link_out": "link",
    "drive": "drive",
    "reactor": "core",
    "ddr": "memory",
}
"""Units of a modelled DPU by what a row names."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is decoded, and on what. `device`: a preset of `asic presets`, whose drives are set;
    empty: the drive alone, and a constant for a hit. `time_per_token`: of all layers; `layers`: the
    first ones, 0: all. `capture`: a file of scores in place of drawn ones."""

    model: str
    context_tokens: int
    selected: int
    block_tokens: int = 64
    layers: int = 0
    capture: str = ""
    drives: int = 1
    device: str = ""
    drive: str = "gen5-tlc"
    policy: str = "window+ema"
    buffer_over_k: float = 2.0
    pool_over_k: float = 1.5
    steps: int = 32
    time_per_token: str = "40ms"
    seed: int = 1

    @property
    def captured(self) -> str:
        """The name of the capture."""
        return Path(self.capture).stem

    def spec(self, sessions: int) -> Spec:
        """The laboratory's spec. BadInput for what contradicts itself."""
        device = f"{self.device},nvme.drives={self.drives}" if self.device else ""
        drawn = {
            "context_tokens": self.context_tokens,
            "sessions": sessions,
            "steps": self.steps,
            "layers": self.layers,
        }
        found = built(
            {
                "seeds": [self.seed],
                "workload": {"kind": "captured", "file": self.capture} if self.capture else drawn,
                "geometry": {"model": self.model, "block_tokens": self.block_tokens},
                "selection": {"k_blocks": self.selected, "window_blocks": 4},
                "tier": {
                    "buffer_over_k": [self.buffer_over_k],
                    "hbm_pool_over_k": self.pool_over_k,
                    "time_per_token": self.time_per_token,
                    "storage": self.drive,
                    "device": device,
                },
                "policy": [{"use": self.policy}],
            },
            "bench sparse",
            {},
        )
        return fitted(found, "bench sparse")


def decoded(setting: Setting, sessions: int) -> Point:
    """The setting, run once."""
    spec, seed = setting.spec(sessions), setting.seed
    workload = build(spec, seed)
    point = next(one for one in points_of(spec, 0, 0) if one.policy == spec.policy[0])
    feed = Feed(workload, spec.granules, {0: Kind(1, spec.tier.hbm_pool_over_k)})
    runner = Runner(0, point, spec, workload, feed, seed)
    while not runner.advance():
        feed.make()
    rows, used = runner.result().rows, dict[str, float]()
    rows = rows[rows["step"] < setting.steps]  # a capture may have more
    for unit, share in runner.units(0.5).items():
        if part := PARTS.get(unit):
            used[part] = max(used.get(part, 0.0), share)
    stall_ms, missed, reads = np.zeros((3, sessions, setting.steps))
    cells = rows["session"].astype(np.int64), rows["step"].astype(np.int64)
    np.add.at(stall_ms, cells, rows["stall_ns"] / 1e6)
    np.add.at(missed, cells, rows["demands"].astype(float) - hits_of(rows["ends"]))
    np.add.at(reads, cells, rows["demand_reads"].astype(float) + rows["prefetch_reads"])
    return point_of(
        stall_ms,
        provenance="modelled",
        device=spec.tier.device or f"{setting.drive}, no other cost",
        context_tokens=setting.context_tokens,
        selected=setting.selected,
        drives=setting.drives,
        sessions=sessions,
        token_ms=spec.time_per_token_ns / 1e6,
        missed_per_token=float(later(missed).mean()),
        reads_per_token=float(later(reads).mean()),
        used=used,
        capture=setting.captured,
    )


def later(values: Any) -> Any:
    """Those of the second half of a run, of values `[sessions, steps]`."""
    return values[:, values.shape[1] // 2 :]


def point_of(stall_ms: Any, *, used: dict[str, float], **known: Any) -> Point:
    """A point from its stalls `[sessions, steps]`."""
    steady = later(stall_ms)
    return Point(
        first_ms=float(stall_ms[:, 0].mean()),
        stall_ms_mean=float(steady.mean()),
        stall_ms_p50=float(np.quantile(steady, 0.5)),
        stall_ms_p99=float(np.quantile(steady, 0.99)),
        used=used,
        binds=binding(used),
        **known,
    )


def carried(setting: Setting, waits: float) -> tuple[list[Point], Carried]:
    """The runs by doubling, and the sessions that decode until tokens wait for that share, or until
    their blocks fill the device's memory. BadInput: it has no room for one."""
    spec = setting.spec(1)
    slots = points_of(spec, 0, 0)[0].buffer_blocks(spec) * spec.layer_count
    room = max(1, read_preset(spec.tier.device).arena_bytes // (slots * spec.block_bytes))
    most = min(room, SESSIONS_MAX)
    points = [decoded(setting, 1)]
    while points[-1].waits < waits and points[-1].sessions < most:
        points.append(decoded(setting, min(2 * points[-1].sessions, most)))
    counts, shares = [one.sessions for one in points], [one.waits for one in points]
    reached, sessions = shares[-1] >= waits, float(counts[-1])
    if reached:
        sessions = float(np.interp(waits, shares[-2:], counts[-2:])) if len(points) > 1 else 0.0

    def at(values: list[float]) -> float:
        return float(np.interp(sessions, counts, values))

    used = {part: at([one.used[part] for one in points]) for part in points[0].used}
    tokens_per_s = sessions / points[-1].token_ms * 1e3 * (1 - at(shares))
    reads = at([one.reads_per_token or 0.0 for one in points])
    return points, Carried(
        context_tokens=setting.context_tokens,
        selected=setting.selected,
        drives=setting.drives,
        sessions=sessions,
        more=not reached and most < room,
        binds=binding(used) if reached or most < room else "arena",
        reads_per_token=reads,
        drive_reads_per_s=reads * tokens_per_s / setting.drives,
        core=used.get("core", 0.0),
    )
