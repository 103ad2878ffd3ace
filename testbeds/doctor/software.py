"""The software that Offstage uses where it is there: libraries, extensions, tools.

What takes long to import, or may end the process that imports it, is looked at in a process of its
own or not imported at all.
"""

import importlib.util
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from offstage.bindings.errors import OffstageError
from offstage.testbeds.doctor.check import (
    Check,
    Machine,
    command_path,
    pkg_config,
    run_quietly,
)

__all__ = ["SOFTWARE"]

SPDK_FROM, SPDK_TO = (24, 9), (26, 5)  # the releases that the extension is built and tested with
SPDK_RELEASE = re.compile(r"#define\s+SPDK_VERSION_(MAJOR|MINOR)\s+(\d+)")
NIXL_DISTRIBUTIONS = ("nixl", "nixl-cu13", "nixl-cu12")


def _python(machine: Machine) -> Check:
    version = ".".join(str(number) for number in sys.version_info[:3])
    good = sys.version_info >= (3, 11)
    return Check("python", "ok" if good else "required", version, "everything",
                 "" if good else "install Python 3.11 or newer")  # fmt: skip


def _firmware(machine: Machine) -> Check:
    try:
        from offstage.bindings.firmware import ABI_VERSION
    except OffstageError as error:
        return Check("firmware extension", "required", error.what, "everything", error.mend)
    return Check("firmware extension", "ok", f"loads, ABI {ABI_VERSION}", "everything")


def _xxhash(machine: Machine) -> Check:
    return _headers("libxxhash", "block checksums; needed to build the firmware",
                    "apt-get install libxxhash-dev")  # fmt: skip


def _liburing(machine: Machine) -> Check:
    return _headers("liburing", "built into the firmware for io_uring",
                    "apt-get install liburing-dev, then build again")  # fmt: skip


def _verbs(machine: Machine) -> Check:
    return _headers("libibverbs", "the verbs fabric is built where it is there",
                    "apt-get install libibverbs-dev, then build again")  # fmt: skip


def _spdk(machine: Machine) -> Check:
    """SPDK's packages carry the number of each library; the release stands in a header."""
    purpose = "storage spdk: NVMe drives and targets without the kernel"
    if pkg_config("spdk_nvme") is None:
        return Check("SPDK", "missing", "not found", purpose,
                     "build SPDK (spdk.io) and put its pkgconfig on PKG_CONFIG_PATH")  # fmt: skip
    release = _spdk_release(pkg_config("spdk_nvme", "--variable=includedir") or "")
    built = importlib.util.find_spec("offstage.bindings._spdk") is not None
    shown = "unknown release" if release is None else f"{release[0]}.{release[1]:02}"
    found = f"{shown}, extension _spdk {'built' if built else 'not built'}"
    if release is not None and not SPDK_FROM <= release <= SPDK_TO:
        return Check("SPDK", "missing", found, purpose,
                     "install a release from 24.09 to 26.05")  # fmt: skip
    if not built:
        return Check("SPDK", "missing", found, purpose,
                     "build again with SPDK's pkgconfig on PKG_CONFIG_PATH: make dev")  # fmt: skip
    return Check("SPDK", "ok", found, purpose)


def _spdk_release(include: str) -> tuple[int, int] | None:
    try:
        text = Path(include, "spdk/version.h").read_text(encoding="utf-8")
    except OSError:
        return None
    numbers = {name: int(value) for name, value in SPDK_RELEASE.findall(text)}
    return (numbers["MAJOR"], numbers["MINOR"]) if len(numbers) == 2 else None


def _nixl(machine: Machine) -> Check:
    """A wheel that is there may still not load: it brings libraries for a GPU's driver."""
    purpose = "the nixl fabric: machines without raw verbs, and GPU memory"
    version = next((found for name in NIXL_DISTRIBUTIONS if (found := _distribution(name))), None)
    if version is None:
        return Check("NIXL", "missing", "not installed", purpose, "pip install --no-deps nixl-cu12")
    names = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api")
    done = run_quietly([sys.executable, "-c", _IMPORT_ONE.format(names=names)])
    if done is not None and done.returncode == 0:
        return Check("NIXL", "ok", f"{version}, imports", purpose)
    last = (done.stderr.strip().splitlines() or ["no word"])[-1] if done is not None else "hangs"
    return Check("NIXL", "missing", f"{version} does not import: {last}", purpose,
                 "pip install --force-reinstall --no-deps nixl-cu12")  # fmt: skip


_IMPORT_ONE = """
import importlib
for name in {names}:
    try:
        importlib.import_module(name)
        break
    except ImportError as error:
        failed = error
else:
    raise failed
"""


def _torch(machine: Machine) -> Check:
    purpose = "the torch kernel; the numpy kernel needs nothing"
    if (version := _distribution("torch")) is not None:
        return Check("torch", "ok", version, purpose)
    return Check("torch", "missing", "not installed", purpose, "pip install 'offstage[host]'")


def _pyverbs(machine: Machine) -> Check:
    found = importlib.util.find_spec("pyverbs") is not None
    return Check("pyverbs", "ok" if found else "missing", "found" if found else "not installed",
                 "the independent peer of the verbs fabric's tests",
                 "" if found else "apt-get install python3-pyverbs rdma-core")  # fmt: skip


def _fio(machine: Machine) -> Check:
    return _tool("fio", ("fio",), "the reference of `offstage bench storage`", "fio")


def _chromium(machine: Machine) -> Check:
    names = ("chromium", "chromium-browser", "google-chrome")
    return _tool("chromium", names, "tests of the report's page", "chromium")


def _headers(package: str, purpose: str, mend: str) -> Check:
    if (version := pkg_config(package)) is not None:
        return Check(package, "ok", version, purpose)
    return Check(package, "missing", "no headers", purpose, mend)


def _tool(name: str, commands: tuple[str, ...], purpose: str, package: str) -> Check:
    if (path := command_path(*commands)) is not None:
        return Check(name, "ok", path, purpose)
    return Check(name, "missing", "not installed", purpose, f"apt-get install {package}")


def _distribution(name: str) -> str | None:
    """The installed version, without importing what may take seconds to import."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


SOFTWARE: tuple[Callable[[Machine], Check], ...] = (
    _python, _firmware, _xxhash, _liburing, _spdk, _verbs, _pyverbs, _nixl, _torch, _fio, _chromium,
)  # fmt: skip
