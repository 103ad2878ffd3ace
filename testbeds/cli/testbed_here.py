"""`offstage testbed` for the beds of this machine: up, and arms compared on the live daemon."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from offstage.testbeds.cli.common import Format, emit, table
from offstage.testbeds.cli.then import then

if TYPE_CHECKING:
    from offstage.testbeds.beds.bluefield import Far
    from offstage.testbeds.beds.here import Up
    from offstage.testbeds.beds.local import DaemonSizes
    from offstage.testbeds.cli.printed import BedUp
    from offstage.testbeds.live.demo_options import Arm
    from offstage.testbeds.live.results import Summary

__all__ = ["drive", "size_words", "sizes_for", "start", "up"]

SLOTS_PER_SELECTED = 4
WINDOW_TOKENS = 4_096


def up(
    bed: str,
    out: Path,
    sizes: tuple[int, int, int],
    rate: str,
    delay: str,
    form: Format,
) -> None:
    """Start it and print its address."""
    here = start(bed, out, *sizes, rate, delay)
    told: BedUp = {
        "bed": here.bed,
        "pid": here.pid,
        "endpoint": here.endpoint,
        "real": here.real,
        "namespaces": here.names or "none",
        "out": str(here.out),
    }
    emit(told, form, then(table(told), "testbed", "run", bed, *size_words(*sizes), "--out", out))


def start(
    bed: str, out: Path, sessions: int, context_tokens: int, steps: int, rate: str, delay: str
) -> "Up":
    """The bed, with a daemon of the required room."""
    from offstage.testbeds.beds.here import up

    return up(bed, out, sizes_for(sessions, context_tokens, steps), rate, delay)


def size_words(sessions: int, context_tokens: int, steps: int) -> list[str]:
    """The options of `testbed` and of `host run` that ask for these sizes."""
    sizes = {"sessions": sessions, "context-tokens": context_tokens, "steps": steps}
    return [word for name, value in sizes.items() for word in (f"--{name}", str(value))]


def sizes_for(sessions: int, context_tokens: int, steps: int) -> "DaemonSizes":
    """Sizes of a daemon with room for these sessions of the demo's model."""
    from offstage.host.model.models import geometry
    from offstage.testbeds.beds.local import DaemonSizes
    from offstage.testbeds.live.options import SELECT_BLOCKS

    shape = geometry("demo")
    grown = context_tokens + steps
    return DaemonSizes(
        payload_bytes=shape.block_bytes(0),
        layers=shape.layer_count,
        block_tokens=shape.block_tokens,
        slots=SLOTS_PER_SELECTED * SELECT_BLOCKS * sessions * shape.layer_count,
        window_tokens=WINDOW_TOKENS,
        context_tokens=grown,
        stored_bytes=2 * sessions * shape.session_bytes(grown),
        sessions=sessions,
    )


def drive(bed: "Up | Far", sessions: int, context_tokens: int, steps: int) -> "Summary":
    """Compare the arms; each host is a separate process, in its place."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.live.arms import COMPARED, compare, driven
    from offstage.testbeds.progress import note_hit
    from offstage.testbeds.report import SUMMARY_NAME, read_summary

    words = size_words(sessions, context_tokens, steps)
    with shown(1) as progress:
        progress.start(f"decode on {bed.bed}", len(COMPARED), "arms")

        def one(arm: "Arm") -> "Summary":
            folder = bed.out / "arms" / arm.name
            folder.mkdir(parents=True, exist_ok=True)
            driven(
                bed.host(*words, "--out", str(folder)),
                folder / SUMMARY_NAME,
                f"{bed.bed}, arm {arm.name}",
            )
            progress.advance(1)
            summary = read_summary(folder)
            note_hit(progress, summary.runs[0].hit)
            return summary

        summary = compare(bed.operator, one, bed.real)
    return msgspec.structs.replace(summary, command=shlex.join(["offstage", *sys.argv[1:]]))
