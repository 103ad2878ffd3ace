"""A host of which each fetch brings one block with other bytes than prefill wrote."""

from dataclasses import replace
from typing import Any

import pytest

from offstage.host.decode import Decoder

__all__ = ["damage_fetches"]


def damage_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of each fetch has another checksum than came, until the test ends."""
    check = Decoder._check

    def damaged(member: Any, layer: int, result: Any, record: Any) -> None:
        wrong = result.checksums.copy()
        wrong[:1] ^= 1
        check(member, layer, replace(result, checksums=wrong), record)

    monkeypatch.setattr(Decoder, "_check", staticmethod(damaged))
