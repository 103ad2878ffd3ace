"""Devices and hosts shared by several suites."""

from collections.abc import Iterator

import pytest
from fabric_sides import MARKS, NEEDS, SIDES, Host, hosts

from offstage.bindings.bare_device import BareConfig, BareDevice


@pytest.fixture
def live() -> Iterator[BareDevice]:
    """A device in real time, whose host shares its memory."""
    config = BareConfig(
        payload_size_bytes=4096, slot_count=32, block_max=96, backend="emulated", demand_max=16
    )
    with BareDevice(config) as device:
        yield device


@pytest.fixture(params=[pytest.param(one, marks=MARKS.get(one, ())) for one in SIDES])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host over each side of the fabric that this machine has."""
    if request.param in NEEDS:
        request.getfixturevalue(NEEDS[request.param])
    yield from hosts(request.param)
