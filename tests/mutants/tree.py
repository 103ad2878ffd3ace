"""A copy of the tree in which mutants are built and tested.

The firmware is built once as position-independent code with little optimization, into one
library; the C tests and the Python extension are linked from it, so that a mutant costs one
compilation and one link. The engine of the chip is small: its extension is compiled as a whole.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FIRMWARE = "dpu/firmware"
LIBRARY = "build/plain/libofs.a"
EXTENSION = "bindings/_firmware.abi3.so"
ENGINE = "asic_model/engine"
ENGINE_EXTENSION = "bindings/_chip.abi3.so"
C_FLAGS = "-fPIC -O1"
COMMAND_SECONDS = 120  # for commands other than tests and builds
PYTEST_FAILED = 1  # pytest's exit code if a test failed


class Tree:
    """A copy of the tree at `root`: nothing here writes into the original."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._python = root / "build/extension.o"

    @classmethod
    def copy(cls, origin: Path, target: Path) -> "Tree":
        """Copy what git tracks or would add, and the built extensions; `origin` must be a
        checkout."""
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=origin,
            check=True,
            capture_output=True,
        ).stdout
        packed = subprocess.run(
            ["tar", "--null", "--files-from=-", "--ignore-failed-read", "-cf", "-"],
            cwd=origin,
            check=True,
            capture_output=True,
            input=names,
        ).stdout
        subprocess.run(["tar", "-C", str(target), "-xf", "-"], check=True, input=packed)
        for built in (origin / "bindings").glob("*.so"):
            shutil.copy2(built, target / "bindings")
        return cls(target)

    def build(self) -> None:
        """Build library and extension from scratch."""
        self._make(LIBRARY, check=True)
        self._python.parent.mkdir(exist_ok=True)
        source = self._python.with_suffix(".c")
        emit = (
            "import sys; sys.path.insert(0, 'bindings'); import build_extensions; "
            f"build_extensions.firmware.emit_c_code({str(source)!r})"
        )
        self.run([sys.executable, "-c", emit], check=True)
        include = [f"-I{FIRMWARE}/include", f"-I{FIRMWARE}/src"]
        python = f"-I{sysconfig.get_path('include')}"
        self.run(
            [
                "gcc",
                "-fPIC",
                "-O1",
                "-D_GNU_SOURCE",
                python,
                *include,
                "-c",
                str(source),
                "-o",
                str(self._python),
            ],
            check=True,
        )
        self._link(check=True)

    def rebuild(self, test: str, file: str) -> bool:
        """Build what `test` needs of `file` as it is now; return False if it does not compile."""
        if file.startswith(ENGINE):
            return self._engine() == 0
        if test.startswith("tests/"):
            return self._make(LIBRARY) == 0 and self._link() == 0
        return self._make(f"build/plain/{test}") == 0

    def test(self, test: str, limit_s: float) -> tuple[int, str]:
        """Return 0 if it passes, 1 if it fails or exceeds `limit_s`; and its last output."""
        if test.startswith("tests/"):
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "--no-header",
                "--tb=line",
                "-p",
                "no:cacheprovider",
                "--hypothesis-seed=1",
                "-m",
                "",
                test,
            ]
        else:
            if self._make(f"build/plain/{test}") != 0:
                return 2, f"{test} does not build"
            command = [str(self.root / FIRMWARE / "build/plain" / test)]
        try:
            done = self.run(command, limit_s=limit_s)
        except subprocess.TimeoutExpired:
            return 1, f"no end after {limit_s:.0f} s"
        said = (done.stdout + done.stderr)[-2000:]
        if test.startswith("tests/") and done.returncode not in (0, PYTEST_FAILED):
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return int(done.returncode != 0), said

    def _engine(self) -> int:
        """Build the chip's extension from its sources; return the exit code."""
        source = self.root / "build/chip.c"
        emit = (
            "import sys; sys.path.insert(0, 'bindings'); import build_extensions; "
            f"build_extensions.chip.emit_c_code({str(source)!r}); "
            "print(*build_extensions.chip_sources)"
        )
        sources = self.run([sys.executable, "-c", emit], check=True).stdout.split("\n")[-2].split()
        include = [f"-I{sysconfig.get_path('include')}", f"-I{ENGINE}", f"-I{FIRMWARE}/include"]
        command = ["gcc", "-shared", *C_FLAGS.split(), "-D_GNU_SOURCE", *include, str(source)]
        return self.run([*command, *sources, "-o", ENGINE_EXTENSION]).returncode

    def _make(self, target: str, check: bool = False) -> int:
        jobs = f"-j{os.cpu_count() or 1}"
        return self.run(
            ["make", "-s", jobs, "-C", FIRMWARE, f"CFLAGS={C_FLAGS}", target],
            check=check,
            limit_s=600,
        ).returncode

    def _link(self, check: bool = False) -> int:
        shown = self.run(["make", "-s", "-C", FIRMWARE, "show-libs"], check=True)
        command = ["gcc", "-shared", "-o", EXTENSION, str(self._python), f"{FIRMWARE}/{LIBRARY}"]
        return self.run([*command, *shown.stdout.split()], check=check).returncode

    def run(
        self, command: list[str], check: bool = False, limit_s: float = COMMAND_SECONDS
    ) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            command,
            cwd=self.root,
            check=check,
            env=environment,
            text=True,
            errors="replace",
            capture_output=True,
            timeout=limit_s,
        )
