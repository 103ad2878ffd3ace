"""Messages of the control socket, built by reflection: each kind with values that decode, and with
values that are invalid for each field."""

from collections.abc import Iterator
from typing import Any

import msgspec

from offstage.dpu import protocol as p

NO_UTF8 = msgspec.Raw(b"\xa3\xff\xfe\xfd")
TEXTS = (
    "",
    "a\0b",
    "a\nb\x1b[31m",
    "x" * 10_000,
    "../../etc/passwd",
    "nan",
    "-1",
    "1e999",
    "ä" * 300,
)
NO_PATHS = [one for one in TEXTS if one not in ("nan", "-1", "1e999")]  # which would be made
WRONG = (
    *TEXTS,
    NO_UTF8,
    None,
    True,
    0,
    7,
    -1,
    -(2**63),
    2**31,
    2**63,
    2**64 - 1,
    1.5,
    float("nan"),
    b"",
    b"\0",
    bytes(16),
    bytes(32),
    b"x" * 10_000,
    [],
    [[]],
    ["a\0b"],
    [-1],
    [2**64 - 1],
    {},
    {"a\0b": "c"},
    {"x" * 10_000: "c"},
    {"path": 1},
    {1: "c"},
)
GOOD: dict[str, Any] = {
    "versions": [1],
    "name": "host",
    "tenant": "absent",
    "nonce": bytes(16),
    "proof": bytes(32),
    "blob": b"",
    "select_blocks": 8,
    "session": 0,
    "contents": [],
    "generating": True,
    "incarnation": 1,
    "to": "dpu1",
    "to_incarnation": 1,
    "fabric": "shm",
    "changes": {},
}
"""What a message needs, that is not its default."""


def fields_of(kind: type[Any]) -> dict[str, Any]:
    """A message of this kind that decodes."""
    given = {"type": kind.__name__, "id": 1}
    for one in msgspec.structs.fields(kind):
        if one.required:
            given[one.name] = GOOD[one.name]
    p.decode_request(msgspec.msgpack.encode(given))
    return given


def wrong_ones(kind: type[Any]) -> Iterator[dict[Any, Any]]:
    good = fields_of(kind)
    for one in msgspec.structs.fields(kind):
        yield from ({**good, one.name: value} for value in WRONG)
    yield from ({**good, key: "c"} for key in ("more", "a\0b", 1, ""))
    yield {name: value for name, value in good.items() if name == "type"} | {"type": "a\0b"}
