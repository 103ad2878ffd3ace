"""Does `offstage doctor` change nothing, and does --fix change exactly what it announced?"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput, DeviceTimeout
from offstage.testbeds.cli import run
from offstage.testbeds.cli.doctor import examined
from offstage.testbeds.doctor import Check, Machine, Repair, examine, kernel, repair, software
from offstage.testbeds.document import plain

PAGES = "/proc/sys/vm/nr_hugepages"


def broken(*repairs: Repair) -> list[Check]:
    return [Check("one", "missing", "none", "all", "fix it", repairs)]


def root_user(monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: number)


def test_what_is_not_ok_has_a_fix_and_nothing_is_left_behind(tmp_path: Path) -> None:
    checks = examine(Machine(tmp_path))
    assert len({check.name for check in checks}) == len(checks)
    assert [check.name for check in checks if (check.state == "ok") == bool(check.fix)] == []
    assert examined(checks).ready is True, "this test itself needs the extension"
    assert json.loads(json.dumps(plain(examined(checks))))["checks"][0]["name"] == "python"
    assert list(tmp_path.iterdir()) == []


def test_the_last_sentence_and_the_exit_code_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Does doctor end with what the machine is ready for, or with what to do first?"""
    good, spare = Check("python", "ok", "3.11", "everything"), Check("GPU", "missing", "none", "k")
    bad = Check("cores", "required", "0", "everything", "add a core")
    for checks, code, last in (
        ([good, spare], 0, "Missing, and not needed for these: GPU."),
        ([good], 0, "the laboratory and a daemon on this machine."),
        ([good, bad, spare], 1, "Not ready. First: cores, add a core."),
    ):
        monkeypatch.setattr("offstage.testbeds.cli.doctor.examine", lambda _, told=checks: told)
        assert run(["doctor", "--out", str(tmp_path)]) == code
        assert capsys.readouterr().out.strip().endswith(last)


def test_a_repair_is_shown_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_user(monkeypatch)
    file = tmp_path / PAGES.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("0")
    said: list[tuple[str, str]] = []
    steps = broken(Repair(PAGES, "512"), Repair("", "vfio-pci"))
    failed = repair(
        steps,
        Machine(tmp_path, tmp_path),
        lambda step: said.append((step, file.read_text())),
        ("sh", "-c", 'touch "$0/$1"', str(tmp_path)),
    )
    assert failed == [] and file.read_text() == "512"
    assert said == [(f"echo 512 > {PAGES}", "0"), ("modprobe vfio-pci", "512")]
    assert (tmp_path / "vfio-pci").exists()


def test_a_repair_that_fails_is_said_and_the_next_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_user(monkeypatch)
    steps = broken(Repair("", "no_such"), Repair("/absent/file", "1"), Repair("", "other"))
    said: list[str] = []
    failed = repair(steps, Machine(tmp_path, tmp_path), said.append, ("false",))
    assert len(said) == 3
    assert failed == [
        "modprobe no_such: exit 1",
        "echo 1 > /absent/file: No such file or directory",
        "modprobe other: exit 1",
    ]
    failed = repair(steps[:1], Machine(tmp_path, tmp_path), said.append, ("no-such-command",))
    assert "No such file" in failed[0]


def test_without_root_nothing_is_done_and_the_commands_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_user(monkeypatch, 1000)
    with pytest.raises(BadInput, match=r"sudo offstage doctor --fix.*modprobe vfio-pci"):
        repair(broken(Repair("", "vfio-pci")), Machine(tmp_path), print, ("false",))
    assert repair(broken(), Machine(tmp_path), print, ("false",)) == [], "nothing to do: no root"


@pytest.mark.parametrize(
    ("disabled", "fix"), [("2", "sysctl kernel.io_uring_disabled=0"), ("0", "seccomp")]
)
def test_io_uring_that_is_refused_says_by_whom(
    disabled: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_opened", lambda folder: ("missing", "io_uring is not permitted"))
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/io_uring_disabled").write_text(disabled)
    check = kernel._io_uring(Machine(tmp_path, tmp_path))
    assert check.state == "missing" and fix in check.fix


def test_io_uring_is_tried_by_setting_one_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that allows io_uring is no proof: if no ring can be made, it counts as missing."""

    def refused(config: object) -> None:
        raise DeviceTimeout("the ring did not come up")

    assert kernel._opened(tmp_path)[0] in ("ok", "missing")
    monkeypatch.setattr("offstage.bindings.storage.Storage", refused)
    assert kernel._opened(tmp_path) == ("missing", "the ring did not come up")
    assert kernel._opened(tmp_path / "absent")[1].endswith("No such file or directory")


Ended = tuple[int, str, str] | None  # a process: exit status, stdout, stderr
SPDK_ROWS: list[tuple[tuple[int, ...] | None, bool, Ended, str, str, str]] = [
    (None, False, None, "missing", "not found", "PKG_CONFIG_PATH"),
    (None, True, (0, "26.05", ""), "ok", "26.05, extension _spdk built", ""),
    (
        (26, 5),
        True,
        (1, "", "T\nlibspdk_nvme.so.18: cannot open"),
        "missing",
        "does not load: libspdk_nvme.so.18",
        "LD_LIBRARY_PATH",
    ),
    ((26, 5), True, None, "missing", "does not load: it hangs", "LD_LIBRARY_PATH"),
    ((24, 9), False, None, "missing", "24.09, extension _spdk not built", "build again"),
    ((24, 1), False, None, "missing", "24.01", "24.09 to 26.05"),
    ((), False, None, "missing", "unknown release", "build again"),
]


@pytest.mark.parametrize(("release", "built", "ended", "state", "found", "fix"), SPDK_ROWS)
def test_spdk_is_what_loads_or_what_could_be_built(
    release: tuple[int, ...] | None,
    built: bool,
    ended: Ended,
    state: str,
    found: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A built extension counts without headers, with its own release, but not if it fails to
    load."""
    if release:
        (tmp_path / "spdk").mkdir()
        (tmp_path / "spdk/version.h").write_text(
            f"#define SPDK_VERSION_MAJOR\t{release[0]}\n#define SPDK_VERSION_MINOR\t{release[1]}\n"
        )
    said = None if release is None else str(tmp_path)
    monkeypatch.setattr(software, "pkg_config", lambda package, what="": said)
    show(monkeypatch, built, ended)
    check = software._spdk(Machine(tmp_path))
    assert check.state == state and found in check.found
    assert (fix in check.fix) if fix else not check.fix


def show(monkeypatch: pytest.MonkeyPatch, built: bool, ended: Ended) -> None:
    """Set whether the extension is built, and how the process that tries it ends."""
    done = subprocess.CompletedProcess([], *ended) if ended else None
    monkeypatch.setattr(software, "_extension", lambda name: built)
    monkeypatch.setattr(software, "run_quietly", lambda words: done)


VERBS_ROWS: list[tuple[str | None, bool, Ended, str, str, str]] = [
    (None, False, None, "missing", "no headers", "libibverbs-dev"),
    ("1.14", False, None, "missing", "1.14, extension _verbs not built", "make dev"),
    ("1.14", True, (0, "", ""), "ok", "1.14, extension _verbs built", ""),
    (None, True, (0, "", ""), "ok", "extension _verbs built", ""),
    (
        None,
        True,
        (1, "", "ImportError: libibverbs.so.1"),
        "missing",
        "not load: ImportError",
        "libibverbs1",
    ),
]


@pytest.mark.parametrize(("version", "built", "ended", "state", "found", "fix"), VERBS_ROWS)
def test_verbs_count_only_where_the_extension_loads(
    version: str | None,
    built: bool,
    ended: Ended,
    state: str,
    found: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Headers without the extension, and an extension without its library, are reported apart."""
    monkeypatch.setattr(software, "pkg_config", lambda package, what="": version)
    show(monkeypatch, built, ended)
    check = software._verbs(Machine(tmp_path))
    assert check.state == state and found in check.found
    assert (fix in check.fix) if fix else not check.fix


def test_nixl_is_the_library_that_the_fabric_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor loads the fabric's library in a real process, not NIXL's Python package."""
    monkeypatch.setattr(software.nixl, "find", lambda: None)
    assert software._nixl(Machine(tmp_path)).found == "not installed"
    monkeypatch.undo()
    library = tmp_path / "libnixl_capi.so"
    library.write_bytes(b"no library")
    monkeypatch.setenv("OFFSTAGE_NIXL", str(library))
    check = software._nixl(Machine(tmp_path))
    assert check.state == "missing" and f"{library} does not load: " in check.found
    assert "OFFSTAGE_NIXL" in check.fix
    show(monkeypatch, True, (0, "", ""))
    monkeypatch.setattr(software, "_distribution", lambda name: "1.5")
    assert software._nixl(Machine(tmp_path)).found == "1.5, loads"
