"""SGLang's host pools through Offstage's storage backend and SGLang's file backend, by SGLang's own
controller, in the environment that has SGLang.

`sglang_hybrid.py EXTRA`: EXTRA is the JSON of `--hicache-storage-backend-extra-config`. For each
kind of model SGLang's classes of its host pools are made over small buffers without a GPU, and the
methods of HybridCacheController store a prompt, ask for prompts of other lengths, and load them.
The last line has what both backends did, as JSON.

SGLang's modules import torchvision and gguf on the way, which this environment lacks: stand-ins
without function take their place.
"""

import importlib.machinery
import json
import queue
import sys
import tempfile
import types
from typing import Any

import torch
from transformers import AutoProcessor

PAGE, PAGES, HOST = 16, 6, 12  # tokens of a page, pages of the prompt, pages of host memory
assert AutoProcessor, "transformers looks for torchvision itself, before the stand-ins are there"


class StandIn(types.ModuleType):
    """A module in which every name is a class."""

    __path__: list[str] = []  # noqa: RUF012 - a package, as the import system asks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Names(name, (), {})


class Names(type):
    """A class in which every name is a number."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return hash(name)


class Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ("torchvision", "gguf"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(Finder())  # type: ignore[arg-type]

from sglang.srt.mem_cache import hicache_storage as hicache  # noqa: E402
from sglang.srt.mem_cache.device_pool_info import (  # noqa: E402
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
)
from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller as hybrid  # noqa: E402
from sglang.srt.mem_cache.memory_pool_host import (  # noqa: E402
    DeepSeekV4PagedHostPool,
    LogicalHostPool,
)
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope  # noqa: E402
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry  # noqa: E402
from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolStorageInfo  # noqa: E402
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import (  # noqa: E402
    MLAHostAllocation,
    MLATokenToKVPoolHost,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

Name, Policy = hicache.PoolName, hicache.PoolHitPolicy


def heads(layers: int, layout: str, dtype: Any = torch.bfloat16) -> Any:
    buffers = tuple(torch.zeros(PAGE, 2, 8, dtype=dtype) for _ in range(layers))
    pointers = torch.tensor([one.data_ptr() for one in buffers], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=buffers,
            v=buffers,
            k_data_ptrs=pointers,
            v_data_ptrs=pointers,
            layout=KVBufferLayout.NHD,
        ),
        page_size=PAGE,
        head_num=2,
        head_dim=8,
        v_head_dim=8,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    more = {"device_capacity_tokens": PAGE, "start_layer": 0, "end_layer": layers}
    more |= {"host_token_capacity": HOST * PAGE, "pin_memory": False}
    return MHATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, **more)


def states(layout: str) -> Any:
    temporal = torch.zeros(3, 2, 2, 8, 4)
    conv = (torch.zeros(3, 2, 10, 3, dtype=torch.bfloat16),)
    info = MambaStateBufferInfo(temporal=temporal, conv=conv)
    return MambaPoolHost(info, HOST, 0, device_capacity=1, pin_memory=False, layout=layout)


def paged(name: str, layout: str, width: int = 96) -> Any:
    buffers = [torch.zeros(2, width, dtype=torch.uint8) for _ in range(2)]
    return DeepSeekV4PagedHostPool(name, buffers, width, HOST, PAGE, layout, pin_memory=False)


def latents(layout: str) -> Any:
    """SGLang's pool of latents, with the buffer that its allocator-only form leaves out."""
    width = {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "kv_cache_dim": 20}
    shape = MLAHostAllocation(dtype=torch.bfloat16, size_per_token=20 * 2 * 3, **width)
    more = {"device_capacity_tokens": PAGE, "start_layer": 0, "end_layer": 3, "target_layer_num": 3}
    more |= {"host_token_capacity": HOST * PAGE, "pin_memory": False}
    pool = MLATokenToKVPoolHost(shape, 1.0, 0, PAGE, layout, **more)
    dims = {
        "layer_first": (3, HOST * PAGE, 1, 20),
        "page_first": (HOST * PAGE, 3, 1, 20),
        "page_first_direct": (HOST, 3, PAGE, 1, 20),
    }
    pool.kv_buffer = torch.zeros(dims[layout], dtype=torch.bfloat16)
    return pool


def index_keys(anchor: Any) -> Any:
    """SGLang's pool of a DSA indexer's keys, as `latents`."""
    device = types.SimpleNamespace(layer_num=3, layer_shard_enabled=False, start_layer=0)
    device.end_layer, device.store_dtype = 3, torch.uint8
    info = HostPoolStorageInfo(bytes_per_token_per_layer=132, dtype=torch.uint8)
    declared = types.SimpleNamespace(
        storage_info=info, device_pool=device, owned_device_layers=None
    )
    pool = DSAIndexerPoolHost(declared, anchor, pin_memory=False, is_dummy=True)
    by_layer = (3, HOST, 132 * PAGE)
    by_page = (HOST, 3, 1, 132 * PAGE)
    dims = by_layer if anchor.layout == "layer_first" else by_page
    pool.index_k_with_scale_buffer = torch.zeros(dims, dtype=torch.uint8)
    return pool


def models() -> dict[str, dict[Any, tuple[Any, Any, int]]]:
    """By model: its pools, each with what a prefix needs of it and how many last pages."""
    every, last = Policy.ALL_PAGES, Policy.TRAILING_PAGES
    found: dict[str, dict[Any, tuple[Any, Any, int]]] = {}
    for layout in ("layer_first", "page_first", "page_first_direct"):
        direct, latent = "page_first" if layout == "layer_first" else layout, latents(layout)
        found |= {
            f"sliding window, {layout}": {
                Name.KV: (heads(3, layout), every, 0),
                Name.SWA: (heads(2, layout), last, 2),
            },
            f"recurrent, {layout}": {
                Name.KV: (heads(2, layout), every, 0),
                Name.MAMBA: (states(direct), last, 1),
            },
            f"latents and index keys, {layout}": {
                Name.KV: (latent, every, 0),
                Name.INDEXER: (index_keys(latent), every, 0),
            },
            f"DeepSeek-V4, {layout}": {
                Name.KV: (LogicalHostPool(HOST * PAGE, PAGE, layout), every, 0),
                Name.DEEPSEEK_V4_C4: (paged("c4", layout), every, 0),
                Name.DEEPSEEK_V4_C4_INDEXER: (paged("c4i", layout, 40), every, 0),
                Name.SWA: (paged("swa", layout, 72), last, 3),
            },
        }
    return found


class Controller(hybrid.HybridCacheController):
    """SGLang's controller as far as it stores, asks and loads: without devices and threads."""

    def __init__(self, backend: Any, pools: dict[Any, tuple[Any, Any, int]], config: Any) -> None:
        entries = [
            PoolEntry(name, one[0], None, lambda layer: layer) for name, one in pools.items()
        ]
        entries[0].is_primary_index_anchor = True
        self.mem_pool_host, self.storage_host_pool = HostPoolGroup(entries), entries[0].host_pool
        self.storage_backend, self.storage_config = backend, config
        self.storage_backend_type, self.page_size = "dynamic", PAGE
        self.prefetch_sync_queue: Any = queue.Queue()
        self.extra_host_mem_release_queues: dict[Any, Any] = {n: queue.Queue() for n in pools}
        self.page_get_func, self.page_set_func = self._generic_page_get, self._generic_page_set
        backend.register_mem_pool_host(self.storage_host_pool)
        for one in entries:
            backend.register_mem_host_pool_v2(one.host_pool, one.name)
        backend.on_host_pools_registered()

    def transfers(self, pools: Any, keys: Any, first: int, *, load: bool) -> list[Any]:
        """As the tree's components make them: `first` is the host page of the first token."""
        made = []
        for name, (pool, policy, last) in list(pools.items())[1:]:
            if policy == Policy.ALL_PAGES:
                made.append(hicache.PoolTransfer(name, indices_from_pool=Name.KV))
                continue
            count = min(last, len(keys))
            step, end = pool.page_size, first + len(keys)
            places = torch.arange((end - count) * step, end * step)
            named = ["?"] * count if load else keys[-count:]
            made.append(hicache.PoolTransfer(name, places, None, named, policy))
        return made


def fill(pools: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for pool, _, _ in pools.values():
        for place in range(HOST) if len(pool.get_dummy_flat_data_page()) else ():
            page = pool.get_dummy_flat_data_page()
            raw = page.view(torch.uint8)
            raw.copy_(torch.randint(0, 60, raw.shape, generator=generator, dtype=torch.uint8))
            pool.set_from_flat_data_page(place * pool.page_size, page)


def page_of(pool: Any, place: int) -> Any:
    return pool.get_data_page(place * pool.page_size).clone().view(torch.uint8)


def drive(backend: Any, pools: Any, config: Any) -> dict[str, Any]:
    """Store 4 pages of a prompt and, as a second node, 2 more; ask for 3, 4, 5 and 6; load what is
    found into other places. `right`: of each pool, the loaded pages that are the stored ones."""
    controller, tokens = Controller(backend, pools, config), list(range(PAGE * PAGES))
    keys = hybrid.get_storage_hash_str(tokens, None, page_size=PAGE)
    fill(pools, 1)
    kept = {name: [page_of(one[0], i) for i in range(PAGES)] for name, one in pools.items()}
    for begin, end in ((0, 4), (4, PAGES)):
        part = keys[begin:end]
        operation = hybrid.StorageOperation(
            torch.arange(begin * PAGE, end * PAGE),
            tokens[begin * PAGE : end * PAGE],
            hash_value=part,
            pool_transfers=controller.transfers(pools, part, begin, load=False),
        )
        controller._page_backup(operation)
    answer: dict[str, Any] = {}
    for count in (3, 4, 5, PAGES):
        fill(pools, 2)
        handle = types.SimpleNamespace(rid=f"r{count}")
        operation = hybrid.PrefetchOperation(handle, tokens[: count * PAGE])
        operation.pool_transfers = controller.transfers(pools, keys[:count], PAGES, load=True)
        hashes, hit = controller._storage_hit_query(operation)
        operation.hash_value = hashes
        operation.host_indices = torch.arange(PAGES * PAGE, PAGES * PAGE + hit)
        result = operation.pool_storage_result
        if hit:
            controller._resolve_sidecar_kv_derived_pool_transfers(operation)
            controller._page_transfer(operation)
        acks = list(controller.prefetch_sync_queue.queue)
        controller.prefetch_sync_queue.queue.clear()
        right = {}
        for name, (pool, policy, last) in pools.items():
            first = 0 if policy == Policy.ALL_PAGES else max(0, len(hashes) - min(last, count))
            # SGLang zips the keys with the first of a window's places
            place = PAGES if policy == Policy.ALL_PAGES else PAGES + count - min(last, count)
            right[str(name)] = [
                torch.equal(page_of(pool, place + i), kept[name][first + i])
                for i in range(len(hashes) - first)
            ]
        answer[str(count)] = {
            "hit": hit // PAGE,
            "lengths": result.restorable_prefix_pages,
            "pools": {str(n): end for n, end in operation.query_pool_hit_pages.items()},
            "loaded": [one.pool_hits for one in acks if one.pool_hits],
            "right": right,
        }
    return answer


def main() -> None:
    extra = json.loads(sys.argv[1])
    answer: dict[str, Any] = {}
    with host_memory_budget_scope(1 << 30):
        for name, pools in models().items():
            config = hicache.HiCacheStorageConfig(
                **dict.fromkeys(("tp_rank", "pp_rank", "attn_cp_rank"), 0),
                **dict.fromkeys(("tp_size", "pp_size", "attn_cp_size"), 1),
                is_mla_model="latents" in name or "V4" in name,
                enable_storage_metrics=False,
                is_page_first_layout="page_first" in name,
                model_name=name.replace(" ", ""),
                extra_config=extra | {"model": name},
            )
            ours = StorageBackendFactory.create_backend("dynamic", config, None)
            answer[name] = {"ours": drive(ours, pools, config)}
            ours.close()
            with tempfile.TemporaryDirectory() as folder:
                config.extra_config = {"file_storage_path": folder}
                files = StorageBackendFactory.create_backend("file", config, None)
                answer[name]["file"] = drive(files, pools, config)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
