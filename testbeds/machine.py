"""What a run ran on, for the foot of the report. No name of host or user."""

import os
import platform
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["DpuMachine", "Machine", "RunMachine", "machine", "memory_peak_bytes", "run_machine"]


class Machine(msgspec.Struct, kw_only=True, frozen=True):
    """Processor, cores, memory, kernel and Python, as the report shows them."""

    processor: str
    core_count: int
    memory_bytes: int
    kernel: str
    python: str
    architecture: str


class DpuMachine(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon's machine, as the daemon reports it."""

    architecture: str
    kernel: str
    cores: int | None
    store: str
    storage: str
    warning: str


class RunMachine(Machine, kw_only=True, frozen=True):
    """The machine of a run; on a testbed also the daemon's, and what each part really was."""

    memory_peak_bytes: dict[str, int]
    """By process."""
    wall_s: float
    dpu: DpuMachine | UnsetType = UNSET
    real: dict[str, str] | UnsetType = UNSET


def machine() -> Machine:
    """This machine."""
    return Machine(
        processor=_cpu_model(),
        core_count=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        architecture=platform.machine(),
    )


def run_machine(memory: dict[str, int], wall_s: float) -> RunMachine:
    """This machine, with a run's largest resident sets and its duration."""
    own = msgspec.structs.asdict(machine())
    return RunMachine(**own, memory_peak_bytes=memory, wall_s=wall_s)


def memory_peak_bytes(process: int | str = "self") -> int:
    """Largest resident set of a process that runs; 0 if the kernel does not say. `ru_maxrss` would
    not do: it begins at that of the process that started this one."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines() if line.startswith("VmHWM:"))
    return next((int(words[1]) << 10 for words in lines), 0)


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
