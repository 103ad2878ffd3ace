"""A device under a load of GPUs: throughput from what one step of one GPU costs each unit.

Model: a closed network. Each GPU decodes a batch of sessions: it computes for `host_s` a step, then
its fetches pass the device. One replay says how many seconds of each unit's capacity a step takes
(its demand), and how long an idle device takes for it; how steps of many GPUs wait for each other
is then queueing theory, the same for every device. Throughput by approximate mean value analysis
(Bard; Schweitzer 1979): with x steps/s, demand d and c = (n - 1) / n a unit holds x d / (1 - c x d)
steps, and all of them together with those that compute are the n GPUs. The knee is where the two
asymptotes meet, (host + device) / largest demand (Denning and Buzen 1978). Services are taken as
exponential, so near the knee it is a little pessimistic: a test holds it to replays of many copies.

What can fail: only a load below one GPU, which is a programming error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from offstage.asic_model.result import ChipRun, binding
from offstage.asic_model.trace import Trace

__all__ = ["Served", "Work", "serve", "work_of"]

HALVINGS = 80
IDLE = (" idle", "cores")
"""Ends of the names of what draws power whatever happens."""


@dataclass(frozen=True)
class Work:
    """One step of one GPU's batch on one device; times in seconds."""

    tokens: float
    """Sessions of the batch: each gets a token a step."""
    units: Mapping[str, float]
    """Seconds of a unit's whole capacity."""
    device_s: float
    """On an idle device, all fetches of a step one after another."""
    host_s: float
    watt: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Value, low, high of what is drawn whatever happens."""
    joule: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of a step, beside it."""

    def slower(self, factor: float) -> "Work":
        """The same with every time of the device multiplied."""
        units = {name: seconds * factor for name, seconds in self.units.items()}
        return replace(self, units=units, device_s=self.device_s * factor)

    def scaled(self, sessions: float = 1.0, layers: float = 1.0, pace_s: float = 0.0) -> "Work":
        """With so many times the sessions in a batch and the layers in a model. A pace replaces the
        host's own time."""
        units = {name: one * sessions * layers for name, one in self.units.items()}
        value, low, high = (one * sessions * layers for one in self.joule)
        return replace(
            self,
            tokens=self.tokens * sessions,
            units=units,
            device_s=self.device_s * layers,
            host_s=pace_s or self.host_s * layers,
            joule=(value, low, high),
        )

    @property
    def knee_gpus(self) -> float:
        """GPUs at which the busiest unit would be full; infinite for a device without work."""
        most = max(self.units.values(), default=0.0)
        return (self.host_s + self.device_s) / most if most else math.inf

    @property
    def tokens_per_s_max(self) -> float:
        """What the busiest unit passes at most."""
        most = max(self.units.values(), default=0.0)
        return self.tokens / most if most else math.inf


@dataclass(frozen=True)
class Served:
    """What a device serves at one load. `binds`: the busiest unit, or "nothing"."""

    gpus: float
    tokens_per_s: float
    token_s: float
    busiest: float
    binds: str


def work_of(run: ChipRun, trace: Trace) -> Work:
    """The work of a recorded GPU's step, from a replay of its run."""
    sessions = max(1, run.sessions)
    steps = max(run.tokens / sessions, 1e-9)
    rounds = len({(one.step, one.layer, one.session) for one in trace.fetches}) / sessions
    device_s = run.fetch_ns.mean / 1e9 * min(rounds, run.fetch_ns.count) / steps
    watts = [_sum(run, still=True, end=end) / run.seconds for end in ("value", "low", "high")]
    joules = [_sum(run, still=False, end=end) / steps for end in ("value", "low", "high")]
    return Work(
        tokens=sessions,
        units={one.name: one.utilisation * run.seconds / steps for one in run.units},
        device_s=device_s,
        host_s=max(run.seconds / steps - device_s, 0.0),
        watt=(watts[0], watts[1], watts[2]),
        joule=(joules[0], joules[1], joules[2]),
    )


def _sum(run: ChipRun, *, still: bool, end: str) -> float:
    parts = (one for one in run.energy if one.name.endswith(IDLE) is still)
    return float(sum(getattr(one, end) for one in parts))


def serve(work: Work, gpus: float) -> Served:
    """The device at a load of `gpus`, by bisection: what is in the network grows with x."""
    assert gpus >= 1
    demands = list(work.units.values())
    most = max(demands, default=0.0)
    share = (gpus - 1.0) / gpus
    # What is read ahead is off a fetch's way: it fills units, and no step waits for it.
    waits = min(1.0, work.device_s / sum(demands)) if most else 0.0
    still = max(work.device_s - sum(demands), 0.0) + work.host_s
    low, high = 0.0, gpus / max(work.device_s + work.host_s, 1e-15)
    if most:
        high = min(high, 1.0 / most)
    for _ in range(HALVINGS):
        x = (low + high) / 2
        held = sum(x * one / max(1.0 - share * x * one, 1e-12) for one in demands)
        inside = x * still + waits * held
        low, high = (x, high) if inside < gpus else (low, x)
    used = {name: low * one for name, one in work.units.items()}
    return Served(
        gpus=gpus,
        tokens_per_s=low * work.tokens,
        token_s=gpus / low if low else 0.0,
        busiest=max(used.values(), default=0.0),
        binds=binding(used),
    )
