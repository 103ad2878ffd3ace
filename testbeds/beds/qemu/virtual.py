"""One seeded run in virtual time, and its decision log: the same bytes on every machine.

`python3 -m offstage.testbeds.beds.qemu.virtual FILE` writes the log to FILE. The decode is drawn
from the seed in integers alone; the rest is the decision core over the model of an NVMe drive.
"""

import sys
from pathlib import Path

import numpy as np

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.sim import DecodePlan, decode, populate

__all__ = ["log"]

SESSIONS, LAYERS, BLOCKS, STEPS, SELECTED = 3, 4, 64, 48, 12
STEP_NS = 2_000_000
POLICY = Policy(
    prefetchers="window+ema+shared",
    eviction="score",
    window_blocks=8,
    accuracy_permille_min=100,
    lateness_permille_max=200,
    lease_ns=100 * STEP_NS,
)


def log(seed: int) -> bytes:
    """The decision log of the run with this seed."""
    config = CoreConfig(
        slot_count=SESSIONS * LAYERS * 20,
        chunk_max=2 * SESSIONS * BLOCKS,
        session_chunk_max=BLOCKS,
        layer_count=LAYERS,
        session_max=SESSIONS,
        log_size_bytes=16 << 20,
        seed=seed,
    )
    core = Core(config, POLICY)
    tenant = core.tenant_add(0, b"virtual time key"[:16], config.slot_count)
    opened = []
    for number in range(SESSIONS):
        opened.append(core.session_open(0, SessionConfig(tenant, SELECTED, step_ns=STEP_NS)))
        populate(core, opened[-1], BLOCKS, content=1 + number // 2)
    draw = np.random.Generator(np.random.PCG64(seed))
    scores = draw.integers(0, 1 << 16, (SESSIONS, STEPS, LAYERS, BLOCKS), np.uint16)
    scores[..., : BLOCKS // 4] |= 0xC000  # some blocks are demanded repeatedly
    best = np.argsort(~scores, axis=-1, kind="stable")[..., :SELECTED]
    demands = np.sort(best, axis=-1).astype(np.uint32).ravel()
    offsets = np.arange(SESSIONS * STEPS * LAYERS + 1, dtype=np.uint64) * SELECTED
    decode(
        core,
        DecodePlan(
            tuple(opened),
            STEPS,
            offsets,
            demands,
            scores=scores,
            selected_count=SELECTED,
            compute_ns=STEP_NS // LAYERS,
            seed=seed,
            stagger_ns=STEP_NS // 7,
        ),
    )
    return core.log()


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(log(seed=1))
