"""vLLM on the tier: an external KV connector, `OffstageConnector`.

An object is the KV of one vLLM block, all layers, under a hash of all tokens up to its end. `plans`
runs in vLLM's scheduler: it looks up the blocks of a prompt when the request arrives, decides what
to fetch, and plans the loads and saves of each step. `copies` runs in the worker and moves bytes
between vLLM's paged memory and the tier layer by layer, while other layers are computed. Of a model
with several groups of layers, as with sliding windows, an object is one group's part of a block.

A block that fails to load is reported to vLLM, which recomputes it (`kv_load_failure_policy` must
be "recompute"); until vLLM has handled the failure, nothing that may depend on the block is saved.
Without a daemon vLLM computes everything. With several workers (tensor parallel) each stores its
part of every block, and the tier has a block once it has all parts. With `head_groups` a block is
stored in that many parts by its heads, which engines of other numbers of workers find. This module
imports nothing of vLLM; `OffstageConnector` is created on access.
"""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from offstage.bindings.errors import BadInput, OffstageError
from offstage.host.connectors.objects import ObjectClient
from offstage.host.connectors.tried import say_untried
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.events import Saved
from offstage.host.connectors.vllm.groups import Group, Groups, groups_of
from offstage.host.connectors.vllm.heads import head_groups_of, of_all_workers
from offstage.host.connectors.vllm.plans import PATIENCE_MIN_S, Plans
from offstage.host.connectors.vllm.requests import log_of
from offstage.host.connectors.vllm.stats import new_since, prom_class, stats_class
from offstage.host.connectors.vllm.steps import PATIENCE_S, Report, Step
from offstage.host.connectors.vllm.worker import Worker
from offstage.host.endpoint import Endpoint, seconds_of, text_of
from offstage.host.model.identity import Adapters, identity_of, process_began_ns

__all__ = ["Connector"]

WHERE = "OffstageConnector"
SWITCHES = ("layer_wise", "prefetch", "choose")
BOUNDS = {"patience_s": PATIENCE_S, "patience_min_s": PATIENCE_MIN_S}
OWN = (*SWITCHES, "model", "weights_id", "patience_min_s", "requests", "head_groups")
CONFIGS = ("attention", "kernel", "compilation", "lora")  # that choose kernels, as vLLM hashes them
NAMES = ("_name_or_path", "transformers_version")  # in a model's configuration, of no effect
log = logging.getLogger("offstage.connectors")


class Connector:
    """The logic of `OffstageConnector`, which also derives from vLLM's interface."""

    _connector_metadata: Any
    _kv_cache_manager: Any
    _by_layer = False  # this step's layers load or save

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Log in, as scheduler or as worker. BadInput: a model that cannot be stored."""
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        ranks = vllm_config.parallel_config.world_size
        found = _groups_of(vllm_config, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        parts = head_groups_of(extra, found, vllm_config.model_config, ranks)
        self._groups = groups = Groups(found, ranks, parts)
        self._block_count = kv_cache_config.num_blocks
        on, bounds = _switches_of(extra), _bounds_of(extra)
        self._log = None if role.name == "WORKER" else log_of(extra.get("requests"))
        specs = [
            f"{len(one.layer_names)} layers of "
            f"{of_all_workers(one.kv_cache_spec, ranks) if parts else one.kv_cache_spec}"
            for one in kv_cache_config.kv_cache_groups
        ]
        what = "; ".join(specs) + (f" in {groups.parts} parts" if groups.parts > 1 else "")
        what += ", of any number of workers" if parts else ""
        self._client = _client_of(vllm_config, what, shared=bool(parts))
        events = getattr(vllm_config, "kv_events_config", None)
        self._plans = Plans(
            self._client,
            groups,
            ahead=on["prefetch"],
            choose=on["choose"],
            events=bool(events and events.enable_kv_cache_events),
            hash_tokens=(kv_cache_config.hash_block_size or 0) if groups.whole else 0,
            adapters=Adapters(process_began_ns()),
            log=self._log,
            **bounds,
        )
        rank, agree = _group_of(role) if ranks > 1 else (0, None)
        copies = [
            Copies(
                self._client,
                groups.size(number),
                by_layer=on["layer_wise"],
                rank=rank,
                parts=groups.parts,
                each=groups.parts // ranks,
                agree=agree,
            )
            for number in range(len(groups))
        ]
        self._worker = Worker(groups, copies)
        self._counted: dict[str, float] = {}

    # ---- the scheduler's side ----

    def on_new_request(self, request: Any) -> None:
        """A request has arrived."""
        self._plans.arrive(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that the tier has, and whether vLLM goes on with others while they are loaded."""
        tokens = self._plans.match(request, num_computed_tokens)
        return tokens, bool(tokens) and self._plans.is_apart(request)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks for what was matched."""
        if num_external_tokens > 0:
            self._plans.load(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        """What the step loads and saves."""
        scheduled, cached = scheduler_output, scheduler_output.scheduled_cached_reqs
        before = {one.req_id: one.num_computed_tokens for one in scheduled.scheduled_new_reqs}
        before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        counts = scheduled.num_scheduled_tokens
        after = {one: at + counts[one] for one, at in before.items()}
        return self._plans.plan(after, self._blocks, sum(counts.values()))

    def update_connector_output(self, connector_output: Any) -> None:
        """A step has ended."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._plans.learn(report)
        if connector_output.invalid_block_ids:
            self._plans.fail(set(connector_output.invalid_block_ids), self._blocks)
        for request_id in connector_output.failed_recving or ():
            self._plans.fail_whole(request_id)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Its blocks may be freed immediately: saved blocks have been copied out."""
        self._plans.finish(request)
        return False, None

    request_finished_all_groups = request_finished

    def take_events(self) -> Iterator[Any]:
        """Blocks stored in and removed from the tier, for vLLM's subscribers."""
        events = self._plans.events()
        if not events:
            return
        from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as outside

        for one in events:
            if isinstance(one, Saved):
                parent = None if one.parent_hash is None else outside(one.parent_hash)
                yield BlockStored(
                    [outside(one.block_hash)],
                    parent,
                    one.tokens,
                    len(one.tokens),
                    one.lora.adapter_id if one.lora else None,
                    MEDIUM_STORAGE,
                    one.lora.name if one.lora else None,
                )
            else:
                yield BlockRemoved([outside(one.block_hash)], MEDIUM_STORAGE)

    def _blocks(self, request_id: str) -> tuple[list[int], ...]:
        blocks: tuple[list[int], ...] = self._kv_cache_manager.get_block_ids(request_id)
        return blocks

    # ---- the worker's side ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """vLLM's memory is there."""
        self._worker.register(kv_caches, self._block_count)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)  # type: ignore[misc]
        self._by_layer = any(one.loads or one.saves for one in connector_metadata.groups)
        self._worker.begin()

    def has_connector_metadata(self) -> bool:
        """Whether the step has work for its layers: vLLM asks before the calls for each of them."""
        return self._by_layer and self._connector_metadata is not None

    def start_load_kv(self, forward_context: Any, **unused: Any) -> None:
        """Load what the step needs, and wait for it."""
        step: Step = self._connector_metadata
        if step.loads or step.apart or step.noted or step.others:
            self._worker.load(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait until this layer's KV is loaded."""
        if self._by_layer:
            self._worker.wait_for(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """This layer is computed: send the part that the step saves."""
        if self._by_layer:
            self._worker.save_layer(self._connector_metadata, layer_name)

    def wait_for_save(self) -> None:
        """The step is over; what it saves is stored while vLLM goes on."""
        self._worker.end(self._connector_metadata)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Requests whose asynchronous loads have ended; where prefixes are loaded as a whole, also
        those that have to be computed."""
        over, lost = self._worker.landed()
        return _results()(
            finished_recving=over, failed_recving=lost if self._groups.whole else set()
        )

    def build_connector_worker_meta(self) -> Report:
        """Outcome of the step, for the scheduler's side."""
        return self._worker.report(self._connector_metadata)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that vLLM has to compute."""
        return self._worker.failed()

    # ---- both sides ----

    def get_kv_connector_stats(self) -> Any:
        """What was counted since the last call."""
        counts = {**self._plans.counts, **self._worker.counts}
        counts |= self._client.counts() if self._client is not None else {}
        found = new_since(self._counted, counts)
        return stats_class()(found) if found else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """What such counts are, where vLLM adds them up."""
        return stats_class()(dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> Any:
        """They as Prometheus counters, `vllm:offstage_...`."""
        return prom_class()(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """True with waits per layer, which a graph of the whole model would skip."""
        return _switches_of(extra_config)["layer_wise"]

    def shutdown(self) -> None:
        """Store what is on its way, write the records of requests, and leave the daemon."""
        if self._log is not None:
            self._log.write()
        if self._client is not None:
            self._client.close()


def _groups_of(config: Any, kv_cache_config: Any) -> list[Group]:
    """How vLLM keeps KV. BadInput: in a way that this connector does not know."""
    groups = groups_of(kv_cache_config)
    chunks = config.scheduler_config.enable_chunked_prefill  # which vLLM switches off without AMX
    if any(one.latents for one in groups) and _is_cpu() and not chunks:
        raise BadInput(
            "on this CPU vLLM computes no prompt behind latents (MLA) that are already there",
            WHERE,
            "leave this connector out",
        )
    parallel = config.parallel_config
    if (
        parallel.world_size != parallel.tensor_parallel_size
        or parallel.decode_context_parallel_size != 1
    ):
        raise BadInput(
            "the connector supports tensor parallelism only",
            WHERE,
            "set pipeline and context parallel sizes to 1",
        )
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise BadInput(
            "a block that fails to load would fail its request",
            WHERE,
            'set "kv_load_failure_policy": "recompute"',
        )
    return groups


def _group_of(role: Any) -> tuple[int, Callable[[set[int]], set[int]] | None]:
    """Which of the workers this is, and how they agree: each calls it in the same steps."""
    if role.name != "WORKER":
        return 0, None
    import torch.distributed
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()

    def agree(blocks: set[int]) -> set[int]:
        found: list[Any] = [None] * group.world_size
        torch.distributed.all_gather_object(found, blocks, group=group.cpu_group)
        return set().union(*found)

    return group.rank_in_group, agree


def _switches_of(extra: dict[str, Any]) -> dict[str, bool]:
    """What can be switched off. BadInput: by something else than false."""
    for name in SWITCHES:
        if not isinstance(extra.get(name, True), bool):
            raise BadInput(f"{name} is {extra[name]!r}", WHERE, "write true or false")
    return {name: bool(extra.get(name, True)) for name in SWITCHES}


def _bounds_of(extra: dict[str, Any]) -> dict[str, float]:
    """How long is waited, in seconds. BadInput: no number above 0."""
    return {name: seconds_of(BOUNDS | extra, name, WHERE) for name in BOUNDS}


def _client_of(config: Any, what: str, *, shared: bool = False) -> ObjectClient | None:
    """An object client by `kv_connector_extra_config`; None where the daemon refuses, or nothing
    says what KV is of. `shared`: with other numbers of workers. BadInput: a setting that is
    none."""
    model, engine = config.model_config, _version()
    extra = {"model": model.model, "weights_id": ""}
    extra |= config.kv_transfer_config.kv_connector_extra_config
    named, weights_id = (text_of(extra, key, WHERE) for key in ("model", "weights_id"))
    endpoint = Endpoint.of_engine({key: value for key, value in extra.items() if key not in OWN})
    say_untried("vLLM", engine)
    try:
        layout = _identity(config, engine, weights_id, shared=shared) + f"; {what}"
        client = ObjectClient(endpoint, model=named, layout=layout, late=True)
    except OffstageError as error:
        log.warning("no tier until the engine is started again: %s; it computes all KV", error)
        return None
    log.warning("%s", INVARIANT if _is_invariant() and not shared else VARIANT)
    return client


def _identity(config: Any, engine: str, weights_id: str, *, shared: bool = False) -> str:
    """What vLLM's KV is of: weights, and whatever it says that chooses kernels. BadInput: the
    weights are not on this machine, or changed since it began."""
    model, load = config.model_config, config.load_config
    text = {
        name: one
        for name, one in json.loads(model.hf_config.to_json_string()).items()
        if name not in NAMES
    }
    computed = {
        "engine": f"vLLM {engine}",
        "torch": _torch(),
        "device": _device(model.dtype, config, shared=shared),
        "dtype": model.dtype,
        "KV": config.cache_config.cache_dtype,
        "quantization": model.quantization,
        "config": _digest(text),
        "batch invariant": _is_invariant(),
        "load": load.load_format,
    }
    for name in CONFIGS:
        one = getattr(config, f"{name}_config", None)
        computed[name] = "none" if one is None else one.compute_hash()[:16]
    if load.load_format == "dummy":
        weights_id = weights_id or "dummy"
    return identity_of(
        model.model_weights or model.model,
        computed,
        revision=model.revision,
        cache=load.download_dir,
        weights_id=weights_id,
        since_ns=process_began_ns(),
        where=WHERE,
    )


INVARIANT = (
    "vLLM is batch invariant (VLLM_BATCH_INVARIANT): what is loaded is what it would "
    "compute, to the bit, and a hit changes no token"
)
VARIANT = (
    "what is loaded was computed from the same weights by the same kernels, but in another "
    "batch and other pieces: where those change bits, as they may in 16 bits, a hit can "
    "change tokens as another batch can (docs/how-to/engines.md, Equal tokens)"
)


def _is_invariant() -> bool:
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _torch() -> str:
    import torch

    return str(torch.__version__)


def _device(dtype: Any, config: Any, *, shared: bool) -> str:
    """What the order of bytes in a block depends on besides shapes, and on a CPU the threads, which
    share sums out: as other numbers of workers do, so not where those share KV."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.device_name)
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(dtype, config.cache_config.block_size)
    return f"{platform.machine()} {isa}" + ("" if shared else f", threads {_threads()}")


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _threads() -> str:
    """How many threads each worker has on a CPU, as far as it is set, and not on which cores."""
    bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    if bound == "nobind":
        return f"nobind {os.environ.get('OMP_NUM_THREADS')}"
    try:
        ranges = [[one.partition("-") for one in mask.split(",")] for mask in bound.split("|")]
        counts = [
            sum(int(last or first) - int(first) + 1 for first, _, last in mask) for mask in ranges
        ]
    except ValueError:  # a word: vLLM's own choice among the cores
        return f"{bound} of {os.cpu_count()}"
    return str(counts)


def _version() -> str:
    import vllm

    return str(vllm.__version__).partition("+")[0]


@lru_cache(maxsize=1)
def _results() -> type:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

    return KVConnectorTransferResults  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _offstage_connector() -> type:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

    bases = (Connector, KVConnectorBase_V1, SupportsHMA)
    return type("OffstageConnector", bases, {"__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "OffstageConnector":
        return _offstage_connector()
    raise AttributeError(name)
