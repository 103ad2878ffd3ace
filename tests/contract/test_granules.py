"""Are parts of blocks, requested in any order, right or a miss, over every storage and every way
that a host reads?

The model is the bytes that were put. A block has eight granules, and the arena has room for a few
blocks, so blocks are read in part, completed, evicted, and read again.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, FetchResult, PutRequest
from offstage.bindings.keys import checksum

GRANULES, GRANULE, BLOCKS, SLOTS, LAYER = 8, 1024, 40, 16, 1
PAYLOAD = GRANULES * GRANULE
ALL = (1 << GRANULES) - 1
ROUNDS = 60


def config_of(backend: str, folder: Path, **changes: Any) -> BareConfig:
    path = "" if backend in ("sim", "emulated") else str(folder / "store")
    return BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=SLOTS,
        block_max=BLOCKS,
        demand_max=8,
        granule_count=GRANULES,
        backend=backend,
        path=path,
        **changes,
    )


class Host:
    """A driver, the blocks that it put, and reads of their parts."""

    def __init__(self, device: BareDevice, driver: Driver) -> None:
        self.device, self.driver = device, driver
        self.session = device.session(BLOCKS, select_blocks=8)
        noise = np.random.default_rng(7).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
        self.source: NDArray[np.uint8] = noise
        self.step = 0

    def put(self) -> None:
        for first in range(0, BLOCKS, 8):
            ordinals = np.arange(first, first + 8, dtype=np.uint32)
            rows = np.arange(8)
            while rows.size:  # what an injected error refused is put again
                rcs = self.driver.put(
                    PutRequest(
                        self.session.number, LAYER, ordinals[rows], self.source[ordinals[rows]]
                    )
                )
                assert not rcs.any() or self.device.config.io_error_per_million
                rows = rows[rcs != 0]

    def fetch(self, ordinals: list[int], masks: list[int]) -> tuple[FetchResult, int]:
        """Read these parts and compare every granule that arrived; return the result and how many
        did not arrive."""
        every = [(at, i) for at in range(len(masks)) for i in range(GRANULES)]
        wanted = [(at, i) for at, i in every if masks[at] >> i & 1]
        target = np.zeros((len(wanted), GRANULE), np.uint8)
        self.driver.register(target)
        self.step += 1
        where = np.array(ordinals, np.uint32)
        keys = np.ascontiguousarray(self.session.keys[LAYER, where])
        try:
            done = self.driver.fetch(
                FetchRequest(
                    self.session.number,
                    self.step,
                    LAYER,
                    where,
                    keys,
                    target,
                    granules=np.array(masks, np.uint32),
                    timeout_ns=20_000_000_000,
                )
            )
        finally:
            self.driver.unregister(target)
        missing = 0
        for row, (at, i) in enumerate(wanted):
            if done.rcs[at] != 0:
                missing += 1
                continue
            expected = self.source[ordinals[at], i * GRANULE : (i + 1) * GRANULE]
            assert np.array_equal(target[row], expected), f"block {ordinals[at]}, granule {i}"
            assert done.checksums[row] == checksum(expected)
        return done, missing

    def drawn(self, seed: int, rounds: int = ROUNDS) -> int:
        """Read random parts of random blocks; return how many granules did not arrive."""
        draw, missing = np.random.default_rng(seed), 0
        for _ in range(rounds):
            ordinals = [int(n) for n in draw.choice(BLOCKS, draw.integers(1, 9), replace=False)]
            masks = [int(n) for n in draw.integers(1, ALL + 1, len(ordinals))]
            missing += self.fetch(ordinals, masks)[1]
        return missing


@pytest.fixture(params=["posix", "io_uring", "emulated", "sim", "sim-torn", "memory"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host that shares memory over each storage, and each way to read over one storage."""
    side = request.param
    if side in ("posix", "io_uring", "emulated"):
        config, simulated, faults = config_of(side, tmp_path), False, {}
    elif side == "memory":
        config, simulated, faults = config_of("emulated", tmp_path, fabric="memory"), False, {}
    else:
        config, simulated = config_of("sim", tmp_path), True
        faults = {"torn_per_million": 200_000} if side == "sim-torn" else {}
    with BareDevice(config, simulated=simulated) as device, device.driver(**faults) as driver:
        one = Host(device, driver)
        one.put()
        yield one


def test_any_order_of_parts_is_right(host: Host) -> None:
    """Without faults every part arrives and equals the bytes that were put."""
    assert host.drawn(seed=1) == 0


def test_only_the_part_is_read(host: Host) -> None:
    """Reading one granule reads it and the logical block that describes it; completing a block
    reads only what is missing. Present granules are not read again, and count as hits."""
    first, _ = host.fetch([0], [0b1])
    read = host.device.ledger().demand_bytes_read
    assert not first.rcs.any() and read == GRANULE + 512
    again, _ = host.fetch([0], [0b1])
    assert again.hit_count == 1 or again.torn_count > 0
    assert host.device.ledger().demand_bytes_read == read
    host.fetch([0], [0b1010_0001])
    ledger = host.device.ledger()
    assert ledger.demand_bytes_read == read + 2 * GRANULE
    assert ledger.demand_bytes_wanted == 3 * GRANULE
    assert ledger.demand_bytes_spared == 5 * GRANULE


def test_a_whole_block_after_a_part(host: Host) -> None:
    """A fetch without granules reads the rest of a partial block and returns the whole."""
    host.fetch([3], [0b110])
    target = np.zeros((1, PAYLOAD), np.uint8)
    host.driver.register(target)
    where = np.array([3], np.uint32)
    keys = np.ascontiguousarray(host.session.keys[LAYER, where])
    done = host.driver.fetch(
        FetchRequest(host.session.number, 9, LAYER, where, keys, target, timeout_ns=20_000_000_000)
    )
    host.driver.unregister(target)
    assert not done.rcs.any() and np.array_equal(target[0], host.source[3])


def test_parts_of_what_is_there_whole(host: Host) -> None:
    """A whole block serves every part of it without a read."""
    host.fetch([5], [ALL])
    read = host.device.ledger().demand_bytes_read
    host.fetch([5], [0b1001])
    assert host.device.ledger().demand_bytes_read == read


@pytest.mark.parametrize("seed", range(4))
def test_a_corrupt_granule_is_a_miss(tmp_path: Path, seed: int) -> None:
    """With bytes flipped between drive and arena, each part is either right or an error."""
    config = config_of("sim", tmp_path, corrupt_per_million=100_000, seed=seed)
    with BareDevice(config, simulated=True) as device, device.driver() as driver:
        host = Host(device, driver)
        host.put()
        assert host.drawn(seed, 30) > 0


@pytest.mark.parametrize("seed", range(4))
def test_an_error_of_the_drive_ends_every_demand(tmp_path: Path, seed: int) -> None:
    """If reads fail, even into slots that hold a part, every demand ends, what arrives is right, a
    slot keeps its part, and a block that is put again is there."""
    config = config_of("sim", tmp_path, io_error_per_million=50_000, seed=seed)
    with BareDevice(config, simulated=True) as device, device.driver() as driver:
        host = Host(device, driver)
        host.put()
        for ordinal in range(BLOCKS):
            there = 0
            for mask in (0b1, 0b10, 0b1100):
                there |= 0 if host.fetch([ordinal], [mask])[1] else mask
                assert not there or host.fetch([ordinal], [there])[1] == 0
        assert host.drawn(seed, 30) > 0 and device.ledger().io_errors > 0
        host.put()
        assert host.drawn(seed + 1, 5) < 5 * 8 * GRANULES // 4


def test_a_part_costs_its_bytes(tmp_path: Path) -> None:
    """The arbiter charges a tenant's share for the bytes read, as the ledger counts them: for a
    part, for completing a slot, and for the whole."""
    with BareDevice(config_of("sim", tmp_path), simulated=True) as device, device.driver() as one:
        host = Host(device, one)
        host.put()
        for masks in ([0b1], [0b1], [0b1010], [ALL]):
            before, read = device.tenant_status(), device.ledger().demand_bytes_read
            host.fetch([0], masks)
            after, read = device.tenant_status(), device.ledger().demand_bytes_read - read
            assert after.issued_bytes - before.issued_bytes == read
        before = device.tenant_status()
        host.fetch([1], [ALL])
        assert device.tenant_status().issued_bytes - before.issued_bytes == PAYLOAD + 512


def test_a_bench_after_parts_reads_whole_blocks(tmp_path: Path) -> None:
    """The bench ignores what a fetch of granules left in the driver's table."""
    config = replace(config_of("emulated", tmp_path), demand_max=16, slot_count=2 * BLOCKS)
    with BareDevice(config) as device, device.driver() as driver:
        host = Host(device, driver)
        host.put()
        for first in (0, 16):
            host.fetch(list(range(first, first + 16)), [ALL] * 16)
        keys = np.ascontiguousarray(np.tile(host.session.keys[LAYER, :16], (3, 1)))
        target = np.zeros((16, PAYLOAD), np.uint8)
        driver.register(target)
        assert driver.bench_read(keys, 3, target).shape == (3, 3)
        driver.unregister(target)
        assert np.array_equal(target[0], host.source[15]), "near, each lands in the first row"


def test_write_back_serves_parts(tmp_path: Path) -> None:
    """A block that is staged and not yet written serves its granules."""
    config = config_of("sim", tmp_path, write_back_blocks=8)
    with BareDevice(config, simulated=True) as device, device.driver() as driver:
        host = Host(device, driver)
        host.put()
        assert host.drawn(seed=3) == 0


def test_a_store_of_either_setting(tmp_path: Path) -> None:
    """A daemon with granules reads parts of a store written without them, and a daemon without
    reads a store written with them."""
    for folder, written, read in (("plain", 0, GRANULES), ("cut", GRANULES, 0)):
        (tmp_path / folder).mkdir()
        config = config_of("posix", tmp_path / folder)
        with BareDevice(_with(config, written)) as device, device.driver() as driver:
            Host(device, driver).put()
        with BareDevice(_with(config, read)) as device, device.driver() as driver:
            host = Host(device, driver)
            if read:
                assert host.drawn(seed=5) == 0
                continue
            target = np.zeros((8, PAYLOAD), np.uint8)
            driver.register(target)
            where = np.arange(8, dtype=np.uint32)
            keys = np.ascontiguousarray(host.session.keys[LAYER, where])
            done = driver.fetch(FetchRequest(host.session.number, 1, LAYER, where, keys, target))
            driver.unregister(target)
            assert not done.rcs.any() and np.array_equal(target, host.source[:8])


def _with(config: BareConfig, granule_count: int) -> BareConfig:
    return replace(config, granule_count=granule_count)


def test_what_cannot_be(tmp_path: Path) -> None:
    """Opening refuses granules smaller than a logical block; the driver refuses masks without
    granules, and masks past the last granule."""
    with pytest.raises(OffstageError, match="16 granules cannot divide a block of 4096 B"):
        BareDevice(BareConfig(payload_size_bytes=4096, granule_count=16), simulated=True)
    for count, mask in ((0, 1), (GRANULES, 1 << GRANULES)):
        config = _with(config_of("sim", tmp_path), count)
        with BareDevice(config, simulated=True) as device, device.driver() as driver:
            host = Host(device, driver)
            host.put()
            with pytest.raises((RunFailed, BadInput)):
                _one(host, mask)


def test_a_row_is_never_written_past(tmp_path: Path) -> None:
    """Rows narrower than a granule are refused with one error line and left unchanged."""
    with BareDevice(config_of("sim", tmp_path), simulated=True) as device, device.driver() as one:
        host = Host(device, one)
        host.put()
        target = np.full((3, GRANULE - 64), 7, np.uint8)
        with pytest.raises((RunFailed, BadInput)) as refused:
            _one(host, 0b111, target, np.arange(3, dtype=np.uint32))
        assert "\n" not in str(refused.value) and (target == 7).all()


def _one(
    host: Host,
    mask: int,
    target: NDArray[np.uint8] | None = None,
    rows: NDArray[np.uint32] | None = None,
) -> None:
    target = np.zeros((1, PAYLOAD), np.uint8) if target is None else target
    rows = np.zeros(bin(mask).count("1"), np.uint32) if rows is None else rows
    host.driver.register(target)
    where = np.array([0], np.uint32)
    keys = np.ascontiguousarray(host.session.keys[LAYER, where])
    host.driver.fetch(
        FetchRequest(
            host.session.number,
            1,
            LAYER,
            where,
            keys,
            target,
            target_index=rows,
            granules=np.array([mask], np.uint32),
        )
    )
