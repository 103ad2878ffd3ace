"""Are a model's weights, values of a tenant with a floor, read back from the drive of KV by that
floor, and does status say so?"""

from pathlib import Path

import numpy as np
from live_daemon import LAYERS, PAYLOAD, daemon

import offstage

WEIGHTS = {"kv": {"weight": 8}, "weights": {"floor": "20MB/s", "bandwidth": "400MB/s"}}
VALUES, BLOCKS = 6, 40
"""Of all layers: more than the tenant's part of the arena has slots."""


def weights(number: int) -> bytes:
    size = BLOCKS * LAYERS * PAYLOAD - number
    return np.random.default_rng(number).integers(0, 256, size, np.uint8).tobytes()


def test_weights_are_read_by_their_tenants_floor(tmp_path: Path) -> None:
    """What was stored before a kill comes back whole; what the floor was owed is counted for its
    tenant alone."""
    with daemon(tmp_path, WEIGHTS, limits__values="256") as tier:
        with offstage.values(tier.endpoint, tenant="weights", runtime_dir=tier.runtime_dir) as at:
            for number in range(VALUES):
                at.store(b"shard%d" % number, weights(number))
        tier.kill()
    with daemon(tmp_path, WEIGHTS, limits__values="256") as tier:
        with offstage.values(tier.endpoint, tenant="weights", runtime_dir=tier.runtime_dir) as at:
            for number in range(VALUES):
                assert at.retrieve(b"shard%d" % number) == weights(number)
        with tier.control("operator") as control:
            found = {one["name"]: one for one in control.status()["tenants"]}
        mine, other = found["weights"], found["kv"]
        assert mine["floor_bytes_per_s"] == 20_000_000 and other["floor_bytes_per_s"] == 0
        assert 0 < mine["floor_bytes"] <= mine["issued_bytes"] and other["floor_bytes"] == 0
        assert mine["issued_bytes"] >= VALUES * (BLOCKS - 1) * LAYERS * PAYLOAD
