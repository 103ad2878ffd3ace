"""What a decode step costs the device that computes it: measured times of a layer, and a token's.

A file of `offstage host calibrate` holds them for one geometry on one device: projections, MLP, and
attention over so many tokens, each for several batches. Between what was measured times are
straight lines; outside of it there is no answer. Norms, sampling and the head are not in it.

Immutable, any thread. Raises BadInput for a file that is none, another geometry, and a batch or a
number of tokens that was not measured.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    """What one layer's selection takes of `batch` sessions of `context_tokens` tokens each: scores
    of all blocks, the best of them, the hint. Not part of a token's time: a host agent really does
    it, beside the time that it is given."""

    batch: int
    context_tokens: int
    selector: str
    selection_ns: int


class DecodeCost(msgspec.Struct, frozen=True, kw_only=True):
    """One file: what was measured, of what, on what."""

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
    """Its own name, not torch's."""
    versions: dict[str, str]
    date: str
    command: str
    rows: tuple[CostRow, ...]
    selection: tuple[SelectionRow, ...] = ()
    provenance: str = "measured"

    def token_ns(self, geometry: KvGeometry, batch: int, tokens: int) -> int:
        """The device's time for one token of each of `batch` sessions of `geometry`, that attend to
        `tokens` tokens each: of all layers."""
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

    def said(self) -> dict[str, Any]:
        """Where the times come from, for a report."""
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
                f"it was measured for {self.geometry}, and the run is of {geometry.name}",
                "decode cost",
                f"offstage host calibrate --geometry {geometry.name}",
            )


def read(path: Path) -> DecodeCost:
    """The file of one calibration."""
    mend = "write one with `offstage host calibrate --out FILE`"
    raw = read_json(path, mend)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise BadInput("no file of decode costs", str(path), mend)
    try:
        found = msgspec.convert(raw, DecodeCost)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), str(path), mend) from None
    if not found.rows or min(min(row.batch, row.tokens, row.layer_ns) for row in found.rows) < 1:
        raise BadInput("a batch, a length or a time below 1", str(path), mend)
    return found


def _between(points: Sequence[int], asked: int, what: str, value: Callable[[int], float]) -> float:
    """The straight line between the two measured points around `asked`."""
    if not points[0] <= asked <= points[-1]:
        raise BadInput(
            f"{asked:,} {what}, and measured were {points[0]:,} to {points[-1]:,}",
            "decode cost",
            "calibrate with a --batch or --tokens that reaches it",
        )
    above = bisect_left(points, asked)
    if points[above] == asked:
        return value(above)
    low, high = points[above - 1], points[above]
    share = (asked - low) / (high - low)
    return (1 - share) * value(above - 1) + share * value(above)
