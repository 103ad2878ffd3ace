"""The hardware blocks of a preset: the numbers of each, with dimension and bounds.

Model: a `Number` is a value with unit, range, source and tag; a `Block` declares the numbers of one
table of a preset's file. Reading and checking files is `parameters.py`. Nothing here can fail.
"""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from offstage.bindings.drives import TAGS, Tag

__all__ = [
    "BLOCKS",
    "DIMENSIONS",
    "TAGS",
    "Block",
    "Codec",
    "Cores",
    "Dedup",
    "Disk",
    "Dma",
    "FrontEnd",
    "Logic",
    "Memory",
    "Metadata",
    "Number",
    "Nvme",
    "Qos",
    "Scheduler",
    "Tag",
]

DIMENSIONS: dict[str, dict[str, float]] = {
    "time": {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12},
    "size": {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
    "rate": {"B/s": 1, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12},
    "frequency": {"Hz": 1, "MHz": 10**6, "GHz": 10**9},
    "count": {"1": 1},
    "share": {"1": 1},
}
"""The units allowed for each dimension, and each unit in base units: ps, bytes, bytes per second,
Hz, or a plain count."""


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """One number with its documentation. `scale`: base units per unit. `spread`: for a ratio, the
    factor on the value by layer and then by part of a block."""

    value: float
    unit: str
    low: float
    high: float
    source: str
    tag: Tag
    scale: float = 1
    spread: tuple[tuple[float, ...], ...] = ()

    @property
    def base(self) -> float:
        """The value in base units."""
        return self.value * self.scale

    @property
    def whole(self) -> int:
        """The value in base units, rounded to nearest."""
        return round(self.base)

    def set(self, value: float) -> "Number":
        """A copy with another value, in the same unit; the range is widened to include it."""
        return msgspec.structs.replace(
            self, value=value, low=min(self.low, value), high=max(self.high, value)
        )


def _of(dimension: str, help: str, low: float = 0, high: float = math.inf) -> Meta:
    """A parameter's description and its bounds in base units."""
    return Meta(extra={"unit": dimension, "help": help, "low": low, "high": high})


def _count(help: str, high: float = 1 << 24) -> Meta:
    return _of("count", help, 1, high)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one hardware block."""


class FrontEnd(Block, frozen=True, kw_only=True):
    """The link to the hosts: PCIe, CXL or NVLink."""

    protocol: Literal["pcie", "cxl", "nvlink", "memory"]
    lane_rate: Annotated[Number, _of("rate", "of one lane and direction, after line coding", 1)]
    lanes: Annotated[Number, _count("lanes in use")]
    lanes_max: Annotated[Number, _count("lanes that the link has")]
    efficiency: Annotated[Number, _of("share", "payload share of the bytes on the link", 1e-3, 1)]
    latency: Annotated[Number, _of("time", "one way, on an idle link")]
    credits: Annotated[Number, _count("transfers in flight")]


class Dma(Block, frozen=True, kw_only=True):
    """The engines that move blocks between memory and link or medium."""

    engines: Annotated[Number, _count("engines")]
    rate: Annotated[Number, _of("rate", "of one engine", 1)]
    setup: Annotated[Number, _of("time", "to read and start a descriptor")]
    piece: Annotated[Number, _of("size", "of the pieces that a block is cut into", 512, 1 << 30)]
    queue: Annotated[Number, _count("queued descriptors")]


class Codec(Block, frozen=True, kw_only=True):
    """Compression on the way to the medium, decompression on the way back."""

    lanes: Annotated[Number, _count("parallel lanes")]
    decode_rate: Annotated[Number, _of("rate", "of one lane, in output bytes", 1)]
    encode_rate: Annotated[Number, _of("rate", "of one lane, in input bytes", 1)]
    decode_latency: Annotated[Number, _of("time", "from the first byte in to the first out")]
    encode_latency: Annotated[Number, _of("time", "the same, compressing")]
    ratio: Annotated[Number, _of("share", "compressed over raw size; 1: off", 1e-3, 1)]
    queue: Annotated[Number, _count("queued blocks")]


class Metadata(Block, frozen=True, kw_only=True):
    """The on-die table of blocks: a cache over DRAM."""

    sram: Annotated[Number, _of("size", "of the table on the die", 1)]
    entry: Annotated[Number, _of("size", "of an entry", 1, 4096)]
    ways: Annotated[Number, _count("entries per set", 64)]
    banks: Annotated[Number, _count("banks that are read in parallel")]
    cycle: Annotated[Number, _of("time", "that one access occupies a bank")]
    latency: Annotated[Number, _of("time", "from address to data")]
    queue: Annotated[Number, _count("queued lookups")]
    heads: Annotated[Number, _count("KV heads in a block", 64)]
    heads_per_entry: Annotated[Number, _count("heads that share one entry and its key", 64)]


class Dedup(Block, frozen=True, kw_only=True):
    """The hashing of written blocks, and the table that finds equal prefixes."""

    instances: Annotated[Number, _count("hash pipelines")]
    rate: Annotated[Number, _of("rate", "of one pipeline", 1)]
    latency: Annotated[Number, _of("time", "of the pipeline")]
    key_bits: Annotated[Number, _of("count", "bits of the key that the table compares", 8, 512)]
    entries: Annotated[Number, _count("known prefixes", 2**40)]
    queue: Annotated[Number, _count("queued blocks")]


class Scheduler(Block, frozen=True, kw_only=True):
    """The prefetch scheduler: a bounded table of candidates, fed by scores."""

    candidates: Annotated[Number, _count("candidates queued per tenant")]
    command: Annotated[Number, _of("time", "to accept and answer a command")]
    score: Annotated[Number, _of("time", "per score")]
    demand: Annotated[Number, _of("time", "per demand")]
    latency: Annotated[Number, _of("time", "of the pipeline after that")]
    queue: Annotated[Number, _count("queued commands")]


class Qos(Block, frozen=True, kw_only=True):
    """The arbiter: tenants' turns, token buckets, sessions' rounds, urgency."""

    queue: Annotated[Number, _count("queued requests")]
    interval: Annotated[Number, _of("time", "between two grants")]
    latency: Annotated[Number, _of("time", "from a grant until the request moves on")]
    quantum: Annotated[Number, _of("size", "that a tenant of weight 1 may send in a round", 1)]
    session_share: Annotated[Number, _of("share", "of a tenant's queue for one session", 1e-3, 1)]
    sessions: Annotated[Number, _count("sessions that have an entry")]
    session_rounds: Annotated[Number, _count("quanta that a session may send in a round")]


class Logic(Block, frozen=True, kw_only=True):
    """The clock of the chip's own logic, which the cycles of its pipelines are counted in."""

    clock: Annotated[Number, _of("frequency", "of the logic on the die", 1)]


class Memory(Block, frozen=True, kw_only=True):
    """A memory of one kind: HBM, DDR, or memory behind CXL. `device`: its standard in the DRAM
    table, which gives the spread of its latency; empty: a constant latency."""

    device: str = ""
    channels: Annotated[Number, _count("stacks, channels or ports")]
    rate: Annotated[Number, _of("rate", "peak of one channel", 1)]
    efficiency: Annotated[Number, _of("share", "of the peak that is reached", 1e-3, 1)]
    latency: Annotated[Number, _of("time", "of an access, without load", 1)]
    capacity: Annotated[Number, _of("size", "of one channel", 1)]
    queue: Annotated[Number, _count("queued accesses")]


class Nvme(Block, frozen=True, kw_only=True):
    """Controllers of the drives, and the drives behind them: a model of one, or `disk`."""

    drive: str
    drives: Annotated[Number, _count("drives", 4096)]
    command: Annotated[Number, _of("time", "to build and start a command")]
    completion: Annotated[Number, _of("time", "to process a completion")]
    queue: Annotated[Number, _count("commands in flight per drive")]
    reads: Annotated[Number, _count("reads in flight", 1 << 20)]


class Disk(Block, frozen=True, kw_only=True):
    """A disk known only by its service times: their mean, and quantiles over the mean."""

    service: Annotated[Number, _of("time", "of one read or write, on average", 1)]
    least: Annotated[Number, _of("share", "the shortest service over the mean")]
    p50: Annotated[Number, _of("share", "the median over the mean")]
    p90: Annotated[Number, _of("share", "the 90th percentile over the mean")]
    p99: Annotated[Number, _of("share", "the 99th percentile over the mean")]
    most: Annotated[Number, _of("share", "the longest service over the mean")]
    together: Annotated[Number, _of("time", "I/Os that begin within it take the same time")]
    depth: Annotated[Number, _count("I/Os served in parallel", 65536)]


class Cores(Block, frozen=True, kw_only=True):
    """The general-purpose cores of a DPU that run the firmware."""

    cores: Annotated[Number, _count("cores in the package", 4096)]
    reactors: Annotated[Number, _count("cores that run a reactor, one per tenant's queue", 4096)]
    command: Annotated[Number, _of("time", "to accept, decide and answer a command")]
    demand: Annotated[Number, _of("time", "added per demand")]
    score: Annotated[Number, _of("time", "added per score")]
    read: Annotated[Number, _of("time", "to build, submit and check a read")]
    publish: Annotated[Number, _of("time", "to publish and answer a staged block")]
    answer: Annotated[
        Number, _of("time", "added to a command that waits for reads, before and after them")
    ]
    start: Annotated[Number, _of("time", "added to a read that finds the drive idle")]
    wake: Annotated[Number, _of("time", "added to that where the drive was idle for 1 ms")]
    cold: Annotated[Number, _of("time", "of the processor, added to a command after 1 ms of rest")]
    cold_score: Annotated[Number, _of("time", "added to that for each score")]
    hash_rate: Annotated[Number, _of("rate", "of the checksum and hash on one core", 1)]
    codec_rate: Annotated[Number, _of("rate", "of a software codec, on one core", 1)]
    ratio: Annotated[Number, _of("share", "compressed over raw size; 1: off", 1e-3, 1)]
    queue: Annotated[Number, _count("queued commands")]


BLOCKS: dict[str, type[Block]] = {
    "front_end": FrontEnd,
    "dma": Dma,
    "codec": Codec,
    "metadata": Metadata,
    "dedup": Dedup,
    "scheduler": Scheduler,
    "qos": Qos,
    "logic": Logic,
    "cores": Cores,
    "hbm": Memory,
    "ddr": Memory,
    "cxl": Memory,
    "nvme": Nvme,
    "disk": Disk,
}
