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

from lmcache import torch_dev
from lmcache.v1.distributed.l2_adapters import mock_l2_adapter

from offstage.host.connectors import lmcache

NUMBERS = itertools.count()


class Ours(lmcache.OffstageL2):
    """Ours, with what tests ask LMCache's mock."""

    def __init__(self, config: Any) -> None:
        params = json.loads(os.environ["OFFSTAGE_L2"])
        params |= {
            "weights_id": f"{os.getpid()}-{next(NUMBERS)}",
            "max_capacity_gb": config.max_size_gb,
        }
        super().__init__(params)

    def report_status(self) -> dict[str, Any]:
        return super().report_status() | {"stored_object_count": len(self._sizes)}

    def debug_get_stored_object_count(self) -> int:
        return len(self._sizes)

    def debug_has_key(self, key: Any) -> bool:
        return self._client.wait(self._client.exists, [lmcache.key_of(key)]).done == [True]

    def debug_get_locked_key_count(self) -> int:
        return int(self._client._mover._link.values.held)


assert not any("test_mock_l2" in name for name in sys.modules), "the tests were imported before"
mock_l2_adapter.MockL2Adapter = Ours
type(torch_dev).is_available = lambda self: True
