"""The command line: a registry of commands, each imported only when it is used.

A new command is a file in this folder with a function `register(app)`, and a line in `PANELS`.
All errors end here: one line on stderr and the exit code of the error.
"""

import contextlib
import importlib
import importlib.metadata
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from typer.models import CommandInfo, TyperInfo

import offstage
from offstage.bindings.errors import Interrupted
from offstage.testbeds.cli.common import one_line_errors
from offstage.testbeds.cli.groups import in_order
from offstage.testbeds.cli.idle import refuse_idle_options

__all__ = ["COMMANDS", "main", "run"]

PANELS = {
    "Start here": {
        "demo": "offstage.testbeds.cli.demo",
        "doctor": "offstage.testbeds.cli.doctor",
        "plan": "offstage.testbeds.cli.plan",
        "compare": "offstage.testbeds.cli.compare",
        "report": "offstage.testbeds.cli.report",
    },
    "Run a tier": {
        "dpu": "offstage.testbeds.cli.dpu",
        "host": "offstage.testbeds.cli.host",
        "pod": "offstage.testbeds.cli.pod",
        "testbed": "offstage.testbeds.cli.testbed",
        "accept": "offstage.testbeds.cli.accept",
        "config": "offstage.testbeds.cli.config",
        "keys": "offstage.testbeds.cli.keys",
    },
    "Experiments": {
        "lab": "offstage.testbeds.cli.lab",
        "rivals": "offstage.testbeds.cli.rivals",
        "results": "offstage.testbeds.cli.results",
        "requests": "offstage.testbeds.cli.requests",
        "bottleneck": "offstage.testbeds.cli.bottleneck",
        "trace": "offstage.testbeds.cli.trace",
        "model": "offstage.testbeds.cli.model",
        "models": "offstage.testbeds.cli.models",
        "asic": "offstage.testbeds.cli.asic",
        "drive": "offstage.testbeds.cli.drive",
        "bench": "offstage.testbeds.cli.bench",
    },
    "Help": {
        "man": "offstage.testbeds.cli.man",
    },
}
"""What `offstage --help` shows, in its order."""

COMMANDS = {name: module for panel in PANELS.values() for name, module in panel.items()}
COMPLETION = ("--show-completion", "--install-completion")
NO_DETECTION = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""A variable of typer's own: set, these options take a shell's name."""


def _say_version(asked: bool) -> None:
    """Print the release, as in `summary.json` and the wheel's name."""
    if asked:
        typer.echo(f"offstage {offstage.__version__}")
        raise typer.Exit


def build(names: Sequence[str]) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="offstage",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def about(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_say_version, is_eager=True, help="show the version and exit"
            ),
        ] = False,
    ) -> None:
        """Keep an LLM's KV cache off the GPU's stage, and bring each block back on cue.

        Exit codes: 0 done, 1 a run failed, 2 bad input (one line says what, where and how to fix
        it), 3 a daemon or server is not reachable."""

    for name in names:
        importlib.import_module(COMMANDS[name]).register(app)
        panel = next(panel for panel, has in PANELS.items() if name in has)
        known: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
        for one in known:
            if not isinstance(one.rich_help_panel, str):  # registered just now
                one.rich_help_panel = panel
    refuse_idle_options(app)
    in_order(app, PANELS)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    with one_line_errors() as outcome, _sigterm_interrupts(), _shell_may_follow(arguments):
        first = arguments[0] if arguments else ""
        app = build([first] if first in COMMANDS else list(COMMANDS))
        # Not standalone: usage errors come back as exceptions and are printed in one line too.
        try:
            done = app(list(arguments) or ["--help"], prog_name="offstage", standalone_mode=False)
        except SystemExit as ended:  # the parser raises it for a broken pipe
            if isinstance(ended.__context__, BrokenPipeError):
                raise ended.__context__ from None
            raise
        if done == Interrupted.exit_code:  # the parser turns an interrupt into a code
            raise KeyboardInterrupt
        outcome.code = done if isinstance(done, int) else 0
    return outcome.code


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with the same line about what is left where; the
    daemon sets a handler of its own. Python allows handlers on the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def _shell_may_follow(arguments: Sequence[str]) -> Iterator[None]:
    """Let a shell's name follow `--show-completion` and `--install-completion`. typer takes one
    only where a variable forbids it to look for the shell itself."""
    option, equals, _ = arguments[0].partition("=") if arguments else ("", "", "")
    given = (
        option in COMPLETION and (equals or len(arguments) > 1) and NO_DETECTION not in os.environ
    )
    if given:
        os.environ[NO_DETECTION] = "1"
    try:
        yield
    finally:
        if given:
            os.environ.pop(NO_DETECTION)


def _warn_of_namesake() -> None:
    """One line where the other project that is called `offstage` is installed: it has the same
    import name, so that its files may have replaced ours."""
    try:
        version = importlib.metadata.version("offstage")
    except importlib.metadata.PackageNotFoundError:
        return
    print(
        f"offstage: warning: the package `offstage` {version} is installed here, another project "
        "of the same import name; uninstall it, and then install Offstage again",
        file=sys.stderr,
    )


def main() -> None:
    """The console script. Sets one BLAS thread unless the user sets another number: matrices
    here are small, and a second BLAS thread would spin on the reactor's core. It must be set
    before numpy is imported."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    _warn_of_namesake()
    sys.exit(run(sys.argv[1:]))
