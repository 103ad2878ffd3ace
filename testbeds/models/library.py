"""transformers, from local files alone. Missing without the extra `capture`."""

import importlib.util
import os
from typing import Any

from offstage.bindings.errors import BadInput, Missing

__all__ = ["AGAIN", "LOCAL", "attempt", "library"]

AGAIN = "copy the model again"
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def library() -> Any:
    """transformers, without network access and log output."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise Missing("capture", f"{name} is not installed", "trace capture")
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def attempt(
    what: str, where: str, call: Any, options: dict[str, Any], folder: str = "", fix: str = AGAIN
) -> Any:
    """`call` on the folder, by default `where`. Turns the libraries' exceptions into BadInput."""
    try:
        return call(folder or where, **options)
    except Exception as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, KeyError):
            problem = f"unknown {problem}"
        raise BadInput(f"{what} cannot be loaded: {problem}", where, fix) from None
