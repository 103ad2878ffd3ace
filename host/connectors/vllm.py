"""vLLM on the tier: an external KV connector, `OffstageConnector`.

An object is the KV of one of vLLM's blocks, all layers of it, under a hash of all tokens up to its
end. `Plans` runs where vLLM schedules: it looks up the blocks of a prompt when the request arrives,
says how many tokens need no prefill, and plans per step what is loaded and saved. `Copies` runs in
the worker: it reads objects into vLLM's paged memory before a step's forward pass, and afterwards
copies full blocks out, which are stored while vLLM goes on.

A block that does not load, for whatever reason, is named to vLLM, which computes it again
(`kv_load_failure_policy` must be "recompute"); until vLLM has taken note of it, nothing that may
have been computed from it is saved. Without a daemon everything is computed. Nothing of vLLM is
imported with this module: `OffstageConnector` is made when asked for.
"""

import hashlib
import logging
import platform
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from offstage.bindings.errors import BadInput, OffstageError
from offstage.host.connectors.objects import Completion, ObjectClient, Where

__all__ = ["Connector", "Copies", "Plans", "Step", "chain", "salt_of"]

TRIED = ("0.32.0",)
LEASE_S = 10.0  # of what a lookup has found, until it is loaded
LOAD_BYTES = 256 << 20  # read at once
SAVE_BYTES = 512 << 20  # on their way to the tier; what comes beyond is not saved
log = logging.getLogger("offstage.connectors")


def chain(
    tokens: Sequence[int], block_tokens: int, first: bytes, known: Sequence[bytes] = ()
) -> list[bytes]:
    """A key for each full block: a hash of the block's tokens and of the key before it, `first`
    before the first one. `known`: keys from a call with fewer tokens."""
    keys = list(known)
    for at in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        text = array("q", tokens[at : at + block_tokens]).tobytes()
        before = keys[-1] if keys else first
        keys.append(hashlib.blake2b(text, digest_size=32, key=before).digest())
    return keys


def salt_of(request: Any) -> bytes:
    """What stands before the first block: adapters and salts make other keys."""
    lora = request.lora_request
    text = f"{request.cache_salt or ''}\0{lora.lora_name if lora else ''}"
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


@dataclass
class Step:
    """What one step loads and saves, as it goes from scheduler to worker."""

    loads: list[tuple[bytes, int]] = field(default_factory=list)
    """Key and block."""
    saves: list[tuple[list[bytes], list[int]]] = field(default_factory=list)
    """By request: keys of its last blocks that are full now, and all blocks up to them."""
    noted: set[int] = field(default_factory=set)
    """Blocks that had not loaded, and of which the scheduler has taken note."""


@dataclass
class _Request:
    """One request: what its keys begin with, and those of its full blocks; how many the tier had
    (None: not known yet), how many need no saving, and where its load begins."""

    request: Any
    salt: bytes
    keys: list[bytes]
    found: int | None = None
    saved: int = 0
    first: int = 0


class Plans:
    """The scheduler's side. `client` is None where there is no daemon."""

    def __init__(self, client: ObjectClient | None, block_tokens: int, size: int) -> None:
        """`size`: bytes of one block of all layers."""
        self._client, self._block_tokens, self._size = client, block_tokens, size
        self._requests: dict[str, _Request] = {}
        self._step = Step()

    def arrive(self, request: Any) -> None:
        """Look up a new request's blocks, and have those that are there brought nearer."""
        if self._client is None or not _is_text(request):
            return
        salt = salt_of(request)
        keys = chain(request.all_token_ids, self._block_tokens, salt)
        one = self._requests[request.request_id] = _Request(request, salt, keys)

        def ended(completion: Completion) -> None:
            done = completion.done
            one.saved = done.index(False) if False in done else len(done)
            one.found = one.saved

        self._client.prefetch(keys, [self._size] * len(keys), lease_s=LEASE_S, tell=ended)

    def match(self, request: Any, computed: int) -> int | None:
        """Tokens beyond the first `computed` that the tier has; None while that is not known. The
        last token is always computed, since it is what the next one follows from."""
        one = self._requests.get(request.request_id)
        if one is None:
            return 0
        if one.found is None:
            return None
        one.first = computed // self._block_tokens
        usable = min(one.found, (int(request.num_tokens) - 1) // self._block_tokens)
        return max(0, usable * self._block_tokens - computed)

    def load(self, request: Any, blocks: Sequence[int], tokens: int) -> None:
        """Plan the load of `tokens` that were matched into the request's `blocks`."""
        one = self._requests.get(request.request_id)
        if one is not None and tokens > 0:
            last = one.first + tokens // self._block_tokens
            pairs = zip(one.keys[one.first : last], blocks[one.first : last], strict=True)
            self._step.loads.extend(pairs)

    def plan(self, computed: dict[str, int], blocks_of: Callable[[str], list[int]]) -> Step:
        """The step to come, after which so many tokens of each request are `computed`."""
        for request_id, tokens in computed.items():
            one = self._requests.get(request_id)
            if one is None:
                continue
            known = one.request.all_token_ids
            full = min(tokens, len(known)) // self._block_tokens
            if full > one.saved:
                one.keys = chain(known, self._block_tokens, one.salt, one.keys)
                blocks = blocks_of(request_id)[:full]
                self._step.saves.append((one.keys[one.saved : full], blocks))
                one.saved = full
        step, self._step = self._step, Step()
        return step

    def fail(self, blocks: set[int], blocks_of: Callable[[str], list[int]]) -> None:
        """These blocks did not load: they are computed, and then saved again."""
        self._step.noted |= blocks
        for request_id, one in self._requests.items():
            for place, block in enumerate(blocks_of(request_id)):
                if block in blocks:
                    one.saved = min(one.saved, place)
                    one.found = min(one.found or 0, place)
                    self._release(one)  # what is leased could not be replaced
                    break

    def finish(self, request: Any) -> None:
        """Forget a request."""
        one = self._requests.pop(request.request_id, None)
        if one is not None:
            self._release(one)

    def _release(self, one: _Request) -> None:
        if self._client is not None:
            self._client.release(one.keys)


class Copies:
    """The worker's side: `client` is None where there is no daemon."""

    def __init__(self, client: ObjectClient | None, size: int) -> None:
        """`size`: bytes of one block of all layers."""
        self._client, self._size = client, size
        self._layers: list[Any] = []
        self._failed: set[int] = set()  # in this step
        self._bad: set[int] = set()  # until the scheduler has taken note
        self._saving: set[bytes] = set()

    def register(self, layers: list[Any], block_count: int) -> None:
        """vLLM's memory: a tensor of each layer whose first dimension is blocks, or equal parts of
        them. BadInput: they do not make an object of the size that the scheduler knows."""
        self._layers = [layer.unflatten(0, (block_count, -1)) for layer in layers]
        size = sum(layer[0].numel() * layer.element_size() for layer in self._layers)
        if size != self._size:
            raise BadInput(f"a block has {size} bytes here and {self._size} by its description",
                           "OffstageConnector", "leave this connector out")  # fmt: skip

    def load(self, step: Step) -> None:
        """Read this step's objects into vLLM's memory; those that fail are told by `failed`."""
        self._bad -= step.noted
        count = max(1, LOAD_BYTES // self._size)
        for at in range(0, len(step.loads), count):
            self._load(step.loads[at : at + count])

    def _load(self, loads: list[tuple[bytes, int]]) -> None:
        import torch

        done = [False] * len(loads)
        memory = np.empty((len(loads), self._size), np.uint8)
        if self._client is not None:
            done = self._client.wait(self._client.get, [key for key, _ in loads], memory).done
        lost = {block for (_, block), one in zip(loads, done, strict=True) if not one}
        self._failed |= lost
        self._bad |= lost
        rows = [row for row, one in enumerate(done) if one]
        if rows:
            blocks = torch.tensor([loads[row][1] for row in rows])
            for layer, part in self._parts(torch.from_numpy(memory[rows])):
                layer[blocks.to(layer.device)] = part.to(layer.device)

    def save(self, step: Step) -> None:
        """Copy out what this step saves, and have it stored."""
        for keys, blocks in step.saves:
            pairs = zip(keys, blocks[-len(keys) :], strict=True)
            todo = [(key, block) for key, block in pairs if key not in self._saving]
            room = (len(todo) + len(self._saving)) * self._size <= SAVE_BYTES
            if todo and room and not self._bad.intersection(blocks):
                self._save(todo)

    def _save(self, todo: list[tuple[bytes, int]]) -> None:
        import torch

        if self._client is None:
            return
        keys = [key for key, _ in todo]
        blocks = torch.tensor([block for _, block in todo])
        memory = torch.empty((len(todo), self._size), dtype=torch.uint8)
        for layer, part in self._parts(memory):
            part.copy_(layer[blocks.to(layer.device)])
        self._saving.update(keys)
        self._client.put(keys, memory.numpy(), tell=lambda _: self._saving.difference_update(keys))

    def _parts(self, memory: Any) -> list[tuple[Any, Any]]:
        """Each layer with the part of objects `[count, size]` that is its."""
        parts, at = [], 0
        for layer in self._layers:
            size = layer[0].numel() * layer.element_size()
            part = memory[:, at : at + size].view(layer.dtype)
            parts.append((layer, part.view(len(memory), *layer.shape[1:])))
            at += size
        return parts

    def failed(self) -> set[int]:
        """Blocks that did not load, once."""
        failed, self._failed = self._failed, set()
        return failed


class Connector:
    """The logic of `OffstageConnector`, before vLLM's interface among its bases."""

    _connector_metadata: Any
    _kv_cache_manager: Any

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Log in, as scheduler or as worker. BadInput: what this connector cannot keep."""
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        spec = _spec_of(vllm_config, kv_cache_config)
        self._names = list(kv_cache_config.kv_cache_groups[0].layer_names)
        self._block_count = kv_cache_config.num_blocks
        size = spec.page_size_bytes * len(self._names)
        self._client = _client_of(vllm_config, f"{len(self._names)} layers of {spec}")
        self._plans = Plans(self._client, spec.block_size, size)
        self._copies = Copies(self._client, size)

    # ---- the scheduler's side ----

    def on_new_request(self, request: Any) -> None:
        """A request has arrived."""
        self._plans.arrive(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that the tier has; they are loaded within the step."""
        return self._plans.match(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks for what was matched."""
        if num_external_tokens > 0:
            self._plans.load(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        """What the step loads and saves."""
        scheduled, cached = scheduler_output, scheduler_output.scheduled_cached_reqs
        before = {one.req_id: one.num_computed_tokens for one in scheduled.scheduled_new_reqs}
        before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        counts = scheduled.num_scheduled_tokens
        return self._plans.plan({one: at + counts[one] for one, at in before.items()}, self._blocks)

    def update_connector_output(self, connector_output: Any) -> None:
        """A step has ended."""
        if connector_output.invalid_block_ids:
            self._plans.fail(set(connector_output.invalid_block_ids), self._blocks)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Its blocks are free at once: what was saved was copied out before."""
        self._plans.finish(request)
        return False, None

    def _blocks(self, request_id: str) -> list[int]:
        blocks: list[int] = self._kv_cache_manager.get_block_ids(request_id)[0]
        return blocks

    # ---- the worker's side ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """vLLM's memory is there."""
        self._copies.register([kv_caches[name] for name in self._names], self._block_count)

    def start_load_kv(self, forward_context: Any, **unused: Any) -> None:
        """Load what the step needs, and wait for it."""
        self._copies.load(self._connector_metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: all layers are there before the step begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Nothing: all layers of a block are saved together."""

    def wait_for_save(self) -> None:
        """Copy out what became full; it is stored while vLLM goes on."""
        self._copies.save(self._connector_metadata)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that vLLM has to compute."""
        return self._copies.failed()

    def shutdown(self) -> None:
        """Store what is on its way, and leave the daemon."""
        if self._client is not None:
            self._client.close()


def _is_text(request: Any) -> bool:
    """Whether the tokens alone say what a request's KV is."""
    return not request.mm_features and request.prompt_embeds is None


def _spec_of(config: Any, kv_cache_config: Any) -> Any:
    """How vLLM keeps a layer's KV. BadInput: in a way that this connector does not know."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if len(specs) != 1 or not isinstance(specs[0], FullAttentionSpec):
        raise BadInput("this model keeps more than the KV of full attention", "OffstageConnector",
                       "leave this connector out")  # fmt: skip
    if config.parallel_config.world_size != 1:
        raise BadInput("it runs with one worker only", "OffstageConnector",
                       "set tensor and pipeline parallel size to 1")  # fmt: skip
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise BadInput("a block that does not load would fail its request", "OffstageConnector",
                       'set "kv_load_failure_policy": "recompute"')  # fmt: skip
    return specs[0]


def _client_of(config: Any, what: str) -> ObjectClient | None:
    """An object client by `kv_connector_extra_config`; None where no daemon answers. BadInput: a
    setting that is none."""
    model, engine = config.model_config, _version()
    settings = {"model": model.model} | config.kv_transfer_config.kv_connector_extra_config
    name = str(settings.pop("model"))
    where = Where.of(settings)
    if engine not in TRIED:
        log.warning("vLLM %s was not tried with this connector", engine)
    weights = hashlib.sha256(model.hf_config.to_json_string().encode()).hexdigest()[:16]
    layout = (f"vLLM {engine} {_device(model.dtype, config)} {model.dtype} {model.quantization} "
              f"revision {model.revision} config {weights} {what}")  # fmt: skip
    try:
        return ObjectClient(where, model=name, layout=layout)
    except OffstageError as error:
        log.warning("no tier until the engine is started again: %s; it computes all KV", error)
        return None


def _device(dtype: Any, config: Any) -> str:
    """What the order of bytes in a block depends on besides shapes."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.device_name)
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(dtype, config.cache_config.block_size)
    return f"{platform.machine()} {isa}"


def _version() -> str:
    import vllm

    return str(vllm.__version__).partition("+")[0]


@lru_cache(maxsize=1)
def _offstage_connector() -> type:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    bases = (Connector, KVConnectorBase_V1)
    return type("OffstageConnector", bases, {"__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "OffstageConnector":
        return _offstage_connector()
    raise AttributeError(name)
