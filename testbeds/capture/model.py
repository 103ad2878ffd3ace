"""A model and its tokenizer, by name, folder or file, checked before a long run begins.

Only the architectures in `ARCHITECTURES` are accepted, with rotary positions that do not depend on
how the context was fed in: those that decode from the tier. A capture takes fewer, those whose
attention is plain causal softmax over all tokens, with grouped query heads (`GROUPED`). Nothing is
downloaded, no code of the folder is run, and weights come from safetensors only. The folder and the
machine can fail: BadInput, Missing, one line each.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import decode_json
from offstage.host.model.config import geometry_of
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.capture.rope import Rope
from offstage.testbeds.models.library import AGAIN, LOCAL, attempt, library
from offstage.testbeds.models.resolve import resolve

__all__ = [
    "ARCHITECTURES",
    "GROUPED",
    "Loaded",
    "Shape",
    "load",
    "look",
    "prompt_tokens",
    "text_tokens",
]

GROUPED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "glm",
    "glm4",
    "glm4_moe",
    "gemma3_text",
)
"""Values of `model_type` in a config.json whose attention can be recorded; each is tested."""
RECURRENT = ("qwen3_next", "qwen3_5_text", "kimi_linear")
"""Those with layers that keep a state."""
ARCHITECTURES = (
    *GROUPED,
    *RECURRENT,
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "deepseek_v4",
)
"""Supported values of `model_type`; each is tested."""

# Rotary types whose frequencies depend on the length of a single input.
_ROPE_BY_LENGTH = ("dynamic", "longrope")

LAYERS_MAX = 1024
TEXT_BYTES_MAX = 1 << 28
"""Of a text; the longest context of any model is a few MiB of it."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_WITH_TOKENIZER = "copy tokenizer.json and the tokenizer's other files into the folder"
_UNQUANTIZED = "give the model in 16 or 32 bits, or as a GGUF file: quantized weights are not read"
_COUNTS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class Shape:
    """The relevant fields of config.json."""

    folder: Path
    name: str
    model_type: str
    layer_count: int
    group_count: int
    tokens_max: int
    vocabulary_size: int
    config_sha256: str
    cache: KvGeometry
    """What its layers keep; block size and number type are not the run's."""
    quantized: bool = False
    """Whether config.json names a quantization of the weights."""
    rope: Rope | None = None
    """The scaling of rotary positions that was asked for; None: the config's own."""

    @property
    def window_tokens(self) -> int | None:
        """The shortest window of its layers, in tokens; None without such layers."""
        windows = [one.window_tokens for one in self.cache.layers if one.window_tokens]
        return min(windows) if windows else None

    @property
    def top_k(self) -> int:
        """Tokens that the indexer of each layer selects in a step at most, compressed entries where
        `compresses`; 0: it has none."""
        layers = [one for one in self.cache.layers if one.has_entries]
        compressed = (one.top_k for one in layers if one.layout == "compressed")
        return max([layers[0].token_top_k, *compressed])

    @property
    def compresses(self) -> bool:
        """Whether layers keep an entry for several tokens, beside a window (DeepSeek-V4)."""
        return any(one.layout == "compressed" for one in self.cache.layers)

    @property
    def is_recurrent(self) -> bool:
        """Whether layers keep a state in the place of entries (Qwen3-Next, Kimi Linear)."""
        return any(one.form == "state" for one in self.cache.layers)

    @property
    def shares_selections(self) -> bool:
        """Whether layers read what the indexer of an earlier one selected (IndexShare)."""
        return any(one.selection_layer >= 0 for one in self.cache.layers)

    @property
    def chooses_itself(self) -> bool:
        """Whether the model says of every layer what a step reads."""
        return self.compresses or self.top_k > 0


@dataclass(frozen=True)
class Loaded:
    """A loaded model and its tokenizer."""

    shape: Shape
    model: Any
    tokenizer: Any
    dtype: str
    end_tokens: tuple[int, ...]


def look(model: str | Path, rope: Rope | None = None, accepted: Sequence[str] = GROUPED) -> Shape:
    """Read and check the configuration of a model, which is given as to `resolve`, and scale
    its rotary positions by `rope`; loads no weights. `accepted`: architectures.

    Raises Missing without torch and transformers, BadInput for a folder without a model, an
    unsupported architecture, positions that depend on the pieces in which a context is fed in, and
    what `geometry_of` refuses: kinds of layers that are not known, and windows out of range.
    """
    folder = resolve(model)
    where = str(folder)
    try:
        raw = (folder / "config.json").read_bytes()
    except FileNotFoundError:
        raise BadInput(
            "has no config.json", where, "give the folder of a model, or its GGUF file"
        ) from None
    except OSError as error:
        raise BadInput(f"config.json cannot be read: {error}", where, AGAIN) from None
    config = decode_json(raw, f"{where}/config.json", AGAIN, what="config.json cannot be read")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in accepted:
        known = ", ".join(accepted)
        raise BadInput(f"architecture {kind!r} is not supported", where, f"supported: {known}")
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and not 1 <= layers <= LAYERS_MAX:
        raise BadInput(f"{layers} layers", where, AGAIN)
    if kind in RECURRENT:  # the library would take two contradictory lists of layers
        geometry_of(config, folder.name, f"{where}/config.json")
    transformers = library()
    parsed = attempt("config.json", where, transformers.AutoConfig.from_pretrained, LOCAL)
    named = getattr(parsed, "rope_parameters", None) or {}
    for one in (named, *named.values()):  # of all layers, or of each kind
        if isinstance(one, dict) and one.get("rope_type") in _ROPE_BY_LENGTH:
            raise BadInput(
                f"rotary positions of type {one['rope_type']!r} depend on prefill chunks",
                where,
                "use a model with another type, such as yarn or llama3",
            )
    for name in _COUNTS:
        count = getattr(parsed, name, None)
        if type(count) is not int or count < 1:
            raise BadInput(f"{name} is {count!r} in config.json", where, AGAIN)
    cache = geometry_of(parsed.to_dict(), folder.name, f"{where}/config.json")
    _check_layers(cache, where)
    if rope is not None:
        rope.scale(parsed, where)
    return Shape(
        folder=folder,
        name=folder.resolve().name,
        model_type=str(kind),
        layer_count=parsed.num_hidden_layers,
        group_count=parsed.num_key_value_heads,
        tokens_max=parsed.max_position_embeddings,
        vocabulary_size=parsed.vocab_size,
        config_sha256=hashlib.sha256(raw).hexdigest(),
        cache=cache,
        quantized=bool(config.get("quantization_config")),
        rope=rope,
    )


def _check_layers(cache: KvGeometry, where: str) -> None:
    """BadInput for layers that do not decode from the tier. An indexer is in every layer or none,
    as the classes that have one make it."""
    stored = [number for number, layer in enumerate(cache.layers) if layer.has_entries]
    if not stored:
        raise BadInput(
            "every layer keeps a state, and none has KV that a tier could hold",
            f"{where}/config.json",
            "use a model of which some layers have full attention",
        )
    for number, layer in enumerate(cache.layers):
        if layer.form not in ("gqa", "mla", "window", "csa", "hca", "state"):
            raise BadInput(
                f"layer {number} keeps {layer.form}, which does not decode from the tier",
                f"{where}/config.json",
                "use a model of full, sliding, indexed, compressed and linear attention alone",
            )
        if layer.has_entries and layer.token_top_k != cache.layers[stored[0]].token_top_k:
            raise BadInput(
                f"of layers {stored[0]} and {number} one has an indexer, and the other has none",
                f"{where}/config.json",
                "write indexed_attention for every layer in layer_types",
            )


def load(shape: Shape, device: str = "cpu", dtype: str = "auto") -> Loaded:
    """Load tokenizer and weights onto `device`, in `dtype` ("auto": as stored).

    Raises Missing without torch and transformers, BadInput for a folder without a tokenizer or
    safetensors, incomplete weights, and a missing device.
    """
    transformers = library()
    import torch

    where = str(shape.folder)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput("torch finds no CUDA device", "--device", "use --device cpu")
    if not list(shape.folder.glob("*.safetensors")):
        raise BadInput("has no *.safetensors", where, "convert the model's weights")
    tokenizer = attempt("the tokenizer", where, transformers.AutoTokenizer.from_pretrained, LOCAL)
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:  # of a folder without its files
        raise BadInput("its tokenizer makes no token of a letter", where, _WITH_TOKENIZER)
    options = {
        **LOCAL,
        "dtype": dtype if dtype == "auto" else getattr(torch, dtype),
        "use_safetensors": True,
        "ignore_mismatched_sizes": True,  # reported below
        "output_loading_info": True,
    }
    if shape.rope is not None:
        config = attempt("config.json", where, transformers.AutoConfig.from_pretrained, LOCAL)
        shape.rope.scale(config, where)
        options["config"] = config
    load_weights = transformers.AutoModelForCausalLM.from_pretrained
    model, found = attempt("the model", where, load_weights, options, fix=_fix(shape))
    _check_weights(shape, model.config, found)
    try:
        model = model.eval().requires_grad_(False).to(device)
    except torch.OutOfMemoryError:
        raise RunFailed("the model does not fit", device, "use --device cpu") from None
    ends = model.generation_config.eos_token_id
    ends = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
    return Loaded(shape, model, tokenizer, str(model.dtype).removeprefix("torch."), ends)


def _fix(shape: Shape) -> str:
    """What helps where the weights cannot be loaded."""
    return _UNQUANTIZED if shape.quantized else AGAIN


def _check_weights(shape: Shape, config: Any, found: dict[str, Any]) -> None:
    """BadInput for weights that the model lacks, that have another shape, or that it has no place
    for: such a folder is of another model than its config.json says. Layers that draft are none of
    the model's."""
    where = str(shape.folder)
    problems = {name: "missing" for name in found["missing_keys"]}
    for name, stored, wanted in found["mismatched_keys"]:
        problems[name] = f"{_shape(stored)} in the file, {_shape(wanted)} by config.json"
    if problems:
        first = min(problems)
        problem = (
            f"weights are missing or of another shape, first {first} ({problems[first]}), "
            f"{len(problems)} in all"
        )
        raise BadInput(problem, where, AGAIN)
    drafts = getattr(config, "num_nextn_predict_layers", None) or 0
    drafting = range(shape.layer_count, shape.layer_count + drafts)
    left = []
    for name in found["unexpected_keys"]:
        layer = _LAYER.match(name)
        if layer is None or int(layer[1]) not in drafting:
            left.append(name)
    if left:
        raise BadInput(
            f"weights that the model has no place for, first {min(left)}, {len(left)} in all",
            where,
            f"give the config.json of these weights; this one is of {shape.layer_count} layers of "
            f"{shape.model_type}",
        )


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def text_tokens(loaded: Loaded, path: Path) -> tuple[list[int], str]:
    """The text's token ids, with the tokenizer's prefix, and the SHA-256 of its bytes.

    Raises BadInput for a file that is unreadable, not UTF-8, or has tokens that the model lacks.
    """
    raw, text = _text(path)
    ids = _ids(loaded, text)
    return ids, hashlib.sha256(raw).hexdigest()


def prompt_tokens(
    loaded: Loaded, path: Path, question: str, block_tokens: int, steps: int
) -> list[int]:
    """A document and a question about it as the model's chat template has it, in whole blocks: as
    many of the document's last tokens are left out. Raises as `text_tokens`, and BadInput where the
    prompt is shorter than a block, or leaves the model no room for `steps` tokens."""
    _, text = _text(path)
    document, ask = text.rstrip(), f"\n\n{question}"
    tokenizer = loaded.tokenizer
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": document + ask}]
        shown = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        begin, _, end = shown.rpartition(ask)
        document, ask = begin, ask + end
    head = _ids(loaded, document, special=tokenizer.chat_template is None)
    tail = _ids(loaded, ask, special=False)
    over = (len(head) + len(tail)) % block_tokens
    if over > len(head):
        raise BadInput(
            f"a document of {len(head)} tokens", str(path), f"give one of {block_tokens} or more"
        )
    found = head[: len(head) - over] + tail
    shape = loaded.shape
    room = shape.tokens_max - steps
    if len(found) > room:
        raise BadInput(
            f"a prompt of {len(found):,} tokens and an answer of {steps}, but the model has room "
            f"for {max(room, 0):,} of prompt",
            str(path),
            "give a shorter --text, or a model with a longer context",
        )
    return found


def _text(path: Path) -> tuple[bytes, str]:
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
        text = raw.decode("utf-8") if len(raw) <= TEXT_BYTES_MAX else ""
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise BadInput(reason, str(path), "give a text file") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8 at byte {error.start}", str(path), "give a text file") from None
    if len(raw) > TEXT_BYTES_MAX:
        raise BadInput(f"longer than {TEXT_BYTES_MAX >> 20} MiB", str(path), "give a shorter text")
    if not text.strip():
        raise BadInput("is empty", str(path), "give a text file")
    return raw, text


def _ids(loaded: Loaded, text: str, *, special: bool = True) -> list[int]:
    ids: list[int] = loaded.tokenizer(text, add_special_tokens=special)["input_ids"]
    if ids and max(ids) >= loaded.shape.vocabulary_size:
        raise BadInput(
            f"the tokenizer gives token {max(ids)}, the model has {loaded.shape.vocabulary_size}",
            str(loaded.shape.folder),
            "use the model's own tokenizer",
        )
    return ids
