"""What this machine offers to Offstage: each check, its mend, and the repairs that are safe.

`check` has what a check is and how a machine is read; `software`, `kernel` and `hardware` hold the
checks; `repair` does what `--fix` may do. Nothing but `repair` changes anything.
"""

from offstage.testbeds.doctor.check import Check, Machine, Repair
from offstage.testbeds.doctor.hardware import GPU_CHECKS, HARDWARE
from offstage.testbeds.doctor.kernel import KERNEL
from offstage.testbeds.doctor.repair import repair
from offstage.testbeds.doctor.software import SOFTWARE

__all__ = ["CHECKS", "Check", "Machine", "Repair", "examine", "repair"]

CHECKS = (*SOFTWARE, *KERNEL, *HARDWARE, *GPU_CHECKS)


def examine(machine: Machine) -> list[Check]:
    """All checks, in the order of the table. Never raises for what it finds."""
    return [check(machine) for check in CHECKS]
