"""How much of what is staged together is used before it leaves the arena.

Model: the engine gathers the units of a block that are demanded, from the first demand to the
block's eviction (`bindings.engine.Engine.uses`). Blocks that are still staged at the end are apart:
they may be used for more. Pure.
"""

from collections.abc import Sequence

import numpy as np

from offstage.bindings.storage import nvme_cost, preset
from offstage.testbeds.lab.results.bootstrap import Bootstrap
from offstage.testbeds.lab.results.ledger import RunTotals
from offstage.testbeds.lab.results.summary import BlockUse, PointInfo
from offstage.testbeds.lab.spec.schema import Spec

__all__ = ["block_use"]


def block_use(
    spec: Spec, info: PointInfo, runs: Sequence[RunTotals], boot: Bootstrap
) -> BlockUse | None:
    """The figures of a point; None where what is staged is what is selected. `runs`: one per seed,
    which `boot` draws over."""
    if not all(run.units for run in runs):
        return None
    counts = np.array([run.units for run in runs])
    unit_bytes = spec.block_bytes // spec.granules
    units = info.block_bytes // unit_bytes
    drive = preset(spec.tier.storage).params
    block_ns, unit_ns = (nvme_cost(drive, [(0, one)]).ns for one in (info.block_bytes, unit_bytes))
    gone = counts[:, 0, : units + 1]
    return BlockUse(
        units=units,
        gone=gone.sum(axis=0).tolist(),
        staged=counts[:, 1, : units + 1].sum(axis=0).tolist(),
        mean=boot.ratio(gone @ np.arange(units + 1), gone.sum(axis=1)),
        pays_from=int(-(-block_ns // unit_ns)),
    )
