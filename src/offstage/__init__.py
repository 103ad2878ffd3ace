"""offstage: one import name over the repository's top-level folders.

The links beside this file let static tools resolve `offstage.host` as an ordinary src layout.
In a checkout, modules load from the folders themselves, so that tracebacks, breakpoints and
coverage name `host/agent.py`, not the link.
"""

from pathlib import Path

__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parents[2]
if (_checkout / "pyproject.toml").is_file():
    __path__.insert(0, str(_checkout))
