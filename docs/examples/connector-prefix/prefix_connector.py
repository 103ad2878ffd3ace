"""The smallest connector of an engine: the KV of a prompt, kept chunk by chunk, found by prefix.

A chunk is the KV of `CHUNK_TOKENS` tokens of all layers; its key is the hash of all tokens up to
its end, so equal keys are equal prefixes. Whatever does not come back whole is computed: a chunk
behind one that is missing is of no use, so a prompt's reusable part ends at the first that is not
there.
"""

import argparse
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint
from offstage.testbeds.cli.common import one_line_errors

CHUNK_TOKENS = 256


class PrefixConnector:
    """KV of one model. `layout` is whatever makes KV unlike: dtype, layers, weights."""

    def __init__(self, endpoint: Endpoint, model: str, layout: str) -> None:
        self.client = ObjectClient(endpoint, model=model, layout=layout)

    def save(self, tokens: Sequence[int], kv: NDArray[np.uint8]) -> int:
        """Keep the whole chunks of a prompt, `kv[i]` of chunk i; returns how many are kept."""
        keys = chunk_keys(tokens)
        ended = self.client.wait(self.client.put, keys, list(kv[: len(keys)]))
        return sum(ended.done)

    def announce(self, tokens: Sequence[int], chunk_bytes: int) -> int:
        """The prompt will be needed: bring what is there into the tier's memory; returns how many
        of its first tokens that is."""
        keys = chunk_keys(tokens)
        ended = self.client.wait(self.client.prefetch, keys, [chunk_bytes] * len(keys))
        return CHUNK_TOKENS * leading(ended.states)

    def load(self, tokens: Sequence[int], kv: NDArray[np.uint8]) -> int:
        """Read a prompt's chunks into `kv`; returns how many tokens need not be computed."""
        keys = chunk_keys(tokens)
        ended = self.client.wait(self.client.get, keys, list(kv[: len(keys)]))
        return CHUNK_TOKENS * leading(ended.states)

    def close(self) -> None:
        """Leave the daemon; what was saved stays."""
        self.client.close()


def chunk_keys(tokens: Sequence[int]) -> list[bytes]:
    """A key for each whole chunk: the hash of all tokens up to its end."""
    whole = len(tokens) // CHUNK_TOKENS
    state, keys = hashlib.sha256(), []
    for chunk in range(whole):
        part = tokens[chunk * CHUNK_TOKENS : (chunk + 1) * CHUNK_TOKENS]
        state.update(np.asarray(part, "<i8").tobytes())
        keys.append(state.digest())
    return keys


def leading(states: Sequence[State]) -> int:
    """How many of the first are DONE."""
    return next((i for i, state in enumerate(states) if state is not State.DONE), len(states))


def main() -> None:
    """Save a prompt of eight chunks, then load it and one that shares its first half."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--endpoint", default=Endpoint.address)
    parser.add_argument("--chunk-bytes", type=int, default=1 << 20)
    asked = parser.parse_args()
    with one_line_errors() as outcome:
        draw = np.random.default_rng(1)
        tokens = draw.integers(0, 32_000, 8 * CHUNK_TOKENS).tolist()
        kv = draw.integers(0, 256, (8, asked.chunk_bytes), np.uint8)
        found = np.zeros_like(kv)
        connector = PrefixConnector(Endpoint(asked.endpoint), "an-example", "uint8")
        print(f"saved {connector.save(tokens, kv)} chunks of {asked.chunk_bytes:,} B")
        print(f"announced: {connector.announce(tokens, asked.chunk_bytes):,} tokens are there")
        count = connector.load(tokens, found)
        print(f"loaded {count:,} of {len(tokens):,} tokens, equal: {np.array_equal(found, kv)}")
        other = [*tokens[: len(tokens) // 2], *reversed(tokens[len(tokens) // 2 :])]
        print(f"of a prompt that shares the first half: {connector.load(other, found):,} tokens")
        connector.close()
    raise SystemExit(outcome.code)
