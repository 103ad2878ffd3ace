"""The one configuration stack: how settings are declared, set, parsed, refused and shown.

Model: a table of settings is a msgspec struct. A field's type carries its choices (`Literal`), and,
by `within` and `about`, its bounds and its help. `Size`, `Time`, `Rate` and `Price` are numbers
written with their unit. A field's key in TOML is its name without the unit (`size_bytes` is written
`size = "1GiB"`). These rules apply to the daemon's file, an experiment's spec and the options of a
live run: any mistake is one `BadInput` with the location and the remedy, and the error for an
unknown key suggests the nearest known one.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from offstage.bindings import units
from offstage.bindings.errors import BadInput, nearest

__all__ = [
    "SEED_MAX",
    "Option",
    "Price",
    "Rate",
    "Settings",
    "Size",
    "Time",
    "about",
    "check_bounds",
    "check_given",
    "check_known",
    "convert",
    "declared",
    "read_table",
    "read_toml",
    "resolve",
    "show",
    "within",
]

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

FLAGS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
KINDS = {
    bool: ("is neither true nor false", "write true or false"),
    int: ("is not a whole number", "write one such as 64"),
    str: ("is not text", "write it in quotes"),
    tuple: ("is not a list of names", 'write ["{}"]'),
}
"""The error and the fix for a bad value of each kind; the fix shows the first choice."""
SEED_MAX = (1 << 63) - 1
TOML_BYTES_MAX = 1 << 24
"""Of a TOML file: the largest, the map of a pod, has 256 members and as many changes."""
"""The greatest seed: it is a C `long` on its way into numpy, and 64 bits in the engines."""
WHOLE = re.compile(r"\s*[+-]?[0-9][0-9_]{0,40}\s*")


class Unit(NamedTuple):
    """How numbers of one unit are read and shown."""

    parse: Callable[[Any, str], float]
    show: Callable[[int], str]
    base: str
    """The unit of the plain number."""


Size = Annotated[int, Meta(extra={"unit": Unit(units.parse_size, units.format_size, "B")})]
Time = Annotated[int, Meta(extra={"unit": Unit(units.parse_time, units.format_time, "ns")})]
Rate = Annotated[int, Meta(extra={"unit": Unit(units.parse_rate, units.format_rate, "B/s")})]
Price = Annotated[int, Meta(extra={"unit": Unit(units.parse_price, units.format_price, "USD")})]


def about(help: str) -> Meta:
    """What an option is."""
    return Meta(extra={"help": help})


def within(low: int, high: int, help: str = "") -> Meta:
    """What an option is, and its least and greatest value."""
    return Meta(ge=low, le=high, extra={"help": help, "low": low, "high": high})


class Settings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename=lambda name: re.sub("_(bytes_per_s|bytes|ns|microusd)$", "", name),
):
    """A table whose numbers with a unit are written with it."""


class Option(NamedTuple):
    """One option as it is declared."""

    name: str
    type: Any
    """As msgspec checks it, with bounds and choices."""
    kind: type[Any]
    """Without them: `str` where it has choices, `tuple` where it is a list."""
    choices: tuple[str, ...]
    help: str = ""
    unit: Unit | None = None
    low: int | None = None
    high: int | None = None


def declared(table: type[msgspec.Struct]) -> dict[str, Option]:
    """The options of a table by their key."""
    options = {}
    for one in msgspec.structs.fields(table):
        annotated = get_origin(one.type) is Annotated
        bare, *metas = get_args(one.type) if annotated else (one.type,)
        element = get_args(bare)[0] if get_origin(bare) is tuple else bare
        choices = get_args(element) if get_origin(element) is Literal else ()
        kind = tuple if element is not bare else str if choices else bare
        said = {name: what for meta in metas for name, what in (meta.extra or {}).items()}
        options[one.encode_name] = Option(one.name, one.type, kind, choices, **said)
    return options


def read_toml(path: Path, fix: str) -> dict[str, Any]:
    """The tables of a file. `fix` says what to give where it is none, not text, or larger than
    TOML_BYTES_MAX."""
    where = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(TOML_BYTES_MAX + 1)
        if len(raw) > TOML_BYTES_MAX:
            raise BadInput(f"larger than {TOML_BYTES_MAX:,} bytes", where, fix)
        return tomllib.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise BadInput("no such file", where, fix) from None
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", where, "check the file") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"is not TOML ({error})", where, "correct that line") from None
    except UnicodeDecodeError:
        raise BadInput("is not text", where, fix) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, a bottomless list
        raise BadInput("has a number that is too large", where, "remove it") from None


def check_known(key: str, known: Iterable[str], where: str, noun: str = "key") -> None:
    """BadInput, naming the nearest of `known`, where `key` is not one of them."""
    names = list(known)
    if key in names:
        return
    raise BadInput(f"unknown {noun} {key!r}", where, nearest(key, names))


def resolve(
    sections: Mapping[str, type[Settings]],
    tables: Mapping[str, Any],
    file: str,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Every section, and by `section.key` who gave a value. Command line (`section.key` to text)
    wins over `OFFSTAGE_<SECTION>_<KEY>`, that over the file's tables, those over the default."""
    given = [(section, table, file) for section, table in tables.items()]
    for name, text in environ.items():
        word, section, key = (*name.split("_", 2), "", "")[:3]
        if word == "OFFSTAGE" and key and section.lower() in sections:
            given.append((section.lower(), {key.lower(): text}, name))
    for name, text in overrides.items():
        section, dot, key = name.partition(".")
        if not dot:
            raise BadInput(f"{name!r} is not an option", "command line", "write section.key=value")
        check_known(section, sections, "command line", "section")
        given.append((section, {key: text}, "command line"))
    found: dict[str, Any] = {section: kind() for section, kind in sections.items()}
    sources: dict[str, str] = {}
    for section, table, source in given:
        if not isinstance(table, dict):
            raise BadInput(f"{section!r} is a value", source, f"write it as a table [{section}]")
        found[section] = read_table(found[section], table, f"{source}: [{section}]")
        sources |= {f"{section}.{key}": source for key in table}
    return found, sources


def read_table(base: S, table: Mapping[str, Any], where: str) -> S:
    """`base` with the values that a table gives."""
    known = declared(type(base))
    values = {}
    for key, value in table.items():
        check_known(key, known, where)
        values[known[key].name] = _read(known[key], value, f"{where} {key}")
    return msgspec.structs.replace(base, **values)


def _read(one: Option, value: Any, where: str) -> Any:
    """The typed value of what a file, a variable or a person gave."""
    texts = [value] if one.unit is None and isinstance(value, str) else value
    for text in texts if isinstance(texts, list) else ():
        if isinstance(text, str) and not text.isprintable():
            raise BadInput(f"{text!a} is not printable", where, "remove such characters")
    plain = value
    if one.unit is not None:
        plain = int(one.unit.parse(value, where))
    elif one.kind is tuple:
        plain = _names(value)
    elif isinstance(value, str) and one.kind is bool:
        plain = FLAGS.get(value.lower(), value)
    elif isinstance(value, str) and one.kind is int and WHOLE.fullmatch(value):
        plain = int(value.replace("_", ""))
    try:
        plain = msgspec.convert(plain, one.kind)
    except msgspec.ValidationError:
        what, fix = KINDS[one.kind]
        first = one.choices[0] if one.choices else "name"
        raise BadInput(f"{value!r} {what}", where, fix.format(first)) from None
    try:
        return msgspec.convert(plain, one.type)
    except msgspec.ValidationError:
        if not one.choices:
            bounds = f"choose {show(one, one.low)} to {show(one, one.high)}"
            raise BadInput(f"{value!r} is out of range", where, bounds) from None
    wrong = next(
        name for name in (plain if one.kind is tuple else [plain]) if name not in one.choices
    )
    shown = ", ".join(choice or '""' for choice in one.choices)
    raise BadInput(f"{wrong!r} is not one of {shown}", where, "choose one of them")


def _names(value: Any) -> tuple[str, ...] | None:
    """Names from a list or from text with commas, each once; None: it is neither."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(dict.fromkeys(name for one in names if (name := one.strip()) not in ("", "none")))


def show(one: Option, value: Any) -> str:
    """A value as a person would type it; reading it gives the same value again."""
    if one.kind is tuple:
        return ",".join(value)
    if one.kind is bool:
        return "true" if value else "false"
    if one.unit is not None:
        short = one.unit.show(value).replace(" ", "")
        try:
            if one.unit.parse(short, "") == value:
                return short
        except BadInput:  # a rounded figure that is not a whole number of base units
            pass
        return f"{value}{one.unit.base}"
    return str(value)


def check_bounds(options: msgspec.Struct, where: str) -> None:
    """BadInput for the first number, of a table made in code, that is out of its bounds."""
    for one in declared(type(options)).values():
        value = getattr(options, one.name)
        if one.low is not None and one.high is not None and not one.low <= value <= one.high:
            raise BadInput(f"{one.name} = {value:,}", where, f"give {one.low:,} to {one.high:,}")


def check_given(given: Mapping[str, Any], table: type[msgspec.Struct]) -> None:
    """BadInput, naming the option, for a number of the command line that a field of a struct does
    not take. The field's bounds may be those of msgspec alone."""
    for one in msgspec.structs.fields(table):
        value = given.get(one.name)
        bounds: Any = get_args(one.type)[1:] if isinstance(value, int | float) else ()
        for meta in bounds:
            low, high = getattr(meta, "ge", None), getattr(meta, "le", None)
            if low is not None and high is not None and not low <= value <= high:
                option = f"--{one.name.replace('_', '-')}"
                raise BadInput(f"{value}", option, f"give {low:,} to {high:,}")


def convert(tables: Mapping[str, Any], kind: type[T], where: str) -> T:
    """A whole file as `kind`, a struct of structs. What is wrong within a value is said in
    msgspec's words, with the path of its key."""
    check_keys(tables, kind, where)
    try:
        return msgspec.convert(tables, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`") or "the file"
        raise BadInput(what[0].lower() + what[1:], f"{where}: {key}", "correct it") from None


def check_keys(table: Mapping[str, Any], kind: Any, where: str, prefix: str = "") -> None:
    """Refuse a key that a struct, or a struct within it, does not have, naming the nearest."""
    known = declared(kind)
    for key, value in table.items():
        check_known(key, known, f"{where}: {prefix}".rstrip(" :"))
        inner: Any = known[key].type
        if get_origin(inner) in (tuple, UnionType):
            inner = get_args(inner)[0]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    check_keys(one, inner, where, f"[{key}] ")
