"""A device that the suites of several seams share."""

from collections.abc import Iterator

import pytest

from offstage.bindings.bare_device import BareConfig, BareDevice


@pytest.fixture
def live() -> Iterator[BareDevice]:
    """A device in real time, whose host shares its memory."""
    config = BareConfig(
        payload_size_bytes=4096, slot_count=32, block_max=96, backend="emulated", demand_max=16
    )
    with BareDevice(config) as device:
        yield device
