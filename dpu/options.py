"""The options of the daemon, declared once: default, kind, range and help stand beside each field.

The loader, `offstage config show`, the hot change of the policy and the reference page all read
these declarations, so that they cannot drift apart. A field's key in TOML is its name without the
unit (`size_bytes` is written `size = "1GiB"`): what people type carries its own unit.
"""

from dataclasses import Field, dataclass, field, fields
from typing import Any

from offstage.bindings.layouts import EVICTIONS, PREFETCHERS

__all__ = ["SECTIONS", "Arena", "Daemon", "Limits", "Memory", "PolicyOptions", "Storage", "Store",
           "Tenant", "key_of"]  # fmt: skip

UNITS = {"size": "_bytes", "time": "_ns", "rate": "_bytes_per_s"}


def option(
    default: Any,
    help: str,
    kind: str = "",
    *,
    low: int = 0,
    high: int = 0xFFFFFFFF,
    choices: tuple[str, ...] = (),
) -> Any:
    """One option. `kind` is text, flag, int, size, time, rate, choice or choices."""
    names = {str: "text", bool: "flag", int: "int"}
    kind = kind or ("choice" if choices else names[type(default)])
    meta = {"kind": kind, "help": help, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta)


def key_of(declared: "Field[Any]") -> str:
    """The key of a field in TOML: its name without the unit."""
    return declared.name.removesuffix(UNITS.get(declared.metadata["kind"], "\0"))


@dataclass(frozen=True)
class Daemon:
    """Where the daemon listens, and how it treats its hosts."""

    endpoint: str = option("tcp://127.0.0.1:7411", "control socket: tcp://host:port or ipc://path")
    fabric_endpoint: str = option(
        "", "ZMQ fabric; empty: the endpoint's host with a free port, or its path with .fabric"
    )
    runtime_dir: str = option(
        "", "lock, hand-out socket, generated secrets; empty: chosen by user and endpoint"
    )
    metrics_endpoint: str = option("127.0.0.1:9411", "Prometheus, host:port; empty: off")
    log_level: str = option("info", "least level that is logged",
                            choices=("debug", "info", "warning", "error"))  # fmt: skip
    curve_dir: str = option(
        "", "CURVE: server.key_secret and clients/*.key of zmq.auth; empty: off (loopback only)"
    )
    insecure: bool = option(False, "allow a TCP endpoint beyond loopback without CURVE")
    host_timeout_ns: int = option(
        10_000_000_000, "a host silent for this long is dead", "time", low=100_000_000, high=10**13
    )
    drain_timeout_ns: int = option(
        30_000_000_000, "the longest that SIGTERM waits for write-back", "time", high=10**13
    )
    record_dir: str = option("", "write ledger records and decision log here; empty: off")
    stage_timers: bool = option(True, "time one in 31 of the stages of a block's way")
    cpu: int = option(-1, "core the reactor is pinned to; -1: none", low=-1, high=4095)
    spin_ns: int = option(
        50_000, "the reactor polls this long after its last work, then sleeps", "time", high=10**18
    )


@dataclass(frozen=True)
class Arena:
    """The staging memory, and what a block is."""

    size_bytes: int = option(1 << 30, "staging memory of all tenants", "size", high=1 << 46)
    payload_bytes: int = option(32 << 10, "largest block", "size", low=512, high=1 << 26)
    layers: int = option(4, "layers of the model", low=1, high=4096)
    block_tokens: int = option(64, "tokens of one block", low=1, high=65536)


@dataclass(frozen=True)
class Memory:
    """What the memory lies in that devices read and write: staging, buffers of the store."""

    huge: str = option("auto", "2 MiB pages: reserved, else transparent; off: base pages",
                       choices=("auto", "off"))  # fmt: skip
    numa_node: int = option(-1, "node the memory is bound to; -1: none", low=-1, high=1023)


@dataclass(frozen=True)
class Storage:
    """The device below the store."""

    backend: str = option(
        "auto", "auto takes the best that opens", choices=("auto", "io_uring", "posix", "emulated")
    )
    path: str = option("", "file or block device; may be empty for emulated in memory")
    size_bytes: int = option(8 << 30, "the file is made this large", "size", high=1 << 50)
    lba_bytes: int = option(4 << 10, "logical block, power of two", "size", low=512, high=65536)
    queue_depth: int = option(64, "I/Os in flight on the device", low=1, high=4096)
    threads: int = option(4, "posix: threads", low=1, high=64)
    direct: bool = option(True, "O_DIRECT; falls back with a warning where the file refuses")
    nvme: str = option("gen5-tlc", "emulated: preset of the NVMe model")
    inner: str = option("", "emulated: the side below; empty: memory",
                        choices=("", "posix", "io_uring"))  # fmt: skip
    busy_spin: bool = option(False, "emulated: the reactor checks due times itself")
    seed: int = option(1, "emulated: seed of the timing model", high=(1 << 63) - 1)
    io_timeout_ns: int = option(
        5_000_000_000, "an I/O that takes longer has failed", "time", low=1_000_000, high=10**12
    )


@dataclass(frozen=True)
class Store:
    """The log-structured store on the storage."""

    segment_bytes: int = option(4 << 20, "one layer of one tenant at a time", "size",
                                low=4096, high=1 << 31)  # fmt: skip
    ttl_ns: int = option(0, "blocks expire this long after their write; 0: never", "time",
                         high=(1 << 63) - 1)  # fmt: skip
    write: str = option("through", "a put is acknowledged on NVMe, or once staged",
                        choices=("through", "back"))  # fmt: skip
    dirty_max: int = option(256, "write back: blocks staged and not yet on NVMe", high=1 << 20)
    durable: bool = option(True, "a put ends only when it is on the medium (FUA)")
    reserve_segments: int = option(4, "kept free for the cleaner", low=1, high=4096)
    io_max: int = option(64, "puts and gets in flight", low=1, high=65536)


@dataclass(frozen=True)
class PolicyOptions:
    """What is prefetched and what is evicted; all of it can be changed while the daemon runs."""

    prefetchers: tuple[str, ...] = option(
        ("window", "ema", "shared"), "empty: none", "choices", choices=tuple(PREFETCHERS)
    )
    eviction: str = option("score", "victim order", choices=EVICTIONS)
    window_tokens: int = option(4096, "behind the decode position: staged once", high=1 << 30)
    window_blocks: int = option(0, "the same in blocks; 0: from window_tokens", high=1 << 24)
    ema_shift: int = option(1, "a new score weighs 1 / 2^n", high=15)
    residency_percent: int = option(
        800, "only the best this % of the selection size are guesses", high=100_000
    )
    degree_max: int = option(2, "guesses one layer of one step may prefetch", high=65536)
    next_n: int = option(4, "baseline next_n: how many", high=65536)
    prefetch_in_flight_max: int = option(48, "prefetch reads in flight, all sessions", high=65536)
    bandwidth_bytes_per_s: int = option(0, "of prefetch, such as 2GB/s; 0: no cap", "rate",
                                        high=1 << 62)  # fmt: skip
    accuracy_permille_min: int = option(100, "below it the degree halves; 0: off", high=1000)
    lateness_permille_max: int = option(200, "above it deadlines move ahead; 0: off", high=1000)
    lease_ns: int = option(200_000_000, "longest pin of a demanded block", "time", high=10**12)
    probability_permille_min: int = option(
        100, "a demand within 4 steps less likely than this is not prefetched", high=1000
    )


@dataclass(frozen=True)
class Limits:
    """Every table of the daemon is sized by these at its start."""

    sessions: int = option(64, "sessions at once", low=1, high=65536)
    chunks: int = option(65_536, "chunks known at once, over all tenants", low=16, high=1 << 26)
    context_tokens: int = option(131_072, "tokens of one session", low=1, high=1 << 24)
    ports: int = option(16, "hosts at once", low=1, high=254)
    port_entries: int = option(64, "commands of a port at once; power of two", low=2, high=4096)
    put_slots: int = option(64, "blocks of a port being written at once", low=1, high=4096)
    demands: int = option(512, "demands of one layer of one step", low=1, high=65536)
    reads: int = option(64, "block reads in flight", low=1, high=65536)
    queue: int = option(4096, "prefetch candidates waiting", low=16, high=1 << 20)
    message_bytes: int = option(1 << 20, "largest control message", "size", low=4096,
                                high=1 << 28)  # fmt: skip
    records: int = option(1 << 18, "ledger records kept until they are written out", low=16,
                          high=1 << 26)  # fmt: skip
    log_bytes: int = option(16 << 20, "decision log kept until it is written out", "size",
                            low=65536, high=1 << 30)  # fmt: skip


@dataclass(frozen=True)
class Tenant:
    """A trust domain: `[[tenant]]`, once for each. Without any there is one, `default`."""

    name: str = option("default", "as hosts name it when they log in")
    secret: str = option("", "at least 16 bytes in hex; better: secret_file")
    secret_file: str = option("", "file with the hex secret; empty: one is generated and kept")
    share_percent: int = option(0, "part of the arena; 0: an equal part of the rest", high=100)
    weight: int = option(1, "share of the prefetch bandwidth", low=1, high=1_000_000)


SECTIONS: dict[str, type[Any]] = {
    "daemon": Daemon,
    "arena": Arena,
    "memory": Memory,
    "storage": Storage,
    "store": Store,
    "policy": PolicyOptions,
    "limits": Limits,
}


def declared(section: type[Any]) -> dict[str, "Field[Any]"]:
    """The fields of one section by their key."""
    return {key_of(one): one for one in fields(section)}
