"""Keys of vLLM's blocks: hashes of the tokens up to a block's end, and of all else its KV is of."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from typing import Any

from offstage.host.model.identity import Weights

__all__ = ["chain", "salt_of", "shards"]


def chain(
    tokens: Sequence[int], block_tokens: int, first: bytes, known: Sequence[bytes] = ()
) -> list[bytes]:
    """A key for each full block: a hash of the block's tokens and of the key before it, `first`
    before the first one. `known`: keys from a call with fewer tokens."""
    keys = list(known)
    for at in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        text = array("q", tokens[at : at + block_tokens]).tobytes()
        before = keys[-1] if keys else first
        keys.append(hashlib.blake2b(text, digest_size=32, key=before).digest())
    return keys


def salt_of(request: Any, adapter: Weights | None = None) -> bytes:
    """The prefix of the first block's key: adapters, by content, and salts give different keys.
    `adapter`: the request's, which must be known."""
    assert request.lora_request is None or adapter is not None, "whose KV?"
    text = json.dumps([request.cache_salt or "", adapter.digest if adapter else ""])
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def shards(keys: Sequence[bytes], parts: int) -> list[bytes]:
    """Keys of the `parts` of these blocks, block by block; of a single one, the block's key."""
    if parts == 1:
        return list(keys)
    return [key + part.to_bytes(2, "big") for key in keys for part in range(parts)]
