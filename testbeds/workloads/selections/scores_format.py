"""What a file of block scores holds: its columns, and the header that goes with them.

One format serves captured and generated scores: `docs/reference/capture-format.md` is its
definition for others. This module owns names and types only; it opens no file.
"""

from typing import Annotated, Any, Literal

import msgspec

from offstage.bindings.errors import BadInput

__all__ = ["METADATA_KEY", "PLACE", "SCORES", "VERSION", "Header", "Session", "decode_header",
           "schema"]  # fmt: skip

VERSION = 1
METADATA_KEY = b"offstage"

PLACE = ("session", "step", "layer", "group", "blocks")
"""Columns that say where a row belongs, in the order in which rows are sorted."""

SCORES = ("mass", "quest", "mean_key")
"""Columns of scores, one value for each of the row's blocks; a file has one of them or more."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """One request that decodes.

    Two blocks hold the same where they have the same ordinal and the same name: `prefix` is the
    name of the first `prefix_tokens` tokens, `content` that of all behind them.
    """

    name: str
    mode: Literal["teacher", "free", "generated"]
    """teacher: the text goes on; free: the model's own tokens; generated: no model."""
    context_tokens: _Positive
    steps: _Positive
    """As planned. A file whose writing was ended early holds fewer."""
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
    """Of the model's configuration; empty where there is no model."""
    text_sha256: str
    """Of the text's bytes; empty where there is no text."""
    tokenizer: str
    dtype: str
    """What the model was run in."""
    synthetic: bool
    block_tokens: _Positive
    layer_count: Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]
    group_count: Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]
    """KV heads of a layer."""
    layers: tuple[_Count, ...]
    """The model's own number of each layer."""
    index_source: tuple[_Count, ...]
    """The layer whose selection each layer uses, counted as the column `layer` counts."""
    sessions: tuple[Session, ...]
    parameters: dict[str, Any] = {}
    """How it was made, for whoever makes it again."""


def schema(scores: tuple[str, ...], header: Header) -> Any:
    """The Arrow schema of a file with these columns of `SCORES`, the header in its metadata."""
    import pyarrow as pa

    place = (pa.uint32(), pa.int32(), pa.uint16(), pa.uint16(), pa.uint32())
    fields = [pa.field(name, kind, False) for name, kind in zip(PLACE, place, strict=True)]
    floats = pa.list_(pa.field("element", pa.float16(), False))
    fields += [pa.field(name, floats, False) for name in SCORES if name in scores]
    return pa.schema(fields, metadata={METADATA_KEY: msgspec.json.encode(header)})


def decode_header(raw: bytes | None, where: str) -> Header:
    """The header in a file's metadata. Raises BadInput, naming `where`, for what is none."""
    if raw is None:
        raise BadInput("this Parquet file has no header of Offstage", where, _MEND)
    try:
        known = msgspec.json.decode(raw, type=_Version)
        if known.version != VERSION:
            raise BadInput(
                f"format version {known.version}; this release reads version {VERSION}", where,
                "capture again, or use the release that wrote it",
            )  # fmt: skip
        header = msgspec.json.decode(raw, type=Header)
    except msgspec.MsgspecError as error:
        raise BadInput(f"the header cannot be read: {error}", where, _MEND) from None
    _check(header, where)
    return header


_MEND = "give a file that `offstage trace capture` or `offstage trace generate` wrote"


class _Version(msgspec.Struct):
    version: int


def _check(header: Header, where: str) -> None:
    """Relations between the header's fields that its types cannot say."""
    layers = header.layer_count
    problems = {
        f"{len(header.layers)} numbers of {layers} layers": len(header.layers) != layers,
        f"{len(header.index_source)} index sources of {layers} layers": (
            len(header.index_source) != layers
        ),
        "an index source that is behind its layer": any(
            source > layer for layer, source in enumerate(header.index_source)
        ),
        "no session": not header.sessions,
        "a context that is no whole number of blocks": any(
            one.context_tokens % header.block_tokens for one in header.sessions
        ),
        "a prefix longer than its context": any(
            one.prefix_tokens > one.context_tokens for one in header.sessions
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise BadInput(f"the header has {problem}", where, _MEND)
