"""What this machine offers to Offstage: each check, its fix, and the repairs that are safe.

`check` defines a check and how a machine is read; `software`, `kernel` and `hardware` contain
the checks; `repair` performs what `--fix` may do. Only `repair` changes anything.
"""

from offstage.testbeds.doctor.check import Check, Machine, Repair
from offstage.testbeds.doctor.hardware import GPU_CHECKS, HARDWARE
from offstage.testbeds.doctor.kernel import KERNEL
from offstage.testbeds.doctor.repair import repair
from offstage.testbeds.doctor.software import SOFTWARE

__all__ = ["CHECKS", "Check", "Machine", "Repair", "examine", "repair"]

CHECKS = (*SOFTWARE, *KERNEL, *HARDWARE, *GPU_CHECKS)


def examine(machine: Machine) -> list[Check]:
    """All checks, in the order of the table. Never raises for a finding."""
    return [check(machine) for check in CHECKS]
