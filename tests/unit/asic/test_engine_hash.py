"""Is the event log of a fixed run the same on every run, build and machine?

`asic_model/engine/test/hash.c` makes the run and prints the hash of its log: time, unit, request
and kind of each event. It is built here for this machine, without optimization, and for aarch64,
where qemu runs it.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[3] / "asic_model/engine"
GOLDEN = "75be298a7f1236c8"
"""Changes only with the engine's behaviour or the content of its log."""


def printed(build: Path, *variables: str, run: tuple[str, ...] = ()) -> str:
    """Return the program's output; it is built into `build`."""
    make = ["make", "-s", "-C", str(ENGINE), "hash", f"BUILD={build}", *variables]
    subprocess.run(make, check=True, timeout=500)
    done = subprocess.run(
        [*run, str(build / "hash")], check=True, capture_output=True, text=True, timeout=500
    )
    return done.stdout.strip()


def needs(*tools: str, fix: str) -> None:
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"no {missing[0]}: apt-get install {fix}")


def test_the_hash_of_this_machine(tmp_path: Path) -> None:
    needs("make", "gcc", fix="make gcc")
    assert printed(tmp_path, "CFLAGS=-O0") == GOLDEN


def test_the_hash_of_aarch64(tmp_path: Path) -> None:
    packages = "qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    needs("make", "qemu-aarch64", "aarch64-linux-gnu-gcc", fix=packages)
    variables = ("CC=aarch64-linux-gnu-gcc", "LDFLAGS=-static")
    assert printed(tmp_path, *variables, run=("qemu-aarch64",)) == GOLDEN
