"""The project's Python files, each parsed once, for tests that inspect the code itself.

All trees together are about 200 MB: a test module that uses them calls `forget` at its end.
"""

import ast
import functools
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The tree of one file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def functions_of(path: Path) -> tuple[Function, ...]:
    """Every function in a file, methods and nested ones too."""
    return tuple(node for node in ast.walk(parsed(path)) if isinstance(node, Function))


@functools.cache
def imports_of(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Every import statement in a file, at any depth."""
    found = ast.walk(parsed(path))
    return tuple(node for node in found if isinstance(node, (ast.Import, ast.ImportFrom)))


def forget() -> None:
    """Release all trees."""
    for cached in (parsed, functions_of, imports_of):
        cached.cache_clear()
