"""The cost of selection in a decode step, from the bytes that a layer must read once.

A layer of a step takes at least its bytes over the memory's bandwidth, and so does selection, which
reads the bounds of all blocks of all sessions. Bandwidth cancels out, so the share is one of bytes:

    share = sessions * bounds / (weights + sessions * selected KV)

    bounds       = blocks of the context * KV heads * (2 * head_dim * bytes of a number + groups)
    weights      = 2 bytes * hidden * (2 * (query heads + KV heads) * head_dim + 3 * MLP)
    selected KV  = blocks selected * bytes of a block

where groups is head_dim / 32 for bounds in 8 bits, else 0. Weights are read once for any number of
sessions, so the share rises with sessions, to bounds / selected KV. Launches and the host's waits
are not counted. Holds for layers that store K and V. Pure functions.
"""

from dataclasses import dataclass

from offstage.host.model.geometry import KvGeometry
from offstage.host.model.outward import GROUP

__all__ = ["LayerBytes", "layer_bytes"]


@dataclass(frozen=True)
class LayerBytes:
    """Bytes that one layer of one step reads: `weights` once, the rest summed over sessions."""

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
    """Return the bytes of layer 0, with 16-bit weights. `widths`: hidden and MLP; `bound_bytes`:
    bytes of a number; 1 for bounds in 8 bits, which add a power of two per group."""
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
