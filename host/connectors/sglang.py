"""SGLang on the tier: a dynamic storage backend of its hierarchical cache, `OffstageStorage`.

An object is one page of SGLang's host memory, flat, with all layers. Its name is SGLang's hash of
the tokens up to its end and the rank's part of the model. Weights, adapters and kernels are named
by content: SGLang's arguments lead to the files on this machine; without them the setting
`weights_id` must name the weights. SGLang calls from its threads and waits for each batch. It first
asks how many leading pages are stored, which leases and prefetches them, and then gets them.

Login happens when SGLang registers its host memory, whose type, layout and shape are part of every
name. BadInput or RunFailed then: SGLang does not start without its tier. If the daemon is lost
later, every page is absent and every store fails. Pools beside the KV, such as sliding windows,
recurrent states and indexers, come by `batch_*_v2`: a prefix is found only where each pool has what
it needs of it. This module imports nothing of SGLang; `OffstageStorage` is created on access.
"""

import logging
import platform
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.connectors.sglang_pools import ALL_PAGES, Pool, bytes_of, covered, lengths
from offstage.host.connectors.tried import say_untried
from offstage.host.endpoint import Endpoint, text_of
from offstage.host.model.identity import digest_of, files_of, identity_of, process_began_ns

__all__ = ["Storage"]

WHERE = "OffstageStorage"
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
    "mamba_ssm_dtype",
    "mamba_backend",
    "linear_attn_backend",
    "linear_attn_decode_backend",
    "linear_attn_prefill_backend",
    "dsa_prefill_backend",
    "dsa_decode_backend",
    "speculative_algorithm",
)
"""Arguments of SGLang that change KV, or choose the kernels that compute it."""
KV = "kv"
Page = tuple[Pool, str]
Step = Callable[[Sequence[tuple[Pool, str, int]]], list[bool]]
log = logging.getLogger("offstage.connectors")


class Storage:
    """The logic of `OffstageStorage`, which also derives from SGLang's interface."""

    mem_pool_host: Any
    pool_result: Any

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """BadInput: an unknown setting, or a configuration that cannot be stored."""
        extra = dict(storage_config.extra_config or {})
        self._endpoint = Endpoint.of_engine(
            {name: one for name, one in extra.items() if name not in OWN}
        )
        self._server, self._weights_id = _server_args(), text_of(extra, "weights_id", WHERE)
        self._files = str(getattr(self._server, "model_path", storage_config.model_name) or "")
        self._model = text_of(extra, "model", WHERE) or str(storage_config.model_name or "")
        if not self._model:
            raise BadInput("no model name", WHERE, 'set "model"')
        self._rank = _rank_of(storage_config)
        self._part = f"tp {storage_config.tp_rank}/{storage_config.tp_size}"
        self._client: ObjectClient | None = None
        self._pools: dict[str, Pool] = {}
        say_untried("SGLang")

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's memory is there: log in. BadInput, RunFailed: no daemon, or it refuses."""
        self.mem_pool_host = mem_pool_host
        kv = Pool(mem_pool_host)
        self.close()
        self._client = ObjectClient(
            self._endpoint, model=self._model, layout=f"{self._identity()}; {kv.shape}"
        )
        self._pools = {KV: kv}

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A pool beside the KV. BadInput: SGLang gives no pages of it."""
        name = str(host_pool_name)
        if name != KV:
            self._pools[name] = Pool(host_pool, name, self._part)

    def _identity(self) -> str:
        """What KV is of. BadInput: its weights or an adapter's are not on this machine, or changed
        since SGLang began."""
        server, since_ns = self._server, process_began_ns()
        found = {name: getattr(server, name) for name in COMPUTED if hasattr(server, name)}
        others = _adapters_of(getattr(server, "lora_paths", None) or ())
        draft = str(getattr(server, "speculative_draft_model_path", None) or "")
        if draft and self._weights_id:
            found["draft"] = draft
        elif draft:
            others = [*others, ("draft", draft)]
        for name, path in others:
            weights = digest_of(files_of(path), path)
            if weights.changed_ns(blobs=name != "draft") >= since_ns:
                raise BadInput(f"{name} changed after SGLang began", path, "start it again")
            found[name] = weights.digest[:32]
        computed = {"engine": f"SGLang {_version()}", "device": _device(), "rank": self._rank}
        return identity_of(
            self._files or self._model,
            computed | found,
            where=WHERE,
            revision=getattr(server, "revision", None),
            cache=getattr(server, "download_dir", None),
            weights_id=self._weights_id,
            since_ns=since_ns,
        )

    # ---- pages of the KV ----

    def exists(self, key: str) -> bool:
        """Whether a page is there, whole."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many leading pages are stored; leases them and prefetches them into the tier."""
        kv = self._pools[KV]
        return _leading(self._prefetch([(kv, key) for key in keys])) if kv.size else 0

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """A page in `target_location`, or None."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """Each page in its target, or None."""
        return self._get([(self._pools[KV], key) for key in keys], target_locations)

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
        return all(self._set([(self._pools[KV], key) for key in keys], given))

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Pages into SGLang's memory at their first token's place."""
        return self._move(self._load, [(KV, keys, host_indices)])[0]

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Pages out of SGLang's memory."""
        return self._move(self._store, [(KV, keys, host_indices)])[0]

    # ---- pages of all pools ----

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """The prefixes for which the KV and each of these pools have what they need. The longest is
        leased and prefetched. A KV without bytes (DeepSeek-V4) is there as far as a pool that
        needs every page."""
        transfers, kv = list(pool_transfers or ()), self._pools[KV]
        pools = [self._pools.get(str(one.name)) for one in transfers]
        if kv.size:
            found = _leading(self._there([(kv, key) for key in keys]))
        else:
            found = len(keys) if any(one.hit_policy == ALL_PAGES for one in transfers) else 0
        asked = [(pool, key) for pool in pools if pool for key in keys[:found]]
        there = iter(self._there(asked))
        lasts = [max(1, len(one.keys or ())) for one in transfers]
        covers = [
            covered([bool(pool) and next(there) for _ in keys[:found]], one.hit_policy, last)
            for pool, one, last in zip(pools, transfers, lasts, strict=True)
        ]
        usable = lengths(found, covers)
        length = _longest(usable)
        wanted = [(kv, key) for key in keys[:length]]
        for pool, one, last in zip(pools, transfers, lasts, strict=True):
            first = 0 if one.hit_policy == ALL_PAGES else max(0, length - last)
            wanted += [(pool, key) for key in keys[first:length] if pool]
        self._prefetch(wanted)
        names, ends = [KV, *(one.name for one in transfers)], [found, *map(_longest, covers)]
        hits = {name: end for name, end in zip(names, ends, strict=True) if end}
        return self.pool_result(length, hits, usable)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, Any]:
        """Pages of each pool into its memory; which came."""
        return self._each(self._load, transfers)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, Any]:
        """Pages of each pool out of its memory; which were taken."""
        return self._each(self._store, transfers)

    def _each(self, step: Step, transfers: Sequence[Any]) -> dict[Any, Any]:
        asked = [(str(one.name), list(one.keys or ()), one.host_indices) for one in transfers]
        ends = self._move(step, asked)
        return {one.name: end for one, end in zip(transfers, ends, strict=True)}

    def _move(
        self, step: Step, asked: Sequence[tuple[str, Sequence[str], Any]]
    ) -> list[list[bool]]:
        """One batch for the pages of all pools: name, keys and places in its memory."""
        pages, counts = [], []
        for name, keys, indices in asked:
            pool = self._pools.get(name)
            places = pool.places(len(keys), indices) if pool else None
            if pool is None or places is None:
                log.warning("the pool %s is not moved: not registered, or other indices", name)
                counts.append(0)
                continue
            pages += [(pool, key, place) for key, place in zip(keys, places, strict=True)]
            counts.append(len(keys))
        ends = iter(step(pages))
        return [
            [next(ends) for _ in range(count)] if count else [False] * len(keys)
            for count, (_, keys, _) in zip(counts, asked, strict=True)
        ]

    def _load(self, pages: Sequence[tuple[Pool, str, int]]) -> list[bool]:
        found = self._get([(pool, key) for pool, key, _ in pages])
        for (pool, _, place), page in zip(pages, found, strict=True):
            if page is not None:
                pool.memory.set_from_flat_data_page(place, page)
        return [page is not None for page in found]

    def _store(self, pages: Sequence[tuple[Pool, str, int]]) -> list[bool]:
        return self._set(
            [(pool, key) for pool, key, _ in pages],
            [pool.memory.get_data_page(place) for pool, _, place in pages],
        )

    # ---- objects; a page without bytes is none ----

    def _there(self, pages: Sequence[Page]) -> list[bool]:
        names, sizes = _names(pages), [pool.size for pool, _ in pages]
        client = self._ready()
        return client.wait(client.exists, names, sizes).done

    def _prefetch(self, pages: Sequence[Page]) -> list[bool]:
        """Which pages are there; leases and prefetches them up to the first that is not."""
        client, pages = self._ready(), [one for one in pages if one[0].size]
        names, sizes = _names(pages), [pool.size for pool, _ in pages]
        done = client.wait(client.prefetch, names, sizes, lease_s=LEASE_S).done
        client.release(names[_leading(done) :])
        return done

    def _get(self, pages: Sequence[Page], targets: Any = None) -> list[Any]:
        client = self._ready()
        into = [
            pool.memory.get_dummy_flat_data_page() if one is None else one
            for (pool, _), one in zip(pages, targets or [None] * len(pages), strict=True)
        ]
        asked = [i for i, (pool, _) in enumerate(pages) if pool.size]
        names = _names([pages[i] for i in asked])
        landing = [into[i].contiguous() for i in asked]  # itself, where it is that already
        done = client.wait(client.get, names, [bytes_of(one) for one in landing]).done
        client.release(names)
        for i, page, came in zip(asked, landing, done, strict=True):
            if came and page is not into[i]:
                into[i].copy_(page)
        lost = {i for i, one in zip(asked, done, strict=True) if not one}
        return [None if i in lost else one for i, one in enumerate(into)]

    def _set(self, pages: Sequence[Page], values: Sequence[Any]) -> list[bool]:
        client = self._ready()
        buffers = [bytes_of(value) for value in values]
        right = [len(one) == pool.size for (pool, _), one in zip(pages, buffers, strict=True)]
        if not all(right):
            log.warning("pages of another size than their pool's are not stored")
        asked = [i for i, (pool, _) in enumerate(pages) if right[i] and pool.size]
        names = _names([pages[i] for i in asked])
        ended = client.wait(client.put, names, [buffers[i] for i in asked]).states
        ends = dict(zip(asked, ended, strict=True))
        return [one and ends.get(i, State.DONE) is State.DONE for i, one in enumerate(right)]

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
    """What they are called here, and paths, in each of the forms that SGLang keeps `--lora-paths`
    in."""
    if isinstance(given, dict):
        return [(f"adapter {name}", str(path)) for name, path in given.items()]
    found = []
    for one in given:
        if isinstance(one, str):
            name, _, path = one.partition("=")
            found.append((f"adapter {name}", path or name))
        elif isinstance(one, dict):
            found.append((f"adapter {one['lora_name']}", str(one["lora_path"])))
        else:
            found.append((f"adapter {one.lora_name}", str(one.lora_path)))
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


def _names(pages: Sequence[Page]) -> list[bytes]:
    return [pool.key(key) for pool, key in pages]


def _longest(ascending: Sequence[int]) -> int:
    return ascending[-1] if ascending else 0


def _leading(done: Sequence[bool]) -> int:
    return done.index(False) if False in done else len(done)


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
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

    own = {"pool_result": PoolTransferResult, "__module__": __name__}
    return type("OffstageStorage", (Storage, HiCacheStorage), own)


def __getattr__(name: str) -> Any:
    if name == "OffstageStorage":
        return _offstage_storage()
    raise AttributeError(name)
