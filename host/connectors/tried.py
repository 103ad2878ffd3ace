"""Engine versions that the connectors were tested with; any other version logs a warning."""

import logging
from importlib.metadata import PackageNotFoundError, version

__all__ = ["TRIED", "say_untried"]

TRIED = {"vLLM": ("0.32.0",), "LMCache": ("0.5.6",), "SGLang": ("0.5.23",)}
log = logging.getLogger("offstage.connectors")


def say_untried(engine: str, found: str = "") -> None:
    """Warn about an untested version. `found`: the version, if it is not the package's."""
    try:
        found = found or version(engine.lower())
    except PackageNotFoundError:
        return
    if found not in TRIED[engine]:
        log.warning("%s %s was not tried with this connector", engine, found)
