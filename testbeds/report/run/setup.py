"""What was run and on what, in one line under the sentence."""

from collections.abc import Mapping
from typing import Any

from offstage.testbeds.live.results import Summary
from offstage.testbeds.report.page.numbers import size
from offstage.testbeds.report.run.runs import groups

__all__ = ["setup_line"]


def setup_line(summary: Summary) -> str:
    """Workload, geometry, machine, seed and provenance; what the summary lacks is left out."""
    parts = [_text(summary.workload, "sentence"), _geometry(summary.workload)]
    parts.append(_machine(summary.machine))
    storages = ", ".join(group.where for group in groups(summary.runs))
    parts.append(f"storage: {storages}" if storages else "")
    parts.append(f"seed {summary.seed}")
    return ". ".join(_capital(part.rstrip(".")) for part in parts if part) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _geometry(workload: Mapping[str, Any]) -> str:
    name, note = _text(workload, "geometry"), _text(workload, "geometry_note")
    text = ", ".join(part for part in (name, note) if part)
    return f"model geometry {text}" if text else ""


def _machine(machine: Mapping[str, Any]) -> str:
    parts = [_text(machine, "processor")]
    cores = machine.get("core_count")
    if isinstance(cores, int):
        parts.append(f"{cores} cores")
    memory = machine.get("memory_bytes")
    if isinstance(memory, int):
        parts.append(f"{size(memory)} of memory")
    kernel = _text(machine, "kernel")
    parts.append(f"kernel {kernel}" if kernel else "")
    return ", ".join(part for part in parts if part)
