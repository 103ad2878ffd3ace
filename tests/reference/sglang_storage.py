"""Makes Offstage's storage backend by SGLang's own factory, in the environment that has SGLang.

`sglang_storage.py EXTRA`: EXTRA is the JSON of `--hicache-storage-backend-extra-config`. Pages go
through the calls that SGLang's cache controller makes, to Offstage's backend and to SGLang's file
backend; SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE puts SGLang's own fault injector in between. The
last line has the observations, as JSON.
"""

import json
import sys
import tempfile
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

PAGE, LAYERS, HEADS, DIM, PAGES = 16, 3, 2, 8, 6
ROUNDS = 20


class Pool:
    """Keeps pages layer by layer, like SGLang's MHATokenToKVPoolHost, which needs CUDA."""

    layout, page_size, layer_num, head_num, head_dim = "layer_first", PAGE, LAYERS, HEADS, DIM
    dtype = torch.bfloat16

    def __init__(self) -> None:
        self.kv_buffer = torch.randn(2, LAYERS, PAGE * PAGES, HEADS, DIM).to(self.dtype)

    def get_data_page(self, index: int, flat: bool = True) -> Any:
        page = self.kv_buffer[:, :, index : index + PAGE]
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self) -> Any:
        return torch.zeros(2 * LAYERS * PAGE * HEADS * DIM, dtype=self.dtype)

    def set_from_flat_data_page(self, index: int, page: Any) -> None:
        shaped = page.reshape(2, LAYERS, PAGE, HEADS, DIM)
        self.kv_buffer[:, :, index : index + PAGE] = shaped


def made(name: str, extra: dict[str, Any], pool: Pool) -> Any:
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="tiny",
        extra_config=extra,
    )
    backend = StorageBackendFactory.create_backend(name, config, pool)
    assert isinstance(backend, HiCacheStorage)
    backend.register_mem_pool_host(pool)
    backend.on_host_pools_registered()
    return backend


def seen(backend: Any, pool: Pool) -> dict[str, Any]:
    keys = [f"{i:064x}" for i in range(PAGES)]
    pages = [pool.get_data_page(i * PAGE).clone() for i in range(PAGES)]
    found: dict[str, Any] = {"set": backend.batch_set(keys[:4], pages[:4])}
    found["exists"] = backend.batch_exists(keys)
    got = backend.batch_get(keys[:5], [pool.get_dummy_flat_data_page() for _ in range(5)])
    found["got"] = [
        one is not None and torch.equal(one, page) for one, page in zip(got, pages, strict=False)
    ]
    found["wrong"] = sum(
        one is not None and not torch.equal(one, page)
        for one, page in zip(got, pages, strict=False)
    )
    return found


def main() -> None:
    extra, pool = json.loads(sys.argv[1]), Pool()
    ours = made("dynamic", extra, pool)
    answer = {"ours": seen(ours, pool)}
    with tempfile.TemporaryDirectory() as folder:
        answer["file"] = seen(made("file", {"file_storage_path": folder}, pool), pool)
    indices = torch.arange(PAGE * 2)
    if "interface_v1" in extra:
        answer["v1_set"] = ours.batch_set_v1(["a", "b"], indices)
        before = pool.kv_buffer[:, :, : 2 * PAGE].clone()
        pool.kv_buffer[:, :, : 2 * PAGE] = 0
        answer["v1_get"] = ours.batch_get_v1(["a", "b"], indices)
        answer["v1_same"] = bool(torch.equal(pool.kv_buffer[:, :, : 2 * PAGE], before))
    for _ in range(ROUNDS):
        answer["ours"]["wrong"] += seen(ours, pool)["wrong"]
    ours.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
