"""SGLang on the tier: a dynamic storage backend of its hierarchical cache, `OffstageStorage`.

An object is one page of SGLang's host memory, flat, with all layers. Its name is SGLang's hash of
the tokens up to its end and the rank's part of the model. Weights, adapters and kernels are named
by content: SGLang's arguments lead to the files on this machine; without them the setting
`weights_id` must name the weights. SGLang calls from its threads and waits for each batch. It first
asks how many leading pages are stored, which leases and prefetches them, and then gets them.

Login happens when SGLang registers its host memory, whose type, layout and shape are part of every
name. BadInput or RunFailed then: SGLang does not start without its tier. If the daemon is lost
later, every page is absent and every store fails. Pools other than KV (`batch_*_v2`: Mamba, sliding
windows, indexers) are not stored. This module imports nothing of SGLang; `OffstageStorage` is
created on access.
"""

import logging
import platform
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.connectors.tried import say_untried
from offstage.host.endpoint import Endpoint
from offstage.host.model.identity import digest_of, files_of, identity_of, process_began_ns

__all__ = ["Storage"]

LEASE_S = 10.0  # of pages that were found, until they are read
OWN = ("backend_name", "module_path", "class_name", "interface_v1", "model", "weights_id")
COMPUTED = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "quantization_param_path",
    "modelopt_quant",
    "load_format",
    "model_impl",
    "json_model_override_args",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "fp8_gemm_runner_backend",
    "fp4_gemm_runner_backend",
    "bf16_gemm_backend",
    "moe_runner_backend",
    "enable_torch_compile",
    "enable_lora",
    "max_lora_rank",
    "lora_target_modules",
    "lora_backend",
    "enable_deterministic_inference",
    "rl_on_policy_target",
)
"""Arguments of SGLang that change KV, or choose the kernels that compute it."""
SHAPE = (
    "dtype",
    "layout",
    "page_size",
    "layer_num",
    "head_num",
    "head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
)
log = logging.getLogger("offstage.connectors")


class Storage:
    """The logic of `OffstageStorage`, which also derives from SGLang's interface."""

    mem_pool_host: Any

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """BadInput: an unknown setting, or a configuration that cannot be stored."""
        extra = dict(storage_config.extra_config or {})
        self._endpoint = Endpoint.of_engine(
            {name: one for name, one in extra.items() if name not in OWN}
        )
        self._server, self._weights_id = _server_args(), str(extra.get("weights_id", ""))
        self._files = str(getattr(self._server, "model_path", storage_config.model_name) or "")
        self._model = str(extra.get("model") or storage_config.model_name or "")
        if not self._model:
            raise BadInput("no model name", "OffstageStorage", 'set "model"')
        self._rank = _rank_of(storage_config)
        self._client: ObjectClient | None = None
        self._size = 0
        say_untried("SGLang")

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's memory is there: log in. BadInput, RunFailed: no daemon, or it refuses."""
        self.mem_pool_host = mem_pool_host
        page = _bytes_of(mem_pool_host.get_dummy_flat_data_page())
        self._size = len(page)
        shape = " ".join(
            f"{name} {getattr(mem_pool_host, name)}"
            for name in SHAPE
            if hasattr(mem_pool_host, name)
        )
        layout = f"{self._identity()}; {type(mem_pool_host).__name__} {shape} {self._size} bytes"
        self.close()
        self._client = ObjectClient(self._endpoint, model=self._model, layout=layout)

    def _identity(self) -> str:
        """What KV is of. BadInput: its weights or an adapter's are not on this machine, or changed
        since SGLang began."""
        server, since_ns = self._server, process_began_ns()
        found = {name: getattr(server, name) for name in COMPUTED if hasattr(server, name)}
        for name, path in _adapters_of(getattr(server, "lora_paths", None) or ()):
            weights = digest_of(files_of(path), path)
            if weights.changed_ns() >= since_ns:
                raise BadInput(
                    f"the adapter {name} changed after SGLang began", path, "start it again"
                )
            found[f"adapter {name}"] = weights.digest[:32]
        computed = {"engine": f"SGLang {_version()}", "device": _device(), "rank": self._rank}
        return identity_of(
            self._files or self._model,
            computed | found,
            where="OffstageStorage",
            revision=getattr(server, "revision", None),
            cache=getattr(server, "download_dir", None),
            weights_id=self._weights_id,
            since_ns=since_ns,
        )

    # ---- pages ----

    def exists(self, key: str) -> bool:
        """Whether a page is there, whole."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many leading pages are stored; leases them and prefetches them into the tier."""
        client = self._ready()
        states = client.wait(
            client.prefetch, _names(keys), [self._size] * len(keys), lease_s=LEASE_S
        ).done
        found = states.index(False) if False in states else len(states)
        client.release(_names(keys[found:]))
        return found

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """A page in `target_location`, or None."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """Each page in its target, or None."""
        client = self._ready()
        targets = [
            self.mem_pool_host.get_dummy_flat_data_page() if one is None else one
            for one in target_locations or [None] * len(keys)
        ]
        done = client.wait(client.get, _names(keys), [_bytes_of(one) for one in targets]).done
        client.release(_names(keys))
        return [target if one else None for target, one in zip(targets, done, strict=True)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store a page."""
        return self.batch_set([key], [target_location if value is None else value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store pages; whether all were taken."""
        given = target_locations if values is None else values
        return all(self._store(keys, given))

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Pages into SGLang's memory at their first token's place."""
        pages = self.batch_get(keys)
        for place, page in enumerate(pages):
            if page is not None:
                index = int(host_indices[place * self.mem_pool_host.page_size])
                self.mem_pool_host.set_from_flat_data_page(index, page)
        return [page is not None for page in pages]

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Pages out of SGLang's memory."""
        pool = self.mem_pool_host
        pages = [
            pool.get_data_page(int(host_indices[place * pool.page_size]))
            for place in range(len(keys))
        ]
        return self._store(keys, pages)

    def clear(self) -> None:
        """The tier is shared: what is in it is bounded by `store.ttl` and the tenant's quota."""
        log.warning(
            "SGLang asked to clear its storage; the tier keeps what it has, since others "
            "share it: purge the tenant, or set store.ttl"
        )

    def close(self) -> None:
        """Leave the daemon. Closing twice does nothing."""
        if self._client is not None:
            self._client.close()

    def _store(self, keys: Sequence[str], pages: Sequence[Any]) -> list[bool]:
        client, buffers = self._ready(), [_bytes_of(page) for page in pages]
        right = [len(one) == self._size for one in buffers]
        if not all(right):
            log.warning("a page of another size than %d bytes is not stored", self._size)
        there = [(key, one) for key, one, good in zip(keys, buffers, right, strict=True) if good]
        names = _names([key for key, _ in there])
        ended = client.wait(client.put, names, [one for _, one in there]).states
        done = {name: state is State.DONE for name, state in zip(names, ended, strict=True)}
        return [done.get(name, False) for name in _names(keys)]

    def _ready(self) -> ObjectClient:
        assert self._client is not None, "SGLang registers its memory first"
        return self._client


def _server_args() -> Any:
    """What SGLang was started with, as far as it says so in this process; else None."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except (ImportError, ValueError):
        return None


def _adapters_of(given: Any) -> list[tuple[str, str]]:
    """Names and paths, in each of the forms that SGLang keeps `--lora-paths` in."""
    if isinstance(given, dict):
        return [(str(name), str(path)) for name, path in given.items()]
    found = []
    for one in given:
        if isinstance(one, str):
            name, _, path = one.partition("=")
            found.append((name, path or name))
        elif isinstance(one, dict):
            found.append((str(one["lora_name"]), str(one["lora_path"])))
        else:
            found.append((str(one.lora_name), str(one.lora_path)))
    return sorted(found)


def _device() -> str:
    import torch

    chip = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return f"{chip}, torch {torch.__version__}"


def _version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return ""


def _names(keys: Sequence[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def _bytes_of(page: Any) -> Any:
    """A page's memory, flat, as bytes; of one that is not contiguous a copy, to read from."""
    import torch

    return page.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _rank_of(config: Any) -> str:
    """Which part of the model's KV this rank holds: latents (MLA) are the same in all ranks of
    tensor parallelism."""
    parts = [
        f"pp {config.pp_rank}/{config.pp_size}",
        f"cp {config.attn_cp_rank}/{config.attn_cp_size}",
        f"dcp {getattr(config, 'dcp_rank', 0)}/{getattr(config, 'dcp_size', 1)}",
    ]
    if not config.is_mla_model:
        parts.append(f"tp {config.tp_rank}/{config.tp_size}")
    return " ".join(parts)


@lru_cache(maxsize=1)
def _offstage_storage() -> type:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    return type("OffstageStorage", (Storage, HiCacheStorage), {"__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "OffstageStorage":
        return _offstage_storage()
    raise AttributeError(name)
