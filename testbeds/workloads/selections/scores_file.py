"""A file of block scores: its columns, its header, and how it is read.

One format serves captured and generated scores: `docs/reference/capture-format.md` defines it for
others. This module owns names and types only; it opens no file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, needs
from offstage.bindings.outside import json_line

__all__ = [
    "COLUMNS",
    "METADATA_KEY",
    "POSITION",
    "PREDICTED",
    "SCORES",
    "VERSION",
    "Capture",
    "Header",
    "Held",
    "Session",
    "Step",
    "decode_header",
    "open_capture",
    "schema",
]

VERSION = 1
METADATA_KEY = b"offstage"

POSITION = ("session", "step", "layer", "group", "blocks")
"""Columns that locate a row, in the order in which rows are sorted."""

SCORES = ("mass", "quest", "mean_key")
"""Columns of scores, one value for each of the row's blocks; a file has at least one of them."""

PREDICTED = "foretold_"
"""Prefix of a score's name: the scores of a query predicted from the layer before. A file may have
such a column for each of its scores."""

COLUMNS = (*SCORES, *(PREDICTED + name for name in SCORES))

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """One request that decodes.

    Two blocks have the same content if they have the same ordinal and the same name: `prefix` is
    the name of the first `prefix_tokens` tokens, `content` that of all tokens after them.
    """

    name: str
    mode: Literal["teacher", "free", "generated"]
    """teacher: the given text; free: the model's tokens; generated: no model."""
    context_tokens: _Positive
    steps: _Positive
    """As planned. A file that was interrupted has fewer."""
    content: str
    prefix: str = ""
    prefix_tokens: _Count = 0
    turns: tuple[_Count, ...] = ()
    """Steps at which a new turn of the conversation begins."""
    group: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = -1
    arrival_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Header(msgspec.Struct, kw_only=True, frozen=True):
    """The file's metadata, JSON under the key `offstage`."""

    version: int = VERSION
    model: str
    config_sha256: str
    """Digest of the model's configuration; empty without a model."""
    text_sha256: str
    """Digest of the text's bytes; empty without a text."""
    tokenizer: str
    dtype: str
    """The dtype the model was run in."""
    synthetic: bool
    block_tokens: _Positive
    layer_count: Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]
    group_count: Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]
    """KV heads of a layer."""
    layers: tuple[_Count, ...]
    """The model's number for each layer."""
    index_source: tuple[_Count, ...]
    """The layer whose selection each layer uses, counted as the column `layer` counts."""
    sessions: tuple[Session, ...]
    parameters: dict[str, Any] = {}
    """The options it was made with, to repeat it."""


def schema(scores: tuple[str, ...]) -> Any:
    """The Arrow schema of a file with these columns of `COLUMNS`."""
    import pyarrow as pa

    position = (pa.uint32(), pa.int32(), pa.uint16(), pa.uint16(), pa.uint32())
    fields = [pa.field(name, kind, False) for name, kind in zip(POSITION, position, strict=True)]
    floats = pa.list_(pa.field("element", pa.float16(), False))
    fields += [pa.field(name, floats, False) for name in COLUMNS if name in scores]
    return pa.schema(fields)


def decode_header(raw: bytes | None, where: str) -> Header:
    """The header in a file's metadata. Raises BadInput, naming `where`, for an invalid one."""
    if raw is None:
        raise BadInput("this Parquet file has no Offstage header", where, _FIX)
    what = "the header cannot be read"
    known = json_line(msgspec.json.Decoder(_Version), raw, where, _FIX, what)
    if known.version != VERSION:
        raise BadInput(
            f"format version {known.version}; this release reads version {VERSION}",
            where,
            "capture again, or use the release that wrote it",
        )
    header = json_line(msgspec.json.Decoder(Header), raw, where, _FIX, what)
    _check(header, where)
    return header


_FIX = "give a file that `offstage trace capture` or `offstage trace generate` wrote"


class _Version(msgspec.Struct):
    version: int


def _check(header: Header, where: str) -> None:
    """Check relations between the header's fields that its types cannot express."""
    layers = header.layer_count
    problems = {
        f"{len(header.layers)} numbers of {layers} layers": len(header.layers) != layers,
        f"{len(header.index_source)} index sources of {layers} layers": (
            len(header.index_source) != layers
        ),
        "an index source that comes after its layer": any(
            source > layer for layer, source in enumerate(header.index_source)
        ),
        "no session": not header.sessions,
        "a context that is not a whole number of blocks": any(
            one.context_tokens % header.block_tokens for one in header.sessions
        ),
        "a prefix longer than its context": any(
            one.prefix_tokens > one.context_tokens for one in header.sessions
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise BadInput(f"the header has {problem}", where, _FIX)


# Reads a file of block scores, a row group at a time.
#
# `open_capture` checks everything but the scores: the header, the types, and that every step has a
# row for each layer and group, in order. `Capture.steps` then reads scores; it holds one row group
# (8 MiB as written here). Any deviation from `docs/reference/capture-format.md` is a BadInput that
# names the file and the problem.

_ROW_GROUP_BYTES_MAX = 1 << 30
_AGAIN = "capture again, or copy the file again"


@dataclass(frozen=True)
class Step:
    """One step of a session: `scores` are float16 `[layers, groups, blocks]`, finite."""

    step: int
    blocks: int
    scores: npt.NDArray[np.float16]


@dataclass
class Held:
    """The contents of one session in the file: `windows` of its prefill, then `steps`."""

    index: int
    """Its index in `Header.sessions`."""
    windows: int
    next_step: int
    row_groups: list[tuple[int, int, int]] = field(default_factory=list)
    """(number in the file, first step, steps)"""

    @property
    def steps(self) -> int:
        """Decode steps; they are numbered from 0."""
        return max(0, self.next_step)


class Capture:
    """An open file. `sessions`: those with at least one decode step, in order. `scores`: the ones
    of `SCORES` that it has; `predicted`: those for which it also has predictions."""

    def __init__(
        self, path: Path, file: Any, header: Header, scores: tuple[str, ...], held: list[Held]
    ) -> None:
        self.path = path
        self.header = header
        self.scores = tuple(name for name in scores if name in SCORES)
        self.predicted = tuple(name for name in self.scores if PREDICTED + name in scores)
        self.sessions = [one for one in held if one.steps]
        self._file = file

    def steps(self, session: int, score: str, first: int, last: int) -> Iterator[Step]:
        """Steps `[first, last)` of `sessions[session]`, in order; negative ones are the prefill's.

        Raises BadInput if the file has no such score, and for scores that are torn, not finite or
        not one per block.
        """
        if score not in self.scores and score.removeprefix(PREDICTED) not in self.predicted:
            have = ", ".join(self.scores)
            raise BadInput(f"no scores of {score!r}", str(self.path), f"it has {have}")
        for number, begins, count in self.sessions[session].row_groups:
            if begins + count > first and begins < last:
                for one in self._row_group(number, begins, score):
                    if first <= one.step < last:
                        yield one

    def _row_group(self, number: int, first: int, score: str) -> Iterator[Step]:
        import pyarrow as pa

        layers, groups = self.header.layer_count, self.header.group_count
        rows = layers * groups
        try:
            table = self._file.read_row_group(number, columns=["blocks", score]).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            problem = f"row group {number} cannot be read: {_first_line(error)}"
            raise BadInput(problem, str(self.path), _AGAIN) from None
        blocks = table["blocks"].to_numpy()
        lists = table[score].chunk(0)
        values = lists.flatten().to_numpy()
        if lists.null_count or not np.array_equal(np.diff(lists.offsets.to_numpy()), blocks):
            self._wrong(first, f"{score} has not one value for each block")
        if not np.isfinite(values).all():
            self._wrong(first, f"{score} has a value that is not finite")
        if score.removeprefix(PREDICTED) == "mass" and (values < 0).any():
            self._wrong(first, f"{score} has a value below 0")
        begin = 0
        for index in range(len(blocks) // rows):
            count = int(blocks[index * rows])
            end = begin + count * rows
            yield Step(first + index, count, values[begin:end].reshape(layers, groups, count))
            begin = end

    def _wrong(self, first: int, problem: str) -> None:
        raise BadInput(f"{problem} (steps from {first} on)", str(self.path), _AGAIN)


def open_capture(path: str | Path) -> Capture:
    """Opens and checks a file; reads no scores.

    Raises BadInput for a file that is missing, not Parquet, torn, without header or of an unknown
    version, that lacks a column or has one of another type, or whose rows are not in order.
    """
    path = Path(path)
    where = str(path)
    needs("pyarrow", "parquet", where)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise BadInput("no such file", where, "check the path") from None
    except (pa.ArrowException, OSError) as error:
        problem = f"not a whole Parquet file ({_first_line(error)})"
        raise BadInput(problem, where, _AGAIN) from None
    header = decode_header((file.metadata.metadata or {}).get(METADATA_KEY), where)
    scores = _check_schema(file.schema_arrow, where)
    held: list[Held] = []
    for number in range(file.num_row_groups):
        if file.metadata.row_group(number).total_byte_size > _ROW_GROUP_BYTES_MAX:
            raise BadInput(f"row group {number} is above 1 GiB", where, "write smaller row groups")
        try:
            position = file.read_row_group(number, columns=list(POSITION))
        except (pa.ArrowException, OSError) as error:
            problem = f"row group {number} cannot be read: {_first_line(error)}"
            raise BadInput(problem, where, _AGAIN) from None
        columns = {name: position[name].to_numpy().astype(np.int64) for name in POSITION}
        if columns["step"].size:
            _take(columns, number, header, held, where)
    if not any(one.steps for one in held):
        raise BadInput("has no decode step", where, "capture again")
    return Capture(path, file, header, scores, held)


def _check_schema(schema: Any, where: str) -> tuple[str, ...]:
    """The columns of scores in the file."""
    import pyarrow as pa

    position = (pa.uint32(), pa.int32(), pa.uint16(), pa.uint16(), pa.uint32())
    for name, kind in zip(POSITION, position, strict=True):
        if name not in schema.names:
            raise BadInput(f"column {name!r} is missing", where, _AGAIN)
        if schema.field(name).type != kind:
            found = schema.field(name).type
            raise BadInput(f"column {name!r} is {found} and not {kind}", where, _AGAIN)
    scores = tuple(name for name in COLUMNS if name in schema.names)
    if not set(scores) & set(SCORES):
        raise BadInput(f"none of the columns {', '.join(SCORES)}", where, _AGAIN)
    for name in scores:
        found = schema.field(name).type
        if not pa.types.is_list(found) or found.value_type != pa.float16():
            raise BadInput(f"column {name!r} is {found} and not list<halffloat>", where, _AGAIN)
    return scores


def _take(
    columns: dict[str, npt.NDArray[np.int64]],
    number: int,
    header: Header,
    held: list[Held],
    where: str,
) -> None:
    """Check the rows of one row group against those before, and enter them in `held`."""

    def wrong(problem: str) -> BadInput:
        return BadInput(f"row group {number}: {problem}", where, _AGAIN)

    layers, groups = header.layer_count, header.group_count
    rows = layers * groups
    steps = columns["step"].size // rows
    if columns["step"].size != steps * rows:
        raise wrong(f"{columns['step'].size} rows are not whole steps of {rows} rows")
    first = int(columns["step"][0])
    expected = {
        "session": np.full(steps * rows, columns["session"][0]),
        "step": np.repeat(first + np.arange(steps), rows),
        "layer": np.tile(np.repeat(np.arange(layers), groups), steps),
        "group": np.tile(np.arange(groups), steps * layers),
        "blocks": np.repeat(columns["blocks"][::rows], rows),
    }
    for name, values in expected.items():
        if not np.array_equal(columns[name], values):
            raise wrong(f"rows are out of order, or missing: see column {name!r}")
    session = int(columns["session"][0])
    if not held or held[-1].index != session:
        if session != len(held) or session >= len(header.sessions):
            raise wrong(f"session {session} is not the next of {len(header.sessions)}")
        if first > 0:
            raise wrong(f"session {session} begins with step {first}")
        held.append(Held(session, windows=-first, next_step=first))
    one = held[-1]
    if first != one.next_step:
        raise wrong(f"step {first} does not follow step {one.next_step - 1}")
    problem = _blocks_problem(columns["blocks"][::rows], first, header, session)
    if problem:
        raise wrong(problem)
    one.row_groups.append((number, first, steps))
    one.next_step = first + steps


def _blocks_problem(
    blocks: npt.NDArray[np.int64], first: int, header: Header, session: int
) -> str | None:
    """The problem with the number of blocks of consecutive steps; None if there is none."""
    context_blocks = header.sessions[session].context_tokens // header.block_tokens
    steps = np.arange(first, first + blocks.size)
    if steps[-1] >= header.sessions[session].steps:
        return f"session {session} has more steps than its header says"
    # Decode may or may not count the block that it is filling.
    full = context_blocks + steps // header.block_tokens
    good = np.where(steps < 0, (blocks > 0) & (blocks <= context_blocks), (blocks - full) // 2 == 0)
    if good.all():
        return None
    at = int(np.flatnonzero(~good)[0])
    return f"step {steps[at]} of session {session} has {blocks[at]} blocks"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
