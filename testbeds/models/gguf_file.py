"""A GGUF file, or its shards: the configuration and the weights of a Hugging Face model.

The `gguf` package parses and dequantizes. What llama.cpp's converter did to the weights of an
architecture is undone here, and every tensor of the file must have its place: one that had none
would change the model without a word. The configuration has what the file says of heads and rotary
positions, which transformers reads in part. BadInput for a file that is cut short, a missing shard,
an architecture or numbers that are not known.
"""

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, Missing

__all__ = ["ARCHITECTURES", "Gguf", "read", "shards_of"]

AGAIN = "copy the file again"
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FACTORS = "rope_freqs.weight"
# Llama 3.1's own numbers: of its rotary type a file has the factors that come of them alone.
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# As llama.cpp has them, which writes neither: every sixth layer sees all, and only the largest
# model scales its queries by another number than its heads' width.
GEMMA_PERIOD, GEMMA_LOCAL_THETA, GEMMA_LARGEST = 6, 10_000.0, 62


@dataclass(frozen=True)
class Architecture:
    """Of a GGUF architecture: transformers' names, and those of a layer's tensors."""

    model_type: str
    causal: str
    layers: dict[str, str]


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", LAYERS),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", LAYERS),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", LAYERS | NORMS),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", LAYERS | NORMS | GEMMA),
}


def shards_of(path: Path) -> tuple[Path, ...]:
    """All files of a model of which one is given. BadInput for a shard that is not there."""
    found = SHARD.fullmatch(path.name)
    if found is None:
        return (path,)
    count = int(found["count"])
    names = (f"{found['stem']}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1))
    paths = tuple(path.with_name(name) for name in names)
    if missing := [one.name for one in paths if not one.is_file()]:
        raise BadInput(
            f"{len(missing)} of its {count} shards are missing, first {missing[0]}",
            str(path),
            "put all shards into one folder",
        )
    return paths


def read(paths: tuple[Path, ...]) -> "Gguf":
    """The model of these files. Missing without the `gguf` package, BadInput for no such model."""
    if importlib.util.find_spec("gguf") is None:
        raise Missing("capture", "gguf is not installed", str(paths[0]))
    from gguf import GGUFReader

    class Whole(GGUFReader):  # type: ignore[misc]
        """Without it the length of an array of bytes may be any number, and reading has no end."""

        def _get(self, offset: int, dtype: Any, count: int = 1, **more: Any) -> Any:
            found = super()._get(offset, dtype, count, **more)
            if len(found) < count:
                raise ValueError("it ends early")
            return found

    readers = []
    for path in paths:
        try:
            readers.append(Whole(path))
        except Exception as error:  # its reader checks no bound: a short file fails anywhere
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise BadInput(f"not a whole GGUF file: {reason}", str(path), AGAIN) from None
    found = Gguf(paths, readers)
    found.check()
    return found


class Gguf:
    """What `read` found. The files stay mapped; a tensor is read when it is asked for."""

    def __init__(self, paths: tuple[Path, ...], readers: list[Any]) -> None:
        self.paths = paths
        self.where = str(paths[0])
        self._fields = readers[0].fields
        self.tensors = {one.name: one for reader in readers for one in reader.tensors}
        name = str(self._get("general.architecture", ""))
        if name not in ARCHITECTURES:
            raise self._bad(
                f"GGUF architecture {name!r} is not supported",
                f"supported are {', '.join(ARCHITECTURES)}",
            )
        self.architecture = ARCHITECTURES[name]
        self._name = name
        self.tokenizer_tokens = self._length("tokenizer.ggml.tokens")
        self.text_rules = str(self._get("tokenizer.ggml.pre", ""))
        """How text is split before byte-level merges, by llama.cpp's name."""
        self.byte_level = self._get("tokenizer.ggml.model", "") == "gpt2"

    @property
    def parameters(self) -> int:
        """Numbers of all weights."""
        return sum(int(one.n_elements) for one in self.tensors.values())

    def check(self) -> None:
        """BadInput for tensors without a place or a known quantization, a missing tokenizer, and
        one that is not the model's."""
        expected = self._get("split.tensors.count", len(self.tensors))
        if expected != len(self.tensors):
            raise self._bad(f"{len(self.tensors)} tensors of {expected} in its shards")
        if self.architecture.model_type != "llama" and ROPE_FACTORS in self.tensors:
            raise self._bad(f"{ROPE_FACTORS} in a model of {self._name}")
        names = [name for name in self.tensors if name != ROPE_FACTORS]
        if strange := [name for name in names if self._place(name) is None]:
            raise self._bad(
                f"{len(strange)} tensors have no place in {self._name}, first {strange[0]}",
                "use a model of plain attention and MLPs",
            )
        if "token_embd.weight" not in self.tensors:
            raise self._bad("no token_embd.weight")
        if not self.tokenizer_tokens:
            raise self._bad("no tokenizer in it", "use a file that was converted with one")
        if self.tokenizer_tokens != self._vocabulary:
            raise self._bad(
                f"its tokenizer has {self.tokenizer_tokens:,} tokens, the model's embedding "
                f"{self._vocabulary:,}",
                "use a file with the model's own tokenizer",
            )

    def config(self) -> dict[str, Any]:
        """As config.json."""
        heads, hidden = self._count("attention.head_count"), self._count("embedding_length")
        head_dim = self._count("attention.key_length", hidden // max(heads, 1))
        for name in ("attention.value_length", "rope.dimension_count"):
            if (width := self._count(name, head_dim)) != head_dim:
                raise self._bad(f"{name} is {width}, and a head's width {head_dim}", "use another")
        found: dict[str, Any] = {
            "architectures": [self.architecture.causal],
            "model_type": self.architecture.model_type,
            "vocab_size": self._vocabulary,
            "hidden_size": hidden,
            "intermediate_size": self._count("feed_forward_length"),
            "num_hidden_layers": self._count("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._count("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._count("context_length"),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "attention_bias": "blk.0.attn_q.bias" in self.tensors,
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "rope_parameters": self._rope(),
            "dtype": "float32",
        }
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            found[f"{name}_token_id"] = self._get(f"tokenizer.ggml.{key}_token_id", None)
        if self._name == "gemma3":
            found |= self._gemma(found)
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every weight, by transformers' name, in the order of `weights`."""
        return {
            str(self._place(name)): tuple(int(size) for size in reversed(one.shape))
            for name, one in self.tensors.items()
            if name != ROPE_FACTORS
        }

    def weights(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Every weight, by transformers' name, in float32."""
        for name in self.tensors:
            if name != ROPE_FACTORS:
                yield str(self._place(name)), self._restored(name, self._values(name))

    # ---- weights ----

    def _place(self, name: str) -> str | None:
        """transformers' name of a tensor."""
        if name in WHOLE:
            return WHOLE[name]
        found = LAYER.fullmatch(name)
        module = self.architecture.layers.get(found[2]) if found else None
        return f"model.layers.{found[1]}.{module}.{found[3]}" if found and module else None

    def _values(self, name: str) -> NDArray[np.float32]:
        from gguf import dequantize

        tensor = self.tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except RuntimeError:  # no such type there
            kind = tensor.tensor_type.name
            raise self._bad(
                f"the package gguf cannot dequantize {kind}, the type of {name}",
                "quantize it in another type",
            ) from None
        return np.ascontiguousarray(values, np.float32)

    def _restored(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """A tensor as transformers has it."""
        if self._name == "gemma3" and name.endswith("norm.weight"):
            return values - np.float32(1)
        found = LAYER.fullmatch(name)
        if self._name == "llama" and found and found[2] in ("attn_q", "attn_k"):
            # llama.cpp rotates neighbours, transformers the halves of a head.
            of = "attention.head_count" if found[2] == "attn_q" else "attention.head_count_kv"
            heads = self._count(of, self._count("attention.head_count"))
            halves = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        return values

    # ---- configuration ----

    def _gemma(self, found: dict[str, Any]) -> dict[str, Any]:
        layers, heads = found["num_hidden_layers"], found["num_attention_heads"]
        period = self._count("attention.sliding_window_pattern", GEMMA_PERIOD)
        whole = found["hidden_size"] // heads if layers == GEMMA_LARGEST else found["head_dim"]
        kinds = ("sliding_attention", "full_attention")
        local = self._number("rope.freq_base_swa", GEMMA_LOCAL_THETA)
        return {
            "sliding_window": self._count("attention.sliding_window"),
            "layer_types": [kinds[(layer + 1) % period == 0] for layer in range(layers)],
            "query_pre_attn_scalar": whole,
            "rope_parameters": {
                kinds[0]: {"rope_type": "default", "rope_theta": local},
                kinds[1]: found["rope_parameters"],
            },
        }

    def _rope(self) -> dict[str, Any]:
        """Rotary positions; BadInput for a type whose numbers the file does not have."""
        theta = self._number("rope.freq_base", 10_000.0)
        kind = self._get(f"{self._name}.rope.scaling.type", "none")
        if ROPE_FACTORS in self.tensors:
            return self._llama3(theta)
        if kind == "none":
            return {"rope_type": "default", "rope_theta": theta}
        if kind not in ("linear", "yarn"):
            raise self._bad(f"rotary positions of type {kind!r}", "use another model")
        found = {
            "rope_type": kind,
            "rope_theta": theta,
            "factor": self._number("rope.scaling.factor"),
        }
        if kind == "yarn":
            of = self._count("rope.scaling.original_context_length")
            found["original_max_position_embeddings"] = of
        return found

    def _llama3(self, theta: float) -> dict[str, Any]:
        """The rotary type of Llama 3.1, where the file's factors are those that it gives."""
        factors = self._values(ROPE_FACTORS)
        factor, old = round(float(factors.max()), 4), LLAMA3["original_max_position_embeddings"]
        low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
        turns = old / (2 * np.pi * theta ** (np.arange(len(factors)) / len(factors)))
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        if not np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
            raise self._bad(f"{ROPE_FACTORS} is not that of Llama 3.1", "use another model")
        return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, **LLAMA3}

    @property
    def _vocabulary(self) -> int:
        return int(self.tensors["token_embd.weight"].shape[-1])

    def _count(self, name: str, default: int | None = None) -> int:
        value = self._get(f"{self._name}.{name}", default)
        if type(value) is not int or value < 1:
            raise self._bad(f"{self._name}.{name} is {value!r}")
        return value

    def _number(self, name: str, default: float | None = None) -> float:
        """As a person writes it: files have numbers of 32 bits, of which 1e-5 is 9.99999975e-6."""
        value = self._get(f"{self._name}.{name}", default)
        if not isinstance(value, float) or not 0 < value < np.inf:
            raise self._bad(f"{self._name}.{name} is {value!r}")
        return float(str(np.float32(value)))

    def _get(self, key: str, default: Any) -> Any:
        field = self._fields.get(key)
        if field is None:
            return default
        try:
            return field.contents()
        except Exception:
            raise BadInput(f"{key} cannot be read", self.where, AGAIN) from None

    def _length(self, key: str) -> int:
        """Elements of an array."""
        field = self._fields.get(key)
        return 0 if field is None else len(field.data)

    def _bad(self, what: str, fix: str = AGAIN) -> BadInput:
        return BadInput(what, self.where, fix)
