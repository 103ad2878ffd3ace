"""Shared by all commands: option types, output in two formats, errors in one line."""

import contextlib
import dataclasses
import errno
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from offstage.bindings.errors import BadInput, Interrupted, OffstageError, printable
from offstage.bindings.settings import SEED_MAX
from offstage.testbeds.cli.groups import usage_line
from offstage.testbeds.document import as_line, plain

__all__ = [
    "ClusterOption",
    "CurveOption",
    "DecodeCostOption",
    "Dtype",
    "EndpointOption",
    "Fabric",
    "Format",
    "FormatOption",
    "JobsOption",
    "Kernel",
    "OperatorSecretOption",
    "Outcome",
    "RopeOption",
    "RuntimeDirOption",
    "TimeUnitOption",
    "TraceOption",
    "emit",
    "explicit",
    "naming",
    "one_line_errors",
    "operator",
    "parse_settings",
    "refuse_both_paces",
    "seed_option",
    "table",
]


class Format(StrEnum):
    """How a command prints its result."""

    text = "text"
    json = "json"


class Kernel(StrEnum):
    """Which attention kernel the host agent uses."""

    numpy = "numpy"
    torch = "torch"
    triton = "triton"


class Fabric(StrEnum):
    """The fabrics that bring blocks from a daemon."""

    shm = "shm"
    verbs = "verbs"
    nixl = "nixl"
    zmq = "zmq"


class Dtype(StrEnum):
    """The data type of a model's run; auto: as it is stored."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", help="device of KV and kernel: cpu, or such as cuda:0 for torch and triton"
    ),
]
DecodeCostOption = Annotated[
    Path | None,
    typer.Option("--decode-cost", help="compute time of the GPU, as measured by `host calibrate`"),
]


def _shipped(file: Path | None) -> Path | None:
    """`local` is the configuration that is shipped, unless a file has that name."""
    if file != Path("local") or file.exists():
        return file
    return Path(__file__).resolve().parents[1] / "presets/local.toml"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", callback=_shipped, help="TOML file; `local`: the sample"),
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="output format: text for people, json for programs")
]
EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="OFFSTAGE_DAEMON_ENDPOINT",
        help="the daemon: its control socket, or a name from your daemons.toml",
    ),
]
CurveOption = Annotated[
    Path | None,
    typer.Option(
        "--curve-dir",
        envvar="OFFSTAGE_CLIENT_CURVE_DIR",
        help="folder of server.key and client.key_secret, for CURVE",
    ),
]
OperatorSecretOption = Annotated[
    Path | None,
    typer.Option(
        "--secret",
        envvar="OFFSTAGE_OPERATOR_SECRET",
        help="file with the operator's secret; default: the one that the daemon left for this user",
    ),
]
TimeUnitOption = Annotated[
    str | None,
    typer.Option("--time-unit", metavar="UNIT", help="unit of the trace's times: s, ms, us or ns"),
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="request trace in any known format; default: generated requests"),
]
JobsOption = Annotated[int, typer.Option("--jobs", help="worker processes; 0: one per core")]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="ADDRESS", help="address of a dask scheduler, tcp://host:port"
    ),
]
RopeOption = Annotated[
    str,
    typer.Option(
        "--rope", metavar="TYPE:FACTOR", help="scale rotary positions beyond the model's context"
    ),
]
RuntimeDirOption = Annotated[
    Path | None,
    typer.Option(
        "--runtime-dir",
        envvar="OFFSTAGE_DAEMON_RUNTIME_DIR",
        help="the daemon's runtime folder with its secrets; default: the daemon's default",
    ),
]


def seed_option(help: str) -> Any:
    """`--seed`, of one or of several, with the bounds that every draw of ours takes."""
    return typer.Option("--seed", min=0, max=SEED_MAX, help=help)


WRITES_FAIL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""The system's errors when an output has no room: the machine's fault, not a bug of ours."""


@dataclasses.dataclass
class Outcome:
    """The exit code of a run."""

    code: int = 0


@contextlib.contextmanager
def one_line_errors() -> Iterator[Outcome]:
    """Turn the errors that we raise on purpose into one line on stderr and an exit code, never a
    traceback. 0 done, 1 a run failed, 2 bad input, 3 not reachable, 130 interrupted. A traceback
    means a bug."""
    outcome = Outcome()
    for name in ("stdout", "stderr"):  # closed by the parent process: there is no reader
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal lacks becomes "?"
            stream.reconfigure(errors="replace")
    try:
        yield outcome
        sys.stdout.flush()  # report what cannot be written here, not at the interpreter's exit
    except OffstageError as error:
        outcome.code = _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        outcome.code = _complain("interrupted", Interrupted.exit_code)
    except typer.Exit as done:
        outcome.code = done.exit_code
    except BrokenPipeError:
        _output_ends()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        if error.errno in WRITES_FAIL:
            where = f" to {error.filename}" if error.filename else ""
            outcome.code = _complain(f"output cannot be written{where} ({reason})", 1)
            _output_ends()
        else:
            where = f"{error.filename}: " if error.filename else ""
            outcome.code = _complain(f"{where}the system refuses it ({reason})", 1)
    except RecursionError:
        outcome.code = _complain("nested beyond any bound; give a flatter input", 1)
    except UnicodeError as error:
        outcome.code = _complain(
            f"text that cannot be read or written ({error}); write files in UTF-8", 1
        )
    except MemoryError as error:
        outcome.code = _complain(
            f"out of memory{': ' * bool(str(error))}{error}; give it less, or a machine with more",
            1,
        )
    except Exception as error:
        # Usage errors of the option parser: typer has carried its own copy of click since 0.26,
        # so they are recognized by their methods and not by their class.
        if not hasattr(error, "format_message"):
            raise
        line = usage_line(error)
        # An empty one: no arguments were given, and the help has been printed, which is no error.
        outcome.code = _complain(f"{line}; see --help", 2) if line else 0


def _output_ends() -> None:
    """The reader closed our output, or it has no room: the interpreter must not complain about
    unwritten output at exit."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: no file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explicit(context: Any, names: Iterable[str]) -> list[str]:
    """Those of a command's parameters that the user gave."""
    return [one for one in names if context.get_parameter_source(one).name == "COMMANDLINE"]


def emit(result: Any, form: Format, text: Any) -> None:
    """Print `result`, a mapping, a struct or a dataclass, as JSON, or `text`, a string or anything
    rich can draw; a table wider than the terminal is folded."""
    from offstage.testbeds.cli.folded import folded

    if form is Format.json:
        sys.stdout.write(as_line(result) + "\n")
    else:
        # No text of ours has markup: what looks like it is a name, or a `pip install '.[...]'`.
        Console(soft_wrap=True, markup=False, emoji=False).print(folded(text))


def table(rows: Any, title: str = "") -> Table:
    """Two columns, name and value, of a mapping, a struct or a dataclass; nested ones become dotted
    names."""
    drawn = Table(title=title or None, show_header=False, box=None, pad_edge=False)
    drawn.add_column(style="cyan", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in _flat(rows if isinstance(rows, Mapping) else plain(rows)):
        drawn.add_row(name, value)
    return drawn


def refuse_both_paces(time_per_token: str | None, decode_cost: Path | None) -> None:
    """BadInput if the GPU's compute time is set twice."""
    if time_per_token is not None and decode_cost is not None:
        raise BadInput("--time-per-token and --decode-cost", "command line", "give one of them")


def parse_settings(settings: list[str]) -> dict[str, str]:
    """`key=value` arguments as a mapping. BadInput for what is none, and for a key with two."""
    chosen = dict[str, str]()
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not key:
            raise BadInput(f"{setting!r} is not a setting", "command line", "write KEY=VALUE")
        if chosen.setdefault(key, value) != value:
            raise BadInput(f"{key} is set twice", "command line", "give one of the values")
    return chosen


@contextlib.contextmanager
def naming(options: Mapping[str, tuple[str, str]], where: str) -> Iterator[None]:
    """A BadInput of the block about a spec that options change names the option at fault, and not
    the spec `where` it would stand otherwise. `options`: by what was typed, key and value."""
    try:
        yield
    except BadInput as error:
        place = error.where.removeprefix(where).lstrip(": ")
        said = f"{place} {error.what}"
        by_key = [one for one, (key, _) in options.items() if _names(said, key)]
        by_value = [one for one, (_, value) in options.items() if len(value) > 2 and value in said]
        if by_key:
            raise BadInput(error.what, by_key[0], error.fix) from None
        if by_value:
            named = f"{by_value[0]}: {place}" if "/" in place else by_value[0]
            raise BadInput(error.what, named, error.fix) from None
        if options:
            raise BadInput(
                error.what, f"{error.where}, with {' '.join(options)}", error.fix
            ) from None
        raise


def _names(said: str, key: str) -> bool:
    """Whether an error names this key of a spec: as a path, in its table, or as one not known."""
    table, _, name = key.rpartition(".")
    if re.search(rf"(?<![\w.]){re.escape(key)}\b", said):
        return True
    unknown = f"unknown key {name!r}" if f"[{table}]" in said else f"unknown key {table!r}"
    return bool(table) and (f"[{table}] {name}" in said or unknown in said)


def operator(
    endpoint: str, runtime_dir: Path | None, curve_dir: Path | None, secret: Path | None
) -> Any:
    """A control connection with operator rights; a context manager."""
    from offstage.host.endpoint import Endpoint

    found = Endpoint.find(
        endpoint,
        tenant="operator",
        secret=secret,
        runtime_dir=runtime_dir,
        curve_dir=curve_dir,
        name="cli",
    )
    return found.control(heartbeat=False)


def _complain(line: str, code: int) -> int:
    with contextlib.suppress(OSError):  # there is no reader; the exit code tells it too
        sys.stderr.write(f"offstage: {printable(line)}\n")
    return code


def _flat(rows: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in rows.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for index, one in enumerate(value):
                yield from _flat(one, f"{prefix}{name}.{index}.")
        else:
            yield prefix + name, _shown(value)


def _shown(value: object) -> str:
    """A value in readable form."""
    if value is None or value == [] or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return str(value)
