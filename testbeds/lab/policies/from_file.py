"""A policy of the user's own, named by its file: `path/to/policy.py:Class`.

The path is as seen from the working directory; `from_folder` makes it that for a spec in another
folder. A file is loaded once for each of its contents, so that one that was edited is loaded anew,
and under a name of its own, so that two files of one name do not meet. Nothing is put on the module
path: the file imports installed packages, not its neighbours. A fault is a BadInput of one line.
"""

import functools
import hashlib
import importlib.util
import sys
from importlib.abc import ExecutionLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from offstage.bindings.errors import BadInput, nearest
from offstage.testbeds.lab.policies.checked import placed

__all__ = ["by_file", "class_of", "from_folder", "is_loaded_anew", "without_folders"]

SUFFIX = ".py"


def by_file(name: str) -> bool:
    """Whether a component is named by a file, and not by `module:Class` or a name alone."""
    return _file_of(name).endswith(SUFFIX)


def from_folder(policy: str, folder: Path) -> str:
    """The policy, each file of it that is in `folder` by its path from the working directory."""
    return "+".join(_seen_from(folder, name) for name in policy.split("+"))


def without_folders(policy: str) -> str:
    """The policy as results name it: files by their name alone."""
    return "+".join(
        name.replace(name.strip(), Path(name.strip()).name) if by_file(name.strip()) else name
        for name in policy.split("+")
    )


def is_loaded_anew(kind: type) -> bool:
    """Whether the class is of a file named by its path, which is loaded again after an edit."""
    spec = getattr(sys.modules.get(kind.__module__), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Source)


def class_of(name: str) -> Any:
    """What `FILE.py:Class` names, not checked yet. BadInput if there is no such file or class, or
    if the file cannot be loaded."""
    where = f"policy {name!r}"
    file, _, kind = name.rpartition(":")
    if not file:
        raise BadInput("no class is named", where, f"write {name}:CLASS")
    try:
        source = Path(file).read_bytes()
    except FileNotFoundError:
        raise BadInput(
            f"there is no file {file}",
            where,
            "give its path from the spec's folder or from the working directory",
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{file} cannot be read ({why})", where, "give another file") from None
    try:
        module = _loaded(str(Path(file).resolve()), source)
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"cannot be loaded: {placed(error, str(Path(file).resolve()))}", where, "fix the file"
        ) from error
    if not hasattr(module, kind):
        own = [one.__name__ for one in vars(module).values() if _is_own(one, module)]
        fix = nearest(kind, own) if own else "it defines none"
        raise BadInput(f"{file} has no class {kind!r}", where, fix)
    return getattr(module, kind)


def _seen_from(folder: Path, name: str) -> str:
    bare = name.strip()
    there = by_file(bare) and (folder / _file_of(bare)).is_file()
    return name.replace(bare, str(folder / bare)) if there else name


def _file_of(name: str) -> str:
    return name.rpartition(":")[0] or name


def _is_own(one: object, module: ModuleType) -> bool:
    return isinstance(one, type) and one.__module__ == module.__name__


class _Source(ExecutionLoader):
    """A file by its text: Python's own cache of what it compiled goes by seconds."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._text = path, importlib.util.decode_source(source)

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_source(self, fullname: str) -> str:
        return self._text


@functools.lru_cache(maxsize=64)
def _loaded(path: str, source: bytes) -> ModuleType:
    """The module, also in `sys.modules`, where `inspect` finds the file of a class."""
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(path, source))
    assert spec is not None and spec.loader is not None, "a loader was given"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
