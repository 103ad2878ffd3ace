"""Does a store on a failing device lose only what it reports, and serve only what was written?

One seed draws the faults of the simulated drive; a failure names the seed that reproduces it.
"""

import errno
import random
from dataclasses import replace

import pytest

from offstage.bindings.codec import DTYPES
from offstage.bindings.storage import Clock, Faults, Storage, StorageConfig, preset
from offstage.bindings.store import Store, StoreConfig, StoreDone

CONFIG = StoreConfig(
    payload_size_bytes=2048,
    layer_count=3,
    tenant_max=2,
    io_max=16,
    segment_size_bytes=512 + 5 * 2560,
)
KEYS = 120
STEPS = 1_500


def payload(key: int, layer: int) -> bytes:
    """Noise, or for every third key two values of one exponent, which compress to almost
    nothing."""
    rng, length = random.Random(key * 7 + layer), 1 + (key * 97 + layer) % 2048
    return rng.randbytes(length) if key % 3 else bytes(rng.choices(b"@A", k=length))


def config(seed: int) -> StoreConfig:
    """Every other seed compresses blocks where that saves space."""
    return replace(CONFIG, codec=seed % 2 * (DTYPES.index("fp8_e4m3") + 1))


PAYLOADS = {(key, layer): payload(key, layer) for key in range(KEYS) for layer in range(3)}


def drive(seed: int, faults: Faults) -> Storage:
    return Storage(
        StorageConfig(
            backend="sim",
            size_bytes=131_072 + 60 * CONFIG.segment_size_bytes,
            lba_size_bytes=512,
            queue_depth_max=24,
            nvme=preset("gen5-tlc").params,
            seed=seed,
            faults=faults,
        ),
        Clock(simulated=True),
    )


class Run:
    """Puts, gets and deletes in flight together; the run remembers the acknowledged ones."""

    def __init__(self, storage: Storage, store: Store, seed: int, honest_reads: bool) -> None:
        self.gone: set[tuple[int, int]] = set()  # deleted since they were stored
        self.storage, self.store, self.honest_reads = storage, store, honest_reads
        self.random = random.Random(seed)
        self.flying: dict[int, tuple[str, int, int]] = {}
        self.stored: set[tuple[int, int]] = set()
        self.user = 0
        self.served = self.refused = self.failed = 0

    def ended(self, done: StoreDone) -> None:
        kind, key, layer = self.flying.pop(done.user)
        if kind == "put":
            assert done.rc in (0, -errno.EIO)
            self.failed += done.rc != 0
            if done.rc == 0:
                self.stored.add((key, layer))
        elif done.rc == 0:
            assert done.payload == PAYLOADS[key, layer]
            self.served += 1
        elif done.rc == -errno.ENOENT:  # wiped after another read found it damaged
            assert not self.honest_reads and (key, layer) not in self.stored
        else:
            assert done.rc in (-errno.EIO, -errno.EBADMSG)
            assert not self.honest_reads or (key, layer) not in self.stored
            self.refused += 1
            if done.rc == -errno.EBADMSG:
                self.stored.discard((key, layer))

    def step(self) -> None:
        key, layer = self.random.randrange(KEYS), self.random.randrange(3)
        busy = any(one[1:] == (key, layer) for one in self.flying.values())
        what = self.random.random()
        if what < 0.4:
            self.user += 1
            rc = self.store.put(key, layer, PAYLOADS[key, layer], self.user, key % 2)
            assert rc in (0, -errno.EAGAIN, -errno.ENOSPC)
            if rc == 0:
                self.flying[self.user] = ("put", key, layer)
                self.gone.discard((key, layer))
        elif what < 0.6:
            self.user += 1
            rc = self.store.get(key, layer, self.user)
            assert rc in (0, -errno.EAGAIN, -errno.ENOENT)
            # If reads lie, the cleaner may have dropped a block that failed its check.
            assert rc != -errno.ENOENT or not self.honest_reads or (key, layer) not in self.stored
            if rc == 0:
                self.flying[self.user] = ("get", key, layer)
        elif what < 0.65 and not busy:
            self.store.delete(key, layer)
            self.stored.discard((key, layer))
            self.gone.add((key, layer))
        else:
            for done in self.store.poll():
                self.ended(done)


@pytest.mark.parametrize("seed", range(6))
def test_failing_writes_lose_nothing_acknowledged(seed: int) -> None:
    """If writes fail, short or torn included, a restart finds every acknowledged block, and none
    that was wiped, although wipes fail at times too."""
    with drive(seed, Faults(eio=4_000, short=20_000, torn=20_000)) as storage:
        store = Store(storage, config(seed))
        run = Run(storage, store, seed, honest_reads=False)
        for _ in range(STEPS):
            run.step()
        for done in store.drain():
            run.ended(done)
        for now_s in range(100):  # failed wipes are retried each second
            store.tick(now_s)
            while store.in_flight:
                store.poll()
        assert all(store.wiped(tenant)[0] for tenant in range(2)) and store.stats()["wiped"] > 0
        assert run.failed > 0 and run.served > 0 and store.verify() == 0
        assert (store.stats()["puts_coded"] > 0) == (seed % 2 == 1)
        store.close()
        with Store(storage, CONFIG) as again:
            found = {(one.key, one.layer) for one in again.scan()}
            assert run.stored <= found and not run.gone & found and run.gone
            for key, layer in run.stored:
                for _ in range(20):  # a read may fail now and then; the block stays
                    done = again.get_wait(key, layer)
                    if done.rc != -errno.EIO:
                        break
                assert (done.rc, done.payload) == (0, PAYLOADS[key, layer])


@pytest.mark.parametrize("seed", range(6))
def test_lying_reads_are_never_data(seed: int) -> None:
    """If reads succeed with a flipped byte, each of them is detected and counted."""
    with (
        drive(seed, Faults(corrupt=150_000)) as storage,
        Store(storage, config(seed)) as store,
    ):
        run = Run(storage, store, seed, honest_reads=False)
        for _ in range(STEPS):
            run.step()
        for done in store.drain():
            run.ended(done)
        assert run.served > 0
        # Some flips hit bytes beyond the payload, which are never read.
        assert 0 < run.refused <= store.stats()["checks_failed"]
        assert store.verify() == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_good_drive_refuses_nothing(seed: int) -> None:
    """Without faults nothing fails; otherwise the other tests could hide an error."""
    with drive(1, Faults()) as storage, Store(storage, config(seed)) as store:
        run = Run(storage, store, 1, honest_reads=True)
        for _ in range(4 * STEPS):
            run.step()
        for done in store.drain():
            run.ended(done)
        stats = store.stats()
        assert (run.refused, run.failed, stats["checks_failed"], stats["io_errors"]) == (0, 0, 0, 0)
        assert stats["blocks"] == len(run.stored) and store.verify() == 0


def test_a_hung_device_delays_only_its_callers() -> None:
    """Close returns while I/O hangs, and the hung requests end once the device is back."""
    with drive(3, Faults()) as storage:
        with Store(storage, CONFIG) as store:
            assert store.put_wait(1, 0, PAYLOADS[1, 0]) == 0
            storage.hang()
            assert store.put(2, 0, PAYLOADS[2, 0], user=5) == 0
            assert store.get(1, 0, user=6) == 0
            assert store.get(2, 0, user=7) == -errno.EAGAIN
            storage.clock.advance_to(storage.clock.now_ns() + 10**9)
            assert store.drain(polls_max=50) == [] and store.in_flight == 2
            storage.unhang()
            ends = {done.user: done.rc for done in store.drain()}
            assert ends == {5: -errno.EIO, 6: -errno.EIO}
            assert store.get_wait(1, 0).payload == PAYLOADS[1, 0]
            assert store.get_wait(2, 0).rc == -errno.ENOENT
            storage.hang()
            assert store.put(3, 0, PAYLOADS[3, 0]) == 0
        storage.unhang()
