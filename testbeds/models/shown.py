"""A model's cache as `offstage model show` prints it: its groups, and its bytes at several lengths.

Model: figures are exact in 16 bits; in fewer, `low` has bare values and `high` all scales that
published row layouts add (`host/model/formats.py`). States have types of their own and are counted
apart from the cache that grows.

What can fail: `BadInput` for an unknown name or format, and a file that describes no cache.
"""

from collections.abc import Iterable

import msgspec

from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.settings import check_known
from offstage.bindings.units import format_size
from offstage.host.model import formats
from offstage.host.model.formats import Stored
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.groups import CacheGroup, GroupKind, Life, Selected
from offstage.host.model.layer_kv import UNPUBLISHED
from offstage.host.model.models import caches
from offstage.testbeds.models.config_file import find_config, path_of, read_config
from offstage.testbeds.table import NOTHING, Cell, Column, Table

__all__ = [
    "KV_DTYPES",
    "ModelShown",
    "lengths_table",
    "lines",
    "model_named",
    "notes",
    "shown",
    "table",
]

KV_DTYPES = {"bf16": "fp16", "fp16": "fp16", "fp8": "fp8", "fp4": "fp4"}
"""What --kv-dtype takes, and the format that it is."""
LENGTHS = {"8K": 1 << 13, "32K": 1 << 15, "128K": 1 << 17, "256K": 1 << 18, "1M": 1 << 20}
"""Tokens of the sessions that are shown."""


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes: bare values, what is common, and with all that row layouts add."""

    low: float
    value: float
    high: float

    @classmethod
    def of(cls, stored: Stored) -> "Bytes":
        """The same as a struct."""
        return cls(low=stored.low, value=stored.value, high=stored.high)


class GroupShown(msgspec.Struct, frozen=True, kw_only=True):
    """One cache group. `entry`: bytes of one entry of one layer; `token`: what a token adds in all
    layers; `state_bytes`: of all layers. `window_tokens`, `top_k`: 0 where there is none;
    `top_k_published` false: it selects, and no source says how many."""

    kind: GroupKind
    layers: list[int]
    tokens_per_entry: int
    entry: Bytes
    token: Bytes
    state_bytes: int
    lives: Life
    window_tokens: int
    selected: Selected
    top_k: int
    top_k_published: bool
    granule_entries: int
    selectors: int
    resident: bool


class LengthShown(msgspec.Struct, frozen=True, kw_only=True):
    """A session of `tokens` tokens. `cache`: entries; `session`: with states; `read`: in one step,
    null where a selection is not published; `resident`: what every step reads whole."""

    length: str
    tokens: int
    beyond_context: bool
    cache: Bytes
    session: Bytes
    read: Bytes | None
    resident: Bytes


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """A model's cache. `context_tokens`: 0 where none is stated."""

    model: str
    source: str
    kv_dtype: str
    format: str
    layers: int
    context_tokens: int
    block_tokens: int
    token: Bytes
    state_bytes: int
    groups: list[GroupShown]
    lengths: list[LengthShown]


def model_named(name: str) -> KvGeometry:
    """A published model by name, or what a config.json describes: a path, a known model, an id in
    the local cache of Hugging Face."""
    known = caches()
    if name in known:
        return known[name]
    given = path_of(name)
    path = given if given.is_file() else find_config(name)
    if path is not None:
        return read_config(path, name)[0]
    last = name.rpartition("/")[2].lower()
    if last in known:
        return known[last]
    raise BadInput(f"no model or config.json {name!r}", "model", _meant(name, known))


def _meant(name: str, known: Iterable[str]) -> str:
    return f"{nearest(name, known)}; or give the path of a config.json"


def shown(shape: KvGeometry, kv_dtype: str) -> ModelShown:
    """The document. BadInput for a format that is not known."""
    check_known(kv_dtype, KV_DTYPES, "--kv-dtype", "format")
    dtype = KV_DTYPES[kv_dtype]
    token = formats.total([formats.growth(one, dtype) for one in shape.groups])
    return ModelShown(
        model=shape.name,
        source=shape.source,
        kv_dtype=kv_dtype,
        format=formats.SOURCES[dtype],
        layers=shape.layer_count,
        context_tokens=shape.context_tokens,
        block_tokens=shape.block_tokens,
        token=Bytes.of(token),
        state_bytes=shape.state_bytes,
        groups=[_group(one, dtype) for one in shape.groups],
        lengths=[_length(shape, dtype, word, tokens) for word, tokens in LENGTHS.items()],
    )


def _group(group: CacheGroup, dtype: str) -> GroupShown:
    return GroupShown(
        kind=group.kind,
        layers=list(group.layers),
        tokens_per_entry=group.tokens_per_entry,
        entry=Bytes.of(formats.entry_bytes(group, dtype)),
        token=Bytes.of(formats.growth(group, dtype)),
        state_bytes=group.state_bytes * group.layer_count,
        lives=group.lives,
        window_tokens=group.tokens_max,
        selected=group.selected,
        top_k=max(group.top_k, 0),
        top_k_published=group.top_k != UNPUBLISHED,
        granule_entries=group.granule_entries,
        selectors=group.selectors,
        resident=group.is_resident,
    )


def _length(shape: KvGeometry, dtype: str, word: str, tokens: int) -> LengthShown:
    parts = [(one, formats.held(one, dtype, tokens)) for one in shape.groups]
    steps = [formats.read(one, dtype, tokens) for one in shape.groups]
    told = [one for one in steps if one is not None]
    state = shape.state_bytes
    session = formats.total([held for _, held in parts])
    return LengthShown(
        length=word,
        tokens=tokens,
        beyond_context=0 < shape.context_tokens < tokens,
        cache=Bytes.of(Stored(*(one - state for one in session))),
        session=Bytes.of(session),
        read=Bytes.of(formats.total(told)) if len(told) == len(steps) else None,
        resident=Bytes.of(formats.total([held for one, held in parts if one.is_resident])),
    )


def table(found: ModelShown) -> Table:
    """A row for each group."""
    columns = [
        Column("group", left=True),
        Column("layers"),
        Column("entry", _size),
        Column("tokens an entry"),
        Column("a token", _size),
        Column("state", lambda state: format_size(state) if state else NOTHING),
        Column("kept", left=True),
        Column("a step reads", left=True),
        Column("must be resident", left=True),
    ]
    rows = [
        (
            one.kind,
            str(len(one.layers)),
            one.entry if one.entry.value else None,
            str(one.tokens_per_entry) if one.entry.value else None,
            one.token if one.token.value else None,
            one.state_bytes,
            f"{one.window_tokens:,} tokens" if one.window_tokens else f"with the {one.lives}",
            _selected(one),
            "yes" if one.resident else "no",
        )
        for one in found.groups
    ]
    return Table.of(columns, rows)


def _selected(group: GroupShown) -> str:
    """In words, what a step reads of a group."""
    if group.selected != "top-k":
        return "all"
    each, count = group.granule_entries, group.top_k
    best = f"{count // each:,} blocks of {each}" if each > 1 else f"top {count:,}"
    if not group.top_k_published:
        best = "some, not published"
    shared = "" if group.selectors == len(group.layers) else f", by {group.selectors} indexers"
    return best + shared


def lengths_table(found: ModelShown) -> Table:
    """A row for each length."""
    columns = [
        Column("session", left=True),
        Column("cache", _size),
        Column("a step reads", _size),
        Column("must be resident", _size),
    ]
    rows = [
        (Cell(f"{one.length}{' *' * one.beyond_context}"), one.cache, one.read, one.resident)
        for one in found.lengths
    ]
    return Table.of(columns, rows)


def lines(found: ModelShown) -> list[str]:
    """What a reader must know beside the tables."""
    context = f", context of {found.context_tokens:,} tokens" * bool(found.context_tokens)
    state = f", and a state of {format_size(found.state_bytes)} a session"
    return [
        f"{found.model}: {found.layers} layers{context}, values in {found.kv_dtype}",
        f"{_size(found.token)} a token{state * bool(found.state_bytes)}",
        f"source: {found.source}",
    ]


def notes(found: ModelShown) -> list[str]:
    """What stands below the tables."""
    said: list[str] = []
    if any(one.beyond_context for one in found.lengths):
        said.append(f"* longer than the model's context of {found.context_tokens:,} tokens")
    if any(one.read is None for one in found.lengths):
        said.append("how much a step reads is left out: no source says how many entries it selects")
    if all(one.resident for one in found.groups):
        said.append(
            "every step reads all of it: a tier holds it between turns, and during decode only "
            "with a selection of blocks, which approximates (host run --selector)"
        )
    return said


def _size(stored: Bytes) -> str:
    """Bytes, with their range where they have one."""
    middle = format_size(round(stored.value))
    if stored.low == stored.high:
        return middle
    return f"{middle} ({format_size(round(stored.low))} to {format_size(round(stored.high))})"
