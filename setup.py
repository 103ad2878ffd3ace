"""What pyproject.toml cannot declare: the C extensions, and that one wheel fits every Python."""

import os
import subprocess
import sys

from setuptools import setup

if sys.platform != "linux":
    sys.exit("offstage: needs Linux; use a virtual machine, WSL 2 or a container")

BUILD = "bindings/build_extensions.py"
# Extensions that need a library which may be missing, and its names for pkg-config.
OPTIONAL = {"spdk": ("spdk_nvme", "spdk_env_dpdk"), "verbs": ("libibverbs",)}


def found(packages: tuple[str, ...]) -> bool:
    """Whether pkg-config knows all of them; without pkg-config the build itself says so."""
    try:
        return subprocess.run(["pkg-config", "--exists", *packages], check=False).returncode == 0
    except FileNotFoundError:
        return False


names = ["firmware", "analysis", "chip", *(one for one in OPTIONAL if found(OPTIONAL[one]))]
if "OFFSTAGE_UNCOMPILED" in os.environ:  # by .ci/setup, which compiles last, and in the checkout
    names = []
setup(
    cffi_modules=[f"{BUILD}:{name}" for name in names],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
