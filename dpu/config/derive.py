"""Values derived from the configuration, each computed once, and the relations between options.

A violated relation raises BadInput that names the options concerned, so the daemon refuses to
start instead of failing later, when a table first fills up.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path

from offstage.bindings import sides
from offstage.bindings.core import Policy
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import constant
from offstage.bindings.storage import presets
from offstage.bindings.tradeoffs import write_budget_bytes
from offstage.bindings.units import format_size
from offstage.dpu.config.addresses import NAME, check_address, check_member, parse_host_port
from offstage.dpu.config.options import MINUTE_NS, PolicyOptions, Storage, Tenant
from offstage.dpu.config.shares import check_floors, check_share
from offstage.dpu.config.values import Config
from offstage.dpu.protocol import OPERATOR

__all__ = [
    "NGUID",
    "Derived",
    "check_endpoint",
    "core_policy",
    "daily_bytes",
    "derive",
    "policy_window_blocks",
]

NGUID = re.compile("[0-9a-f]{32}")
VOLUME = re.compile("[0-9a-f]{32}( durable)?")
LOOPBACK = ("127.", "localhost", "[::1]", "::1")
SLOTS_MIN = 8  # fewer cannot hold one step's sinks, window and a demand
CORE_READS_MAX = 16_384
CORE_PREFETCHES_MAX = 4096
PART_MIN = 2
GRANULES_MAX = constant("OFS_GRANULES_MAX")
LIST_DEMANDS_MIN = 8  # whatever the context: a command has room for two values (ofs_values_max)
RECORDS_MIN = 4  # of a segment: its header must stay a small part of it


@dataclass(frozen=True)
class Derived:
    """What follows from a Config. Sizes in bytes, times as named, counts otherwise."""

    record_size_bytes: int  # payload and the trailer's LBA: one slot, one record of the store
    slot_counts: tuple[int, ...]  # of each tenant, in the order of the configuration
    session_chunk_max: int
    demand_max: int
    session_counts: tuple[int, ...]  # that each tenant may have open
    port_counts: tuple[int, ...]  # and hosts attached
    dirty_counts: tuple[int, ...]  # its part of store.dirty_max; 0 where puts go through
    core_reads: int  # that the core may have begun: of several tenants each has a part
    window_blocks: int
    segment_count: int
    segment_count_min: int  # of the smallest store: one for each layer of each tenant, the reserve
    segment_record_max: int
    granule_count: int  # parts of a block that hosts may read; 0: whole blocks only
    ttl_s: int

    @property
    def slot_count(self) -> int:
        """Slots of all tenants."""
        return sum(self.slot_counts)


def daily_bytes(endurance_bytes: int, policy: PolicyOptions) -> int:
    """Bytes that a day may write to the drive; 0: no bound. BadInput: its endurance is unknown."""
    if policy.write_budget_bytes or not policy.drive_years:
        return policy.write_budget_bytes
    if not endurance_bytes:
        raise BadInput(
            "policy.drive_years is set, but not the endurance of the drive",
            "policy",
            "set storage.endurance at the start, or policy.write_budget instead",
        )
    return int(write_budget_bytes(endurance_bytes, policy.drive_years))


def derive(config: Config) -> Derived:
    """Check every relation and compute the values. Raises BadInput; reads no file."""
    where = config.file or "configuration"
    _check_tenants(config, where)
    _check_block(config, where)
    _check_storage(config, where)
    _check_model(config, where)
    daily_bytes(config.storage.endurance_bytes, config.policy)
    _check_endpoints(config, where)
    _check_nvme(config, where)
    record_bytes = config.arena.payload_bytes + config.storage.lba_bytes
    check_floors(config.storage, config.tenants, record_bytes, where)
    slot_counts = _share_arena(config, record_bytes, where)
    segments, needed, records = _check_store(config, record_bytes, where)
    if config.store.write == "back" and config.store.dirty_max > min(slot_counts) // 2:
        raise BadInput(
            f"store.dirty_max is {config.store.dirty_max}, more than half of the smallest "
            f"tenant's {min(slot_counts)} slots",
            where,
            "lower store.dirty_max or raise arena.size",
        )
    if config.limits.values and config.limits.demands < LIST_DEMANDS_MIN:
        raise BadInput(
            f"limits.demands is {config.limits.demands}, too little for a list of values' keys",
            where,
            f"raise it to {LIST_DEMANDS_MIN} or more, or set limits.values to 0",
        )
    entries = config.limits.port_entries
    if entries & (entries - 1):
        raise BadInput(f"limits.port_entries is {entries}", where, "choose a power of two")
    demand_max = min(config.limits.demands, *slot_counts)
    return Derived(
        record_size_bytes=record_bytes,
        slot_counts=slot_counts,
        session_chunk_max=-(-config.limits.context_tokens // config.arena.block_tokens),
        demand_max=demand_max,
        session_counts=tuple(
            tenant.sessions or _part(config.limits.sessions, slots, slot_counts)
            for tenant, slots in zip(config.tenants, slot_counts, strict=True)
        ),
        port_counts=tuple(
            tenant.ports or _part(config.limits.ports, slots, slot_counts)
            for tenant, slots in zip(config.tenants, slot_counts, strict=True)
        ),
        dirty_counts=tuple(
            _part(config.store.dirty_max, slots, slot_counts) if config.store.write == "back" else 0
            for slots in slot_counts
        ),
        core_reads=_core_reads(config, demand_max),
        window_blocks=policy_window_blocks(config.policy, config.arena.block_tokens),
        segment_count=segments,
        segment_count_min=needed,
        segment_record_max=records,
        granule_count=_granule_count(config),
        ttl_s=-(-config.store.ttl_ns // 10**9),
    )


def _part(total: int, slots: int, slot_counts: tuple[int, ...]) -> int:
    """A tenant's part of a table, in proportion to the arena; a tiny table is not divided."""
    part = total * slots // sum(slot_counts)
    return part if part >= PART_MIN else total


def _core_reads(config: Config, demand_max: int) -> int:
    """With one tenant, the reads in flight. With several, tenants do not queue behind each other in
    the core: two steps of each, and the prefetches, queue for the drive instead."""
    if len(config.tenants) == 1:
        return config.limits.reads
    wanted = 2 * demand_max * len(config.tenants)
    ahead = min(config.policy.prefetch_in_flight_max, CORE_PREFETCHES_MAX)
    return max(min(wanted, CORE_READS_MAX) + ahead, config.limits.reads)


def policy_window_blocks(policy: PolicyOptions, block_tokens: int) -> int:
    """The sliding window in blocks, the last of which may be in part outside of it."""
    return -(-policy.window_tokens // block_tokens)


def core_policy(policy: PolicyOptions, block_tokens: int) -> Policy:
    """The decision core's policy: windows in blocks, the cap under the core's name. Daemon,
    laboratory and the demo's curve all make theirs here. BadInput where the core knows no such
    value."""
    if policy.hint_score_bits not in (8, 16):
        raise BadInput(f"hint_score_bits is {policy.hint_score_bits}", "policy", "choose 8 or 16")
    own = {"prefetchers", "eviction", "window_blocks", "prefetch_bytes_per_s_max", "keep_minutes"}
    alike = [one.name for one in fields(Policy) if one.name not in own]
    return Policy(
        prefetchers="+".join(policy.prefetchers) or "none",
        eviction=policy.eviction,
        window_blocks=policy_window_blocks(policy, block_tokens),
        prefetch_bytes_per_s_max=policy.bandwidth_bytes_per_s,
        keep_minutes=-(-policy.keep_ns // MINUTE_NS),
        **{name: getattr(policy, name) for name in alike},
    )


def _check_tenants(config: Config, where: str) -> None:
    names = [tenant.name for tenant in config.tenants]
    if not names:
        raise BadInput("no tenant", where, "add a [[tenant]], or remove the empty list")
    handles = 1 + len(names)
    if 0 < config.storage.handles_min < handles:
        raise BadInput(
            f"{len(names)} tenants need {handles} placement handles, one of them for headers",
            where,
            f"raise storage.handles_min, {config.storage.handles_min}, or leave it out: "
            "then tenants share handles",
        )
    for tenant in config.tenants:
        which = f"{where}: [[tenant]] {tenant.name!r}"
        if not NAME.fullmatch(tenant.name) or tenant.name == OPERATOR:
            raise BadInput(
                "is not a name for a tenant",
                which,
                "use letters, digits, . _ -, and not 'operator'",
            )
        if names.count(tenant.name) > 1:
            raise BadInput("is listed twice", which, "give each tenant its own name")
        if tenant.secret and tenant.secret_file:
            raise BadInput("both secret and secret_file are given", which, "remove one")
        check_share(tenant, which)
        if tenant.sharing == "user":
            _check_users(config, tenant, which)
        wrong = next((one for one in tenant.volumes if not VOLUME.fullmatch(one)), None)
        if wrong is not None:
            raise BadInput(
                f"{wrong!r} is not a volume",
                which,
                "write 32 digits of 0-9 and a-f, and 'durable' behind them where it is to be",
            )


def _check_users(config: Config, tenant: Tenant, which: str) -> None:
    """Only the kernel tells users apart, when hosts fetch descriptors."""
    if not (tenant.users or tenant.groups):
        raise BadInput(
            "sharing is 'user', and only the daemon's user may attach",
            which,
            "name its users or groups, or leave sharing out",
        )
    if "shm" not in config.daemon.fabrics:
        raise BadInput(
            "sharing is 'user', which shm alone can keep",
            which,
            "add shm to daemon.fabrics, or leave sharing out",
        )


def _check_block(config: Config, where: str) -> None:
    lba, payload = config.storage.lba_bytes, config.arena.payload_bytes
    if lba & (lba - 1):
        raise BadInput(f"storage.lba is {format_size(lba)}", where, "choose a power of two")
    if payload % lba:
        raise BadInput(
            f"arena.payload {format_size(payload)} is not a multiple of storage.lba "
            f"{format_size(lba)}",
            where,
            "round the payload up, or choose a smaller lba",
        )
    granules, tokens = _granule_count(config), config.arena.granule_tokens
    if tokens and (config.arena.block_tokens % tokens or granules > GRANULES_MAX):
        raise BadInput(
            f"arena.granule_tokens is {tokens}, and a block has {config.arena.block_tokens} tokens",
            where,
            f"choose a divisor of block_tokens, at most {GRANULES_MAX} granules in a block",
        )
    if granules == 0:
        return
    if config.store.codec != "off":
        raise BadInput(
            f"arena.granule_tokens is {tokens}, and store.codec {config.store.codec}: a coded "
            "block is read whole",
            where,
            "set one of the two, not both",
        )
    if payload % (granules * lba):
        raise BadInput(
            f"a granule of {tokens} tokens has {payload / granules:,.0f} B, and storage.lba is "
            f"{format_size(lba)}",
            where,
            "choose larger granules, or a smaller lba: a granule is read in whole logical blocks",
        )


def _granule_count(config: Config) -> int:
    tokens = config.arena.granule_tokens
    count = config.arena.block_tokens // tokens if tokens else 0
    return count if count > 1 else 0


def _share_arena(config: Config, record_bytes: int, where: str) -> tuple[int, ...]:
    """Slots of each tenant: its share, or an equal part of what the shares leave, and its maximum
    at most. The surplus is given to tenants with neither share nor maximum, or stays empty."""
    total = config.arena.size_bytes // record_bytes
    given = sum(tenant.share_percent for tenant in config.tenants)
    open_count = sum(1 for tenant in config.tenants if not tenant.share_percent)
    if given > 100 or (given == 100 and open_count):
        raise BadInput(
            f"the tenants' shares add up to {given} %",
            where,
            "lower share_percent so that every tenant gets a part",
        )
    rest = total - sum(total * tenant.share_percent // 100 for tenant in config.tenants)
    most = [
        tenant.arena_max_bytes // record_bytes if tenant.arena_max_bytes else total
        for tenant in config.tenants
    ]
    part = rest // max(open_count, 1)
    while True:  # the rest is divided again until no other tenant exceeds its maximum
        capped = [
            count
            for tenant, count in zip(config.tenants, most, strict=True)
            if not tenant.share_percent and count < part
        ]
        wider = (rest - sum(capped)) // max(open_count - len(capped), 1)
        if len(capped) == open_count or wider <= part:
            break
        part = wider
    counts = tuple(
        min(total * tenant.share_percent // 100 if tenant.share_percent else part, count)
        for tenant, count in zip(config.tenants, most, strict=True)
    )
    for tenant, count in zip(config.tenants, counts, strict=True):
        if count < SLOTS_MIN:
            raise BadInput(
                f"the arena of {format_size(config.arena.size_bytes)} gives tenant "
                f"{tenant.name!r} {count} blocks of {format_size(record_bytes)}, "
                f"fewer than {SLOTS_MIN}",
                where,
                "raise arena.size, or lower arena.payload",
            )
    return counts


def _check_storage(config: Config, where: str) -> None:
    storage = config.storage
    sides.check(storage.backend, where)
    if storage.nvme not in presets():
        raise BadInput(
            f"storage.nvme {storage.nvme!r} is not a preset",
            where,
            f"choose one of {', '.join(presets())}",
        )
    in_memory = storage.backend == "emulated" and not storage.inner
    if in_memory:
        return
    if storage.backend == "spdk":
        _check_spdk(storage, where)
        return
    if not storage.path:
        raise BadInput(
            f"storage.path is empty, and storage {storage.backend!r} needs one",
            where,
            "give --set storage.path=FILE, a file or block device; or --set "
            "storage.backend=emulated, which keeps blocks in memory",
        )
    path = Path(storage.path)
    if len(storage.path.encode()) > 511:
        raise BadInput("storage.path is longer than 511 bytes", where, "choose a shorter path")
    if path.is_dir():
        raise BadInput("is a directory", storage.path, "name a file in it as storage.path")
    if not path.exists() and not path.absolute().parent.is_dir():
        raise BadInput(
            "its directory does not exist", storage.path, f"mkdir -p {path.absolute().parent}"
        )


def _check_spdk(storage: Storage, where: str) -> None:
    """Transport ids are parsed when they are opened."""
    if bool(storage.path) == bool(storage.target):
        raise BadInput(
            "storage 'spdk' needs storage.path or storage.target, and not both",
            where,
            'path = "trtype:TCP adrfam:IPv4 traddr:... trsvcid:4420 subnqn:...", '
            'or target = "/path/to/nvmf_tgt"',
        )
    if storage.target and not storage.target_file:
        raise BadInput(
            "storage.target has no storage.target_file",
            where,
            "name the file that the target is to keep the blocks in",
        )
    if len(storage.path.encode()) > 511:
        raise BadInput("storage.path is longer than 511 bytes", where, "use fewer drives")


def _check_model(config: Config, where: str) -> None:
    model = config.model
    if (model.device or model.dilation > 1) and config.storage.backend != "emulated":
        raise BadInput(
            f"a modelled device over storage {config.storage.backend!r}, whose times are its own",
            where,
            'set storage.backend = "emulated"; storage.inner says what holds the bytes',
        )


def _check_store(config: Config, record_bytes: int, where: str) -> tuple[int, int, int]:
    """Segments that fit on the storage, those that it needs, and records of each."""
    segment, lba = config.store.segment_bytes, config.storage.lba_bytes
    if segment % lba:
        raise BadInput(
            f"store.segment {format_size(segment)} is not a multiple of storage.lba "
            f"{format_size(lba)}",
            where,
            "round it up",
        )
    records = (segment - lba) // record_bytes
    if records < RECORDS_MIN:
        raise BadInput(
            f"store.segment {format_size(segment)} holds {records} blocks of "
            f"{format_size(record_bytes)}, fewer than {RECORDS_MIN}",
            where,
            "raise store.segment",
        )
    count = (config.storage.size_bytes - 2 * lba) // segment
    needed = config.arena.layers * len(config.tenants) + config.store.reserve_segments + 1
    if count < needed:
        raise BadInput(
            f"storage.size {format_size(config.storage.size_bytes)} holds {max(count, 0)} "
            f"segments, and every layer of every tenant with the reserve needs {needed}",
            where,
            "raise storage.size, or lower store.segment",
        )
    return count, needed, records


def check_endpoint(config: Config, name: str, endpoint: str, where: str) -> None:
    """BadInput for an invalid endpoint, and for one open to a network without CURVE."""
    host = check_address(name, endpoint, where, listens=True)
    if not host:
        return
    if not (host.startswith(LOOPBACK) or config.daemon.curve_dir or config.daemon.insecure):
        raise BadInput(
            f"{name} {endpoint!r} is open to the network without CURVE",
            where,
            "set daemon.curve_dir, or listen on 127.0.0.1, or say daemon.insecure = true",
        )


def _check_endpoints(config: Config, where: str) -> None:
    daemon = config.daemon
    check_endpoint(config, "daemon.endpoint", daemon.endpoint, where)
    if daemon.fabric_endpoint:
        check_endpoint(config, "daemon.fabric_endpoint", daemon.fabric_endpoint, where)
        if daemon.fabric_endpoint == daemon.endpoint and not daemon.endpoint.endswith(":*"):
            raise BadInput(
                f"daemon.fabric_endpoint is daemon.endpoint, {daemon.endpoint!r}",
                where,
                "give each its own port or path",
            )
    if config.pod.map:
        check_member(config.pod.name, config.pod.endpoint, f"{where}: pod")
    if daemon.metrics_endpoint:
        host, _ = parse_host_port(daemon.metrics_endpoint, f"{where}: daemon.metrics_endpoint")
        if not (host.startswith(LOOPBACK) or daemon.insecure):
            raise BadInput(
                f"daemon.metrics_endpoint {daemon.metrics_endpoint!r} is open to the network, "
                "and its tokens are not encrypted",
                where,
                "listen on 127.0.0.1, or say daemon.insecure = true",
            )
    if daemon.curve_dir and not Path(daemon.curve_dir, "server.key_secret").is_file():
        raise BadInput(
            "has no server.key_secret",
            daemon.curve_dir,
            f"offstage keys make server {daemon.curve_dir}",
        )
    if daemon.curve_dir and not list(Path(daemon.curve_dir, "clients").glob("*.key")):
        raise BadInput(
            "has no client's key under clients/: no client could connect",
            daemon.curve_dir,
            f"offstage keys add {daemon.curve_dir} CLIENT.key",
        )


def _check_nvme(config: Config, where: str) -> None:
    """What listens over NVMe/TCP has values to serve, to hosts that all of a tenant's may be."""
    listen = config.nvme.listen
    if not listen:
        return
    host, _ = parse_host_port(listen, f"{where}: nvme.listen")
    if not (host.startswith(LOOPBACK) or config.daemon.insecure):
        raise BadInput(
            f"nvme.listen {listen!r} is open to the network, and values are not encrypted",
            where,
            "listen on 127.0.0.1, or say daemon.insecure = true",
        )
    if host in ("0.0.0.0", "::", "[::]"):
        raise BadInput(
            f"nvme.listen {listen!r} is not an address that the discovery log can name",
            where,
            "name the address that hosts reach",
        )
    if not any(tenant.volumes and tenant.sharing == "tenant" for tenant in config.tenants):
        raise BadInput(
            "nvme.listen is set, and no tenant whose users share lists a volume",
            where,
            "give a [[tenant]] volumes = ['NGUID'], of 32 hexadecimal digits",
        )
    for wrong, what, fix in (
        (not config.limits.values, "limits.values is not set", "set limits.values"),
        (config.pod.map, "a pod's member has no volumes", "leave nvme.listen or pod.map out"),
        (
            config.model.dilation > 1,
            "the daemon's time is slower than its hosts'",
            "leave nvme.listen out, or set model.dilation to 1",
        ),
    ):
        if wrong:
            raise BadInput(f"nvme.listen is set, and {what}", where, fix)
