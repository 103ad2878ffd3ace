"""Replies: errors in their wire form, and the addressees of deferred replies."""

import errno
import traceback
from typing import NamedTuple, cast

from offstage.bindings.errors import BadInput, DeviceTimeout, Incompatible, OffstageError, StoreFull
from offstage.dpu import protocol as p
from offstage.dpu.log import Log
from offstage.dpu.protocol.message import ErrorCode
from offstage.dpu.tenants.hosts import Refused, draining

__all__ = ["Waiting", "error_reply"]

CODES: list[tuple[type[OffstageError], str]] = [
    (StoreFull, "limit"),
    (DeviceTimeout, "timeout"),
    (Incompatible, "version"),
    (BadInput, "invalid"),
]


class Waiting(NamedTuple):
    """The addressee of a deferred reply: the connection, and the number of the call."""

    route: bytes
    number: int


def error_reply(error: Exception, request: str, log: Log) -> p.Error:
    """The wire form of an error of this request; unexpected exceptions are logged."""
    if not isinstance(error, OffstageError):
        log.error(
            "request_failed",
            request=request,
            error=repr(error),
            traceback="".join(traceback.format_exception(error)),
        )
        return p.Error(
            code="internal", what="the daemon failed at this request", fix="see the daemon's log"
        )
    if isinstance(error, Refused):
        code = error.code
    elif error.errno == errno.ESHUTDOWN:
        return error_reply(draining(), request, log)
    else:
        code = next((code for kind, code in CODES if isinstance(error, kind)), "io")
    return p.Error(
        code=cast(ErrorCode, code),
        what=error.what,
        where=error.where,
        fix=error.fix,
        errno=error.errno,
    )
