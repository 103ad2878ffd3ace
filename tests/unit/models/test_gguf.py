"""Does a GGUF file give the model that was written, in every architecture and quantization?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_schema import checked
from tiny_ggufs import ARCHITECTURES, save_gguf

from offstage.bindings.errors import BadInput
from offstage.host.model.identity import digest_of
from offstage.testbeds.capture.model import Loaded, load, look
from offstage.testbeds.cli import run
from offstage.testbeds.models import convert
from offstage.testbeds.models.gguf_file import read
from offstage.testbeds.models.kept import MARKER, marker_of
from offstage.testbeds.models.resolve import resolve

Made = Callable[..., tuple[Path, Any]]
WORST = {"F32": 1e-7, "F16": 1e-3, "Q8_0": 0.01, "Q4_1": 0.15}
"""How far a weight may be from what was written, in each type; Gemma's norms are written plus 1."""


def logits(model: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(torch.tensor([[5, 6, 7, 80, 99, 100]])).logits.numpy()


@pytest.mark.parametrize("kind", WORST)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_those_that_were_written(architecture: str, kind: str, made: Made) -> None:
    """Weights and the model's outputs are as exact as the type allows."""
    path, model = made(architecture, kind)
    found = load(look(path))
    theirs, ours = model.state_dict(), found.model.state_dict()
    assert theirs.keys() == ours.keys()
    worst = max(float((theirs[name] - ours[name]).abs().max()) for name in theirs)
    assert worst <= WORST[kind]
    assert found.dtype == "float32"
    if kind == "F32":
        within = 1e-4 if architecture == "gemma3" else 0
        np.testing.assert_allclose(logits(found.model), logits(model), rtol=0, atol=within)


@pytest.mark.parametrize("kind", ["F16", "Q4_1"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_those_that_transformers_reads(
    architecture: str, kind: str, made: Made
) -> None:
    """Its own GGUF reader shares only the `gguf` package's numbers with ours."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path, model = made(architecture, kind)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    ours = load(look(path)).model.state_dict()
    assert set(theirs) >= set(ours) - {"lm_head.weight"}
    for name, values in theirs.items():
        np.testing.assert_array_equal(values.numpy(), ours[name].numpy(), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_computes_in_the_type_that_is_asked_for(dtype: str, made: Made) -> None:
    found = load(look(made("qwen3", "Q8_0")[0]), dtype=dtype)
    assert found.dtype == dtype and str(found.model.lm_head.weight.dtype) == f"torch.{dtype}"


def ids(found: Loaded, text: str) -> list[int]:
    result: list[int] = found.tokenizer(text)["input_ids"]
    return result


def test_the_tokenizer_is_that_of_the_file(made: Made) -> None:
    found = load(look(made("llama")[0]))
    tokens = ids(found, "the cat")
    assert found.tokenizer.convert_ids_to_tokens(tokens[:3]) == ["th", "e", "\u0120"]
    assert found.tokenizer.decode(tokens) == "the cat" and found.end_tokens == (2,)
    gemma = load(look(made("gemma3")[0]))
    assert gemma.tokenizer.convert_ids_to_tokens(ids(gemma, "cat"))[-3:] == ["c", "a", "t"]


def test_digits_are_split_as_smollm_splits_them(tmp_path: Path) -> None:
    """`2024` is four pieces before any merge, a split that transformers does not know."""
    path = tmp_path / "a.gguf"
    save_gguf(path, "llama", tokenizer__ggml__pre="smollm")
    split = load(look(path)).tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 2024")
    assert [piece for piece, _ in split] == ["in", "\u0120", "2", "0", "2", "4"]


def test_shards_are_one_model(made: Made, tmp_path: Path) -> None:
    """Any shard names the model, and its weights are those of the unsplit file."""
    save_gguf(tmp_path / "m.gguf", "llama", "Q8_0", shards=3)
    folders = {resolve(tmp_path / f"m-0000{number}-of-00003.gguf") for number in (1, 3)}
    whole = resolve(made("llama", "Q8_0")[0])
    weights = {digest_of([one / "model.safetensors"]).digest for one in (*folders, whole)}
    assert len(weights) == 1


def test_a_file_is_dequantized_once(
    made: Made, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy under another name has the same content, and the file is not converted twice."""
    path, _ = made("qwen2", "F16")
    folder = resolve(path)
    assert folder.parent == cache and folder.name.startswith("qwen2-F16-")
    copied = tmp_path / "other.gguf"
    copied.write_bytes(path.read_bytes())
    assert marker_of(resolve(copied), "").content == marker_of(folder, "").content
    monkeypatch.setattr(convert, "convert", None)
    assert resolve(path) == folder


@pytest.mark.parametrize("damage", ["marker", "version", "weights", "tokenizer"])
def test_a_folder_that_is_not_believed_is_made_again(damage: str, made: Made, cache: Path) -> None:
    folder = resolve(made("llama", "F16")[0])
    before = (folder / "model.safetensors").read_bytes()
    if damage == "marker":
        (folder / MARKER).unlink()
    elif damage == "version":
        text = (folder / MARKER).read_text()
        (folder / MARKER).write_text(text.replace('"version":1', '"version":0'))
    else:
        name = {"weights": "model.safetensors", "tokenizer": "tokenizer.json"}[damage]
        with (folder / name).open("ab") as file:
            file.write(b" ")
    again = resolve(made("llama", "F16")[0])
    assert again == folder and marker_of(folder, "").version == 1
    assert (folder / "model.safetensors").read_bytes() == before


def rope_of(path: Path, **fields: Any) -> dict[str, Any]:
    save_gguf(path, "llama", **fields)
    found: dict[str, Any] = read((path,)).config()["rope_parameters"]
    return found


def test_rotary_positions_are_those_of_the_file(tmp_path: Path) -> None:
    """The reader of transformers omits them."""
    yarn = rope_of(
        tmp_path / "a.gguf",
        llama__rope__scaling__type="yarn",
        llama__rope__scaling__factor=4.0,
        llama__rope__scaling__original_context_length=128,
    )
    assert yarn == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 8.0}
    assert rope_of(tmp_path / "b.gguf", **linear)["rope_type"] == "linear"
    with pytest.raises(BadInput, match="rotary positions of type 'longrope'"):
        rope_of(tmp_path / "c.gguf", llama__rope__scaling__type="longrope")


def test_rotary_factors_are_llama_3s_or_refused(made: Made, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=32, rope_parameters=rope)
    own, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** (-torch.arange(16) / 16)
    fields = {"llama__rope__freq_base": 500000.0}
    path = tmp_path / "a.gguf"
    save_gguf(path, "llama", rope_freqs=(plain / own).numpy(), **fields)
    assert read((path,)).config()["rope_parameters"] == rope
    save_gguf(path, "llama", rope_freqs=np.linspace(1, 9, 16, dtype=np.float32), **fields)
    with pytest.raises(BadInput, match=r"is not that of Llama 3\.1"):
        read((path,)).config()


def test_the_codec_bench_takes_what_model_takes_elsewhere(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GGUF file and a folder are read, each once, with the text that is given; a name that is
    none is one line, before any work."""
    monkeypatch.setattr("offstage.testbeds.bench.codec.SYNTHETIC_BLOCKS", 1)
    path, _ = made()
    text = tmp_path / "letters.txt"
    text.write_text("abcdefgh" * 40)
    models = ["--model", str(path), "--model", str(resolve(made("qwen3")[0]))]
    words = ["bench", "codec", "--tokens", "64", "--format", "json"]
    assert run([*words, *models, *models, "--text", str(text)]) == 0
    sources = checked("bench codec", capsys.readouterr().out)["sources"]
    assert [one["kind"] for one in sources] == ["synthetic", "model", "model"]
    assert {one.get("text", text.name) for one in sources} == {text.name}
    assert sources[1]["config_sha256"] != sources[2]["config_sha256"]
    assert run([*words, "--model", "no-such-model"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "no-such-model: no such folder, GGUF file or known model" in line
