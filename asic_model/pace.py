"""The pace of a machine: how fast its reactor worked in one run, by how fast it woke up.

Model: a processor that sleeps deeper, or whose caches others took, wakes up later and then works
more slowly. From one run to the next both move together, and every run has about a thousand
wake-ups of the same kind: commands after a rest. These end before the reactor's work begins and are
no part of it, so they may say of a predicted run what its hour was like, as the host's own time
does. How costs follow them is found in the runs of the fit alone. Nothing here fails.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from offstage.asic_model.parameters import Preset
from offstage.asic_model.samples import COSTS, Samples, pooled

__all__ = ["Pace"]

LEAST = 100
"""Wake-ups of a run without which it has no pace."""
IN_PROPORTION = 1.0
"""The largest power: costs that grow faster than the wake-ups have another reason."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the reactor go with this power of a run's mean wake-up; those fitted are of
    `wake_ns`. A power of 0: the fit's runs do not say."""

    wake_ns: float
    power: float

    @classmethod
    def of(cls, workloads: Sequence[Sequence[Samples]]) -> "Pace":
        """From the runs of a fit, by workload. The power is a regression within workloads, of the
        logarithm of processor time over what the runs' work costs in the whole fit."""
        runs = [run for group in workloads for run in group]
        unknown = cls(wake_ns=0.0, power=0.0)
        if any(len(run.woke) < LEAST for run in runs):
            return unknown
        costs = pooled(runs).costs
        told = followed = 0.0
        for group in workloads:
            woke = np.log([run.wake_ns for run in group])
            took = np.log([run.cpu_ns / run.at(costs) for run in group])
            told += float(((woke - woke.mean()) ** 2).sum())
            followed += float(((woke - woke.mean()) * (took - took.mean())).sum())
        power = min(max(followed / told, 0.0), IN_PROPORTION) if told else 0.0
        if not power:
            return unknown
        paces = np.array([run.wake_ns for run in runs]) ** power
        mean = float(np.average(paces, weights=[run.cpu_ns for run in runs]))
        return cls(wake_ns=mean ** (1 / power), power=power)

    def in_run(self, preset: Preset, run: Samples) -> Preset:
        """The fitted preset with the reactor's costs at that run's pace."""
        if not self.power or len(run.woke) < LEAST:
            return preset
        factor = (run.wake_ns / self.wake_ns) ** self.power
        numbers = dict(preset.numbers())
        names = [f"cores.{name}" for name in (*COSTS, "answer")]
        return preset.with_({name: numbers[name].value * factor for name in names})
