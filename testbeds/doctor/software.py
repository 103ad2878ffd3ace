"""The optional software of Offstage: libraries, extensions, tools.

Software that takes long to import, or may end the importing process, is examined in a separate
process or not imported at all.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from offstage.bindings import nixl
from offstage.bindings.errors import OffstageError, brings
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
    return Check(
        "python",
        "ok" if good else "required",
        version,
        "everything",
        "" if good else "install Python 3.11 or newer",
    )


def _firmware(machine: Machine) -> Check:
    try:
        from offstage.bindings.firmware import ABI_VERSION
    except OffstageError as error:
        return Check("firmware extension", "required", error.what, "everything", error.fix)
    return Check("firmware extension", "ok", f"loads, ABI {ABI_VERSION}", "everything")


def _xxhash(machine: Machine) -> Check:
    return _headers(
        "libxxhash",
        "block checksums; needed to build the firmware",
        "apt-get install libxxhash-dev",
    )


def _liburing(machine: Machine) -> Check:
    return _headers(
        "liburing",
        "built into the firmware for io_uring",
        "apt-get install liburing-dev, then build again",
    )


def _verbs(machine: Machine) -> Check:
    purpose = "the verbs fabric: RDMA between host and daemon"
    version, built = pkg_config("libibverbs"), _extension("_verbs")
    if not built:
        found = "no headers" if version is None else f"{version}, extension _verbs not built"
        return Check(
            "libibverbs",
            "missing",
            found,
            purpose,
            "apt-get install libibverbs-dev, then build again: make dev",
        )
    if why := _tried("from offstage.bindings import _verbs")[1]:
        return Check(
            "libibverbs",
            "missing",
            f"extension _verbs does not load: {why}",
            purpose,
            "apt-get install libibverbs1 ibverbs-providers",
        )
    found = ", ".join(word for word in (version, "extension _verbs built") if word)
    return Check("libibverbs", "ok", found, purpose)


def _spdk(machine: Machine) -> Check:
    """A build reports its own release; without one, the release it could be built from. SPDK's
    packages carry the number of each library, and the release is in a header."""
    purpose = "storage spdk: NVMe drives and targets without the kernel"
    if _extension("_spdk"):
        release, why = _tried("from offstage.bindings import spdk; print(spdk.release())")
        if why:
            return Check(
                "SPDK",
                "missing",
                f"extension _spdk does not load: {why}",
                purpose,
                "put SPDK's libraries on LD_LIBRARY_PATH, or build again",
            )
        return Check("SPDK", "ok", f"{release}, extension _spdk built", purpose)
    if pkg_config("spdk_nvme") is None:
        return Check(
            "SPDK",
            "missing",
            "not found",
            purpose,
            "build SPDK (spdk.io) and put its pkgconfig on PKG_CONFIG_PATH",
        )
    known = _spdk_release(pkg_config("spdk_nvme", "--variable=includedir") or "")
    shown = "unknown release" if known is None else f"{known[0]}.{known[1]:02}"
    if known is not None and not SPDK_FROM <= known <= SPDK_TO:
        return Check("SPDK", "missing", shown, purpose, "install a release from 24.09 to 26.05")
    return Check(
        "SPDK",
        "missing",
        f"{shown}, extension _spdk not built",
        purpose,
        "build again with SPDK's pkgconfig on PKG_CONFIG_PATH: make dev",
    )


def _spdk_release(include: str) -> tuple[int, int] | None:
    try:
        text = Path(include, "spdk/version.h").read_text(encoding="utf-8")
    except OSError:
        return None
    numbers = {name: int(value) for name, value in SPDK_RELEASE.findall(text)}
    return (numbers["MAJOR"], numbers["MINOR"]) if len(numbers) == 2 else None


def _nixl(machine: Machine) -> Check:
    """The fabric needs only its C library. An installed one may still fail to load: the wheel
    brings libraries for a GPU's driver."""
    purpose = "the nixl fabric: machines without raw verbs, and GPU memory"
    library = nixl.find()
    if library is None:
        return Check("NIXL", "missing", "not installed", purpose, "pip install --no-deps nixl-cu12")
    version = next((found for name in NIXL_DISTRIBUTIONS if (found := _distribution(name))), None)
    if why := _tried("from offstage.bindings import nixl; nixl.load()")[1]:
        return Check(
            "NIXL",
            "missing",
            f"{library} does not load: {why}",
            purpose,
            "let OFFSTAGE_NIXL name a libnixl_capi.so, or unset it"
            if "OFFSTAGE_NIXL" in os.environ
            else "pip install --force-reinstall --no-deps nixl-cu12",
        )
    return Check("NIXL", "ok", f"{version or library}, loads", purpose)


def _extension(name: str) -> bool:
    return importlib.util.find_spec(f"offstage.bindings.{name}") is not None


def _tried(attempt: str) -> tuple[str, str]:
    """The output of a new process, and, if it fails, the reason."""
    done = run_quietly([sys.executable, "-c", _ATTEMPT.format(attempt=attempt)])
    if done is None:
        return "", "it hangs"
    if done.returncode == 0:
        return done.stdout.strip(), ""
    return "", (done.stderr.strip().splitlines() or [f"it ends with {done.returncode}"])[-1]


_ATTEMPT = """
import sys
from offstage.bindings.errors import OffstageError
try:
    {attempt}
except OffstageError as error:
    sys.exit(error.what)
"""


def _torch(machine: Machine) -> Check:
    purpose = "the torch kernel; the numpy kernel needs nothing"
    if (version := _distribution("torch")) is not None:
        return Check("torch", "ok", version, purpose)
    return Check("torch", "missing", "not installed", purpose, brings("host"))


def _pyverbs(machine: Machine) -> Check:
    found = importlib.util.find_spec("pyverbs") is not None
    return Check(
        "pyverbs",
        "ok" if found else "missing",
        "found" if found else "not installed",
        "the independent peer of the verbs fabric's tests",
        "" if found else "apt-get install python3-pyverbs rdma-core",
    )


def _fio(machine: Machine) -> Check:
    return _tool("fio", ("fio",), "the reference of `offstage bench storage`", "fio")


def _chromium(machine: Machine) -> Check:
    names = ("chromium", "chromium-browser", "google-chrome")
    return _tool("chromium", names, "tests of the report's page", "chromium")


def _headers(package: str, purpose: str, fix: str) -> Check:
    if (version := pkg_config(package)) is not None:
        return Check(package, "ok", version, purpose)
    return Check(package, "missing", "no headers", purpose, fix)


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
    _python,
    _firmware,
    _xxhash,
    _liburing,
    _spdk,
    _verbs,
    _pyverbs,
    _nixl,
    _torch,
    _fio,
    _chromium,
)
