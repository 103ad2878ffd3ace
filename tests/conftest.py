"""Shared by all tests: the folder of real traces, and settings that do not depend on load."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from offstage.bindings import verbs
from offstage.bindings.errors import OffstageError
from offstage.bindings.verbs import Adapter

ROOT = Path(__file__).resolve().parents[1]

# The machine may be busy: a slow example is not a failure. CI may ask for more examples.
settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("OFFSTAGE_HYPOTHESIS", "default"))

# Numeric libraries with a thread per core make small kernels slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without a GPU, Triton's kernels run on the CPU; this is read when Triton is first imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that starts the tests in the background makes them ignore Ctrl-C, and with them every
# process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces; the test is skipped where it is absent."""
    folder = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared/traces"))
    if not folder.is_dir():
        pytest.skip(f"no real traces in {folder}; set OFFSTAGE_TRACES to a folder that holds them")
    return folder


@pytest.fixture(scope="session")
def rdma() -> Adapter:
    """The machine's RDMA adapter, opened; the test is skipped where there is none."""
    try:
        return verbs.prepare(verbs.Rdma())
    except OffstageError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def nixl_library() -> Path:
    """NIXL's C library, loaded; the test is skipped where there is none."""
    from offstage.bindings import nixl

    library = nixl.find()
    if library is None:
        pytest.skip(f"NIXL is not installed; {nixl.FIX}")
    nixl.prepare()
    return library


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for skipped tests once; it names the command that runs them."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in Counter(report.longrepr[2] for report in skipped).most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
