"""Is a reference that did not reach the target run again, and is any other failure reported in its
own words? A script replaces spdk_nvme_perf."""

from pathlib import Path

import pytest

from offstage.bindings.errors import RunFailed
from offstage.testbeds.bench import spdk

CASE = spdk.Case(4096, 1)
INIT = 'echo "Initializing NVMe Controllers"'
TOTAL = 'echo "Total   :   1234.50    4.82   89.67  10.0  20.0"'
NONE = 'echo "No valid NVMe controllers found" >&2'


def perf(folder: Path, *runs: str) -> str:
    """A program whose n-th run executes the n-th line, and every later run the last one."""
    lines = [f"  {number}) {run};;" for number, run in enumerate(runs[:-1])]
    program = folder / "perf"
    program.write_text(
        "\n".join(
            [
                "#!/bin/sh",
                f'n=$(cat "{folder}/n" || echo 0)',
                f'echo $((n + 1)) > "{folder}/n"',
                INIT,
                "case $n in",
                *lines,
                f"  *) {runs[-1]};;",
                "esac",
            ]
        )
    )
    program.chmod(0o755)
    return str(program)


def tries(folder: Path) -> int:
    return int((folder / "n").read_text())


def test_a_target_that_was_not_reached_is_tried_again(tmp_path: Path) -> None:
    assert spdk._perf(perf(tmp_path, NONE, NONE, TOTAL), "trtype:TCP", CASE) == 1234.5
    assert tries(tmp_path) == 3


def test_one_that_is_never_reached_ends_in_the_reference_s_own_words(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="ended with 0: No valid NVMe controllers found"):
        spdk._perf(perf(tmp_path, NONE), "trtype:TCP", CASE)
    assert tries(tmp_path) == spdk.PERF_TRIES


def test_what_is_wrong_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="ended with 7: no hugepages"):
        spdk._perf(perf(tmp_path, 'echo "no hugepages" >&2; exit 7'), "trtype:TCP", CASE)
    assert tries(tmp_path) == 1
