"""Cost of a decode step on its device: measured times of a layer, and from them those of a token.

`offstage host calibrate` writes a file of them for one geometry on one device: projections, MLP,
and attention over several numbers of tokens, each for several batches. Times are interpolated
linearly and never extrapolated. Norms, sampling and the head are not included.

Immutable, any thread. Raises BadInput for an invalid file, another geometry, or a batch or number
of tokens outside the measured range.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.outside import read_json
from offstage.host.model.geometry import KvGeometry

__all__ = ["FORMAT", "CostRow", "DecodeCost", "SelectionRow", "read"]

FORMAT = "offstage decode cost 1"


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of one step: `batch` sessions, each attending to `tokens` tokens. Medians."""

    batch: int
    tokens: int
    projection_ns: int
    """Query, key, value and output."""
    mlp_ns: int
    attention_ns: int

    @property
    def layer_ns(self) -> int:
        """All of it."""
        return self.projection_ns + self.mlp_ns + self.attention_ns


class SelectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one layer's selection for `batch` sessions of `context_tokens` tokens each: scores
    of all blocks, the best of them, the hint. Not part of a token's time: a host agent performs the
    selection itself, in addition to the time that it is given."""

    batch: int
    context_tokens: int
    selector: str
    selection_ns: int


class DecodeCost(msgspec.Struct, frozen=True, kw_only=True):
    """One file: the geometry, the device and the measured times."""

    format: str
    geometry: str
    q_heads: int
    kv_heads: int
    head_dim: int
    layer_count: int
    block_tokens: int
    hidden: int
    mlp: int
    dtype: str
    value_type: str
    kernel: str
    device: str
    """The device's product name, not torch's."""
    versions: dict[str, str]
    date: str
    command: str
    rows: tuple[CostRow, ...]
    selection: tuple[SelectionRow, ...] = ()
    provenance: str = "measured"

    def token_ns(self, geometry: KvGeometry, batch: int, tokens: int) -> int:
        """The device's time, over all layers, for one token of each of `batch` sessions that attend
        to `tokens` tokens each."""
        self._check(geometry)
        batches = sorted({row.batch for row in self.rows})

        def of_batch(one: int) -> float:
            rows = sorted((row for row in self.rows if row.batch == one), key=lambda r: r.tokens)
            return _between(
                [row.tokens for row in rows],
                tokens,
                "tokens attended to",
                lambda at: rows[at].layer_ns,
            )

        layer_ns = _between(batches, batch, "sessions", lambda at: of_batch(batches[at]))
        return round(layer_ns * geometry.layer_count)

    def said(self) -> dict[str, str | dict[str, str]]:
        """The source of the times, for a report."""
        return {
            "provenance": self.provenance,
            "geometry": self.geometry,
            "device": self.device,
            "kernel": self.kernel,
            "dtype": self.dtype,
            "date": self.date,
            "command": self.command,
            "versions": self.versions,
        }

    def _check(self, geometry: KvGeometry) -> None:
        layer = geometry.layers[0]
        asked = geometry.q_heads, layer.kv_heads, layer.head_dim
        if asked != (self.q_heads, self.kv_heads, self.head_dim):
            raise BadInput(
                f"it was measured for {self.geometry}, but the run uses {geometry.name}",
                "decode cost",
                f"offstage host calibrate --geometry {geometry.name}",
            )


def read(path: Path) -> DecodeCost:
    """The file of one calibration."""
    fix = "write one with `offstage host calibrate --out FILE`"
    raw = read_json(path, fix)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise BadInput("not a file of decode costs", str(path), fix)
    try:
        found = msgspec.convert(raw, DecodeCost)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), str(path), fix) from None
    if not found.rows or min(min(row.batch, row.tokens, row.layer_ns) for row in found.rows) < 1:
        raise BadInput("a batch, a length or a time below 1", str(path), fix)
    return found


def _between(points: Sequence[int], asked: int, what: str, value: Callable[[int], float]) -> float:
    """Linear interpolation between the two measured points around `asked`."""
    if not points[0] <= asked <= points[-1]:
        raise BadInput(
            f"{asked:,} {what}, but {points[0]:,} to {points[-1]:,} were measured",
            "decode cost",
            "calibrate with a --batch or --tokens that reaches it",
        )
    above = bisect_left(points, asked)
    if points[above] == asked:
        return value(above)
    low, high = points[above - 1], points[above]
    share = (asked - low) / (high - low)
    return (1 - share) * value(above - 1) + share * value(above)
