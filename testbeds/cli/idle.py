"""What is refused before the run: options without effect in combination with others, by name, and
an output that would replace what the command reads.

A row gives a command's options, the condition and the reason. A condition that only a run can
know, such as a trace without sessions, is a `Note` of its result instead.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import typer.core

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import explicit
from offstage.testbeds.cli.demo import DRAWN
from offstage.testbeds.cli.groups import Folding

__all__ = ["IDLE", "Idle", "refuse_idle_options"]

Given = Mapping[str, Any]


@dataclass(frozen=True)
class Idle:
    """`options`, by parameter name, of `command` (its words) have no effect if `when` is true of
    all parameters; `why` completes a sentence that begins with the option."""

    command: str
    options: tuple[str, ...]
    when: Callable[[Given], bool]
    why: str


def _has(name: str) -> Callable[[Given], bool]:
    return lambda given: bool(given[name])


def _lacks(name: str) -> Callable[[Given], bool]:
    return lambda given: not given[name]


def _is_not(name: str, *values: str) -> Callable[[Given], bool]:
    return lambda given: str(getattr(given[name], "value", given[name])) not in values


def _is(name: str, value: str) -> Callable[[Given], bool]:
    return lambda given: getattr(given[name], "value", given[name]) == value


def _nobody_waits(given: Given) -> bool:
    return not 0 < given["active"] < given["sessions"]


def _all_given(*names: str) -> Callable[[Given], bool]:
    return lambda given: all(given[name] is not None for name in names)


def _few_enough(given: Given) -> bool:
    from offstage.testbeds.cli.compare import FEW

    return bool(given["quick"]) and given["samples"] >= FEW


def _nothing_pushed(given: Given) -> bool:
    return bool(given["undo"]) or not given["push"]


def _holds_selections(given: Given) -> bool:
    from offstage.testbeds.workloads.requests.importer import selections_kind

    said = any(given[name] is not None for name in ("trace_format", "time_unit", "block_tokens"))
    return len(given["files"]) == 1 and not said and bool(selections_kind(given["files"][0]))


def _reads_as_recorded(given: Given) -> bool:
    """BadInput if the file has no known format, as without the option."""
    from offstage.testbeds.workloads.requests.importer import format_of

    return not format_of(given["files"][0], given["trace_format"]).drawn


IDLE = (
    Idle(
        "demo",
        ("quick",),
        _all_given("sessions", "context_tokens", "steps"),
        "with --sessions, --context-tokens and --steps: it changes nothing else",
    ),
    Idle(
        "demo",
        DRAWN,
        lambda given: given["model"] not in (None, "none"),
        "with a --model other than none: it is for drawn sessions",
    ),
    Idle("compare", ("samples",), _few_enough, "with --quick, which draws at most 6"),
    Idle(
        "host run",
        ("seed", "geometry"),
        _has("model"),
        "with --model, which decodes a text in the model's shape",
    ),
    Idle(
        "host run",
        ("trace", "time_unit", "decode_cost", "granule_tokens"),
        _has("model"),
        "with --model, which reads --text in whole blocks and is not paced",
    ),
    Idle(
        "host run",
        (
            *("text", "pool_ratio", "dtype", "kv_dtype", "max_kl", "rope"),
            *("index_keys", "generate", "predict", "ahead"),
        ),
        _lacks("model"),
        "without --model",
    ),
    Idle("host run", ("traffic",), _is("ahead", "none"), "without --ahead hint"),
    Idle("host run", ("time_unit",), _lacks("trace"), "without --trace"),
    Idle("host run", ("rdma",), _is_not("fabric", "verbs"), "without --fabric verbs"),
    Idle("pod run", ("time_unit",), _lacks("trace"), "without --trace"),
    Idle(
        "pod run",
        ("schedule",),
        _nobody_waits,
        "unless sessions wait: give --active N below --sessions",
    ),
    Idle(
        "pod run",
        ("active",),
        lambda given: given["active"] >= given["sessions"],
        "unless it is below --sessions: all decode at once",
    ),
    Idle(
        "pod drain",
        ("push",),
        lambda given: given["undo"] and given["push"],
        "with --undo: nothing is pushed",
    ),
    Idle(
        "pod drain",
        ("tenant", "fabric", "runtime_dir"),
        _nothing_pushed,
        "with --undo or --no-push: nothing is pushed",
    ),
    Idle(
        "trace generate",
        (
            "layers",
            "context_tokens",
            "steps",
            "sessions",
            "block_tokens",
            "turn_steps",
            "shared_prefix_tokens",
        ),
        _has("explain"),
        "with --explain, which uses fixed contexts",
    ),
    Idle(
        "trace info",
        ("limit", "seed"),
        _holds_selections,
        "on a file of selections, which is complete: nothing is drawn",
    ),
    *(
        Idle(
            f"trace {verb}",
            ("seed",),
            _reads_as_recorded,
            "on a recorded trace: nothing is drawn",
        )
        for verb in ("info", "import", "export")
    ),
    Idle(
        "trace capture",
        ("temperature", "seed"),
        _is_not("mode", "free", "both"),
        "with --mode teacher, which decodes the text's tokens",
    ),
    Idle(
        "trace capture",
        ("seed",),
        _lacks("temperature"),
        "without --temperature: the most likely token is taken",
    ),
    Idle("bench storage", ("file",), _is_not("backend", "io_uring"), "with --backend spdk"),
    Idle("bench storage", ("target",), _is_not("backend", "spdk"), "without --backend spdk"),
    Idle("bench engine", ("lengths",), _has("trace"), "with --trace, whose prompts are sent"),
    Idle(
        "bench engine",
        ("time_unit", "requests", "seconds", "disaggregated"),
        _lacks("trace"),
        "without --trace: prompts of --length are sent one after another",
    ),
    Idle("bench codec", ("tokens", "text"), _lacks("models"), "without --model"),
    Idle(
        "bench pod",
        ("faults", "rate", "strict"),
        _has("trace"),
        "with --trace, which has random faults, the trace's rate, and no aims",
    ),
    Idle("bench pod", ("begin", "span"), _lacks("trace"), "without --trace"),
    Idle("host calibrate", ("geometry",), _has("model"), "with --model, which gives the layer"),
    Idle("host calibrate", ("context_tokens",), _lacks("selector"), "without --selector"),
    *(
        Idle(
            f"testbed {verb}",
            ("rate", "delay"),
            _is_not("bed", "netns"),
            "on a bed other than netns",
        )
        for verb in ("up", "run")
    ),
    *(
        Idle(
            f"testbed {verb}",
            ("inventory", "dry_run"),
            _is_not("bed", "bluefield"),
            "on a bed other than bluefield",
        )
        for verb in ("up", "run", "down")
    ),
    Idle("testbed run", ("fabric",), _is_not("bed", "qemu"), "on a bed other than qemu"),
    Idle(
        "testbed up",
        ("sessions", "context_tokens", "steps"),
        _is("bed", "qemu"),
        "on qemu: give them to `run`, which starts a separate daemon",
    ),
    Idle("testbed down", ("out",), _is("bed", "qemu"), "on qemu: there is one pair of guests"),
    *(
        Idle(words, ("jobs",), _has("cluster"), "with --cluster, which uses its workers")
        for words in ("lab pod", "asic sweep")
    ),
    Idle("dpu status", ("everything",), _is("form", "json"), "with --format json, which is whole"),
    Idle("plan", ("inputs",), _is("form", "json"), "with --format json, which includes them all"),
    Idle(
        "plan",
        ("engine",),
        lambda given: given["inputs"] and not given["out"],
        "with --inputs, which shows them instead, unless --out takes its files",
    ),
    Idle("results", ("at",), _lacks("to"), "without --to"),
    Idle("report", ("out",), _has("paper"), "with --figures, which names the folder"),
    Idle(
        "report",
        ("bottleneck", "accept"),
        _has("paper"),
        "with --figures, which writes no page",
    ),
    Idle(
        "report",
        ("bottleneck", "accept"),
        lambda given: len(given["runs"]) > 1 or bool(given["against"] or given["figures"]),
        "with a comparison",
    ),
)
"""A row for each option without effect; `host run --help` and the like are unchanged."""


OUTPUTS = ("out", "page", "prometheus")
"""Parameters that name a file to write, in every command that has them."""


class _Checked(Folding, typer.core.TyperCommand):
    """A command that checks its options before it runs."""

    def invoke(self, ctx: Any) -> Any:
        words = ctx.command_path.removeprefix("offstage ")
        for row in IDLE:
            if row.command == words:
                _refuse(row, ctx)
        _keep_inputs(ctx)
        return super().invoke(ctx)


def _refuse(row: Idle, ctx: Any) -> None:
    given = explicit(ctx, row.options)
    if given and row.when(ctx.params):
        flags = {one.name: one.opts[0] for one in ctx.command.params}
        named = " and ".join(flags[name] for name in given)
        does = "has" if len(given) == 1 else "have"
        raise BadInput(f"{named} {does} no effect {row.why}", row.command, f"leave out {named}")


def _keep_inputs(ctx: Any) -> None:
    """BadInput where an output file is one that the command reads: an input, or in the folder of a
    run the file of its figures."""
    written = {name: ctx.params.get(name) for name in OUTPUTS}
    files = {name: path for name, path in written.items() if isinstance(path, Path)}
    read = [
        path
        for name, given in ctx.params.items()
        if name not in OUTPUTS
        for path in (given if isinstance(given, list | tuple) else [given])
        if isinstance(path, Path)
    ]
    flags = {one.name: one.opts[0] for one in ctx.command.params}
    for name, path in files.items():
        if path.is_file() and any(_reads(one, path) for one in read):
            what = f"{flags[name]} would replace what the command reads"
            raise BadInput(what, str(path), "give another path")


def _reads(given: Path, file: Path) -> bool:
    from offstage.host.request_file import REQUESTS_NAME
    from offstage.testbeds.lab.pod.summary import POD_JSON
    from offstage.testbeds.lab.results.ledger_file import LEDGER_NAME
    from offstage.testbeds.report.page.files import MODEL_NAME, SUMMARY_NAME

    names = (SUMMARY_NAME, POD_JSON, MODEL_NAME, REQUESTS_NAME, LEDGER_NAME)
    paths = [given / name for name in names] if given.is_dir() else [given]
    return any(path.exists() and path.samefile(file) for path in paths)


def refuse_idle_options(app: typer.Typer) -> None:
    """Makes every command of `app`, and of its groups, refuse options without effect."""
    for command in _commands(app):
        command.cls = _Checked


def _commands(app: typer.Typer) -> Iterator[Any]:
    yield from app.registered_commands
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance)
