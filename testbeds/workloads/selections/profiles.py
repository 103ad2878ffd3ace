"""Profiles: which score process drives each layer of a generated workload.

A process is a set of parameters with its origin (`processes.toml` next to this file, found with
`python -m offstage.testbeds.workloads.selections.fit`); a profile assigns one to every layer by
head class and depth. `process.TABLE` is the first fit, where the searches begin; this module has
the fits to several figures together. The workload's unit matters too: figures of tokens apply to
tokens, and for blocks use the process that was derived from them (`block_anchors.py`).

Read once, at import; immutable. An unknown profile is `BadInput`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import msgspec

from offstage.bindings.errors import BadInput, nearest
from offstage.host.model.score_process import ProcessParams
from offstage.testbeds.workloads.selections.field import Structure
from offstage.testbeds.workloads.selections.process import TABLE, band_of, layer_entries

__all__ = [
    "BLOCKS_FROM_TOKENS",
    "BLOCK_TOKENS",
    "CLUMP_TOKENS",
    "OF_CAPTURES",
    "PROCESSES",
    "PROFILES",
    "STRUCTURES",
    "Process",
    "layer_processes",
]


CLUMP_TOKENS = 16
"""Neighbouring tokens that share their slow part, for units smaller than this: as in the fit to
HiSparse (arXiv:2608.07009). A choice: no published figure fixes it."""

BLOCK_TOKENS = 64
"""Block size in tokens of the processes of blocks: the laboratory's default."""

BLOCKS_FROM_TOKENS = 32
"""Unit size in tokens from which the process of blocks applies. A choice: half its block size."""


@dataclass(frozen=True)
class Process:
    """One score process. `free`: the parameters that were searched; `fitted_to`: the anchors of
    `anchors.ANCHORS` or `derived.STATISTICS` that were targets; `compared_with`: others it is
    compared with. `start`: the entry of `process.TABLE` where the search began, which gives the
    parameters that are not free. `tokens`: the process of the blocks' tokens, or empty."""

    name: str
    about: str
    params: ProcessParams
    start: ProcessParams
    free: tuple[str, ...]
    fitted_to: tuple[str, ...]
    compared_with: tuple[str, ...]
    tokens: str = ""


class _Entry(msgspec.Struct):
    """A process in the file, but for the parameters that differ from those of `start`."""

    about: str
    start: tuple[str, str]
    free: tuple[str, ...]
    fitted_to: tuple[str, ...]
    compared_with: tuple[str, ...]
    tokens: str = ""


def _read() -> dict[str, Process]:
    path = Path(__file__).with_name("processes.toml")
    result = {}
    for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
        entry = msgspec.convert(row, _Entry)
        start = TABLE[entry.start].params
        changed = {key: row[key] for key in row if key not in _Entry.__struct_fields__}
        result[name] = Process(
            name,
            entry.about,
            replace(start, **changed),
            start,
            entry.free,
            entry.fitted_to,
            entry.compared_with,
            entry.tokens,
        )
    return result


PROCESSES: Mapping[str, Process] = MappingProxyType(_read())
"""Every process by name."""

PROFILES: Mapping[str, str] = MappingProxyType(
    {
        "published-mix": "published figures: 25 % scattered, hisparse or gvr, 75 % flexicache",
        "hisparse": "every layer as HiSparse measured them on average",
        "gvr": "every layer with the overlap of two steps of GVR's layers 20 to 60",
        "indexer": "of tokens: as GVR in layers 0, 1 and 20 to 60, as HiSparse's mean between them",
        "flexicache": "every layer as FlexiCache's stable heads",
        "pycode": "captures of one small trained model on Python source, and of nothing else",
        "smollm2": "captures of SmolLM2-135M on prose, code, chat and retrieval",
    }
)
"""The profiles a user may choose, with a description."""

OF_CAPTURES = ("pycode", "smollm2")
"""Profiles fitted to captures, in blocks of 16 tokens; the others were to published figures."""

_AS_CAPTURED = Structure(layers=0.75, neighbours=0.8)
"""No published figure gives the shared part of layers or neighbours. Chosen so that published-mix
has about that of the captures; `--explain` shows how far each profile is from them."""

STRUCTURES: Mapping[str, Structure] = MappingProxyType(
    {
        **dict.fromkeys(PROFILES, _AS_CAPTURED),
        "pycode": Structure(layers=0.744, neighbours=0.964),
        "smollm2": Structure(layers=0.996, neighbours=0.716),
    }
)
"""What layers and neighbours of a profile have in common."""

_WHOLE = {name: name for name in ("hisparse", "gvr", "flexicache", *OF_CAPTURES)}
_RETRIEVAL_BY_BAND = {"first": "scattered", "middle": "hisparse", "last": "gvr"}
_BLOCKS_OF = {process.tokens: name for name, process in PROCESSES.items() if process.tokens}


def layer_processes(profile: str, layers: int, unit_tokens: int) -> tuple[Process, ...]:
    """The process of each layer for units of that many tokens.

    Raises BadInput for an unknown profile."""
    if profile not in PROFILES:
        raise BadInput(f"unknown profile {profile!r}", "workload", nearest(profile, PROFILES))
    if profile in _WHOLE:
        names = [_WHOLE[profile]] * layers
    elif profile == "indexer":
        names = [_RETRIEVAL_BY_BAND[band_of(layer, layers)] for layer in range(layers)]
    else:
        names = [
            _RETRIEVAL_BY_BAND[entry.band] if entry.head_class == "retrieval" else "flexicache"
            for entry in layer_entries(layers)
        ]
    if unit_tokens >= BLOCKS_FROM_TOKENS:
        names = [_BLOCKS_OF.get(name, name) for name in names]
    return tuple(PROCESSES[name] for name in names)
