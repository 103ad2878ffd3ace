"""Types of the extension that `build_extensions.py` builds.

`lib` stays untyped: its functions are declared once, in the headers beside its sources, and cffi
checks every call against them.
"""

from typing import Any

from _cffi_backend import FFI

ffi: FFI
lib: Any
