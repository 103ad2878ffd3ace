"""LMCache's own adapter tests, with our adapter in place of theirs.

A pytest plug-in for LMCache's test tree, in its own environment: `pytest -p lmcache_ours FILES`.
Each adapter that a test makes is ours; its weights have a unique name, so it starts empty.
OFFSTAGE_L2 has the daemon's address.
"""

import itertools
import json
import os
import sys
from typing import Any

from lmcache.v1.distributed.l2_adapters import mock_l2_adapter

from offstage.host.connectors import lmcache

NUMBERS = itertools.count()


def ours(config: Any) -> Any:
    params = json.loads(os.environ["OFFSTAGE_L2"])
    params |= {
        "weights_id": f"{os.getpid()}-{next(NUMBERS)}",
        "max_capacity_gb": config.max_size_gb,
    }
    return lmcache.OffstageL2(params)


assert not any("test_mock_l2" in name for name in sys.modules), "the tests were imported before"
mock_l2_adapter.MockL2Adapter = ours
