"""What selection costs a decode step by the bytes alone: those that a layer must read once.

A layer of a step takes at least its bytes over the memory's bandwidth, and so does selection, which
reads the bounds of all blocks of all sessions. Bandwidth is in both, so the share is one of bytes:

    share = sessions * bounds / (weights + sessions * selected KV)

    bounds       = blocks of the context * KV heads * (2 * head_dim * bytes of a number + groups)
    weights      = 2 bytes * hidden * (2 * (query heads + KV heads) * head_dim + 3 * MLP)
    selected KV  = blocks selected * bytes of a block

where groups is head_dim / 32 for bounds in 8 bits and 0 else. Weights are read once however many
sessions there are, so the share rises with them, to bounds / selected KV. What a launch and a wait
of the host add is not in it. Of layers that store K and V. Pure.
"""

from dataclasses import dataclass

from offstage.host.model.geometry import KvGeometry
from offstage.host.model.outward import GROUP

__all__ = ["LayerBytes", "layer_bytes"]


@dataclass(frozen=True)
class LayerBytes:
    """Of one layer of one step: read by all sessions together, but for `weights`."""

    weights: int
    selected_kv: int
    bounds: int

    @property
    def share(self) -> float:
        """The time that selection adds, as a share of the step without it."""
        return self.bounds / (self.weights + self.selected_kv)


def layer_bytes(
    geometry: KvGeometry,
    widths: tuple[int, int],
    sessions: int,
    context_tokens: int,
    select_blocks: int,
    bound_bytes: int,
) -> LayerBytes:
    """Of layer 0 in 16-bit weights. `widths`: hidden and MLP; `bound_bytes`: of one number, 1 for
    bounds in 8 bits, which have a power of two besides."""
    _, kv_heads, _, head_dim = geometry.block_shape(0)
    hidden, mlp = widths
    groups = -(-head_dim // GROUP) if bound_bytes == 1 else 0
    row = kv_heads * (2 * head_dim * bound_bytes + groups)
    projections = hidden * 2 * (geometry.q_heads + kv_heads) * head_dim
    return LayerBytes(
        weights=2 * (projections + 3 * hidden * mlp),
        selected_kv=sessions * select_blocks * geometry.block_bytes(0),
        bounds=sessions * geometry.block_count(context_tokens) * row,
    )
