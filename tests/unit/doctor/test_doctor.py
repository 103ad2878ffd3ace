"""Does `offstage doctor` look without touching, and does --fix do what it said and no more?"""

import importlib.machinery
import json
import os
import subprocess
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput, DeviceTimeout
from offstage.testbeds.cli.doctor import to_dict
from offstage.testbeds.doctor import Check, Machine, Repair, examine, kernel, repair, software

PAGES = "/proc/sys/vm/nr_hugepages"


def broken(*repairs: Repair) -> list[Check]:
    return [Check("one", "missing", "none", "all", "mend it", repairs)]


def root_user(monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: number)


def test_what_is_not_ok_has_a_mend_and_nothing_is_left_behind(tmp_path: Path) -> None:
    checks = examine(Machine(tmp_path))
    assert len({check.name for check in checks}) == len(checks)
    assert [check.name for check in checks if (check.state == "ok") == bool(check.mend)] == []
    assert to_dict(checks)["ready"] is True, "this test itself needs the extension"
    assert json.loads(json.dumps(to_dict(checks)))["checks"][0]["name"] == "python"
    assert list(tmp_path.iterdir()) == []


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
        steps, Machine(tmp_path, tmp_path), lambda step: said.append((step, file.read_text())),
        ("sh", "-c", 'touch "$0/$1"', str(tmp_path)),
    )  # fmt: skip
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
    assert failed == ["modprobe no_such: exit 1",
                      "echo 1 > /absent/file: No such file or directory",
                      "modprobe other: exit 1"]  # fmt: skip
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
    ("disabled", "mend"), [("2", "sysctl kernel.io_uring_disabled=0"), ("0", "seccomp")]
)
def test_io_uring_that_is_refused_says_by_whom(
    disabled: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_opened", lambda folder: ("missing", "io_uring is not permitted"))
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/io_uring_disabled").write_text(disabled)
    check = kernel._io_uring(Machine(tmp_path, tmp_path))
    assert check.state == "missing" and mend in check.mend


def test_io_uring_is_tried_by_setting_one_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that allows it is no proof: does a ring that cannot be made count as missing?"""

    def refused(config: object) -> None:
        raise DeviceTimeout("the ring did not come up")

    assert kernel._opened(tmp_path)[0] in ("ok", "missing")
    monkeypatch.setattr("offstage.bindings.storage.Storage", refused)
    assert kernel._opened(tmp_path) == ("missing", "the ring did not come up")
    assert kernel._opened(tmp_path / "absent")[1].endswith("No such file or directory")


SPDK_ROWS = [
    (None, True, "missing", "not found", "PKG_CONFIG_PATH"),
    ((26, 5), True, "ok", "26.05, extension _spdk built", ""),
    ((24, 9), False, "missing", "24.09, extension _spdk not built", "build again"),
    ((24, 1), True, "missing", "24.01", "24.09 to 26.05"),
    ((), True, "ok", "unknown release", ""),
]


@pytest.mark.parametrize(("release", "built", "state", "found", "mend"), SPDK_ROWS)
def test_spdk_is_told_by_its_release_and_not_by_the_number_of_its_library(
    release: tuple[int, ...] | None, built: bool, state: str, found: str, mend: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if release:
        (tmp_path / "spdk").mkdir()
        (tmp_path / "spdk/version.h").write_text(
            f"#define SPDK_VERSION_MAJOR\t{release[0]}\n#define SPDK_VERSION_MINOR\t{release[1]}\n"
        )
    said = None if release is None else str(tmp_path)
    monkeypatch.setattr(software, "pkg_config", lambda package, what="": said)
    spec = importlib.machinery.ModuleSpec("_spdk", None) if built else None
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: spec)
    check = software._spdk(Machine(tmp_path))
    assert check.state == state and found in check.found
    assert (mend in check.mend) if mend else not check.mend


NIXL_ROWS = [
    ("", None, "missing", "not installed"),
    ("1.5", (0, ""), "ok", "1.5, imports"),
    ("1.5", (1, "Traceback\nImportError: libcuda.so.1"), "missing", "ImportError: libcuda.so.1"),
    ("1.5", None, "missing", "does not import: hangs"),
]


@pytest.mark.parametrize(("version", "ended", "state", "found"), NIXL_ROWS)
def test_nixl_counts_only_where_it_imports(
    version: str, ended: tuple[int, str] | None, state: str, found: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    done = subprocess.CompletedProcess([], ended[0], "", ended[1]) if ended else None
    monkeypatch.setattr(software, "_distribution", lambda name: version or None)
    monkeypatch.setattr(software, "run_quietly", lambda words: done)
    check = software._nixl(Machine(tmp_path))
    assert check.state == state and found in check.found


def test_what_imports_nixl_tells_a_wheel_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real process: one module loads, one fails in its own import, none is there."""
    monkeypatch.setattr(software, "_distribution", lambda name: "1.5")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "No module named" in software._nixl(Machine(tmp_path)).found
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl/_api.py").write_text("import ctypes; ctypes.CDLL('libnone.so')")
    assert "libnone.so" in software._nixl(Machine(tmp_path)).found
    (tmp_path / "nixl/_api.py").write_text("")
    assert software._nixl(Machine(tmp_path)).state == "ok"
