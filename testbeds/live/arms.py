"""Compares arms on one live daemon: each sets its policy, starts cold, and runs the same workload.

The daemon keeps running between arms: the store keeps what the first arm wrote, and the arena is
emptied. One summary contains a run for each arm, the daemon's machine, and for each part of the
testbed whether it was real.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import last_line
from offstage.host.endpoint import Endpoint
from offstage.testbeds.live.demo_options import ARMS, Arm
from offstage.testbeds.live.host_run import AGAINST
from offstage.testbeds.live.results import Summary
from offstage.testbeds.live.run_figures import against_reference
from offstage.testbeds.machine import DpuMachine

__all__ = ["COMPARED", "compare", "driven"]

COMPARED = (ARMS[0], ARMS[1], ARMS[-1])
RUN_S = 24 * 3600.0


def compare(
    operator: Endpoint,
    drive: Callable[[Arm], Summary],
    real: Mapping[str, str],
    arms: Sequence[Arm] = COMPARED,
) -> Summary:
    """Run every arm in turn; the first, without prefetch, is the reference of the others.
    RunFailed, BadInput: from `drive`, or the daemon is gone. The daemon's policy is restored
    at the end."""
    with operator.control() as control:
        own = control.policy()
        done = []
        try:
            for arm in arms:
                control.policy_set(arm.policy)
                control.reset()
                done.append(drive(arm))
        finally:
            control.policy_set({key: own[key] for key in ("prefetchers", "eviction")})
        status = control.status()
    runs = []
    for arm, summary in zip(arms, done, strict=True):
        (one,) = summary.runs
        notes = [note for note in one.notes if note.code != AGAINST]
        runs.append(msgspec.structs.replace(one, name=arm.name, notes=notes))
    runs = [against_reference(one, runs[0]) for one in runs]
    dpu = DpuMachine(
        **status["machine"], storage=status["storage"], warning=status["warning"] or "none"
    )
    machine = msgspec.structs.replace(done[-1].machine, dpu=dpu, real=dict(real))
    return msgspec.structs.replace(done[-1], runs=runs, machine=machine, sentence="")


def driven(words: Sequence[str], summary: Path, failed: str) -> None:
    """Run a host in a separate process that writes `summary`. A host whose checks failed has
    written it too, and the summary says so. RunFailed with the host's last line if it has not."""
    summary.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            errors="replace",
            check=False,
            timeout=RUN_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed("the host agent did not end", failed, "see the daemon's log") from None
    if done.returncode != 0 and not (done.returncode == 1 and summary.exists()):
        last = last_line(done.stderr)
        kind = BadInput if done.returncode == BadInput.exit_code else RunFailed
        raise kind(last.removeprefix("offstage: "), failed)
