"""SGLang's own HiCacheNixl on NIXL's plug-in DOCA_MEMOS, in the environment that has SGLang.

`sglang_nixl.py SOCKET`: the socket of a tenant, which `libdoca_kv` of Offstage takes for a device.
NIXL's folder is in PYTHONPATH, the plug-in's in NIXL_PLUGIN_DIR. What SGLang lacks for the plug-in
is given to it here (its pull request 26073): the plug-in's name among those of objects, and keys of
16 bytes. Its packages are entered without their `__init__`, and its pools, which need kernels for
GPUs, are one of ours. The last line has the observations, as JSON.
"""

import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE, PAGES, VALUES = 16, 16, 65536  # tokens of a page, pages, values of K or V of a page

place = importlib.util.find_spec("sglang")
assert place is not None and place.origin is not None
for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage"):
    package = ModuleType(name)
    package.__path__ = [str(Path(place.origin).parent.joinpath(*name.split(".")[1:]))]
    sys.modules[name] = package
pools = ModuleType("sglang.srt.mem_cache.pool_host")
pools.HostKVCache = object  # type: ignore[attr-defined]
sys.modules[pools.__name__] = pools

import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
from sglang.srt.mem_cache.storage.nixl import hicache_nixl, nixl_utils  # noqa: E402

os.environ["SGLANG_HICACHE_NIXL_BACKEND_PLUGIN"] = "DOCA_MEMOS"
os.environ["AWS_DEFAULT_BUCKET"] = "none"  # asked for of every plug-in of objects


def short(key: str) -> str:
    """16 bytes as the plug-in takes them, in hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class Memos(hicache_nixl.HiCacheNixl):  # type: ignore[misc]
    """Its calls, with short keys."""

    def _create_query_tuple(self, key: str) -> Any:
        return super()._create_query_tuple(short(key))

    def _xfer_pre_registered(self, buffers: Any, keys: list[str], direction: str) -> bool:
        done = super()._xfer_pre_registered(buffers, [short(key) for key in keys], direction)
        return bool(done)


class Pool:
    """Pages first, K and V apart."""

    layout, page_size, dtype = "page_first", PAGE, torch.uint8

    def __init__(self) -> None:
        self.kv_buffer = torch.zeros((2, PAGES, VALUES), dtype=torch.uint8)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        pages = [int(index) // PAGE for index in indices[::PAGE]]
        rows = [self.kv_buffer[part, page] for page in pages for part in (0, 1)]
        return [row.data_ptr() for row in rows], [VALUES] * len(rows)


def main(socket: str) -> None:
    nixl_utils.NixlBackendSelection.OBJ_PLUGINS = ["OBJ", "DOCA_MEMOS"]
    extra = {"device_name": socket, "nguid": "00" * 16, "query_mem_mode": "actual"}
    usual = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}
    config = HiCacheStorageConfig(
        **usual,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="tiny",
        extra_config=extra,
    )
    storage, pool = Memos(config), Pool()
    storage.register_mem_pool_host(pool)
    keys, every = [f"page{number}" for number in range(PAGES)], torch.arange(PAGE * PAGES)
    source = torch.randint(0, 256, pool.kv_buffer.shape, dtype=torch.uint8)
    found: dict[str, Any] = {"before": storage.batch_exists(keys)}
    pool.kv_buffer.copy_(source)
    found["stored"] = storage.batch_set_v1(keys, every)
    found["there"] = storage.batch_exists([*keys, "absent"])
    pool.kv_buffer.zero_()
    found["loaded"] = storage.batch_get_v1(keys, every)
    found["equal"] = bool(torch.equal(pool.kv_buffer, source))
    found["beside_a_hole"] = storage.batch_get_v1([keys[0], "absent"], every[: 2 * PAGE])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
