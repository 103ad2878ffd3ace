"""The only import of the laboratory's compiled analysis: no other module imports `_analysis`.

It is a separate extension, which the daemon does not load. It calls a decision core through a table
of the firmware's functions: `core_pointers` returns core and table in the form that this extension
takes. Importing this module checks that the extension was built from this release's headers.
"""

from typing import Any

from offstage.bindings import firmware
from offstage.bindings.core import Core
from offstage.bindings.errors import Incompatible

try:
    from offstage.bindings._analysis import ffi, lib
except ImportError as error:
    raise Incompatible(
        f"the analysis extension does not load ({error})",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    ) from None

__all__ = ["core_pointers", "ffi", "lib"]

if lib.ofs_analysis_version() != firmware.ABI_VERSION:
    raise Incompatible(
        f"the analysis extension has ABI {lib.ofs_analysis_version()}, "
        f"this release needs {firmware.ABI_VERSION}",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    )


def core_pointers(core: Core) -> tuple[Any, Any]:
    """The calls of the firmware's decision core, and `core` itself."""
    return (
        _foreign("struct ofs_core_calls *", firmware.lib.ofs_core_calls()),
        _foreign("struct ofs_core *", core.handle),
    )


def _foreign(kind: str, pointer: Any) -> Any:
    return ffi.cast(kind, int(firmware.ffi.cast("uintptr_t", pointer)))
