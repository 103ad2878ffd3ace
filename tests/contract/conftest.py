"""Sides that exist for the tests alone stand beside them, not in the package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offstage.bindings.bare_device import BareConfig, BareDevice

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))


@pytest.fixture
def live() -> Iterator[BareDevice]:
    """A device in real time, whose host shares its memory."""
    config = BareConfig(payload_size_bytes=4096, slot_count=32, block_max=96,
                        backend="emulated", demand_max=16)  # fmt: skip
    with BareDevice(config) as device:
        yield device
