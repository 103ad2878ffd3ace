"""Build script of the extensions; setup.py names each in `cffi_modules`.

`offstage.bindings._firmware` is the firmware; `_analysis` is the laboratory's analysis in C and
`_chip` the engine of the ASIC model, which the firmware does not need and the daemon does not load.
Both have the parts of the firmware that they need compiled in. `_spdk`, a side of the storage seam,
is built where pkg-config finds SPDK, and `_verbs`, one of the fabric seam, where it finds
libibverbs, with librdmacm where it finds that too. Each interface is declared only in its header:
Python sees the text between the marks `cdef: begin` and `cdef: end`, and a line `cdef: order N`
sets the order (lower first; a header without the line comes last). libxxhash's header is required,
and compiled in; liburing is used where pkg-config finds it.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from cffi import FFI

# Relative: setuptools runs from the repository root.
FIRMWARE = Path("dpu/firmware")
ANALYSIS = Path("testbeds/lab/analysis")
CHIP = Path("asic_model/engine")
ANALYSIS_FIRMWARE = (
    "nvme_blocks",
    "nvme_cost",
    "nvme_flash",
    "nvme_model",
    "nvme_zones",
    "qos",
    "qos_sessions",
)
CHIP_FIRMWARE = (
    "histogram",
    "nvme_blocks",
    "nvme_flash",
    "nvme_model",
    "nvme_zones",
    "qos",
    "qos_sessions",
)
SPDK = sorted((FIRMWARE / "src/storage").glob("spdk*.c"))
SPDK_PACKAGES = ("spdk_nvme", "spdk_env_dpdk")
# Libraries missing from SPDK's pkg-config files: the system's, and those next to SPDK's own.
SPDK_SYSTEM = ("ssl", "crypto", "uuid", "numa")
SPDK_BESIDE = ("isal", "isal_crypto")
VERBS = sorted(FIRMWARE.glob("src/*/verbs*.c"))
VERBS_HEADER = FIRMWARE / "include/verbs.h"
# What both ends of a fabric are made of, and hold no state.
VERBS_FIRMWARE = (
    "fabric/check",
    "fabric/host_port",
    "fabric/registered",
    "port/blob",
    "port/rings",
    "port/scores",
    "checksum",
    "checksum_avx2",
    "checksum_avx512",
)
ORDER_LAST = 1_000_000

BLOCK = re.compile(r"/\* cdef: begin.*?\*/(.*?)/\* cdef: end", re.DOTALL)
ORDER = re.compile(r"/\* cdef: order (\d+)")


def cdef_headers(headers: list[Path]) -> list[tuple[Path, str]]:
    """The headers that show something to Python, in cdef order, each with its declarations."""
    found: list[tuple[int, Path, str]] = []
    for path in headers:
        text = path.read_text(encoding="utf-8")
        blocks = BLOCK.findall(text)
        if blocks:
            order = ORDER.search(text)
            found.append((int(order.group(1)) if order else ORDER_LAST, path, "\n".join(blocks)))
    return [(path, declarations) for _, path, declarations in sorted(found)]


def pkg_config(package: str, what: str) -> list[str] | None:
    """The flags pkg-config gives for `package`, or None where the package is not installed."""
    try:
        done = subprocess.run(
            ["pkg-config", what, package], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        sys.exit("offstage: pkg-config is missing; apt-get install pkg-config")
    return shlex.split(done.stdout) if done.returncode == 0 else None


def flags() -> tuple[list[str], list[str]]:
    """Compile and link flags of the firmware on this machine."""
    # -UNDEBUG: Python's own flags carry -DNDEBUG, and an assertion about our own mistakes is
    # worth more in a daemon that holds other people's data than the branch it costs.
    compile_flags = ["-std=c11", "-D_GNU_SOURCE", "-UNDEBUG", "-O3", "-Wall", "-Wextra", "-pthread"]
    # As gcc has it with -std=c11: by fused operations, clang would round otherwise on Arm.
    compile_flags += ["-ffp-contract=off"]
    link_flags = ["-pthread"]
    xxhash = pkg_config("libxxhash", "--cflags")
    if xxhash is None:
        sys.exit("offstage: libxxhash is missing; apt-get install libxxhash-dev")
    compile_flags += xxhash
    uring = pkg_config("liburing", "--libs")
    if uring is None:
        print("offstage: liburing not found, building without io_uring (apt-get: liburing-dev)")
    else:
        compile_flags += ["-DOFS_HAVE_URING=1", *(pkg_config("liburing", "--cflags") or [])]
        link_flags += uring
    return compile_flags, link_flags


def spdk_flags() -> tuple[list[str], list[str]] | None:
    """Compile and link flags of SPDK; None where pkg-config does not find it."""
    compile_flags: list[str] = []
    # Its parts register themselves when they are loaded: none may be left out as unused.
    link_flags = ["-Wl,--no-as-needed"]
    for package in SPDK_PACKAGES:
        link = pkg_config(package, "--libs")
        if link is None:
            return None
        compile_flags += pkg_config(package, "--cflags") or []
        link_flags += link
    folders = dict.fromkeys(flag.removeprefix("-L") for flag in link_flags if flag[:2] == "-L")
    beside = [one for one in SPDK_BESIDE for at in folders if Path(at, f"lib{one}.so").exists()]
    link_flags += [f"-l{one}" for one in (*beside, *SPDK_SYSTEM)]
    link_flags += pkg_config("liburing", "--libs") or []
    return compile_flags, [*link_flags, *(f"-Wl,-rpath,{folder}" for folder in folders)]


def make_builder(
    name: str,
    headers: list[Path],
    sources: list[Path],
    include: list[Path],
    more: tuple[list[str], list[str]] = ([], []),
) -> FFI:
    """The cffi builder of one extension: `headers` are those whose cdef blocks Python sees."""
    shown = cdef_headers(headers)
    builder = FFI()
    for path, declarations in shown:
        try:
            builder.cdef(declarations)
        except Exception as error:
            sys.exit(f"offstage: cffi cannot read the cdef block of {path}: {error}")
    compile_flags, link_flags = flags()
    builder.set_source(
        f"offstage.bindings.{name}",
        "\n".join(f'#include "{path.name}"' for path, _ in shown),
        sources=[str(path) for path in sources],
        include_dirs=[str(path) for path in include],
        # Without depends= an edit of a header does not rebuild.
        depends=[str(path) for folder in include for path in sorted(folder.rglob("*.h"))],
        extra_compile_args=compile_flags + more[0],
        extra_link_args=link_flags + more[1],
    )
    return builder


firmware = make_builder(
    "_firmware",
    [path for path in sorted((FIRMWARE / "include").glob("*.h")) if path != VERBS_HEADER],
    [path for path in sorted(FIRMWARE.glob("src/**/*.c")) if path not in (*SPDK, *VERBS)],
    [FIRMWARE / "include", FIRMWARE / "src"],
)
analysis = make_builder(
    "_analysis",
    [*sorted(ANALYSIS.glob("*.h")), FIRMWARE / "include/nvme_model.h"],
    [
        *sorted(ANALYSIS.glob("*.c")),
        *(FIRMWARE / f"src/{name}.c" for name in ANALYSIS_FIRMWARE),
    ],
    [ANALYSIS, FIRMWARE / "include", FIRMWARE / "src"],
)
chip_sources = [*sorted(CHIP.glob("*.c")), *(FIRMWARE / f"src/{name}.c" for name in CHIP_FIRMWARE)]
chip = make_builder(
    "_chip",
    [*sorted(CHIP.glob("*.h")), *(FIRMWARE / f"include/{name}.h" for name in ("histogram", "qos"))],
    chip_sources,
    [CHIP, FIRMWARE / "include", FIRMWARE / "src"],
)
spdk_found = spdk_flags()
if spdk_found is not None:
    spdk = make_builder(
        "_spdk",
        [FIRMWARE / "src/storage/spdk.h"],
        [*SPDK, FIRMWARE / "src/storage/common.c"],
        [FIRMWARE / "include", FIRMWARE / "src/storage"],
        spdk_found,
    )
verbs_libs = pkg_config("libibverbs", "--libs")
if verbs_libs is not None:
    verbs_flags = pkg_config("libibverbs", "--cflags") or []
    if (rdmacm := pkg_config("librdmacm", "--libs")) is not None:
        verbs_flags += ["-DOFS_HAVE_RDMACM=1", *(pkg_config("librdmacm", "--cflags") or [])]
        verbs_libs += rdmacm
    verbs = make_builder(
        "_verbs",
        [VERBS_HEADER],
        [*VERBS, *(FIRMWARE / f"src/{name}.c" for name in VERBS_FIRMWARE)],
        [FIRMWARE / "include", FIRMWARE / "src"],
        (verbs_flags, verbs_libs),
    )
