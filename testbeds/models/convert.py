"""A GGUF file as a folder in Hugging Face's format: dequantized once, and kept.

Weights are written tensor by tensor, in float32: the type in which every quantization is exact, and
memory for one tensor is enough. The tokenizer is transformers' own reading of the file.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput, Missing, OffstageError, RunFailed
from offstage.bindings.units import format_size
from offstage.host.model.identity import digest_of
from offstage.testbeds.cache import locked, whole
from offstage.testbeds.models.gguf_file import Gguf, read, shards_of
from offstage.testbeds.models.kept import Marker, believed, mark, models_folder
from offstage.testbeds.models.library import LOCAL, attempt, library
from offstage.testbeds.progress import Progress

__all__ = ["convert", "folder_of"]

FLOAT_BYTES = 4
# Byte-level rules that llama.cpp names and transformers has not: digits one by one, then GPT-2's.
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
GPT2 = ("gpt-2", "phi-2", "jais", "mpt", "olmo", "trillion")


def folder_of(path: Path, progress: Progress) -> Path:
    """The folder of a GGUF file in the cache, made now if it is not there or of another version."""
    paths = shards_of(path)
    if any(one.suffix != ".gguf" for one in paths):
        raise BadInput("not a GGUF file by its name", str(path), "give a *.gguf or a folder")
    source = digest_of(paths, str(path)).digest
    folder = models_folder() / f"{path.name.removesuffix('.gguf')}-{source[:12]}"
    if not _is_there(folder, source):
        with locked(folder):
            if not _is_there(folder, source):
                convert(paths, folder, source, progress)
    return folder


def convert(paths: tuple[Path, ...], folder: Path, source: str, progress: Progress) -> Marker:
    """Make the `locked` folder of these files. BadInput for no such model, RunFailed where the disk
    is full: nothing is left then."""
    transformers = library()
    found = read(paths)
    config = found.config()
    with whole(folder) as made:
        _check_room(found, made)
        progress.start("dequantize", len(found.shapes()), "tensors")
        (made / "config.json").write_text(json.dumps(config, indent=1))
        _write_weights(found, made / "model.safetensors", progress)
        _tokenizer(transformers, found).save_pretrained(made)
        marker = mark(made, source, found.parameters)
        progress.note(f"{format_size(marker.size_bytes)} in {folder}")
    return marker


def _is_there(folder: Path, source: str) -> bool:
    try:
        return believed(folder, "").source == source
    except OffstageError:
        return False


def _check_room(found: Gguf, folder: Path) -> None:
    needed = found.parameters * FLOAT_BYTES
    if (free := shutil.disk_usage(folder).free) < needed:
        raise RunFailed(
            f"{format_size(needed)} of weights, and {format_size(free)} free",
            str(folder.parent),
            "make room, or set OFFSTAGE_CACHE to another folder",
        )


def _write_weights(found: Gguf, path: Path, progress: Progress) -> None:
    """As safetensors: the length of a table, the table, then the numbers."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in found.shapes().items():
        begin, size = end, FLOAT_BYTES
        for one in shape:
            size *= one
        end += size
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name, values in found.weights():
            assert list(values.shape) == list(table[name]["shape"]), name
            file.write(values.data)
            progress.advance(1)


def _tokenizer(transformers: Any, found: Gguf) -> Any:
    from tokenizers import pre_tokenizers

    try:
        from transformers.integrations.gguf import gguf_tokenizer_mapping as theirs
    except ImportError:
        version = transformers.__version__
        problem = f"transformers {version} is too old for tokenizers of GGUF files"
        raise Missing("capture", problem, found.where) from None
    known = (*theirs.GGUF_PRE_TOKENIZER_SPLITS, *DIGITS, *GPT2)
    if found.byte_level and found.text_rules not in known:
        raise BadInput(
            f"its tokenizer splits text as {found.text_rules!r}, which is not known",
            found.where,
            "use the model's own folder in Hugging Face's format",
        )
    path = found.paths[0]
    options = {**LOCAL, "gguf_file": path.name}
    make = transformers.AutoTokenizer.from_pretrained
    tokenizer = attempt("the tokenizer", found.where, make, options, str(path.parent))
    if found.byte_level and found.text_rules in DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return tokenizer
