"""Does a model's KV fit a daemon: its blocks, in whichever types, and the context; its identity.

Checks before the work of minutes, and the model loaded under the digest of its weights: each raises
BadInput with the setting that fits.
"""

import dataclasses
import importlib.metadata
from collections.abc import Sequence

from offstage.bindings.errors import BadInput
from offstage.host.link.control import Control
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.identity import Weights, digest_of, files_of, identity_of
from offstage.host.model.index_blocks import with_index_blocks
from offstage.host.model.quantized import uniform
from offstage.host.model.quantized_rows import ROWS, Quantizer, rows_of
from offstage.host.model.values import WIDTHS, ValueType
from offstage.testbeds.capture.model import Loaded, Shape, load
from offstage.testbeds.live.host_run import serve_with
from offstage.testbeds.live.model.options import ALL_BLOCKS, KvType, ModelOptions
from offstage.testbeds.live.model_results import ModelIdentity
from offstage.testbeds.live.options import SELECT_BLOCKS
from offstage.testbeds.machine import machine
from offstage.testbeds.progress import Progress

__all__ = [
    "Quantizers",
    "bits_of",
    "blocks_chosen",
    "check_predicts",
    "check_selects",
    "context_lengths",
    "fitted",
    "load_known",
    "model_identity",
    "pool_sizes",
    "quantizers_of",
    "value_type",
]

Quantizers = dict[KvType, Quantizer | None]
"""By type; None for the model's own, whose blocks are not quantized."""


def quantizers_of(kinds: Sequence[KvType], geometry: KvGeometry, control: Control) -> Quantizers:
    """Every head in one type, in the smallest blocks; not of auto, which is chosen later.
    BadInput, by the type that needs most, where the daemon's blocks do not hold them."""
    lba_bytes = control.geometry.lba_size_bytes
    found: Quantizers = {
        kind: _in_type(kind, geometry, lba_bytes) for kind in kinds if kind != "auto"
    }
    for one in sorted(found.values(), key=lambda one: -(_payload(geometry, one))):
        fitted(geometry, one, control, pad=len(kinds) > 1)
    return found


def _in_type(kind: KvType, geometry: KvGeometry, lba_bytes: int) -> Quantizer | None:
    if kind == "model" or kind == "auto":
        return None
    return rows_of(geometry, lba_bytes) if kind == ROWS else uniform(geometry, kind, lba_bytes)


def check_kv_types(shape: Shape, kinds: Sequence[KvType]) -> None:
    """BadInput for a type that the model's layers cannot have, before its weights are loaded."""
    own = shape.cache.in_tier(shape.cache.block_tokens, shape.cache.value_type)
    for kind in kinds:
        # Of auto, whose types are chosen later, the smallest.
        _in_type("int4" if kind == "auto" else kind, own, 1)


def fitted(
    geometry: KvGeometry, chosen: Quantizer | None, control: Control, *, pad: bool
) -> Quantizer | None:
    """A quantizer for the daemon's blocks, padded to them if it may be. BadInput where it does
    not fit."""
    theirs = control.geometry.payload_size_bytes
    if pad and chosen is not None and chosen.payload_bytes < theirs:
        chosen = dataclasses.replace(chosen, payload_bytes=theirs)
    _check_fit(geometry, chosen, control)
    return chosen


def _payload(geometry: KvGeometry, quantizer: Quantizer | None) -> int:
    return geometry.block_bytes(0) if quantizer is None else quantizer.payload_bytes


def load_known(shape: Shape, options: ModelOptions, progress: Progress) -> tuple[Loaded, Weights]:
    """The model, and the digest of the weights that were loaded. Raises BadInput as `load`, and
    for weights that changed meanwhile."""
    progress.start("load the model", 1, "")
    where = str(shape.folder)
    weights = digest_of(files_of(where), where)
    progress.note(weights.cost())
    loaded = load(shape, options.device, options.dtype)
    if not weights.unchanged():
        raise BadInput(
            "the model changed while it was loaded", where, "start again when it is complete"
        )
    return loaded, weights


def bits_of(
    options: ModelOptions,
    loaded: Loaded,
    weights: Weights,
    geometry: KvGeometry,
    quantizer: Quantizer | None,
) -> str:
    """What determines the bits of the KV, other than the tokens: the weights, everything that
    computes, and the type of every head that is quantized."""
    import torch

    return identity_of(
        weights,
        {
            "config": loaded.shape.config_sha256,
            "rope": options.rope,
            "dtype": loaded.dtype,
            "KV": geometry.value_type,
            "block_tokens": geometry.block_tokens,
            "device": options.device,
            "prefill_piece": options.prefill_piece,
            "threads": torch.get_num_threads(),
            "processor": machine().processor,
            **_versions(),
            **({} if quantizer is None else {"quantizer": quantizer.kinds}),
        },
    )


def model_identity(
    options: ModelOptions, loaded: Loaded, weights: Weights, geometry: KvGeometry
) -> ModelIdentity:
    """The model of a run's results."""
    shape = loaded.shape
    return ModelIdentity(
        name=shape.name,
        architecture=shape.model_type,
        dtype=loaded.dtype,
        value_type=geometry.value_type,
        layers=shape.layer_count,
        top_k=shape.top_k,
        compresses=shape.compresses,
        config_sha256=shape.config_sha256,
        rope=options.rope,
        weights=weights.digest,
        weights_read=weights.cost(),
    )


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers")}


def _check_fit(geometry: KvGeometry, quantizer: Quantizer | None, control: Control) -> None:
    """BadInput, naming both, if the daemon's blocks are not the model's, quantized so."""
    theirs = control.geometry
    payload = _payload(geometry, quantizer)
    held = geometry if quantizer is None else quantizer.geometry
    if (theirs.layer_count, theirs.payload_size_bytes) == (held.layer_count, payload):
        return
    more = sum(one.form == "index" for one in held.layers)
    types: str = geometry.value_type
    if quantizer is not None:
        types = " and ".join(sorted({kind for layer in quantizer.kinds for kind in layer}))
    raise BadInput(
        f"the model has {held.layer_count} layers{f' with {more} of index keys' * bool(more)} and "
        f"blocks of {payload:,} B for {geometry.block_tokens} tokens of {types}, the daemon "
        f"{theirs.layer_count} layers and blocks of {theirs.payload_size_bytes:,} B",
        control.endpoint,
        serve_with(held.layer_count, payload, geometry.block_tokens, theirs.lba_size_bytes),
    )


def context_lengths(
    options: ModelOptions, loaded: Loaded, geometry: KvGeometry, text_tokens: int, control: Control
) -> tuple[int, ...]:
    """The contexts' lengths in tokens: as given, or one, as much as the text, the model and the
    daemon allow."""
    size, shape = geometry.block_tokens, loaded.shape
    behind = 0 if options.generate else options.steps + 1
    daemon_tokens = control.limits.session_chunk_max * size
    bounds = {
        "the text": (text_tokens - behind, "give a longer --text, or fewer of them"),
        "the model": (shape.tokens_max - options.steps, "give fewer"),
        "the daemon": (daemon_tokens - options.steps, "raise [limits] context_tokens there"),
    }
    least = min(bound for bound, _ in bounds.values()) // size * size
    chosen = options.context_tokens or (least,)
    longest = max(*chosen, size)
    for name, (bound, fix) in bounds.items():
        if longest > bound:
            raise BadInput(
                f"{longest:,} tokens of context and {options.steps:,} steps are more "
                f"than {name} has room for: {max(bound, 0):,} of context",
                options.where,
                fix,
            )
    if odd := [one for one in chosen if one % size]:
        raise BadInput(
            f"--context-tokens {odd[0]}", options.where, f"give a multiple of {size}, a block"
        )
    return chosen


def check_predicts(shape: Shape, where: str) -> None:
    """BadInput for a model whose layers do not all select: a prediction weighs the guesses of all
    layers against each other, and a window is certain."""
    if shape.window_tokens is not None:
        raise BadInput(
            f"layers of {shape.name} have a window of {shape.window_tokens:,} tokens and select "
            "nothing, so that no selection of theirs can be predicted",
            where,
            "leave it out, or use a model without sliding_attention",
        )
    if shape.is_recurrent:
        raise BadInput(
            f"layers of {shape.name} keep states and select nothing, so that no next layer's "
            "selection can be predicted",
            where,
            "leave it out, or use a model without linear_attention",
        )
    if shape.chooses_itself:
        raise BadInput(
            f"layers of {shape.name} select by indexers of its own, which are not predicted",
            where,
            "leave it out, or use a model without an indexer",
        )


def check_selects(shape: Shape, options: ModelOptions) -> None:
    """BadInput for options of a selection that the model's layers do not make, and for types of
    KV that they do not have."""
    if shape.compresses and options.kv_dtypes != ("model",):
        raise BadInput(
            f"layers of {shape.name} keep compressed entries, which have no type but the model's",
            "--kv-dtype",
            "use --kv-dtype model",
        )
    if shape.is_recurrent and "auto" in options.kv_dtypes:
        raise BadInput(
            f"layers of {shape.name} keep states, and types are chosen by reading the end of the "
            "context again, before which no states are kept",
            "--kv-dtype auto",
            "name a type, such as fp8 or int8",
        )
    check_kv_types(shape, options.kv_dtypes)
    if options.index_keys == "tier":
        cache = shape.cache
        with_index_blocks(cache.in_tier(cache.block_tokens, cache.value_type))
    if options.predict:
        check_predicts(shape, "--predict")
    elif options.ahead != "none" and not shape.shares_selections:
        raise BadInput(
            f"--ahead {options.ahead} has nothing to act on",
            "host run",
            "leave it out: no layers share a selection"
            if shape.chooses_itself
            else "add --predict",
        )
    if not shape.chooses_itself:
        return
    kind = "entries" if shape.compresses else "tokens"
    reads = f"the {shape.top_k:,} {kind} that indexers of its own select"
    if not shape.top_k:
        reads = "all that they keep"
    given = {
        "--select-blocks": options.selections in ((SELECT_BLOCKS,), (ALL_BLOCKS,)),
        "--selector": options.selectors == ("quest",),
    }
    for name, is_default in given.items():
        if not is_default:
            raise BadInput(
                f"layers of {shape.name} read {reads}, whatever {name} says",
                name,
                "leave it out; its config.json says how many",
            )


def blocks_chosen(select_blocks: int, shape: Shape, geometry: KvGeometry, tokens: int) -> int:
    """Blocks that a layer selects at most, of a session of `tokens` tokens. Tokens that an indexer
    selects may each lie in a block of their own."""
    layers = range(geometry.layer_count)
    rooms = [geometry.block_count(tokens, one) for one in layers if not geometry.is_read_whole(one)]
    room = max(rooms, default=geometry.block_count(tokens))
    return min(room, (shape.top_k or room) if shape.chooses_itself else select_blocks)


def pool_sizes(
    options: ModelOptions, geometry: KvGeometry, chosen: int, tokens: int
) -> tuple[int, int]:
    """Blocks of the HBM pool, and those in flight at once: for a selection of `chosen` blocks of a
    layer of `tokens` tokens, for windows, and for entries and index keys that are read whole."""
    size, layers = geometry.block_tokens, geometry.layer_count

    def most(layer: int) -> int:
        room = geometry.block_count(tokens, layer)
        if geometry.is_window(layer):  # which may begin anywhere in a block
            return min(room, (geometry.layers[layer].window_tokens - 2) // size + 2)
        return room if geometry.is_read_whole(layer) else min(room, chosen)

    read = [sum(map(most, parts)) for parts in geometry.parts]
    # Room for two layers if the next one's blocks arrive while this one is computed.
    due = max(read) * (2 if options.ahead == "fetch" else 1)
    return max(due, round(options.pool_ratio * sum(read))) + layers, due


def value_type(loaded: Loaded) -> ValueType:
    """The type of the model's KV."""
    for known in WIDTHS:
        if known == loaded.dtype:
            return known
    raise BadInput(
        f"blocks cannot hold {loaded.dtype}", "--dtype", f"choose one of {', '.join(WIDTHS)}"
    )
