"""The daemon that a host connects to, its tenant, and the fabric.

An `Endpoint` is a value: it opens nothing until `control`, `connect` or `attached` is called, and
only these calls make a `Control`. It comes from one of three places: `--endpoint` and related
options, an entry of the user's daemons file, or the settings of an engine's connector. The command
line and the environment override the entry.

    # ~/.config/offstage/daemons.toml
    [lab]
    endpoint = "tcp://dpu:7411"
    curve_dir = "keys"                      # relative to this file
    operator_secret = "operator.secret"
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offstage.bindings import settings
from offstage.bindings.errors import BadInput
from offstage.bindings.verbs import Rdma, parse_rdma
from offstage.dpu.pod.map import Member
from offstage.dpu.protocol import OPERATOR
from offstage.host.fabrics import Fabric, open_fabric
from offstage.host.link.control import DEFAULT_ENDPOINT, Control

__all__ = ["DEFAULT_ENDPOINT", "Endpoint", "seconds_of", "text_of"]

PATHS = ("curve_dir", "runtime_dir", "secret", "operator_secret")
ENTRY = ("endpoint", "tenant", *PATHS)
"""Keys of an entry of the user's daemons file."""
SECONDS = ("timeout_s", "patience_s")
SECONDS_MAX = 86_400
ENGINE = ("endpoint", "tenant", "fabric", "rdma", "name", *PATHS[:3], *SECONDS)
"""Settings of an engine's connector."""


@dataclass(frozen=True)
class Endpoint:
    """`address`: the daemon's control socket. `tenant`: a tenant's name, or `operator`. `secret`,
    `runtime_dir` and `curve_dir`: see `Control`; None: the secret that the daemon left for this
    user, and no CURVE. `rdma`: the adapter of verbs; None: the first. `timeout_s`: limit for each
    reply of the daemon. `patience_s`: limit for reading or looking up an object, unless the call
    gives another. `incarnation`, `epoch`: of a pod's member, and of the map that names it."""

    address: str = DEFAULT_ENDPOINT
    tenant: str = "default"
    fabric: str = "shm"
    name: str = "host"
    secret: bytes | Path | None = None
    runtime_dir: Path | None = None
    curve_dir: Path | None = None
    rdma: Rdma | None = None
    timeout_s: float = 5.0
    patience_s: float = 5.0
    incarnation: int = 0
    epoch: int = 0

    @classmethod
    def find(
        cls,
        endpoint: str,
        *,
        tenant: str = "",
        secret: bytes | Path | None = None,
        runtime_dir: Path | None = None,
        curve_dir: Path | None = None,
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> "Endpoint":
        """Resolve `--endpoint`: an address, or an entry of the user's file. "" and None: use the
        entry's value. BadInput: it is neither, or the entry has a wrong key or value."""
        found, operators = cls(address=endpoint), None
        if "://" not in endpoint:
            found, operators = _entry(endpoint, os.environ if environ is None else environ)
        found = replace(
            found,
            tenant=tenant or found.tenant,
            runtime_dir=runtime_dir or found.runtime_dir,
            curve_dir=curve_dir or found.curve_dir,
        )
        own = operators if found.tenant == OPERATOR else found.secret
        return replace(found, **more, secret=own if secret is None else secret)

    @classmethod
    def of_engine(cls, table: Mapping[str, Any]) -> "Endpoint":
        """Make one from an engine's configuration. BadInput: an unknown key, or a wrong value."""
        found, _ = _read(cls(name="engine"), table, ENGINE, "offstage")
        if found.rdma and found.fabric != "verbs":
            raise BadInput(
                f"rdma has no effect over {found.fabric}",
                "offstage",
                'leave it out, or set fabric = "verbs"',
            )
        return found

    @property
    def operator(self) -> "Endpoint":
        """The same daemon, logged in as operator; the secret is on the daemon's machine."""
        return replace(self, tenant=OPERATOR, secret=None)

    def at(self, member: Member, runtime_dir: Path | None, epoch: int | None = None) -> "Endpoint":
        """The daemon of a pod's member, with runtime folder `runtime_dir/NAME`. `epoch`: accept
        only the incarnation that the map of that epoch names."""
        folder = None if runtime_dir is None else runtime_dir / member.name
        found = replace(self, address=member.endpoint, runtime_dir=folder)
        if epoch is None:
            return found
        return replace(found, incarnation=member.incarnation, epoch=epoch)

    def control(self, *, heartbeat: bool = True) -> Control:
        """Log in. BadInput if no daemon answers or it refuses."""
        return Control(
            self.address,
            name=self.name,
            tenant=self.tenant,
            secret=self.secret,
            runtime_dir=self.runtime_dir,
            curve_dir=self.curve_dir,
            heartbeat=heartbeat,
            timeout_s=self.timeout_s,
            incarnation=self.incarnation,
            epoch=self.epoch,
        )

    def connect(self, timeout_s: float | None = None) -> tuple[Control, Fabric]:
        """Log in and attach; the caller closes both, the fabric first. `timeout_s` overrides the
        endpoint's. BadInput, RunFailed: no daemon answers, or it refuses."""
        control = (self if timeout_s is None else replace(self, timeout_s=timeout_s)).control()
        try:
            return control, open_fabric(control, self.fabric, self.rdma)
        except BaseException:
            control.close()
            raise

    @contextlib.contextmanager
    def attached(self) -> Iterator[tuple[Control, Fabric]]:
        """Like `connect`; closes both at the end."""
        control, fabric = self.connect()
        with control:
            try:
                yield control, fabric
            finally:
                fabric.close()


def _entry(name: str, environ: Mapping[str, str]) -> tuple[Endpoint, Path | None]:
    """The user's entry `name`, and its `operator_secret`."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    file = Path(environ.get("OFFSTAGE_DAEMONS") or f"{base}/offstage/daemons.toml")
    tables = settings.read_toml(file, "write the daemon there") if file.is_file() else {}
    table = tables.get(name)
    if not isinstance(table, dict):
        known = ", ".join(sorted(name for name, one in tables.items() if isinstance(one, dict)))
        raise BadInput(
            f"{name!r} is neither an endpoint nor a daemon in {file}",
            "--endpoint",
            f"write an address such as {DEFAULT_ENDPOINT}" + (f", or one of {known}" * bool(known)),
        )
    return _read(Endpoint(), table, ENTRY, f"{file}: [{name}]", file.parent)


def _read(
    found: Endpoint,
    table: Mapping[str, Any],
    keys: Collection[str],
    where: str,
    folder: Path = Path(),
) -> tuple[Endpoint, Path | None]:
    """`found` with the fields that a table gives, and its `operator_secret`; paths are relative to
    `folder`."""
    operators: Path | None = None
    for key, value in table.items():
        settings.check_known(key, keys, where, "setting")
        given: Any = value
        if key in SECONDS:
            given = seconds_of(table, key, where)
        elif text_of(table, key, where) and key in PATHS:
            given = folder / Path(value).expanduser()
        elif key in (*PATHS, "rdma"):
            given = parse_rdma(value) if value else None
        if key == "operator_secret":
            operators = given
        elif given != "" or key != "tenant":
            found = replace(found, **{"address" if key == "endpoint" else key: given})
    return found, operators


def text_of(table: Mapping[str, Any], key: str, where: str) -> str:
    """A setting that is text; "" where it is not set. BadInput: it is something else. A `null` made
    text would be a name that engines of different weights share."""
    value = table.get(key, "")
    if not isinstance(value, str) or not value.isprintable():
        raise BadInput(f"{key} is {value!r}", where, "write it as text in quotes")
    return value


def seconds_of(table: Mapping[str, Any], key: str, where: str) -> float:
    """A setting in seconds. BadInput: no number above 0, or more than a day."""
    value = table[key]
    if type(value) not in (int, float) or not 0 < value <= SECONDS_MAX:
        raise BadInput(
            f"{key} is {value!r}", where, f"write seconds above 0, at most {SECONDS_MAX:,}"
        )
    return float(value)
