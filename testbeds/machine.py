"""What a run ran on, for the foot of the report. No name of host or user."""

import os
import platform
import resource
from pathlib import Path
from typing import Any

__all__ = ["machine", "memory_peak_bytes"]


def machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel and Python, as the report shows them."""
    return {
        "processor": _cpu_model(),
        "core_count": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "architecture": platform.machine(),
    }


def memory_peak_bytes() -> dict[str, int]:
    """Largest resident set of this process, and of the largest daemon it has waited for."""
    scale = 1024  # Linux counts in KiB
    return {
        "host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
        "daemon": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * scale,
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
