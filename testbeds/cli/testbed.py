"""`offstage testbed`: machines that stand in for a GPU node and a DPU."""

import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit, table

__all__ = ["register"]

testbed = typer.Typer(no_args_is_help=True, help="Machines for a GPU node and a DPU.")


class Bed(StrEnum):
    """Which testbed."""

    qemu = "qemu"


class LinkFabric(StrEnum):
    """How blocks come from one guest to the other."""

    zmq = "zmq"
    verbs = "verbs"


BedArgument = Annotated[Bed, typer.Argument(help="qemu: an x86 and an aarch64 guest, emulated")]
OutOption = Annotated[
    Path, typer.Option("--out", help="folder that the guests share, and for the drive")
]
OUT = Path("testbed-out")


def register(app: typer.Typer) -> None:
    """Add `offstage testbed`."""
    app.add_typer(testbed, name="testbed")


@testbed.callback()
def about() -> None:
    """Machines for a GPU node and a DPU."""


@testbed.command()
def up(bed: BedArgument, out: OutOption = OUT, form: FormatOption = Format.text) -> None:
    """Start both machines and leave them running; the first time, make their images."""
    from offstage.testbeds.beds.qemu.pair import alone
    from offstage.testbeds.beds.qemu.pair import up as start
    from offstage.testbeds.cli.progress import shown

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with alone(), shown(4) as progress:
        pair = start(out, progress, stays=True)
    result = {
        guest.name: {"pid": guest.process.pid, "console": str(guest.console)}
        for guest in (pair.node, pair.dpu)
    }
    emit({**result, "share": str(pair.share)}, form, table({**result, "share": str(pair.share)}))


@testbed.command()
def run(
    bed: BedArgument,
    sessions: Annotated[int, typer.Option("--sessions", min=1, max=16)] = 2,
    context_tokens: Annotated[int, typer.Option("--context-tokens", min=4096, max=32768)] = 4096,
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=1000, help="decode steps per session")
    ] = 8,
    fabric: Annotated[
        LinkFabric, typer.Option("--fabric", help="zmq, or verbs over the guests' soft RDMA")
    ] = LinkFabric.zmq,
    out: OutOption = OUT,
    form: FormatOption = Format.text,
) -> None:
    """Decode on one machine from the other, compare every block, replay each log on each machine.

    Without `up` before it, the machines are started, and ended afterwards."""
    from offstage.testbeds.beds.qemu.pair import alone, running
    from offstage.testbeds.beds.qemu.pair import up as start
    from offstage.testbeds.beds.qemu.session import PHASES, Sizes
    from offstage.testbeds.beds.qemu.session import run as drive
    from offstage.testbeds.cli.progress import shown

    sizes = Sizes(
        sessions=sessions, context_tokens=context_tokens, steps=steps, fabric=fabric.value
    )
    # Ended by SIGTERM, it ends its guests as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with alone(), shown(PHASES + 4) as progress:
        pair = running()
        mine = pair is None
        pair = pair or start(out, progress, stays=False)
        try:
            result = drive(pair, sizes, progress)
        finally:
            if mine:
                pair.end()
    emit(result, form, table(result))


@testbed.command()
def down(bed: BedArgument, form: FormatOption = Format.text) -> None:
    """End what `up` started."""
    from offstage.testbeds.beds.qemu.pair import alone
    from offstage.testbeds.beds.qemu.pair import down as stop

    with alone():
        found = stop()
    emit({"ended": found}, form, "ended" if found else "nothing was running")
