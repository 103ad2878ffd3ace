"""`offstage testbed`: machines in place of a GPU node and a DPU."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit, table
from offstage.testbeds.cli.then import then

__all__ = ["register"]

testbed = typer.Typer(
    no_args_is_help=True, help="Set up a GPU node and a DPU, and compare policies on them."
)


class Bed(StrEnum):
    """Which testbed."""

    qemu = "qemu"
    local = "local"
    netns = "netns"
    bluefield = "bluefield"
    pod = "pod"


class LinkFabric(StrEnum):
    """The fabrics that bring blocks from one guest to the other."""

    zmq = "zmq"
    verbs = "verbs"


ABOUT = {
    "bluefield": "a DPU that an inventory names, reached by ssh, and this machine",
    "pod": "one machine: four daemons that are one tier, and three members of etcd with their map",
    "qemu": "an x86 guest and an aarch64 one, emulated, on a virtual network",
}
BedArgument = Annotated[Bed, typer.Argument(help="testbed, as listed by `testbed list`")]
OutOption = Annotated[
    Path, typer.Option("--out", help="folder for drive and store, shared with the guests")
]
SessionsOption = Annotated[int, typer.Option("--sessions", min=1, max=16, help="sessions, 1 to 16")]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context-tokens",
        min=4096,
        max=131_072,
        help="context of each session, 4,096 to 131,072; default: 32768, qemu: 4096",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", min=1, max=1000, help="decode steps per session; default: 64, qemu: 8"),
]
RateOption = Annotated[
    str, typer.Option("--rate", help="netns: rate of the link, in tc syntax, such as 10gbit")
]
InventoryOption = Annotated[
    Path | None, typer.Option("--inventory", help="bluefield: file that names the DPU")
]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="bluefield: print every command without running it")
]
DelayOption = Annotated[
    str, typer.Option("--delay", help="netns: delay of each packet, such as 50us; needs netem")
]
OUT = Path("testbed-out")
COMPARED = (32_768, 64)
"""Context and steps where nothing else is asked: the arena has room for a quarter of it, so that
the policies differ."""
EMULATED = (4_096, 8)
"""The same of guests, whose instructions are emulated and which compare no policies."""


def _sizes(
    bed: Bed, sessions: int, context_tokens: int | None, steps: int | None
) -> tuple[int, int, int]:
    """Sessions, context and steps of a run."""
    context, own = EMULATED if bed is Bed.qemu else COMPARED
    return sessions, context_tokens or context, steps or own


def register(app: typer.Typer) -> None:
    """Add `offstage testbed`."""
    app.add_typer(testbed, name="testbed")


@testbed.callback()
def about() -> None:
    """Set up a GPU node and a DPU, and compare policies on them."""


@testbed.command("list")
def listed(form: FormatOption = Format.text) -> None:
    """The testbeds, and what stands for the GPU node and the DPU in each."""
    from offstage.testbeds.beds.here import BEDS

    emit({**BEDS, **ABOUT}, form, table({**BEDS, **ABOUT}))


@testbed.command()
def up(
    bed: BedArgument,
    sessions: SessionsOption = 2,
    context_tokens: ContextOption = None,
    steps: StepsOption = None,
    rate: RateOption = "",
    delay: DelayOption = "",
    inventory: InventoryOption = None,
    dry_run: DryOption = False,
    out: OutOption = OUT,
    form: FormatOption = Format.text,
) -> None:
    """Start the machines and leave them running.

    local and netns: a daemon with room for --sessions. pod: four daemons, and an etcd of three
    members where it is installed. qemu: two guests, whose images are made the first time.
    """
    sizes = _sizes(bed, sessions, context_tokens, steps)
    if bed is Bed.bluefield:
        from offstage.testbeds.cli.testbed_bluefield import up as set_up

        return set_up(inventory, out, sizes, dry_run, form)
    if bed is Bed.pod:
        from offstage.testbeds.cli.testbed_pod import up as start_pod

        return start_pod(out, *sizes, form)
    if bed is not Bed.qemu:
        from offstage.testbeds.cli.testbed_here import up as begin

        return begin(bed.value, out, sizes, rate, delay, form)
    from offstage.testbeds.beds.qemu.pair import alone
    from offstage.testbeds.beds.qemu.pair import up as start
    from offstage.testbeds.cli.printed import Guest, GuestsUp
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.cli.testbed_here import size_words

    with alone(), shown(4) as progress:
        pair = start(out, progress, stays=True)
    node, dpu = (
        Guest(pid=guest.process.pid, console=str(guest.console)) for guest in (pair.node, pair.dpu)
    )
    result = GuestsUp(node=node, dpu=dpu, share=str(pair.share))
    words = size_words(*sizes)
    emit(result, form, then(table(result), "testbed", "run", "qemu", *words, "--out", out))


@testbed.command()
def run(
    bed: BedArgument,
    sessions: SessionsOption = 2,
    context_tokens: ContextOption = None,
    steps: StepsOption = None,
    fabric: Annotated[
        LinkFabric,
        typer.Option("--fabric", help="qemu: zmq, or verbs over soft RDMA in the guests"),
    ] = LinkFabric.zmq,
    rate: RateOption = "",
    delay: DelayOption = "",
    inventory: InventoryOption = None,
    dry_run: DryOption = False,
    out: OutOption = OUT,
    form: FormatOption = Format.text,
) -> None:
    """Run the workload on a testbed, and report.

    local, netns, bluefield: three times on the live daemon, without prefetch, with window, and with
    window,ema,shared. pod: once over all four daemons. qemu: from one guest to the other, comparing
    every block, replaying each log on both, and one run in virtual time on both. What is not up is
    started and ended afterwards; a bluefield stays up.
    """
    own = _sizes(bed, sessions, context_tokens, steps)
    _check_bed(bed, out)
    if bed is Bed.bluefield:
        from offstage.testbeds.cli.testbed_bluefield import run as drive_far

        return drive_far(inventory, out, own, dry_run, form)
    if bed is Bed.pod:
        from offstage.testbeds.cli.testbed_pod import run as drive_pod

        return drive_pod(out, *own, form)
    if bed is not Bed.qemu:
        return _run_here(bed.value, out, form, *own, rate, delay)
    from offstage.testbeds.beds.qemu.pair import alone, running
    from offstage.testbeds.beds.qemu.pair import up as start
    from offstage.testbeds.beds.qemu.session import PHASES, Sizes
    from offstage.testbeds.beds.qemu.session import run as drive
    from offstage.testbeds.cli.progress import shown

    sizes = Sizes(sessions=own[0], context_tokens=own[1], steps=own[2], fabric=fabric.value)
    with alone():
        up = running()
        with shown(PHASES if up else PHASES + 4) as progress:  # four to start them
            pair = up or start(out, progress, stays=False)
            try:
                result = drive(pair, sizes, progress)
            finally:
                if up is None:
                    pair.end()
    emit(result, form, table(msgspec.to_builtins(result)))


@testbed.command()
def down(
    bed: BedArgument,
    inventory: InventoryOption = None,
    dry_run: DryOption = False,
    out: OutOption = OUT,
    form: FormatOption = Format.text,
) -> None:
    """End what `up` started."""
    _check_bed(bed, out)
    if bed is Bed.bluefield:
        from offstage.testbeds.cli.testbed_bluefield import down as stop_far

        return stop_far(inventory, out, dry_run, form)
    if bed is Bed.pod:
        from offstage.testbeds.cli.testbed_pod import down as end_pod

        return end_pod(out, form)
    if bed is not Bed.qemu:
        from offstage.testbeds.beds.here import down as end

        ended = end(out)
        return emit({"ended": ended}, form, "ended" if ended else "nothing was running")
    from offstage.testbeds.beds.qemu.pair import alone
    from offstage.testbeds.beds.qemu.pair import down as stop

    with alone():
        found = stop()
    emit({"ended": found}, form, "ended" if found else "nothing was running")


def _check_bed(bed: Bed, out: Path) -> None:
    """BadInput where another testbed is up in this folder."""
    from offstage.testbeds.beds.local import bed_up

    if (up := bed_up(out)) not in ("", bed.value):
        raise BadInput(
            f"the testbed {up} is up there",
            str(out),
            f"offstage testbed down {up} --out {out}; or give {bed.value} another --out",
        )


def _run_here(
    bed: str,
    out: Path,
    form: Format,
    sessions: int,
    context_tokens: int,
    steps: int,
    rate: str,
    delay: str,
) -> None:
    from offstage.testbeds.beds.here import down as end
    from offstage.testbeds.beds.here import find
    from offstage.testbeds.cli.summary import print_summary
    from offstage.testbeds.cli.testbed_here import drive, start

    found = find(out)
    if found is not None and (rate or delay):
        raise BadInput(
            "a link of another rate or delay, and the testbed is up already",
            str(out),
            f"give them to `testbed up {bed}`, or leave them out",
        )
    up = found or start(bed, out, sessions, context_tokens, steps, rate, delay)
    try:
        summary = drive(up, sessions, context_tokens, steps)
    finally:
        if found is None:
            end(out)
    print_summary(summary, out, form)
