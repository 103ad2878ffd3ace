"""The smallest side of a fabric, to start a new one from: copy it, and replace the dictionary.

It keeps blocks in this process, so a call ends as it begins, and every other method is a
default of `Fabric`. A slower side leaves `ended` False and overrides `_advance`, which sets it once
the link has answered; one with scores, guesses or pins overrides their methods too.
"""

import errno

from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, Put, PutRequest
from offstage.bindings.keys import checksum

__all__ = ["SmallestFabric"]


class SmallestFabric(Fabric):
    """Blocks of sessions, by session, layer and ordinal."""

    payload_size_bytes = 4096
    calls_max = 4

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[tuple[int | None, int, int], bytes] = {}

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Copy each present block into its row; an absent one gets its -errno."""
        fetch: Fetch = self._admit(Fetch(request))  # or RunFailed: too many are in flight
        for place, (ordinal, row) in enumerate(zip(request.ordinals, request.rows, strict=True)):
            block = self._blocks.get((request.session, request.layer, int(ordinal)))
            if block is None:
                fetch.rcs[place] = -errno.ENOENT
                continue
            target = request.target[row, : len(block)]
            target.data[:] = block
            fetch.lengths[place], fetch.checksums[place] = len(block), checksum(target)
            fetch.ends[place] = 0  # `enum ofs_end`, for the tier's ledger
        fetch.ended = True
        return fetch

    def put_begin(self, request: PutRequest) -> Put:
        """Keep each row; its `rcs` stay 0."""
        put: Put = self._admit(Put(request))
        for place, (ordinal, row) in enumerate(zip(request.ordinals, request.source, strict=True)):
            block = row[: request.length].tobytes()
            self._blocks[request.session, request.layer, int(ordinal)] = block
            put.checksums[place] = checksum(block)
        put.ended = True
        return put
