"""The options of the daemon, declared once: each field carries its default, kind, range and help.

The loader, `offstage config show`, live policy changes and the reference page all read these
declarations, so they cannot drift apart.
"""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from offstage.bindings.codec import DTYPES
from offstage.bindings.layouts import EVICTIONS, PREFETCHERS
from offstage.bindings.settings import Price, Rate, Settings, Size, Time, about, within

__all__ = [
    "KEEP_MAX_NS",
    "MINUTE_NS",
    "Archive",
    "Arena",
    "Daemon",
    "Limits",
    "Memory",
    "Model",
    "Nvme",
    "Pod",
    "PolicyOptions",
    "Rdma",
    "Storage",
    "Store",
    "Tenant",
]

MINUTE_NS = 60 * 10**9
KEEP_MAX_NS = 65_535 * MINUTE_NS

if TYPE_CHECKING:  # what the headers name is known when it runs
    Codec: TypeAlias = str
    Eviction: TypeAlias = str
    Prefetchers: TypeAlias = tuple[str, ...]
else:
    Codec = Literal[("off", *DTYPES)]
    Eviction, Prefetchers = Literal[EVICTIONS], tuple[Literal[tuple(PREFETCHERS)], ...]


class Daemon(Settings, frozen=True):
    """Where the daemon listens, and how it treats its hosts."""

    endpoint: Annotated[str, about("control socket: tcp://host:port or ipc://path")] = (
        "tcp://127.0.0.1:7411"
    )
    fabric_endpoint: Annotated[
        str,
        about("ZMQ fabric; empty: the endpoint's host with a free port, or its path with .fabric"),
    ] = ""
    fabrics: Annotated[
        tuple[Literal["shm", "verbs", "nixl", "zmq"], ...],
        about("fabrics that hosts may attach over; `offstage dpu fabric` changes them live"),
    ] = ("shm", "verbs", "nixl", "zmq")
    runtime_dir: Annotated[
        str, about("lock, hand-out socket, generated secrets; empty: chosen by user and endpoint")
    ] = ""
    metrics_endpoint: Annotated[str, about("Prometheus, host:port; empty: off")] = "127.0.0.1:9411"
    metrics_token_file: Annotated[
        str, about("file with the token that shows all; empty: metrics.token in runtime_dir")
    ] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("lowest level that is logged")
    ] = "info"
    curve_dir: Annotated[
        str,
        about("CURVE: server.key_secret and clients/*.key of zmq.auth; empty: off (loopback only)"),
    ] = ""
    insecure: Annotated[bool, about("allow a TCP endpoint beyond loopback without CURVE")] = False
    nixl: Annotated[
        bool, about("take hosts over NIXL, which can reach all that its agent can: trusted ones")
    ] = False
    operator_secret_file: Annotated[
        str, about("file with the operator's hex secret; empty: a new one at every start")
    ] = ""
    host_timeout_ns: Annotated[
        Time, within(100_000_000, 10**13, "a host silent for this long is dead")
    ] = 10_000_000_000
    drain_timeout_ns: Annotated[
        Time, within(0, 10**13, "the longest that SIGTERM waits for write-back")
    ] = 30_000_000_000
    record_dir: Annotated[str, about("write ledger records and decision log here; empty: off")] = ""
    stage_timers: Annotated[
        bool, about("time the stages of one block in 31, of every one while recording")
    ] = True
    cpu: Annotated[int, within(-1, 4095, "core the reactor is pinned to; -1: none")] = -1
    isolate: Annotated[
        bool, about("the reactor has its core to itself and goes before other work; needs root")
    ] = False
    spin_ns: Annotated[
        Time, within(0, 10**18, "the reactor polls this long after its last work, then sleeps")
    ] = 50_000


class Arena(Settings, frozen=True):
    """The staging memory, and the layout of a block."""

    size_bytes: Annotated[Size, within(0, 1 << 46, "staging memory of all tenants")] = 1 << 30
    payload_bytes: Annotated[Size, within(512, 1 << 26, "largest block")] = 32 << 10
    layers: Annotated[int, within(1, 4096, "layers of the model")] = 4
    block_tokens: Annotated[int, within(1, 65536, "tokens of one block")] = 64
    granule_tokens: Annotated[
        int, within(0, 65536, "tokens of the parts of a block that hosts may read; 0: whole blocks")
    ] = 0


class Memory(Settings, frozen=True):
    """The pages of the memory that devices read and write: staging, buffers of the store."""

    huge: Annotated[
        Literal["auto", "off"], about("2 MiB pages: reserved, else transparent; off: base pages")
    ] = "auto"
    numa_node: Annotated[int, within(-1, 1023, "node the memory is bound to; -1: none")] = -1


class Rdma(Settings, frozen=True):
    """The adapter over which hosts of the fabric `verbs` are reached."""

    enabled: Annotated[bool, about("take hosts over RDMA; the adapter is opened at the start")] = (
        False
    )
    device: Annotated[str, about("as `rdma link` names it; empty: the first that is active")] = ""
    port: Annotated[int, within(0, 255, "of the device; 0: the first that is active")] = 0
    gid_index: Annotated[
        int, within(-1, 65_535, "address; -1: RoCE v2, IPv4 before IPv6, else the first")
    ] = -1
    mtu_bytes: Annotated[
        Size, within(0, 4096, "packets: 256, 512, 1KiB, 2KiB or 4KiB; 0: what the link carries")
    ] = 0


class Nvme(Settings, frozen=True):
    """Values for initiators of NVMe over TCP, each volume of a tenant a namespace."""

    listen: Annotated[
        str, about("host:port, 4420 by custom; empty: off. Hosts authenticate by DH-HMAC-CHAP")
    ] = ""


class Storage(Settings, frozen=True):
    """The device below the store."""

    backend: Annotated[
        str,
        about(
            "auto, io_uring, posix, emulated, spdk, or one that an installed package offers; "
            "auto takes the best of the first two that opens"
        ),
    ] = "auto"
    path: Annotated[
        str,
        about("file or block device; spdk: transport ids; may be empty for emulated in memory"),
    ] = ""
    target: Annotated[
        str,
        about(
            "spdk, without path: start this nvmf_tgt for the daemon alone; what it holds is "
            "the file storage.target_file"
        ),
    ] = ""
    target_file: Annotated[str, about("spdk: the file below the target")] = ""
    size_bytes: Annotated[Size, within(0, 1 << 50, "the file is made this large")] = 8 << 30
    lba_bytes: Annotated[Size, within(512, 65536, "logical block, power of two")] = 4 << 10
    endurance_bytes: Annotated[
        Size,
        within(
            0, 1 << 62, "bytes that may be written to the drive, from its data sheet; 0: unknown"
        ),
    ] = 0
    queue_depth: Annotated[int, within(1, 4096, "I/Os in flight on the device")] = 64
    threads: Annotated[int, within(1, 64, "posix: threads")] = 4
    direct: Annotated[bool, about("O_DIRECT; falls back with a warning where the file refuses")] = (
        True
    )
    nvme: Annotated[str, about("emulated: preset of the NVMe model")] = "gen5-tlc"
    inner: Annotated[
        Literal["", "posix", "io_uring"], about("emulated: the side below; empty: memory")
    ] = ""
    busy_spin: Annotated[bool, about("emulated: the reactor checks due times itself")] = False
    seed: Annotated[int, within(0, (1 << 63) - 1, "emulated: seed of the timing model")] = 1
    discard: Annotated[
        bool, about("spdk: give a freed segment's blocks back to the drive (dataset management)")
    ] = True
    handles_min: Annotated[
        int,
        within(
            0, 255, "placement handles that the drive must have; 0: any, it is written with those"
        ),
    ] = 0
    io_timeout_ns: Annotated[
        Time, within(1_000_000, 10**12, "an I/O that takes longer has failed")
    ] = 5_000_000_000


class Model(Settings, frozen=True):
    """A modelled device behind real software: the model decides when operations complete."""

    device: Annotated[str, about("preset of `offstage asic presets`; empty: no model")] = ""
    dilation: Annotated[
        int, within(1, 100_000, "the machine's seconds in one of the device's; storage emulated")
    ] = 1


class Store(Settings, frozen=True):
    """The log-structured store on the storage."""

    segment_bytes: Annotated[Size, within(4096, 1 << 31, "one layer of one tenant at a time")] = (
        4 << 20
    )
    ttl_ns: Annotated[
        Time, within(0, (1 << 63) - 1, "blocks expire this long after their write; 0: never")
    ] = 0
    write: Annotated[
        Literal["through", "back"], about("a put is acknowledged on NVMe, or once staged")
    ] = "through"
    dirty_max: Annotated[
        int, within(0, 1 << 20, "write back: blocks staged and not yet on NVMe")
    ] = 256
    durable: Annotated[bool, about("a put ends only when it is on the medium (FUA)")] = True
    reserve_segments: Annotated[int, within(1, 4096, "kept free for the cleaner")] = 4
    room_percent: Annotated[
        int, within(0, 50, "of the store, kept empty by purging the coldest chunks early; 0: none")
    ] = 5
    io_max: Annotated[int, within(1, 65536, "puts and gets in flight")] = 64
    erase: Annotated[
        bool, about("deleted blocks are overwritten on the drive before the delete is acknowledged")
    ] = False
    codec: Annotated[
        Codec, about("dtype of the KV, to write it coded where that saves a logical block; or off")
    ] = "off"


class Archive(Settings, frozen=True):
    """An object store behind the drive (G4): kept chunks are copied there and restored."""

    bucket: Annotated[str, about("of an S3 server; empty: no archive")] = ""
    endpoint: Annotated[str, about("http://host:port or https://host; empty: Amazon's")] = ""
    region: Annotated[str, about("as the server names it; most do not care")] = "us-east-1"
    prefix: Annotated[str, about("folder in the bucket; each daemon needs a different one")] = (
        "offstage"
    )
    key_file: Annotated[
        str, about("access key and secret key, a line each; empty: what botocore finds")
    ] = ""
    chunk_tokens: Annotated[
        int, within(1, 65536, "of one object, in whole chunks and at most 16 of them")
    ] = 256
    connections: Annotated[int, within(1, 64, "concurrent calls to the server")] = 4
    queue: Annotated[
        int, within(1, 1 << 20, "objects waiting to be uploaded; above it they are dropped")
    ] = 1024
    timeout_ns: Annotated[
        Time, within(100_000_000, 10**12, "the server connects, and goes on answering, in this")
    ] = 10_000_000_000
    wait_ns: Annotated[
        Time, within(0, 10**11, "the longest that a host waits for chunks being restored")
    ] = 2_000_000_000


class PolicyOptions(Settings, frozen=True):
    """What is prefetched and what is evicted; all of it can be changed while the daemon runs."""

    prefetchers: Annotated[Prefetchers, about("empty: none")] = ("window", "ema", "shared")
    eviction: Annotated[Eviction, about("victim order")] = "score"
    window_tokens: Annotated[int, within(0, 1 << 30, "behind the decode position: staged once")] = (
        4096
    )
    ema_shift: Annotated[int, within(0, 15, "a new score weighs 1 / 2^n")] = 1
    admit_named_min: Annotated[
        int,
        within(
            0,
            255,
            "sessions that must put a new chunk before a put of it is written; 255: never",
        ),
    ] = 0
    write_budget_bytes: Annotated[
        Size,
        within(
            0, 1 << 62, "written to the drive in 24 hours: near it less is admitted; 0: no limit"
        ),
    ] = 0
    drive_years: Annotated[
        int, within(0, 100, "the same from storage.endurance, to last this many years; 0: no limit")
    ] = 0
    prefill_price_microusd: Annotated[
        Price, within(0, 10**15, "of GPU time, to prefill a million tokens; 0: unknown")
    ] = 0
    prefill_tokens_per_s: Annotated[
        int, within(0, 1 << 40, "that the GPUs of one host prefill; 0: unknown")
    ] = 0
    drive_price_microusd: Annotated[Price, within(0, 10**15, "of the drive; 0: unknown")] = 0
    keep_ns: Annotated[
        Time,
        within(
            0,
            KEEP_MAX_NS,
            "a kept chunk that no session names for this long is "
            "dropped, in minutes; 0: from the prices, else never",
        ),
    ] = 0
    return_tokens_min: Annotated[
        int,
        within(
            0,
            65535,
            "with fewer missing nothing is restored from the archive; 65535: never; "
            "0: from prefill_tokens_per_s and its pace",
        ),
    ] = 0
    residency_percent: Annotated[
        int, within(0, 100_000, "only the best this % of the selection size are guesses")
    ] = 800
    degree_max: Annotated[int, within(0, 65536, "guesses one layer of one step may prefetch")] = 2
    next_n: Annotated[int, within(0, 65536, "baseline next_n: how many")] = 4
    prefetch_in_flight_max: Annotated[
        int, within(0, 65536, "prefetch reads in flight, all sessions")
    ] = 48
    bandwidth_bytes_per_s: Annotated[
        Rate, within(0, 1 << 62, "of prefetch, such as 2GB/s; 0: no cap")
    ] = 0
    accuracy_permille_min: Annotated[int, within(0, 1000, "below it the degree halves; 0: off")] = (
        100
    )
    lateness_permille_max: Annotated[
        int, within(0, 1000, "above it deadlines move ahead; 0: off")
    ] = 200
    lease_ns: Annotated[Time, within(0, 10**12, "longest pin of a demanded block")] = 200_000_000
    probability_permille_min: Annotated[
        int, within(0, 1000, "a demand within 4 steps less likely than this is not prefetched")
    ] = 100
    hint_scores_max: Annotated[
        int, within(0, 65535, "only this many best scores of a layer are used; 0: all")
    ] = 0
    hint_every_steps: Annotated[
        int, within(1, 255, "scores of one step in this many are used; 1: of each")
    ] = 1
    hint_score_bits: Annotated[int, within(8, 16, "of each score: 16, or 8 for its upper half")] = (
        16
    )


class Limits(Settings, frozen=True):
    """These size every table of the daemon at its start."""

    sessions: Annotated[int, within(1, 65536, "concurrent sessions")] = 64
    chunks: Annotated[int, within(16, 1 << 26, "known chunks, over all tenants")] = 65_536
    context_tokens: Annotated[int, within(1, 1 << 24, "tokens of one session")] = 131_072
    values: Annotated[
        int, within(0, 1 << 26, "values under keys, over all tenants; 0: none are stored by key")
    ] = 65_536
    ports: Annotated[int, within(1, 254, "attached hosts")] = 16
    port_entries: Annotated[int, within(2, 4096, "commands in flight on a port; power of two")] = 64
    put_slots: Annotated[int, within(1, 4096, "block writes in flight on a port")] = 64
    demands: Annotated[int, within(1, 65536, "demands of one layer of one step")] = 512
    reads: Annotated[int, within(1, 65536, "block reads in flight, of all tenants")] = 64
    tenant_in_flight_bytes: Annotated[
        Size,
        within(
            0,
            1 << 40,
            "reads and writes at the drive of the tenant of the least weight, where "
            "there are several; 0: no bound",
        ),
    ] = 512 << 10
    queue: Annotated[int, within(16, 1 << 20, "prefetch candidates waiting")] = 4096
    connections: Annotated[int, within(8, 65536, "control connections; a host has two")] = 256
    message_bytes: Annotated[Size, within(4096, 1 << 28, "largest control message")] = 1 << 20
    records: Annotated[
        int, within(16, 1 << 26, "ledger records kept until they are written out")
    ] = 1 << 18
    log_bytes: Annotated[
        Size, within(65536, 1 << 30, "decision log kept until it is written out")
    ] = 16 << 20


class Pod(Settings, frozen=True):
    """The pod of daemons that this daemon belongs to."""

    map: Annotated[
        str, about("etcd:HOST:PORT,... or a .toml file that has the pod's map; empty: no pod")
    ] = ""
    name: Annotated[str, about("of this daemon among them; its store is this name's")] = ""
    endpoint: Annotated[
        str, about("where hosts and members reach its control socket; empty: daemon.endpoint")
    ] = ""
    weight: Annotated[int, within(1, 1 << 20, "its share relative to the others'")] = 1
    zone: Annotated[str, about("what fails together with it: a rack, a power feed")] = ""
    lease_ns: Annotated[
        Time, within(2 * 10**9, 600 * 10**9, "of its lease at etcd; it serves for half of it")
    ] = 5_000_000_000


class Tenant(Settings, frozen=True):
    """A trust domain: `[[tenant]]`, once for each. Without any there is one, `default`."""

    name: Annotated[str, about("as hosts name it when they log in")] = "default"
    secret: Annotated[str, about("at least 16 bytes in hex; better: secret_file")] = ""
    secret_file: Annotated[
        str, about("file with the hex secret; empty: one is generated and kept")
    ] = ""
    share_percent: Annotated[
        int, within(0, 100, "part of the arena; 0: an equal part of the rest")
    ] = 0
    weight: Annotated[
        int, within(1, 65535, "share of the drive: of prefetch, demand reads and writes")
    ] = 1
    bandwidth_bytes_per_s: Annotated[
        Rate, within(0, 1 << 43, "of all its reads and writes, such as 200MB/s; 0: no cap")
    ] = 0
    floor_bytes_per_s: Annotated[
        Rate, within(0, 1 << 43, "of it, what the tenant gets first, such as 50MB/s; 0: no floor")
    ] = 0
    sessions: Annotated[
        int, within(0, 65536, "concurrent sessions; 0: its part of limits.sessions")
    ] = 0
    ports: Annotated[int, within(0, 254, "attached hosts; 0: its part of limits.ports")] = 0
    in_flight_bytes: Annotated[
        Size, within(0, 1 << 40, "in flight on the drive; 0: by weight, of limits.tenant_in_flight")
    ] = 0
    arena_max_bytes: Annotated[
        Size, within(0, 1 << 46, "of the arena at most, whatever its part is; 0: no bound")
    ] = 0
    chunks_max: Annotated[
        int, within(0, 1 << 26, "chunks known at most; 0: none but limits.chunks")
    ] = 0
    store_max_bytes: Annotated[
        Size, within(0, 1 << 50, "of the store at most, trailers included; 0: no bound")
    ] = 0
    dirty_max: Annotated[
        int, within(0, 1 << 20, "write back: dirty blocks; 0: its part of store.dirty_max")
    ] = 0
    users: Annotated[
        tuple[str, ...],
        about("users of this machine who may attach over shm; empty, like groups: the daemon's"),
    ] = ()
    groups: Annotated[tuple[str, ...], about("groups whose members may attach too")] = ()
    volumes: Annotated[
        tuple[str, ...],
        about(
            "volumes of values, each an NGUID of 32 hexadecimal digits, with `durable` behind it "
            "if a store is to end on the drive; empty: any"
        ),
    ] = ()
    sharing: Annotated[
        Literal["tenant", "user"],
        about("who is served whose bytes; user: each user only what that user put, over shm alone"),
    ] = "tenant"
