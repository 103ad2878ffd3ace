"""Reads and replaces the GID in a blob of `verbs` (docs/reference/protocol.md)."""

from offstage.bindings.keys import checksum

__all__ = ["gid_of", "with_gid"]

CHECKSUM_AT, HEADER_BYTES, GID_BYTES = 40, 48, 16  # the GID follows the header


def gid_of(blob: bytes) -> bytes:
    """Return the GID of the end that wrote the blob."""
    return blob[HEADER_BYTES : HEADER_BYTES + GID_BYTES]


def with_gid(blob: bytes, gid: bytes) -> bytes:
    """Return the same blob with that GID and a checksum that fits."""
    rest = gid + blob[HEADER_BYTES + GID_BYTES :]
    head = blob[:CHECKSUM_AT]
    return head + checksum(head + bytes(8) + rest).to_bytes(8, "little") + rest
