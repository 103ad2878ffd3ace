"""Is a staged block that expires dropped as the store, the log and every table expect?"""

import numpy as np

from offstage.bindings.core import KEY, Core, CoreConfig, Policy, SessionConfig, replay


def test_a_dropped_block_is_gone_and_the_log_replays() -> None:
    """A block is dropped only if staged and not pinned; it is retracted once and its slot freed."""
    config = CoreConfig(slot_count=2, chunk_max=8, session_chunk_max=8, log_size_bytes=1 << 16)
    core = Core(config, Policy())
    tenant = core.tenant_add(0, b"\0" * 16, 2)
    session = core.session_open(0, SessionConfig(tenant, 1))
    contents = np.zeros(2, KEY)
    contents["lo"] = [1, 2]
    first, second = (int(one) for one in core.session_append(0, session, contents)["chunk"])
    log = bytearray()

    assert not core.block_drop(1, first, 0)  # not staged
    core.block_stage(1, first, 0)
    assert not core.block_drop(2, first, 0)  # dirty: the store has no copy yet
    core.block_stored(3, first, 0)
    core.block_clean(3, first, 0)
    core.step(4, session, 0, 0, [0])
    assert not core.block_drop(5, first, 0)  # pinned by the step
    core.session_release(6, session)
    core.actions()
    assert core.block_drop(7, first, 0)
    assert [int(one["type"]) for one in core.actions()] == [3]  # RETRACT
    assert core.ledger().resident_slots == 0
    assert not core.block_drop(8, first, 0)
    core.block_stage(9, second, 0)
    assert core.verify()
    log += core.log()
    assert replay(bytes(log)).diverged_at is None
