"""Performs `--fix`: huge pages and kernel modules, as root, and nothing else.

Each step is shown before it runs. None touches a disk, and none survives a reboot. A failed step
is reported and the next one runs.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.testbeds.doctor.check import Check, Machine, Repair

__all__ = ["repair"]

MODPROBE_TIMEOUT_S = 60


def repair(
    checks: list[Check],
    machine: Machine,
    say: Callable[[str], None],
    modprobe: tuple[str, ...] = ("modprobe",),
) -> list[str]:
    """Do the repairs of all checks; `say` gets each before it is done. Returns the failed ones.
    BadInput if there are any to do and we are not root."""
    steps = [step for check in checks for step in check.repairs]
    if steps and os.geteuid() != 0:
        raise BadInput(
            "needs root",
            "--fix",
            "sudo offstage doctor --fix, or do it by hand: "
            + "; ".join(str(step) for step in steps),
        )
    failed = []
    for step in steps:
        say(str(step))
        why = _write(step, machine.root) if step.path else _load(step, modprobe)
        if why:
            failed.append(f"{step}: {why}")
    return failed


def _write(step: Repair, root: Path) -> str:
    try:
        (root / step.path.lstrip("/")).write_text(step.text)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _load(step: Repair, modprobe: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [*modprobe, step.text],
            capture_output=True,
            errors="replace",
            check=False,
            timeout=MODPROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")
