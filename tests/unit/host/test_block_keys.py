"""Do host and firmware give a block the same key?"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.firmware import ffi, lib
from offstage.bindings.keys import block_keys


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=5), st.integers(1, 90))
def test_block_keys_are_the_firmwares(chunks: list[bytes], layers: int) -> None:
    """Folding in numpy equals ofs_block_key for every chunk and layer."""
    keys = block_keys(chunks, layers)
    assert keys.shape == (layers, len(chunks), 2)
    folded = ffi.new("struct ofs_key *")
    for column, chunk in enumerate(chunks):
        lo, hi = np.frombuffer(chunk, "<u8")
        for layer in range(layers):
            lib.ofs_block_key(ffi.new("struct ofs_key *", (int(lo), int(hi))), layer, folded)
            assert (folded.lo, folded.hi) == tuple(keys[layer, column].tolist())


def test_two_layers_of_a_chunk_differ() -> None:
    """The key depends on the layer: 1,000 layers give 1,000 keys."""
    keys = block_keys([bytes(16)], 1000)
    assert len({tuple(row) for row in keys[:, 0].tolist()}) == 1000
