"""The daemon's configuration: one frozen value for each option, and the source of each.

Precedence: command line, then `OFFSTAGE_<SECTION>_<KEY>`, then the file, then the default.
`bindings/settings.py` parses and validates the values. Nothing here touches the firmware.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings import settings
from offstage.bindings.errors import BadInput
from offstage.bindings.private import check_private
from offstage.dpu.config import options
from offstage.dpu.config.shares import check_share

__all__ = ["SECTIONS", "Config", "change_policy", "change_tenant", "load", "rows"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every option's value. `sources` says by `section.key` who gave it, `file` the file read."""

    daemon: options.Daemon = options.Daemon()
    arena: options.Arena = options.Arena()
    memory: options.Memory = options.Memory()
    rdma: options.Rdma = options.Rdma()
    nvme: options.Nvme = options.Nvme()
    storage: options.Storage = options.Storage()
    model: options.Model = options.Model()
    store: options.Store = options.Store()
    archive: options.Archive = options.Archive()
    policy: options.PolicyOptions = options.PolicyOptions()
    limits: options.Limits = options.Limits()
    pod: options.Pod = options.Pod()
    tenants: tuple[options.Tenant, ...] = (options.Tenant(),)
    sources: Mapping[str, str] = {}
    file: str = ""


TENANT_LIVE = (
    "weight",
    "bandwidth",
    "floor",
    "in_flight",
    "chunks_max",
    "store_max",
    "dirty_max",
)
SECTIONS: dict[str, type[settings.Settings]] = {
    key: one.type
    for key, one in settings.declared(Config).items()
    if isinstance(one.type, type) and issubclass(one.type, settings.Settings)
}


def load(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration from a TOML file, `OFFSTAGE_*` and `section.key` -> text overrides.

    Raises BadInput for a file that does not read or parse, an unknown section or key, and a value
    of the wrong kind or out of range. Relations between values are checked by `derive`.
    """
    file = str(path) if path else ""
    tables = settings.read_toml(path, "give --config an existing TOML file") if path else {}
    for section in tables:
        settings.check_known(section, [*SECTIONS, "tenant"], file, "section")
    tenants = _tenants(tables.pop("tenant", None), file)
    environ = os.environ if environ is None else environ
    built, sources = settings.resolve(SECTIONS, tables, file, environ, overrides or {})
    return Config(**built, tenants=tenants, sources=sources, file=file)


def change_policy(
    policy: options.PolicyOptions, changes: Mapping[str, str], where: str = "[policy]"
) -> options.PolicyOptions:
    """`policy` with some keys replaced, each given as text. BadInput names the key at fault."""
    for key in changes:
        section, dot, name = key.partition(".")
        if (
            dot
            and section != "policy"
            and name in settings.declared(SECTIONS.get(section, settings.Settings))
        ):
            raise BadInput(
                f"{key} is read at the start alone",
                where,
                "it needs a restart: set it in the configuration, start it anew",
            )
    changes = {key.removeprefix("policy."): text for key, text in changes.items()}
    return settings.read_table(policy, changes, where)


def change_tenant(tenant: options.Tenant, changes: Mapping[str, str], where: str) -> options.Tenant:
    """`tenant` with its share of the drive or quotas changed, which may change while it runs."""
    for key in changes:
        if key not in TENANT_LIVE:
            settings.check_known(key, settings.declared(options.Tenant), where, "key")
            raise BadInput(
                f"{key} is read at the start alone",
                where,
                f"set it in the configuration and restart; live: {', '.join(TENANT_LIVE)}",
            )
    changed = settings.read_table(tenant, changes, where)
    check_share(changed, where)
    return changed


def rows(config: Config) -> Iterable[tuple[str, str, str]]:
    """`(section.key, value as it would be typed, source)` of every option, in order."""
    for section, kind in SECTIONS.items():
        for key, one in settings.declared(kind).items():
            where = f"{section}.{key}"
            value = getattr(getattr(config, section), one.name)
            yield where, settings.show(one, value), config.sources.get(where, "default")
    for index, tenant in enumerate(config.tenants):
        source = config.file if config.file and tenant != options.Tenant() else "default"
        for key, one in settings.declared(options.Tenant).items():
            shown = settings.show(one, getattr(tenant, one.name))
            if key == "secret" and shown:
                shown = "(hidden)"
            yield f"tenant.{index}.{key}", shown, source


def _tenants(tables: Any, file: str) -> tuple[options.Tenant, ...]:
    if tables is None:
        return (options.Tenant(),)
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise BadInput("tenant is not a list of tables", file, "write [[tenant]] for each")
    if any(one.get("secret") for one in tables):
        check_private(Path(file))
    return tuple(
        settings.read_table(options.Tenant(), table, f"{file}: [[tenant]] {number}")
        for number, table in enumerate(tables, 1)
    )
