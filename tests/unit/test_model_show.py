"""Does `offstage model show` say what a model keeps, and refuse what is none in one line?"""

import json
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked

from offstage.testbeds.cli import run

K, M = 1 << 10, 1 << 20
V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163_840,
}


def written(folder: Path, text: Any) -> Path:
    path = folder / "config.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The document, which is what its schema says."""
    capsys.readouterr()
    assert run(["model", "show", *words, "--format", "json"]) == 0
    return checked("model show", capsys.readouterr().out)


def test_a_file_a_folder_and_a_name_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, V3)
    for one in (str(path), str(tmp_path), "deepseek-v3", "DeepSeek-V3", "deepseek-ai/DeepSeek-V3"):
        found = shown(capsys, one)
        assert found["token"]["value"] == 70_272 and found["state_bytes"] == 0
        assert [group["kind"] for group in found["groups"]] == ["latent"]
        lengths = {row["length"]: row["cache"]["value"] for row in found["lengths"]}
        sizes = {"8K": 8 * K, "32K": 32 * K, "128K": 128 * K, "256K": 256 * K, "1M": M}
        assert lengths == {word: tokens * 70_272 for word, tokens in sizes.items()}


def test_an_id_is_looked_up_in_the_cache_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own config.json comes before a published model of that name."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--deepseek-ai--DeepSeek-V3/snapshots/abc"
    folder.mkdir(parents=True)
    written(folder, V3 | {"num_hidden_layers": 2})
    assert shown(capsys, "deepseek-ai/deepseek-v3")["layers"] == 2


def test_what_a_step_reads_and_what_must_be_resident(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3.2 at 1M: 2,048 latents of each layer and all keys are read, the keys resident."""
    *_, longest = shown(capsys, "deepseek-v3.2")["lengths"]
    assert longest["resident"]["value"] == 61 * 128 * 2 * M
    assert longest["read"]["value"] == 61 * (2048 * 576 + 128 * M) * 2
    assert longest["cache"] == longest["session"]


def test_a_selection_that_is_not_published_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """And the state stands beside the cache."""
    found = shown(capsys, "deepseek-v4-pro")
    assert [row["read"] for row in found["lengths"]] == [None] * 5
    for row in found["lengths"]:
        assert row["session"]["value"] - row["cache"]["value"] == found["state_bytes"] == 18_710_528
    published = [group["top_k_published"] for group in found["groups"]]
    assert published.count(False) == 1


def test_a_length_beyond_the_context_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, str(written(tmp_path, V3)))
    assert [row["beyond_context"] for row in found["lengths"]] == [False] * 3 + [True] * 2
    assert run(["model", "show", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert not any(row["beyond_context"] for row in shown(capsys, "glm-5.2")["lengths"])
    assert "256K *" in text and "128K *" not in text and "163,840 tokens" in text


def test_a_format_changes_values_and_no_state(capsys: pytest.CaptureFixture[str]) -> None:
    """bf16 and fp16 are one size; fewer bits have a range."""
    wide, same = (
        shown(capsys, "deepseek-v4-pro"),
        shown(capsys, "deepseek-v4-pro", "--kv-dtype", "fp16"),
    )
    few = shown(capsys, "deepseek-v4-pro", "--kv-dtype", "fp8")
    assert wide["lengths"] == same["lengths"] and wide["state_bytes"] == few["state_bytes"]
    assert few["token"]["low"] < few["token"]["value"] <= few["token"]["high"]
    assert few["token"]["value"] == 30 * (584 + 68) / 4 + 31 * 584 / 128


def test_the_text_says_it_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["model", "show", "glm-5.2"]) == 0
    text = capsys.readouterr().out
    assert "93 KiB a token" in text and "top 2,048, by 21 indexers" in text
    assert run(["model", "show", "deepseek-v4-pro"]) == 0
    text = capsys.readouterr().out
    assert "9.617 KiB a token, and a state of 17.84 MiB a session" in text
    assert "some, not published" in text and "128 tokens" in text and "9.625 GiB" in text
    assert run(["model", "show", "llama-3-8b"]) == 0
    assert "with a selection of blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("no", "not JSON"),
        ("[]", "not a model's config.json"),
        ("[" * 100_000, "nested"),
        (V3 | {"layer_types": ["full_attention"] * 60 + ["x"]}, "layer_types has 'x'"),
        (V3 | {"num_hidden_layers": "many"}, "no whole number num_hidden_layers"),
    ],
)
def test_a_file_that_is_none_is_one_line(
    text: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its path and exit code 2."""
    assert run(["model", "show", str(written(tmp_path, text))]) == 2
    out, line = capsys.readouterr()
    assert not out and line.count("\n") == 1
    assert says in line and "config.json" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("deepseek-v33",), "did you mean 'deepseek-v3'"),
        (("nobody/knows-this",), "or give the path of a config.json"),
        (("~nobody-here/config.json",), "no model or config.json"),
        (("deepseek-v3", "--kv-dtype", "int3"), "choose one of bf16, fp16, fp8, fp4"),
    ],
)
def test_a_name_that_is_none_is_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["model", "show", *words]) == 2
    out, line = capsys.readouterr()
    assert not out and line.count("\n") == 1 and says in line
