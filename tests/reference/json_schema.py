"""A JSON Schema (draft 2020-12) of what a type is written as.

The types are those that the writers fill: structs of msgspec, dataclasses and typed dictionaries.
An object has the keys that its type has, and no others; a key is required unless the type says that
it may be left out.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NotRequired, is_typeddict

import msgspec

from offstage.testbeds.document import SCHEMA_VERSION

Schema = dict[str, Any]
Fields = Iterator[tuple[str, Any, bool]]
"""Key, type, whether it is always there."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCALARS: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


def document(title: str, *kinds: Any, texts: Mapping[type, Mapping[str, str]]) -> Schema:
    """The schema of a document that is one of `kinds`, each an object with `schema_version`. A
    mapping has its keys beside it. `texts`: what the keys of a type mean."""
    made = _Maker(texts)
    tops = [_versioned(made.top(kind)) for kind in kinds]
    head: Schema = {"$schema": DRAFT, "title": title}
    head |= tops[0] if len(tops) == 1 else {"anyOf": tops}
    return head | ({"$defs": dict(sorted(made.defs.items()))} if made.defs else {})


def _versioned(top: Schema) -> Schema:
    required = ["schema_version", *top.get("required", [])]
    own = {"schema_version": {"const": SCHEMA_VERSION}, **top.get("properties", {})}
    return top | {"properties": own, "required": required}


class _Maker:
    """Makes the schemas of one document; objects that others hold are in `defs` by name."""

    def __init__(self, texts: Mapping[type, Mapping[str, str]]) -> None:
        self.defs: dict[str, Schema] = {}
        self._texts = texts
        self._names: dict[str, type] = {}

    def top(self, kind: Any) -> Schema:
        """The schema itself, not a reference to it."""
        return self._object(kind) if _is_object(kind) else self.of(kind)

    def of(self, kind: Any) -> Schema:
        """The schema of any type that a document may hold."""
        kind = getattr(kind, "__value__", kind)
        if kind in SCALARS:
            return SCALARS[kind]
        if _is_object(kind):
            return self._reference(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [one.value for one in kind]}
        origin, given = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated or origin is NotRequired:
            return self.of(given[0])
        if origin is Literal:
            return {"enum": list(given)}
        if origin in (typing.Union, types.UnionType):
            parts = [self.of(one) for one in given if one is not msgspec.UnsetType]
            return parts[0] if len(parts) == 1 else {"anyOf": parts}
        if origin is tuple and given[-1] is not Ellipsis:
            items = [self.of(one) for one in given]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(given[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(given[1])}
        raise TypeError(f"no schema for {kind}")

    def _reference(self, kind: type) -> Schema:
        name = kind.__name__.removeprefix("_")
        if self._names.setdefault(name, kind) is not kind:
            name = f"{kind.__module__.rpartition('.')[2]}.{name}"
        if self._names.setdefault(name, kind) is not kind:
            raise TypeError(f"two types are called {name}")
        if name not in self.defs:
            self.defs[name] = {}  # it may hold itself
            self.defs[name] = self._object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, kind: type) -> Schema:
        texts = self._texts.get(kind, {})
        found = list(_fields(kind))
        said = inspect.getdoc(kind) or ""
        return {
            "description": " ".join(said.split("\n\n")[0].split()),
            "type": "object",
            "properties": {
                key: ({"description": texts[key]} if key in texts else {}) | self.of(one)
                for key, one, _ in found
            },
            "required": [key for key, _, always in found if always],
            "additionalProperties": False,
        }


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_typeddict(kind)
    )


def _fields(kind: Any) -> Fields:
    if is_typeddict(kind):
        for key, one in typing.get_type_hints(kind).items():
            yield key, one, key in kind.__required_keys__
    elif dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            yield field.name, hints[field.name], field.default is not msgspec.UNSET
    else:
        omits = kind.__struct_config__.omit_defaults
        for one in msgspec.structs.fields(kind):
            always = one.required or (not omits and one.default is not msgspec.UNSET)
            yield one.encode_name, one.type, always


def with_more(kind: Any, name: str = "", /, **more: Any) -> Any:
    """The type with further keys, as a command adds them to a struct; `NotRequired[...]`: some
    documents lack it."""
    return _kept(name or kind.__name__, kind.__doc__, _fields(kind), more)


def only(kind: Any, keys: Sequence[str], name: str) -> Any:
    """The type with these of its keys alone."""
    found = {key: (key, one, always) for key, one, always in _fields(kind)}
    return _kept(name, kind.__doc__, [found[key] for key in keys], {})


def flattened(kind: Any, *parts: Any) -> Any:
    """The type with the keys of `parts` in place of the fields that hold them; such keys may be
    absent where the field may hold none."""
    found: list[tuple[str, Any, bool]] = []
    for key, one, always in _fields(kind):
        part = next((part for part in parts if one in (part, part | None)), None)
        inner = [(key, one, always)] if part is None else _fields(part)
        found += [(key, own, had and one in (part, own)) for key, own, had in inner]
    return _kept(kind.__name__, kind.__doc__, found, {})


def typed(name: str, text: str, keys: dict[str, Any]) -> Any:
    """A type of these keys; `text`: what it is."""
    made: Any = typing.TypedDict(name, keys)
    made.__doc__ = text
    return made


def _kept(
    name: str, text: str, fields: Iterable[tuple[str, Any, bool]], more: dict[str, Any]
) -> Any:
    keys = {key: one if always else NotRequired[one] for key, one, always in fields}
    return typed(name, text, keys | more)
