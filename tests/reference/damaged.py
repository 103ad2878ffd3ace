"""Damaged blocks: on their way to a host, whose checksums then differ from prefill's, and in the
store of a stopped daemon, whose own checksums reveal the damage."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offstage.dpu.storage.storefile import StoreFile
from offstage.host.decode.layer import Decoder

__all__ = ["damage_fetches", "damage_store"]


def damage_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first block of each fetch a wrong checksum until the test ends."""
    check = Decoder._check

    def damaged(decoder: Decoder, member: Any, result: Any, record: Any) -> None:
        wrong = result.checksums.copy()
        wrong[:1] ^= 1
        check(decoder, member, replace(result, checksums=wrong), record)

    monkeypatch.setattr(Decoder, "_check", damaged)


def damage_store(store: Path, every: int) -> int:
    """Flip a bit in the payload of one block in `every`; returns the number of damaged blocks."""
    with StoreFile(store) as file:
        blocks = [
            block
            for segment in file.segments()
            if segment.state == "used"
            for block in file.blocks(segment)
        ][::every]
        places = [file.offset(block) + block.length // 2 for block in blocks]
    with store.open("r+b") as raw:
        for at in places:
            raw.seek(at)
            (byte,) = raw.read(1)
            raw.seek(at)
            raw.write(bytes([byte ^ 0x10]))
    return len(places)
