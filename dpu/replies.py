"""Errors as the wire has them."""

import errno
from typing import cast

from offstage.bindings.errors import (
    BadInput,
    DeviceTimeout,
    Incompatible,
    OffstageError,
    StoreFull,
)
from offstage.dpu import protocol as p
from offstage.dpu.message import ErrorCode
from offstage.dpu.sessions import Refused, draining

__all__ = ["error_reply"]

CODES: list[tuple[type[OffstageError], str]] = [
    (StoreFull, "limit"),
    (DeviceTimeout, "timeout"),
    (Incompatible, "version"),
    (BadInput, "invalid"),
]


def error_reply(error: OffstageError) -> p.Error:
    """An error as it goes over the wire."""
    if isinstance(error, Refused):
        code = error.code
    elif error.errno == errno.ESHUTDOWN:
        return error_reply(draining())
    else:
        code = next((code for kind, code in CODES if isinstance(error, kind)), "io")
    return p.Error(
        code=cast(ErrorCode, code), what=error.what, where=error.where, mend=error.mend,
        errno=error.errno,
    )  # fmt: skip
