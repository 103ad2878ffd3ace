"""The files of source that a component of another package depends on, by their digests.

Model: from the file of the class on, every `import` that stands in a file is followed, also those
within functions, as far as the code is the user's own: outside the folders of installed packages,
or of the class's own package. Nothing is imported for it, and what runs changes nothing, so every
process finds the same files. A module that was imported stays as it was when its file is edited;
what ran would then be named after code that did not, so that is refused.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.from_file import is_loaded_anew
from offstage.testbeds.lab.policies.policy import PolicyComponent

__all__ = ["digests"]

OURS = "offstage"
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that somebody installed, and does not edit there."""

_imported: dict[Path, str] = {}
"""Digests of files of imported modules, from when each was first asked for."""


def digests(kind: type[PolicyComponent]) -> list[str]:
    """The digest of the class's file, then those of what it imports, by the names of modules."""
    file = inspect.getsourcefile(kind)
    if file is None or not Path(file).is_file():  # as in an archive
        return []
    found = {kind.__module__: Path(file)}
    own = kind.__module__.partition(".")[0]
    waiting = [kind.__module__]
    while waiting:
        at = waiting.pop()
        for name in _names(at, found[at], found[at].stat().st_mtime_ns):
            path = None if name in found else _file_of(name, own)
            if path is not None:
                found[name] = path
                waiting.append(name)
    first = found.pop(kind.__module__)
    others = [_of_import(kind, found[name]) for name in sorted(found)]
    return [_digest(first) if is_loaded_anew(kind) else _of_import(kind, first), *others]


@functools.lru_cache(maxsize=256)
def _names(module: str, path: Path, _changed_ns: int) -> tuple[str, ...]:
    """Every module that the file may import: each name of an import, and the packages around it."""
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):  # not imported, or that would have failed
        return ()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    full = []
    for node in nodes:
        if isinstance(node, ast.Import):
            full += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            outer = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (outer, node.module)))
            full += [f"{origin}.{one.name}" for one in node.names]
    parts = [name.split(".") for name in full]
    return tuple(".".join(one[:count]) for one in parts for count in range(1, len(one) + 1))


def _file_of(name: str, own: str) -> Path | None:
    """The module's file, if it is the user's own code."""
    top = name.partition(".")[0]
    if top == OURS or top in sys.stdlib_module_names:
        return None
    spec = _spec_of(name)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return None
    path = Path(str(spec.origin))
    return path if top == own or not INSTALLED.intersection(path.parts) else None


def _spec_of(name: str) -> ModuleSpec | None:
    """Without importing the packages around it, as `importlib.util.find_spec` does."""
    outer, _, inner = name.rpartition(".")
    try:
        if not outer:
            return importlib.util.find_spec(inner)
        around = _spec_of(outer)
        places = around.submodule_search_locations if around else None
        return PathFinder.find_spec(name, list(places)) if places else None
    except (ImportError, ValueError):
        return None


def _of_import(kind: type[PolicyComponent], path: Path) -> str:
    digest = _digest(path)
    if _imported.setdefault(path, digest) != digest:
        raise BadInput(
            f"{path} has changed since it was imported",
            f"policy {kind.name!r}",
            "start Python anew, so that the change is what runs",
        )
    return digest


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
