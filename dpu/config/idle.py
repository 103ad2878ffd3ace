"""Settings that have no effect in combination with others: notes at the start of a daemon and in
`config show`, and a refusal of a move. Only values that were set count; defaults are not reported.

A condition that can change while a daemon runs, such as its fabrics, does not make a setting
unused. Pure; nothing can fail.
"""

from collections.abc import Callable
from dataclasses import dataclass

from offstage.bindings.notes import Note
from offstage.bindings.settings import declared
from offstage.dpu.config import options
from offstage.dpu.config.values import SECTIONS, Config

__all__ = ["IDLE", "Idle", "unused"]


@dataclass(frozen=True)
class Idle:
    """`keys`, as `section.key`, have no effect where `when` is true of the settings; `why` ends a
    sentence that begins with them."""

    keys: tuple[str, ...]
    when: Callable[[Config], bool]
    why: str


def _backend(*names: str) -> Callable[[Config], bool]:
    """A built-in storage that is none of these; one of an installed package may use any setting."""
    others = {"auto", "io_uring", "posix", "emulated", "spdk"} - set(names)
    return lambda config: config.storage.backend in others


def _no_posix(config: Config) -> bool:
    one = config.storage
    backend = one.inner if one.backend == "emulated" else one.backend
    return backend in ("io_uring", "spdk", "")


def _no_file(config: Config) -> bool:
    one = config.storage
    return one.backend == "spdk" or (one.backend == "emulated" and not one.inner)


def _no_room(config: Config) -> bool:
    """As `ofs_store_lacks`, once each layer of each tenant has an open segment."""
    segments = config.storage.size_bytes // config.store.segment_bytes
    room = segments * config.store.room_percent // 100
    return 0 < config.store.room_percent and room < config.arena.layers * len(config.tenants)


def _of(section: str, *without: str) -> tuple[str, ...]:
    return tuple(f"{section}.{key}" for key in declared(SECTIONS[section]) if key not in without)


IDLE = (
    Idle(
        ("storage.target", "storage.target_file", "storage.discard"),
        _backend("spdk"),
        "without storage.backend spdk",
    ),
    Idle(
        ("storage.target_file",),
        lambda one: one.storage.backend == "spdk" and not one.storage.target,
        "without storage.target",
    ),
    Idle(
        ("storage.discard",),
        lambda one: one.storage.backend == "spdk" and bool(one.storage.target),
        "with storage.target, whose file takes no discards",
    ),
    Idle(
        ("storage.discard",),
        lambda one: one.storage.backend == "spdk" and not one.store.durable,
        "without store.durable: no order is kept to discard by",
    ),
    Idle(
        ("storage.nvme", "storage.inner", "storage.busy_spin"),
        _backend("emulated"),
        "without storage.backend emulated",
    ),
    Idle(
        ("store.room_percent",),
        _no_room,
        "with fewer segments of room than layers of tenants",
    ),
    Idle(
        ("storage.nvme",),
        lambda one: bool(one.model.device),
        "with model.device, which determines all times",
    ),
    Idle(("storage.threads",), _no_posix, "on a storage other than posix"),
    Idle(("storage.direct",), _no_file, "on a storage that opens no file"),
    Idle(
        ("storage.path",),
        lambda one: one.storage.backend == "emulated" and not one.storage.inner,
        "without storage.inner: the drive is memory",
    ),
    Idle(_of("archive", "bucket"), lambda one: not one.archive.bucket, "without archive.bucket"),
    Idle(_of("pod", "map"), lambda one: not one.pod.map, "without pod.map"),
    Idle(
        ("pod.endpoint", "pod.weight", "pod.zone", "pod.lease"),
        lambda one: bool(one.pod.map) and not one.pod.map.startswith("etcd:"),
        "with a map in a file: `offstage pod add` sets them there, and there is no lease",
    ),
    Idle(_of("rdma", "enabled"), lambda one: not one.rdma.enabled, "without rdma.enabled"),
    Idle(
        ("store.dirty_max",),
        lambda one: one.store.write == "through",
        'without store.write = "back": nothing is dirty',
    ),
    Idle(
        ("limits.records", "limits.log"),
        lambda one: not one.daemon.record_dir,
        "without daemon.record_dir: nothing is recorded",
    ),
    Idle(
        ("limits.tenant_in_flight",),
        lambda one: len(one.tenants) == 1,
        "with one tenant, which does not share the drive",
    ),
    Idle(
        ("daemon.metrics_token_file",),
        lambda one: not one.daemon.metrics_endpoint,
        "without daemon.metrics_endpoint",
    ),
    Idle(
        ("arena.granule_tokens",),
        lambda one: one.arena.granule_tokens == one.arena.block_tokens,
        "where it is arena.block_tokens: hosts read whole blocks",
    ),
    Idle(
        ("policy.drive_years",),
        lambda one: one.policy.write_budget_bytes > 0,
        "with policy.write_budget",
    ),
)


def unused(config: Config) -> list[Note]:
    """A note for each row with a setting that was given but has no effect, and for such settings of
    a tenant."""
    found = [
        (", ".join(given), row.why)
        for row in IDLE
        if (given := [key for key in row.keys if key in config.sources]) and row.when(config)
    ]
    bare = options.Tenant()
    for number, one in enumerate(config.tenants):
        if one.dirty_max != bare.dirty_max and config.store.write == "through":
            found.append(
                (f"tenant.{number}.dirty_max", 'without store.write = "back": nothing is dirty')
            )
        if one.weight != bare.weight and len(config.tenants) == 1:
            found.append((f"tenant.{number}.weight", "with one tenant"))
    return [
        Note("setting-unused", f"{names} {'have' if ', ' in names else 'has'} no effect {why}")
        for names, why in found
    ]
