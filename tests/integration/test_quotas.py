"""Does one tenant's archive keep another from its share, now or after a restart?"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from live_daemon import CHUNKS, LAYERS, Tier, daemon, fetch, open_text, put

from offstage.bindings.driver import Driver
from offstage.host.control import Control
from offstage.host.fabrics.shm import open_driver

TENANTS = ("red", "blue")
TABLE = 8 * CHUNKS
"""Chunks that the daemon knows at once; a tenant's part is half."""


@contextlib.contextmanager
def host(tier: Tier, tenant: str) -> Iterator[tuple[Control, Driver]]:
    with tier.control(tenant) as control, open_driver(control.attach("shm")) as driver:
        yield control, driver


def store(control: Control, driver: Driver, number: int) -> None:
    """A text of `CHUNKS` blocks a layer, written whole and archived."""
    text = open_text(control, number)
    for layer in range(LAYERS):
        for first in range(0, CHUNKS, 16):
            ordinals = list(range(first, first + 16))
            assert put(driver, text, layer, ordinals) == ordinals
    control.session_close(text.session)


def status(tier: Tier, tenant: str) -> dict[str, Any]:
    with tier.control("operator") as operator:
        tenants: list[dict[str, Any]] = operator.status()["tenants"]
    return next(one for one in tenants if one["name"] == tenant)


def test_a_full_archive_of_one_leaves_the_other_its_part(tmp_path: Path) -> None:
    """Red archives all that the table holds, and the daemon starts again on its store. Blue then
    appends and puts its whole part, and every block of it is right; red keeps its own part."""
    limits = {"limits__chunks": str(TABLE)}
    with daemon(tmp_path, TENANTS, **limits) as tier:
        with host(tier, "red") as (control, driver):
            for number in range(TABLE // CHUNKS):
                store(control, driver, number)
        tier.process.send_signal(signal.SIGTERM)
        assert tier.process.wait(100) == 0
    with daemon(tmp_path, TENANTS, **limits) as tier:
        with host(tier, "blue") as (control, driver):
            for number in range(100, 100 + TABLE // CHUNKS // 2):
                store(control, driver, number)
            for number in range(100, 100 + TABLE // CHUNKS // 2):
                text = open_text(control, number)
                assert text.stored == [LAYERS] * CHUNKS
                assert fetch(driver, text, 0, [0, CHUNKS - 1]) == [0, 0]
                control.session_close(text.session)
        assert status(tier, "blue")["purged"] == 0
        with host(tier, "red") as (control, driver):
            kept = 0
            for number in range(TABLE // CHUNKS):
                text = open_text(control, number)
                kept += sum(text.stored)
                control.session_close(text.session)
        assert kept >= TABLE // 2 * LAYERS // 2, "a tenant within its part loses nothing"
