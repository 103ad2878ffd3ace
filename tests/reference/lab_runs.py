"""An experiment that takes half a second, and ways to run it."""

import hashlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.cli import run

LAB = offstage_words("lab")
WAIT_S = 120.0

SPEC = """
seeds = [1, 2]
[workload]
context_tokens = 4096
sessions = 3
concurrent = 2
steps = 24
turn_steps = 10
[geometry]
model = "tiny"
block_tokens = 64
[selection]
k_blocks = 8
[tier]
buffer_over_k = [2]
[[policy]]
use = "window+ema"
[[policy]]
use = "warmup+arc"
[[policy]]
use = "lab_policies:Silent"
"""


def ledger(out: Path) -> str:
    """The hash of a run's ledger."""
    return hashlib.sha256((out / "ledger.parquet").read_bytes()).hexdigest()


def shell(*words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    """`offstage lab WORDS` as a process."""
    return subprocess.run([*LAB, *words], capture_output=True, text=True, timeout=500, **more)


def here(*words: str) -> int:
    """`offstage lab WORDS --jobs 1` in this process."""
    return run(["lab", *words, "--jobs", "1"])


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until the condition holds; an error after `WAIT_S`."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
