"""Sessions at the DPU: appending chunks by content, and the names that come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.keys import block_keys
from offstage.dpu import protocol

__all__ = ["ALL_SCORES", "Appended", "Sessions", "append_chunks"]

BATCH_CHUNKS = 4096
"""Chunks named in one message: 64 KiB of identities."""


ALL_SCORES = (0, 1, 16)
"""`Sessions.hints` without limits."""


class Sessions(Protocol):
    """Keeps a host's sessions: `host.link.control.Control`, a pod, or a baseline's local tier."""

    hints: tuple[int, int, int]
    """The tier's limits on scores, as of the last opened session: how many of a layer's best (0:
    all), every how many steps, and bits of each. Arguments for `Fabric.limit_scores`."""

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; counts in blocks, `step_ns` the expected time per token."""
        ...

    def append(self, session: int, contents: list[bytes]) -> protocol.Appended:
        """Append chunks, each named by the 16-byte hash of its own tokens."""
        ...

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks."""
        ...

    def session_close(self, session: int, *, keep: bool = True) -> None:
        """Close a session; without `keep` its own blocks may be deleted."""
        ...


@dataclass(frozen=True)
class Appended:
    """The tier's reply to an append: block keys uint64 `[layers, chunks, 2]`, and the number of
    stored layers of each chunk, uint32 `[chunks]`."""

    keys: NDArray[np.uint64]
    stored_layers: NDArray[np.uint32]


def append_chunks(
    control: Sessions, handle: int, identities: Sequence[int], layer_count: int
) -> Appended:
    """Append chunks, named by the 128-bit identity of their tokens, to session `handle`."""
    chunk_keys: list[bytes] = []
    stored: list[int] = []
    for first in range(0, len(identities), BATCH_CHUNKS):
        batch = [n.to_bytes(16, "little") for n in identities[first : first + BATCH_CHUNKS]]
        reply = control.append(handle, batch)
        chunk_keys.extend(reply.keys)
        stored.extend(reply.stored_layers)
    return Appended(block_keys(chunk_keys, layer_count), np.array(stored, np.uint32))
