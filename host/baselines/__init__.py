"""Baselines: a host without a DPU, behind the same interface as the tier.

`g3` reads every block that the HBM pool lacks from a local NVMe drive. `g2` caches blocks in host
memory, with the capacity of the tier's arena and LRU eviction; it reads misses from the same drive,
where plain offload would recompute them. Neither prefetches. Both are a `LocalTier`, which combines
sessions and fabric, over a `LocalStore`, the file with the blocks, and one of two drives: kvikio,
or the firmware's storage.
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
