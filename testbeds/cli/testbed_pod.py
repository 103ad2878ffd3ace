"""`offstage testbed` for a pod of this machine: up, a run over all of it, down."""

from pathlib import Path
from typing import TYPE_CHECKING

from offstage.bindings.durable import write_text
from offstage.testbeds.cli.common import Format, emit, table
from offstage.testbeds.cli.then import then
from offstage.testbeds.document import as_json

if TYPE_CHECKING:
    from offstage.testbeds.beds.pod import PodBed
    from offstage.testbeds.cli.printed import PodUp

__all__ = ["down", "run", "up"]

DEADLINE_NS = 1_000_000_000


def up(out: Path, sessions: int, context_tokens: int, steps: int, form: Format) -> None:
    """Start it and print its address."""
    from offstage.testbeds.cli.testbed_here import size_words

    bed = _start(out, sessions, context_tokens, steps)
    told: PodUp = {
        "bed": "pod",
        "map": bed.place,
        "runtime_dir": str(bed.runtime_dir),
        "pids": bed.processes,
        "out": str(bed.out),
        "real": {
            "gpu": "not real: the host's processor decodes",
            "dpu": "not real: this machine's own processor, shared by all daemons",
            "dpu software": "real",
            "link": "none: memory that host and daemons share",
            "drive": "real: files of one drive of this machine",
            "etcd": "real: three members on one machine"
            if bed.place.startswith("etcd:")
            else "none: the map is a file",
        },
    }
    sizes = size_words(sessions, context_tokens, steps)
    emit(told, form, then(table(told), "testbed", "run", "pod", *sizes, "--out", out))


def run(out: Path, sessions: int, context_tokens: int, steps: int, form: Format) -> None:
    """Run the workload over the pod that is up, or over one that is started and stopped for it."""
    from offstage.dpu.pod.membership import open_membership
    from offstage.host.endpoint import Endpoint
    from offstage.host.model.models import geometry
    from offstage.testbeds.beds import pod
    from offstage.testbeds.beds.local import TENANT
    from offstage.testbeds.cli.pod import tell
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.live.options import DriveOptions
    from offstage.testbeds.live.pod_run import run as drive

    there = pod.find(out)
    bed = there or _start(out, sessions, context_tokens, steps)
    try:
        membership = open_membership(bed.place)
        found = membership.map()
        membership.close()
        options = DriveOptions(
            geometry=geometry("demo"), sessions=sessions, context_tokens=context_tokens, steps=steps
        )
        with shown(2) as progress:
            result = drive(
                options,
                found,
                Endpoint("", TENANT, "shm", "testbed"),
                bed.runtime_dir,
                DEADLINE_NS,
                progress,
            )
    finally:
        if there is None:
            pod.down(out)
    write_text(out / "pod.json", as_json(result))
    tell(result, form)


def down(out: Path, form: Format) -> None:
    """Stop it."""
    from offstage.testbeds.beds import pod

    ended = pod.down(out)
    emit({"ended": ended}, form, "ended" if ended else "nothing was running")


def _start(out: Path, sessions: int, context_tokens: int, steps: int) -> "PodBed":
    from offstage.testbeds.beds import pod
    from offstage.testbeds.cli.testbed_here import sizes_for

    return pod.up(out, sizes_for(sessions, context_tokens, steps))
