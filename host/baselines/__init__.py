"""Baselines: what a host has today without a DPU, behind the interface that it has to the tier.

`g3` reads every block that the HBM pool lacks from a local NVMe drive. `g2` keeps what it read in
host memory, as much of it as the tier has in its arena, and evicts what was used longest ago; what
it does not hold it reads from the same drive, where plain offload would compute it again. Neither
prefetches. Both are a `LocalTier`: sessions and fabric in one, over a `LocalStore`, the file that
holds the blocks, and one of two drives: kvikio, or the firmware's own storage.
"""

from offstage.host.baselines.drives import Drive, FirmwareDrive
from offstage.host.baselines.kvikio_drive import KvikioDrive, why_no_kvikio
from offstage.host.baselines.store import LocalStore
from offstage.host.baselines.tier import READ_ROWS, WRITE_ROWS, LocalTier

__all__ = [
    "KINDS",
    "READ_ROWS",
    "WRITE_ROWS",
    "Drive",
    "FirmwareDrive",
    "KvikioDrive",
    "LocalStore",
    "LocalTier",
    "why_no_kvikio",
]

KINDS = ("g2", "g3")
"""By the names of NVIDIA Dynamo's tiers: G1 is HBM, G2 host memory, G3 a local drive."""
