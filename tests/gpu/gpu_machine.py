"""What the machine of a GPU run offers: its device, its libraries, and why there is no device.

Everything here runs in a child process of the run: a query for a device loads its libraries, and a
driver that does not match may end the process.
"""

import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["build_firmware", "describe", "lacking"]

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = (
    "numpy",
    "torch",
    "triton",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "kvikio-cu12",
    "kvikio-cu13",
    "transformers",
    "flashinfer-python",
    "flash-attn",
    "cffi",
    "msgspec",
)


def describe() -> dict[str, Any]:
    """Return the machine, for the head of the results; `no_device` is "" with a CUDA device."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "versions": versions,
        "driver": _driver(),
        "commit": _first_line(["git", "-C", str(ROOT), "rev-parse", "HEAD"]),
    }
    return {**found, **_device(found["driver"])}


def _driver() -> str:
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])


def _first_line(command: list[str]) -> str:
    """The first line that a command prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""


def _device(driver: str) -> dict[str, Any]:
    """Return the CUDA device as torch sees it, tried with one small sum, or why there is none."""
    try:
        import torch
    except ImportError as error:
        return {"no_device": f"no CUDA device: torch cannot be imported ({error})"}
    if torch.version.cuda is None:
        there = f", though the driver {driver} is there" if driver else ""
        return {
            "no_device": f"no CUDA device: torch {torch.__version__} is built without CUDA{there}"
        }
    try:
        if not torch.cuda.is_available():
            torch.cuda.init()  # says why
        properties = torch.cuda.get_device_properties(0)
        assert int(torch.ones(8, device="cuda").sum()) == 8
    except (RuntimeError, AssertionError) as error:
        return {"no_device": f"no CUDA device: {' '.join(str(error).split())}"}
    free, total = torch.cuda.mem_get_info(0)
    return {
        "no_device": "",
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": total,
        "memory_free_bytes": free,
        "cuda": torch.version.cuda,
    }


def lacking(needs: tuple[str, ...], model: Path | None) -> str:
    """Return what is missing of `needs`, as the reason for a skip, or "" if nothing is."""
    for name in needs:
        if name == "model":
            if model is None:
                return "no model: give --model DIR"
        elif name == "firmware":
            if reason := build_firmware():
                return f"no C extension: {reason}"
        elif importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return ""


def build_firmware() -> str:
    """Build the C extension in place unless it exists; return "" or why it failed."""
    for name in ("cffi", "numpy", "msgspec"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    if list((ROOT / "bindings").glob("_firmware*.so")):
        return ""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split())
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["setup.py build_ext failed"])[-1]
    return ""


if __name__ == "__main__":
    print(json.dumps(describe()))
