"""offstage: one import name over the repository's top-level folders, and an API for notebooks.

The links beside this file let static tools resolve `offstage.host` as an ordinary src layout.
In a checkout, modules load from the folders themselves, so that tracebacks, breakpoints and
coverage name `host/agent.py`, not the link. What a notebook asks for is loaded when it asks:
`import offstage` alone loads nothing.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offstage.bindings.errors import BadInput, OffstageError, RunFailed
    from offstage.testbeds.notebook import Comparison, Results, connect, load, run, values

__all__ = [
    "BadInput",
    "Comparison",
    "OffstageError",
    "Results",
    "RunFailed",
    "connect",
    "load",
    "run",
    "values",
]
__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parents[2]
if (_checkout / "pyproject.toml").is_file():
    __path__.insert(0, str(_checkout))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'offstage' has no attribute {name!r}")
    from offstage.bindings import errors
    from offstage.testbeds import notebook

    return getattr(notebook if name in notebook.__all__ else errors, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
