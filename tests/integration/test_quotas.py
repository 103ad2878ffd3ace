"""Does one tenant's archive take from another's share, now or after a restart? Does a tenant at its
own limit lose its own blocks or get an error, with no effect on other tenants?"""

import contextlib
import errno
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import (
    CHUNKS,
    LAYERS,
    PAYLOAD,
    Daemon,
    Text,
    daemon,
    fetch,
    open_text,
    put,
    scrape,
    until,
)

from offstage.bindings.driver import Driver
from offstage.bindings.errors import StoreFull
from offstage.bindings.fabric import PutRequest
from offstage.bindings.private import read_secret
from offstage.dpu.tenants.tenancy import metrics_token
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control

TENANTS = ("red", "blue")
TABLE = 8 * CHUNKS
"""Chunks that the daemon knows at once; a tenant's part is half."""
RECORD = PAYLOAD + 4096
TEXT_BLOCKS = CHUNKS * LAYERS
STORED_MAX = TEXT_BLOCKS * 3 // 2
BOUNDED = {
    "red": {"chunks_max": 2 * CHUNKS},
    "green": {"store_max": f"{STORED_MAX * RECORD}B"},
    "blue": {},
}


@contextlib.contextmanager
def host(tier: Daemon, tenant: str) -> Iterator[tuple[Control, Driver]]:
    with tier.control(tenant) as control, open_driver(control.attach("shm")) as driver:
        yield control, driver


def store(control: Control, driver: Driver, number: int) -> None:
    """Write and archive a whole text of `CHUNKS` blocks a layer."""
    text = open_text(control, number)
    for layer in range(LAYERS):
        for first in range(0, CHUNKS, 16):
            ordinals = list(range(first, first + 16))
            assert put(driver, text, layer, ordinals) == ordinals
    control.session_close(text.session)


def status(tier: Daemon, tenant: str) -> dict[str, Any]:
    with tier.control("operator") as operator:
        tenants: list[dict[str, Any]] = operator.status()["tenants"]
    return next(one for one in tenants if one["name"] == tenant)


def test_a_full_archive_of_one_leaves_the_other_its_part(tmp_path: Path) -> None:
    """Red archives all that the table holds, and the daemon restarts on its store. Blue can then
    append and put its whole share, with every block right, and red keeps its own."""
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


def put_text(driver: Driver, text: Text) -> int:
    """Put all blocks of a text; returns how many were acknowledged."""
    return sum(
        len(put(driver, text, layer, list(range(first, first + 16))))
        for layer in range(LAYERS)
        for first in range(0, CHUNKS, 16)
    )


def check(tier: Daemon, tenant: str, number: int) -> int:
    """Return how many blocks of a text the store has; each of them must be right."""
    with host(tier, tenant) as (control, driver):
        text = open_text(control, number)
        for layer in range(LAYERS):
            for first in range(0, CHUNKS, 16):
                assert set(fetch(driver, text, layer, list(range(first, first + 16)))) <= {
                    0,
                    -errno.ENOENT,
                }
        control.session_close(text.session)
    return sum(text.stored)


def test_a_tenant_at_a_bound_of_its_own_loses_its_own_or_is_refused(tmp_path: Path) -> None:
    """Red has a limit on chunks, green one on the store, blue none, and there is room for ten times
    as much. If red and green archive beyond theirs, their coldest are evicted; if sessions use all
    of them, the put fails with its own error. Blue loses nothing, also after a restart."""
    with daemon(tmp_path, BOUNDED, limits__sessions="64") as tier:
        with host(tier, "blue") as (control, driver):
            for number in range(3):
                store(control, driver, number)
        with host(tier, "red") as (control, driver):
            for number in range(3):
                store(control, driver, number)
                assert status(tier, "red")["chunks"] <= 2 * CHUNKS
            kept = [open_text(control, number) for number in (3, 4)]
            with pytest.raises(StoreFull, match=r"EDQUOT.*chunks_max") as refused:
                open_text(control, 5)
            assert refused.value.errno == errno.EDQUOT
            assert [put_text(driver, text) for text in kept] == [TEXT_BLOCKS] * 2
        with host(tier, "green") as (control, driver):
            for number in range(3):
                store(control, driver, number)
                assert status(tier, "green")["stored_blocks"] <= STORED_MAX
            kept = [open_text(control, number) for number in (3, 4)]
            assert [put_text(driver, text) for text in kept] == [TEXT_BLOCKS, TEXT_BLOCKS // 2]
            rcs = driver.put(PutRequest(kept[1].session, 1, *one_block()))
            assert rcs.tolist() == [-errno.EDQUOT]
        red, green, blue = (status(tier, name) for name in BOUNDED)
        assert red["quota_refused"] == 1 and red["purged"] >= CHUNKS
        assert green["quota_refused"] == TEXT_BLOCKS // 2 + 1 and green["purged"] >= CHUNKS // 2
        assert green["stored_bytes"] == green["stored_bytes_max"] == STORED_MAX * RECORD
        assert (blue["purged"], blue["quota_refused"], blue["chunks_max"]) == (0, 0, 0)
        assert check(tier, "green", 3) == TEXT_BLOCKS
        tier.process.send_signal(signal.SIGTERM)
        assert tier.process.wait(100) == 0
    with daemon(tmp_path, BOUNDED, limits__sessions="64") as tier:
        assert status(tier, "green")["stored_blocks"] == STORED_MAX
        assert status(tier, "red")["chunks"] == 2 * CHUNKS
        for tenant in ("red", "green"):
            with host(tier, tenant) as (control, driver):
                store(control, driver, 6)
            assert check(tier, tenant, 6) == TEXT_BLOCKS
        assert status(tier, "green")["stored_blocks"] <= STORED_MAX
        assert status(tier, "red")["chunks"] <= 2 * CHUNKS
        assert [check(tier, "blue", number) for number in range(3)] == [TEXT_BLOCKS] * 3


def one_block() -> tuple[np.ndarray[Any, np.dtype[np.uint32]], np.ndarray[Any, Any]]:
    return np.array([CHUNKS - 1], np.uint32), np.zeros((1, PAYLOAD), np.uint8)


def test_a_tenant_near_its_limit_is_told_and_no_other(tmp_path: Path) -> None:
    """Gauges and status show quotas by token; the log has a line each time that 80 % are reached. A
    limit can be raised at run time; dirty blocks stay within theirs."""
    tenants = {"red": {"chunks_max": CHUNKS, "dirty_max": 2}, "blue": {}}
    with daemon(
        tmp_path,
        tenants,
        daemon__metrics_endpoint="127.0.0.1:0",
        store__write="back",
        store__dirty_max="16",
    ) as tier:
        with host(tier, "red") as (control, driver):
            text = open_text(control, 1)
            dirty = []
            for ordinal in range(CHUNKS):
                assert put(driver, text, 0, [ordinal]) == [ordinal]
                dirty.append(status(tier, "red")["dirty_blocks"])
            assert max(dirty) <= 2
            own = control.status()["quotas"]
            assert own["chunks"] == {"has": CHUNKS, "most": CHUNKS} and own["dirty"]["most"] == 2
            assert status(tier, "blue")["dirty_blocks_max"] == 8  # its share
            near = 'offstage_tenant_quota_used_ratio{quota="chunks",tenant="red"} 1.0'
            token = (tier.runtime_dir / "metrics.token").read_text().strip()
            until(lambda: near in scrape(tier, token))
            shown = scrape(tier, token)
            assert f'offstage_tenant_chunks_max{{tenant="red"}} {CHUNKS}.0' in shown
            assert 'offstage_tenant_arena_bytes{tenant="blue"}' in shown
            assert 'tenant="' not in scrape(tier, "")
            blue = metrics_token(read_secret(tier.runtime_dir / "blue.secret"))
            shown = scrape(tier, blue)
            assert 'tenant="blue"' in shown and 'tenant="red"' not in shown
            assert len(told(tier, "chunks")) == 1
            with tier.control("operator") as operator:
                operator.policy_set({"tenant.red.chunks_max": str(2 * CHUNKS)})
            control.session_close(open_text(control, 2).session)
            until(lambda: 'quota="chunks",tenant="red"} 0.5' in scrape(tier, token))
            kept = open_text(control, 3)
            until(lambda: len(told(tier, "chunks")) == 2)
            assert put(driver, kept, 0, [0]) == [0]


def told(tier: Daemon, quota: str) -> list[str]:
    return [
        line
        for line in tier.log.read_text().splitlines()
        if "quota_near" in line and re.search(f'"what": ?"{quota}"', line)
    ]
