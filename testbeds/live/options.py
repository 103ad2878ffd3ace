"""What the host decodes and how: the options of every live run, with their checks."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import SEED_MAX, check_bounds, within
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.attention import arrays_of, kernel
from offstage.host.decode.schedule import Schedule
from offstage.host.decode.step_cost import DecodeCost, read
from offstage.host.gpu import check_device
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.models import geometry
from offstage.host.selection import selector

__all__ = [
    "CONTEXT_TOKENS_MAX",
    "SELECT_BLOCKS",
    "STORE_BYTES_MAX",
    "DriveOptions",
]

CONTEXT_TOKENS_MAX = 131_072
SELECT_BLOCKS = 32
"""Blocks that a layer reads in a step, unless an option says otherwise."""
STORE_BYTES_MAX = 1 << 30
"""Most bytes of KV that the demo writes: it must run on a machine with 4 GiB of memory. A run
against a daemon may write up to the store's capacity."""
POOL_RATIO_MAX = 4_096
SHARED_PREFIX_SHARE = 4
"""A quarter of a generated context is a system prefix that all sessions share."""

TimePerToken = Annotated[float, within(0, 10)]


class DriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the host decodes, and how. Blocks are of one layer."""

    where: ClassVar[str] = "host run"
    """The location that errors name."""

    trace: Path | None = None
    time_unit: str | None = None
    """The unit of the trace's times; None: its format's."""
    seed: Annotated[int, within(0, SEED_MAX)] = 1
    sessions: Annotated[int, within(1, 64)] = 4
    active: Annotated[int, within(0, 64)] = 0
    """Sessions that decode concurrently; others wait. 0: no limit."""
    schedule: Schedule = "least-loaded"
    """Which waiting session starts next: on one host all but `reuse` go by arrival."""
    context_tokens: Annotated[int, within(4_096, CONTEXT_TOKENS_MAX)] = CONTEXT_TOKENS_MAX
    shared_prefix_tokens: int | None = None
    """None: a quarter of the context."""
    steps: Annotated[int, within(1, 100_000)] = 300
    time_per_token_s: TimePerToken = 0.020
    decode_cost: DecodeCost | None = None
    """The measurement that this time is from; None if it was given."""
    select_blocks: int = SELECT_BLOCKS
    sink_blocks: int = 1
    window_blocks: int = 4
    pool_ratio: float = 1.5
    """Blocks that the HBM pool keeps of each (session, layer), over the blocks selected. 0: none
    is kept from one step to the next, and every selected block is demanded of the tier."""
    selector: str = "quest"
    kernel: str = "numpy"
    device: str = "cpu"
    """The device of the HBM pool and the kernel."""
    command: str = "offstage host run"
    geometry: KvGeometry = msgspec.field(default_factory=lambda: geometry("demo"))
    granule_tokens: int = 0
    """Select, read and keep this many tokens of a block separately; 0: whole blocks."""

    @property
    def granules(self) -> int:
        """Parts of a block that are selected separately."""
        return self.geometry.block_tokens // self.granule_tokens if self.granule_tokens else 1

    def in_granules(self) -> "DriveOptions":
        """The same with granules in place of blocks: as many tokens are selected and kept."""
        return msgspec.structs.replace(
            self,
            geometry=replace(self.geometry, block_tokens=self.granule_tokens),
            granule_tokens=0,
            select_blocks=self.select_blocks * self.granules,
            sink_blocks=self.sink_blocks * self.granules,
            window_blocks=self.window_blocks * self.granules,
        )

    def at_measured_pace(self, path: Path) -> Self:
        """The same at the device's time for one token of all sessions, each attending to what a
        step selects, by a file of decode costs."""
        cost, tokens = read(path), self.select_blocks * self.geometry.block_tokens
        return msgspec.structs.replace(
            self,
            time_per_token_s=cost.token_ns(self.geometry, self.sessions, tokens) / 1e9,
            decode_cost=cost,
        )

    def check(self) -> None:
        """Raises BadInput for a number out of range, two that contradict each other, or a kernel
        or device that this machine lacks."""
        where = self.where
        check_bounds(self, where)
        if self.time_unit is not None and self.trace is None:
            raise BadInput("--time-unit needs --trace", where, "give --trace FILE, or leave it out")
        if self.prefix_tokens > self.context_tokens:
            raise BadInput(
                f"a shared prefix of {self.prefix_tokens} tokens is longer than the "
                f"context of {self.context_tokens}",
                where,
                "shorten the prefix or lengthen the context",
            )
        if self.select_blocks <= self.sink_blocks + self.window_blocks:
            raise BadInput(
                f"k = {self.select_blocks} leaves no room besides sinks and window",
                where,
                f"select more than {self.sink_blocks + self.window_blocks} blocks",
            )
        most = max(SELECT_BLOCKS, self.geometry.block_count(self.context_tokens))
        if self.select_blocks > most:
            raise BadInput(
                f"k = {self.select_blocks} is more than the {most} blocks that "
                f"{self.context_tokens} tokens of context fill",
                where,
                f"select at most {most}, or lengthen the context",
            )
        if self.pool_ratio != 0 and not 1 <= self.pool_ratio <= POOL_RATIO_MAX:
            raise BadInput(
                f"an HBM pool of {self.pool_ratio:g} selections",
                where,
                f"give 0 for no pool, or 1 to {POOL_RATIO_MAX}",
            )
        tokens = self.geometry.block_tokens
        if self.granule_tokens and (self.granule_tokens < 0 or tokens % self.granule_tokens):
            raise BadInput(
                f"granules of {self.granule_tokens} tokens do not divide blocks of {tokens}",
                where,
                "give the daemon's arena.granule_tokens, or leave it out",
            )
        selector(self.selector, self.geometry)
        for layer, form in enumerate(self.geometry.layers):
            self.geometry.block_shape(layer)
            if form.selection_layer >= 0:
                raise BadInput(
                    f"layer {layer} uses the selection of layer {form.selection_layer} selects",
                    f"geometry {self.geometry.name!r}",
                    "choose a geometry whose layers each select",
                )
        self.arrays()

    def arrays(self) -> Arrays:
        """The arrays of the HBM pool: the kernel's library on the device. Raises `BadInput` if
        the kernel or device does not exist, `Missing` if a library of either is not installed."""
        kernel(self.kernel)
        arrays = open_arrays(arrays_of(self.kernel), self.device)
        if self.kernel == "triton":
            check_device(self.device, self.geometry.value_type)
        return arrays

    @property
    def prefix_tokens(self) -> int:
        """Tokens at the start of a generated context that all sessions share."""
        given = self.shared_prefix_tokens
        return self.context_tokens // SHARED_PREFIX_SHARE if given is None else given

    @property
    def pool_layer_blocks(self) -> int:
        """Blocks kept per layer and session."""
        return round(self.pool_ratio * self.select_blocks)

    @property
    def pool_blocks(self) -> int:
        """Blocks of the HBM pool over all sessions and layers: those kept, or those selected if
        that is more, and the block that decoding fills."""
        per_layer = max(self.pool_layer_blocks, self.select_blocks) + 1
        return per_layer * self.sessions * self.geometry.layer_count
