"""Offstage as a wheel for a guest, compiled here from this checkout's sources.

The compiler takes headers and libraries from the guest image's tree, so the result does not depend
on this machine's libraries. A copy of the sources and the objects compiled from it stay in the
cache, so that the next wheel compiles only what has changed.

Raises BadInput if there is no checkout or no cross compiler, RunFailed if compiling fails.
"""

import filecmp
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import offstage
from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.beds.qemu.command import finished
from offstage.testbeds.beds.qemu.images import Image, needs
from offstage.testbeds.cache import cache_folder

__all__ = ["build"]

BUILD_TIMEOUT_S = 1200.0
FOLDERS = ("asic_model", "bindings", "dpu", "host", "testbeds")
FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
SKIPPED = ("build", "__pycache__", "*.so", "*.o", "*.pyc", "_firmware.c", "_analysis.c", "_chip.c")


def build(image: Image) -> Path:
    """The wheel for guests of `image`. One program at a time per cache: see `pair.alone`."""
    checkout = Path(offstage.__file__ or "").resolve().parents[2]
    if not (checkout / "setup.py").is_file():
        raise BadInput(
            "has no sources to compile for a guest",
            str(checkout),
            "run it from a checkout of Offstage",
        )
    arch = image.arch
    native = platform.machine() == arch.name
    compiler = "gcc" if native else f"{arch.triplet}-gcc"
    needs((compiler, compiler if native else f"gcc-{arch.name}-linux-gnu"))
    folder = cache_folder() / "qemu" / "wheels" / image.folder.name
    made = folder / "dist"
    if _update(checkout, folder / "tree") or not any(made.glob("*.whl")):
        shutil.rmtree(made, ignore_errors=True)
        _compile(folder / "tree", made, image, compiler)
    (wheel,) = made.glob("*.whl")
    return wheel


def _sources(checkout: Path) -> Iterator[Path]:
    for name in FILES:
        yield checkout / name
    for folder in FOLDERS:
        for path in sorted((checkout / folder).rglob("*")):
            relative = path.relative_to(checkout)
            if path.is_file() and not any(
                Path(part).match(pattern) for part in relative.parts for pattern in SKIPPED
            ):
                yield path


def _update(checkout: Path, tree: Path) -> bool:
    """Update the copy from the checkout; returns whether anything changed. Only files that
    differ are written, so that they are newer than the objects compiled from them."""
    wanted = {path.relative_to(checkout): path for path in _sources(checkout)}
    names = tree.parent / "names"
    listed = "\n".join(map(str, wanted))
    changed = not names.exists() or names.read_text(encoding="utf-8") != listed
    if changed:  # a deleted file may be part of a compiled object
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(
            checkout / "src",
            tree / "src",
            symlinks=True,
            ignore=shutil.ignore_patterns("*.egg-info", *SKIPPED),
        )
    for relative, path in wanted.items():
        to = tree / relative
        if not to.exists() or not filecmp.cmp(path, to, shallow=False):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            changed = True
    names.write_text(listed, encoding="utf-8")
    return changed


def _compile(tree: Path, made: Path, image: Image, compiler: str) -> None:
    root, triplet = image.tree, image.arch.triplet
    command = f"{compiler} --sysroot={root} -I{root}/usr/include/python3.11"
    environment = {
        **os.environ,
        "CC": command,
        "LDSHARED": f"{compiler} --sysroot={root} -shared",
        "CFLAGS": "",
        "PKG_CONFIG_LIBDIR": f"{root}/usr/lib/{triplet}/pkgconfig:{root}/usr/share/pkgconfig",
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "_PYTHON_HOST_PLATFORM": f"linux-{image.arch.name}",
    }
    environment.pop("PYTHONPATH", None)
    done = finished(
        [
            sys.executable,
            "setup.py",
            "-q",
            "bdist_wheel",
            "--dist-dir",
            str(made),
            "--plat-name",
            f"linux_{image.arch.name}",
        ],
        BUILD_TIMEOUT_S,
        cwd=tree,
        env=environment,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "rror" in line] or [
            "it printed nothing"
        ]
        raise RunFailed(f"failed: {said[0]}", f"the build for {image.arch.name}")
