"""JSON from outside Offstage: a file, a line, an answer of a server.

Any defect raises a `BadInput` that says where: bytes that are not text, not JSON, nesting beyond
any bound, a number with thousands of digits, other keys or types than expected. All JSON from
outside is decoded here. Output of a program that Offstage started is not user input: a `RunFailed`.
"""

import json
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from offstage.bindings.errors import BadInput, RunFailed

__all__ = ["BYTES_MAX", "decode_json", "json_line", "last_line", "read_json", "said_json"]

T = TypeVar("T")

TOO_DEEP = "JSON nested beyond any bound"

BYTES_MAX = 1 << 28
"""Of a JSON file that is read whole."""


def json_line(
    decoder: "msgspec.json.Decoder[T]", raw: bytes, where: str, fix: str, what: str = ""
) -> T:
    """What a decoder makes of one line or file of which `where` says the place. BadInput, with the
    reason behind `what`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _bad(what, str(error), where, fix) from None
    except RecursionError:
        raise _bad(what, TOO_DEEP, where, fix) from None
    except (msgspec.DecodeError, ValueError) as error:  # also bytes that are no UTF-8
        raise _bad(what, f"not JSON ({error})", where, fix) from None


@overload
def decode_json(raw: bytes, where: str, fix: str, *, what: str = ...) -> Any: ...
@overload
def decode_json(raw: bytes, where: str, fix: str, kind: type[T], *, what: str = ...) -> T: ...
def decode_json(raw: bytes, where: str, fix: str, kind: Any = Any, *, what: str = "") -> Any:
    """The value of a JSON text, of type `kind` where one is given. BadInput names the line, with
    the reason behind `what`."""
    try:
        constant = None if kind is Any else _no_number
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=constant)
    except json.JSONDecodeError as error:
        reason = f"not JSON ({error.msg} at column {error.colno})"
        raise _bad(what, reason, f"{where}:{error.lineno}", fix) from None
    except RecursionError:
        raise _bad(what, TOO_DEEP, f"{where}:1", fix) from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _bad(what, f"not JSON (no UTF-8: {error.reason})", f"{where}:{line}", fix) from None
    except ValueError as error:  # a number of thousands of digits
        raise _bad(what, f"not JSON ({error})", where, fix) from None
    try:
        return value if kind is Any else msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _bad(what, str(error), where, fix) from None
    except RecursionError:
        raise _bad(what, TOO_DEEP, where, fix) from None


@overload
def read_json(path: Path, fix: str, *, what: str = ...) -> Any: ...
@overload
def read_json(
    path: Path, fix: str, kind: type[T], bytes_max: int = ..., *, what: str = ...
) -> T: ...
def read_json(
    path: Path, fix: str, kind: Any = Any, bytes_max: int = BYTES_MAX, *, what: str = ""
) -> Any:
    """As decode_json, of a file of at most `bytes_max` bytes. BadInput also where it cannot be
    read."""
    try:
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except FileNotFoundError:
        raise BadInput("no such file", str(path), fix) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"cannot be read ({reason})", str(path), fix) from None
    if len(raw) > bytes_max:
        raise BadInput(f"larger than {bytes_max:,} bytes", str(path), fix)
    return decode_json(raw, str(path), fix, kind, what=what)


@overload
def said_json(said: bytes | str, complaint: str, where: str, fix: str) -> dict[str, Any]: ...
@overload
def said_json(said: bytes | str, complaint: str, where: str, fix: str, kind: type[T]) -> T: ...
def said_json(
    said: bytes | str, complaint: str, where: str, fix: str, kind: Any = dict[str, Any]
) -> Any:
    """The JSON that a program printed, an object or a `kind`. RunFailed where it printed nothing,
    something else or more than BYTES_MAX, with the last line of its `complaint` on stderr."""
    raw = said.encode(errors="surrogateescape") if isinstance(said, str) else said
    reason = "it printed nothing" if not raw.strip() else ""
    if len(raw) > BYTES_MAX:
        reason = f"it says more than {BYTES_MAX:,} bytes"
    value: Any = None
    if not reason:
        try:
            value = decode_json(raw, where, fix, kind)
        except BadInput as bad:
            reason = f"what it says is {bad.what}: {raw[:80].decode(errors='replace').strip()!r}"
    if reason:
        raise RunFailed(f"{reason}; its last line on stderr: {last_line(complaint)}", where, fix)
    return value


def last_line(complaint: str) -> str:
    """The last line that a program wrote on stderr or into its log, which says why it ended."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _bad(what: str, reason: str, where: str, fix: str) -> BadInput:
    return BadInput(f"{what}: {reason}" if what else reason, where, fix)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
