"""A blob of `verbs` with another GID, under a checksum that fits; docs/reference/protocol.md."""

from offstage.bindings.keys import checksum

__all__ = ["gid_of", "with_gid"]

CHECKSUM_AT, HEADER_BYTES, GID_BYTES = 40, 48, 16  # the GID comes first behind the header


def gid_of(blob: bytes) -> bytes:
    """Of the end that wrote the blob."""
    return blob[HEADER_BYTES : HEADER_BYTES + GID_BYTES]


def with_gid(blob: bytes, gid: bytes) -> bytes:
    """The same blob of an end with that GID."""
    rest = gid + blob[HEADER_BYTES + GID_BYTES :]
    head = blob[:CHECKSUM_AT]
    return head + checksum(head + bytes(8) + rest).to_bytes(8, "little") + rest
