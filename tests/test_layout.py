"""Does the layout hold where linters cannot see: links, import names, the C sources?"""

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_trees import forget, imports_of, parsed

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(link.name for link in (ROOT / "src/offstage").iterdir() if link.is_symlink())
MODULES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))

# Memory that both ends of a port see: how it is made, found, and copied out of; and the parts of
# both ends of one fabric.
SHARED_HEADERS = {
    "region/shared.h",
    "port/local.h",
    "port/verbs_blob.h",
    "port/verbs_link.h",
    "nixl/agent.h",
    "nixl/link.h",
    "nixl/message.h",
}
# Distributions whose import name is not their own.
IMPORT_NAMES = {"prometheus-client": {"prometheus_client"}, "pyzmq": {"zmq"}, "cffi": {"cffi"}}


def module_name(path: Path) -> str:
    """Return `offstage.host.decode.pool` for `host/decode/pool.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("offstage", *(part for part in parts if part != "__init__")))


def imported(node: ast.AST) -> list[str]:
    """Return the dotted names that one import statement may load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def imports(path: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of each import in a module."""
    return [(node.lineno, name) for node in imports_of(path) for name in imported(node)]


def at_module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield statements that run on import: no function, nothing under `if TYPE_CHECKING`."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        yield node
        waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
        if isinstance(node, ast.Try):
            waiting.extend(child for handler in node.handlers for child in handler.body)


def base_import_names() -> set[str]:
    """Return the top-level names that an installation without extras brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=~\[ ]", line)[0] for line in project["dependencies"]}
    return set().union(*(IMPORT_NAMES.get(name, {name}) for name in names))


@pytest.fixture(scope="module", autouse=True)
def trees_are_let_go() -> Iterator[None]:
    yield
    forget()


@pytest.mark.parametrize("name", PACKAGES)
def test_link_points_at_the_top_level_folder(name: str) -> None:
    assert (ROOT / "src/offstage" / name).resolve() == ROOT / name
    where = Path(importlib.import_module(f"offstage.{name}").__file__ or "")
    assert where.parent == ROOT / name


def test_every_top_level_package_has_a_link() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert sorted(folders) == PACKAGES


def test_no_module_is_imported_under_its_folder_name() -> None:
    assert not set(PACKAGES) & set(sys.modules)


def test_the_base_install_can_import_every_module() -> None:
    """At module level, only the standard library, base dependencies and our own are imported."""
    allowed = base_import_names() | set(sys.stdlib_module_names) | {"offstage"}
    wrong = []
    for path in MODULES:
        for node in at_module_level(parsed(path)):
            for name in imported(node):
                if name.split(".")[0] not in allowed:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_door_imports_the_extension() -> None:
    """Each extension is imported only by its module in bindings, `_firmware` by firmware.py."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {extension}"
        for path in MODULES
        for line, name in imports(path)
        for extension in ("_firmware", "_analysis", "_chip", "_verbs")
        if path != ROOT / f"bindings/{extension[1:]}.py" and extension in name.split(".")
    ]
    assert not wrong, "\n".join(wrong)


def test_headers_inside_the_firmware_stay_in_their_folder() -> None:
    """A C file may include headers of include/ and of its own folder, and no others."""
    firmware = ROOT / "dpu/firmware"
    public = {path.name for path in (firmware / "include").glob("*.h")} | SHARED_HEADERS
    wrong = []
    sources = sorted(firmware.glob("src/**/*.[ch]"))
    assert len(sources) > 50
    for path in sources:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'#\s*include "([^"]+)"', line)
            if found is None or found[1] in public:
                continue
            # Relative to the file's own folder, or to src/ by the folder's name.
            own = {path.parent / found[1], firmware / "src" / found[1]}
            if not any(header.is_file() and header.parent == path.parent for header in own):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {found[1]}")
    assert not wrong, "\n".join(wrong)


def test_only_the_bindings_call_the_library() -> None:
    """`ffi` and `lib` stay private: Python reaches C through `bindings` only."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        if path.parent != ROOT / "bindings"
        for line, name in imports(path)
        if name in ("offstage.bindings.firmware.lib", "offstage.bindings.firmware.ffi")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_is_reached() -> None:
    """A module that only tests import is dead. A string that names it counts as use, since some are
    loaded by name; a docstring does not."""
    named = ("pyproject.toml", "setup.py", "src/offstage/__init__.py")
    text = "".join((ROOT / name).read_text() for name in named)
    reached = {module_name(ROOT / path) for path in re.findall(r"[\w/]+\.py", text)}
    reached |= set(re.findall(r"offstage(?:\.\w+)+", text))
    for path in MODULES:
        tree = parsed(path)
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [
            node.value
            for node in ast.walk(tree)
            if node not in said and isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found = {name for text in texts for name in re.findall(r"offstage(?:\.\w+)+", text)}
        found |= {name for _, name in imports(path)}
        found |= {name.rpartition(".")[0] for _, name in imports(path)}
        reached |= found - {module_name(path)}
        if 'if __name__ == "__main__":' in path.read_text():  # run by `python -m`
            reached.add(module_name(path))
    dead = [
        module_name(path)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py") and module_name(path) not in reached
    ]
    assert not dead, "\n".join(dead)


FIRMWARE = ROOT / "dpu/firmware"
ANALYSIS = ROOT / "testbeds/lab/analysis"
CHIP = ROOT / "asic_model/engine"
C_FOLDERS = (FIRMWARE / "include", FIRMWARE / "src", FIRMWARE / "test", ANALYSIS, CHIP)
C_HIDDEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# A function that other files can call: its type on a line of its own, its name in column 0.
C_FUNCTION = re.compile(r"^(?!static\b)[a-z][\w *]*\n(\w+)\([^;{}]*\)\n\{", re.MULTILINE)
C_DECLARED = re.compile(r"^[a-z][\w *]*?\b(\w+)\([^;{}]*;", re.MULTILINE)
C_FOR_TESTS = {
    "ofs_driver_put": "the blocking call of the C interface, beside ofs_driver_fetch",
    "ofs_histogram_bucket": "where the bounds of a bucket lie",
    "ofs_port_find": "one side of the port, by name",
    "ofs_timing_name": "every side of the timing seam, for its contract suite",
}
# Files that may call each other in a cycle: the store is one state machine.
C_CIRCLES = [["store/clean.c", "store/get.c", "store/put.c", "store/segment.c", "store/victim.c"]]


def c_files() -> dict[Path, str]:
    """Return every C file of ours without its comments and strings."""
    paths = [path for folder in C_FOLDERS for path in sorted(folder.rglob("*.[ch]"))]
    return {path: C_HIDDEN.sub(" ", path.read_text(encoding="utf-8")) for path in paths}


def c_sources() -> tuple[dict[Path, set[str]], dict[str, Path]]:
    """Return the words of each C file except tests and declarations, and the file that defines each
    function."""
    files = {path: text for path, text in c_files().items() if "test" not in path.parts}
    owners = {name: path for path, text in files.items() for name in C_FUNCTION.findall(text)}
    words = {path: set(re.findall(r"\w+", C_DECLARED.sub(" ", files[path]))) for path in files}
    assert len(owners) > 400
    return words, owners


def test_a_struct_has_a_name_of_its_own() -> None:
    """A search for a name finds one struct, even if it never leaves its file."""
    found: dict[str, list[str]] = {}
    for path, text in c_files().items():
        for name in re.findall(r"\b(?:struct|union|enum)\s+(\w+)\s*\{", text):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    wrong = [f"{name}: {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1]
    assert len(found) > 100 and not wrong, "\n".join(wrong)


def test_every_c_function_is_called_from_another_file() -> None:
    """Otherwise it is static or dead. A test alone does not keep it alive."""
    words, owners = c_sources()
    python = {name for path in MODULES for name in re.findall(r"\bofs_\w+", path.read_text())}
    dead = [
        f"{path.relative_to(ROOT)}: {name}"
        for name, path in owners.items()
        if name not in python | set(C_FOR_TESTS)
        and not any(name in words[other] for other in words if other != path)
    ]
    assert not dead, "\n".join(dead)


def test_python_sees_only_the_c_functions_that_it_calls() -> None:
    """Functions that only C calls are declared after `cdef: end`."""
    python = {name for path in MODULES for name in re.findall(r"\bofs_\w+", path.read_text())}
    wrong = []
    folders = (FIRMWARE / "include", ANALYSIS, CHIP)
    for header in sorted(path for folder in folders for path in folder.glob("*.h")):
        for shown in re.findall(r"cdef: begin(.*?)cdef: end", header.read_text(), re.DOTALL):
            found = C_DECLARED.findall(C_HIDDEN.sub(" ", shown))
            wrong += [f"{header.name}: {name}" for name in found if name not in python]
    assert not wrong, "\n".join(wrong)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return every group of modules in a cycle (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            begin = stack.index(name)
            if len(stack) - begin > 1:
                found.append(sorted(stack[begin:]))
            del stack[begin:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_no_c_files_call_each_other_in_a_circle() -> None:
    """A cycle is one file in pieces. The sides of a seam are named in a table, not called."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    words, owners = c_sources()
    graph = {
        str(path): {str(owners[name]) for name in words[path] & set(owners)} - {str(path)}
        for path in words
        if path.suffix == ".c"
    }
    source = FIRMWARE / "src"
    found = [[str(Path(name).relative_to(source)) for name in one] for one in circles(graph)]
    assert found == C_CIRCLES
