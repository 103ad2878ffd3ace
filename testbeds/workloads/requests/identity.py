"""Content identities of chunks: 128-bit numbers that are equal exactly when prefixes are equal.

An identity is a hash over the identity of the chunk before it and a label of what stands in this
chunk, so that it stands for the whole prefix (blake2b, 16-byte digest). It says what the tokens
are, not who may see them: the decision core hashes it once more with the tenant's key, which is
what keeps tenants apart. The seed is part of the root because key and value bytes are drawn from
(seed, identity, layer): two runs of different seeds must not find each other's bytes in one store.
"""

from hashlib import blake2b

from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request

__all__ = ["chain", "generated_chunks", "grown_chunk", "root", "trace_chunks"]

_IDENTITY_BYTES = 16


def root(seed: int, source: str) -> int:
    """The parent of every first chunk of one workload source under one seed."""
    return chain(0, "root", source, seed)


def chain(parent: int, *label: str | int) -> int:
    """The identity of the chunk that follows `parent` and holds what `label` names."""
    # Length-prefixed parts: ("a", 12) and ("a1", 2) must not meet.
    parts = [f"{len(text)}:{text}" for text in map(str, label)]
    digest = blake2b(digest_size=_IDENTITY_BYTES)
    digest.update(parent.to_bytes(_IDENTITY_BYTES, "little"))
    digest.update("".join(parts).encode())
    return int.from_bytes(digest.digest(), "little")


def generated_chunks(parent: int, name: str, token_count: int, block_tokens: int) -> list[int]:
    """Identities of `token_count` made-up tokens called `name` after `parent`; tail included."""
    identities = []
    for ordinal in range(-(-token_count // block_tokens)):
        tokens = min(block_tokens, token_count - ordinal * block_tokens)
        parent = chain(parent, "text", name, ordinal, tokens)
        identities.append(parent)
    return identities


def trace_chunks(
    parent: int, request: Request, context_tokens: int, block_tokens: int
) -> list[int]:
    """Identities of the first `context_tokens` tokens of a traced request.

    A 512-token trace block becomes 512 / block_tokens chunks, each named by the trace id and its
    token count; the chain tells the places inside the block apart. The count is in it because a
    tail cut short by a cap is other content than the full chunk at the same place.
    """
    assert TRACE_BLOCK_TOKENS % block_tokens == 0
    assert context_tokens <= request.input_tokens
    identities = []
    for start in range(0, context_tokens, block_tokens):
        trace_id = request.block_ids[start // TRACE_BLOCK_TOKENS]
        tokens = min(block_tokens, context_tokens - start)
        parent = chain(parent, "trace", trace_id, tokens)
        identities.append(parent)
    return identities


def grown_chunk(parent: int, session: str, ordinal: int) -> int:
    """Identity of the chunk `ordinal` that decoding appends after `parent`: the session's own."""
    return chain(parent, "decoded", session, ordinal)
