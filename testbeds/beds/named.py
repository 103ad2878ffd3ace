"""Daemons by name: what `--endpoint NAME` stands for, from the user's own file.

    # ~/.config/offstage/daemons.toml
    [lab]
    endpoint = "tcp://dpu:7411"
    curve_dir = "keys"                      # relative to this file
    operator_secret = "operator.secret"

What a command line or the environment gives wins over the entry.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from offstage.bindings import settings
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import Settings, about

__all__ = ["DEFAULT_ENDPOINT", "Named", "Where", "find"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7411"


class Named(Settings, frozen=True):
    """An entry of the user's file."""

    endpoint: Annotated[str, about("the daemon's control socket")] = DEFAULT_ENDPOINT
    curve_dir: Annotated[str, about("server.key and client.key_secret")] = ""
    runtime_dir: Annotated[str, about("where the daemon leaves its secrets on this machine")] = ""
    operator_secret: Annotated[str, about("file with a copy of the operator's secret")] = ""
    tenant: Annotated[str, about("as which `host` logs in")] = ""
    secret: Annotated[str, about("file with that tenant's secret")] = ""


@dataclass(frozen=True)
class Where:
    """A daemon, and what one needs to reach it; None: as the daemon left it on this machine."""

    endpoint: str
    curve_dir: Path | None = None
    runtime_dir: Path | None = None
    operator_secret: Path | None = None
    tenant: str = ""
    secret: Path | None = None


def find(
    endpoint: str,
    *,
    curve_dir: Path | None = None,
    runtime_dir: Path | None = None,
    operator_secret: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Where:
    """What `--endpoint` names: an address, or an entry. BadInput for neither."""
    if "://" in endpoint:
        return Where(endpoint, curve_dir, runtime_dir, operator_secret)
    file = user_file(os.environ if environ is None else environ)
    tables = settings.read_toml(file, "write the daemon there") if file.is_file() else {}
    table = tables.get(endpoint)
    if not isinstance(table, dict):
        known = ", ".join(sorted(name for name, one in tables.items() if isinstance(one, dict)))
        raise BadInput(
            f"{endpoint!r} is no endpoint, and no daemon in {file}",
            "--endpoint",
            f"write an address such as {DEFAULT_ENDPOINT}" + (f", or one of {known}" * bool(known)),
        )
    entry = Named(**settings.read_table(Named, table, f"{file}: [{endpoint}]"))

    def path(text: str) -> Path | None:
        return file.parent / Path(text).expanduser() if text else None

    return Where(
        entry.endpoint,
        curve_dir or path(entry.curve_dir),
        runtime_dir or path(entry.runtime_dir),
        operator_secret or path(entry.operator_secret),
        entry.tenant,
        path(entry.secret),
    )


def user_file(environ: Mapping[str, str]) -> Path:
    """Where the user's own entries are."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(environ.get("OFFSTAGE_DAEMONS") or f"{base}/offstage/daemons.toml")
