"""Names and addresses as text: of tenants, and of the members of a pod. Nothing is opened."""

import re

from offstage.bindings.errors import BadInput

__all__ = ["NAME", "check_address", "check_member", "parse_host_port"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Of a tenant or member: it becomes a part of file names."""


def check_address(name: str, endpoint: str, where: str, *, listens: bool = False) -> str:
    """The host of a `tcp` endpoint, "" of an `ipc` one. BadInput: neither, or without a port; one
    that only `listens` may leave its port to the system (`*` or 0)."""
    scheme, separator, rest = endpoint.partition("://")
    if scheme not in ("tcp", "ipc") or not separator or not rest or not rest.isprintable():
        raise BadInput(
            f"{name} {endpoint!r} is not an endpoint",
            where,
            "write tcp://127.0.0.1:7411 or ipc:///run/offstage.sock",
        )
    if scheme != "tcp":
        return ""
    host, _, port = rest.rpartition(":")
    free = listens and port in ("*", "0")
    if not host or not (free or (port.isdecimal() and 1 <= int(port) <= 65535)):
        raise BadInput(f"{name} {endpoint!r} has no port", where, "write tcp://127.0.0.1:7411")
    return host


def check_member(name: str, endpoint: str, where: str) -> None:
    """BadInput where a daemon cannot be a member of a pod under this name, or be reached there;
    `endpoint` "": at its own."""
    if not name:
        raise BadInput("a member of a pod has a name", where, "give --pod-name or pod.name")
    if not NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a name for a member", where, "use up to 64 letters, digits, . _ -"
        )
    if endpoint:
        check_address("endpoint", endpoint, where)


def parse_host_port(text: str, where: str) -> tuple[str, int]:
    """`127.0.0.1:9411` as host and port; port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{text!r} is not host:port", where, "write one such as 127.0.0.1:9411")
    return host, int(port)
