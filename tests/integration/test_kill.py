"""Does `kill -9` at any moment lose an acknowledged block, or return bytes that were not written?

A writer process (this file, run as a script) mixes puts, gets and deletes on a store file that is
nearly full, so that the cleaner works too. It reports through a pipe: a block is acknowledged once
its line has left the process, and given up before its deletion begins. The parent kills it at a
random moment, recovers the store, and reads every acknowledged block. Deletes that were waited for
are reported too, and their blocks must not be found again.
"""

import errno
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from offstage.bindings.codec import DTYPES
from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
from offstage.dpu.storage.storefile import inspect

LBA = 4096
LAYERS = 4
KEYS = 400
PLACES = 16
CONFIG = StoreConfig(
    payload_size_bytes=4 * LBA,
    layer_count=LAYERS,
    tenant_max=2,
    io_max=32,
    segment_size_bytes=LBA + PLACES * 5 * LBA,
)
SIZE_BYTES = 131_072 + 80 * CONFIG.segment_size_bytes  # room for 1,280 of 1,600 blocks
Names = set[tuple[int, int]]


def payload(key: int, layer: int) -> bytes:
    """Noise, or for even keys two values of one exponent, which code to next to nothing."""
    rng = random.Random(key * LAYERS + layer)
    length = rng.randint(1, CONFIG.payload_size_bytes)
    return rng.randbytes(length) if key % 2 else bytes(rng.choices(b"@A", k=length))


def config(codec: str) -> StoreConfig:
    return replace(CONFIG, codec=("off", *DTYPES).index(codec))


def device(path: Path, backend: str) -> Storage:
    return Storage(
        StorageConfig(
            backend=backend,
            path=str(path),
            size_bytes=SIZE_BYTES,
            lba_size_bytes=LBA,
            direct=True,
            queue_depth_max=64,
            discard=True,  # which SPDK's drives accept
        )
    )


def lock(path: Path, backend: str) -> str:
    """Return the file that locks out a second store; SPDK's drives have their own claim."""
    return "" if backend == "spdk" else str(path)


class Writer:
    """The process that will be killed."""

    def __init__(self, path: Path, backend: str, codec: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.storage = device(path, backend)
        self.store = Store(self.storage, config(codec), lock(path, backend))
        self.flying: dict[int, tuple[str, int, int]] = {}
        self.deleted: Names = set()
        self.waited: Names = set()
        self.gone: Names = set()
        self.tickets: dict[int, int] = {}
        self.user = 0

    def start(self) -> None:
        key, layer = self.random.randrange(KEYS), self.random.randrange(LAYERS)
        self.user += 1
        if self.random.random() < 0.3:
            kind, rc = "get", self.store.get(key, layer, self.user)
        else:
            kind = "put"
            if any((key, layer) in names for names in (self.deleted, self.waited, self.gone)):
                for names in (self.deleted, self.waited, self.gone):
                    names.discard((key, layer))
                os.write(1, f"u {key} {layer}\n".encode())  # before it may be stored again
            rc = self.store.put(key, layer, payload(key, layer), self.user, key % 2)
        if rc == 0:
            self.flying[self.user] = (kind, key, layer)
        elif rc == -errno.ENOSPC:
            self.make_room()

    def make_room(self) -> None:
        busy = {one[1:] for one in self.flying.values()}
        every = [(one.key, one.layer) for one in self.store.scan()]
        names = [one for one in self.random.sample(every, len(every) // 20) if one not in busy]
        os.write(1, "".join(f"d {key} {layer}\n" for key, layer in names).encode())
        for key, layer in names:
            assert self.store.delete(key, layer) == 0
        self.deleted |= set(names)

    def wait(self) -> str:
        """Wait for the deletes so far; returns those that are now permanent."""
        if not self.waited and self.deleted:
            self.waited, self.deleted = self.deleted, set()
            self.tickets = {tenant: 0 for tenant in range(2)}
        for tenant in list(self.tickets):
            done, self.tickets[tenant] = self.store.wiped(tenant, self.tickets[tenant])
            if done:
                del self.tickets[tenant]
        if self.tickets:
            return ""
        names, self.waited = self.waited, set()
        self.gone |= names
        return "".join(f"g {key} {layer}\n" for key, layer in names)

    def run(self) -> None:
        os.write(1, b"ready\n")
        while True:
            for _ in range(self.random.randint(1, 8)):
                self.start()
            if self.random.random() < 0.02:
                self.make_room()
            lines = self.wait()
            for done in self.store.poll():
                kind, key, layer = self.flying.pop(done.user)
                if kind == "put" and done.rc == 0:
                    lines += f"a {key} {layer}\n"
                elif done.rc != 0 or done.payload != payload(key, layer):
                    lines += f"wrong {kind} {key} {layer} {done.rc}\n"
            if lines:
                os.write(1, lines.encode())


def read_report(report: str, stored: Names, gone: Names) -> tuple[int, int]:
    """Apply the writer's lines to `stored` and `gone`; returns the numbers of puts and deletes."""
    puts = deletes = 0
    for line in report.splitlines(keepends=True):
        kind, *rest = line.split()
        assert kind != "wrong", line
        if kind == "ready" or not line.endswith("\n"):
            continue  # a partial line was never sent
        name = (int(rest[0]), int(rest[1]))
        if kind == "a":
            puts += 1
            stored.add(name)
        elif kind == "g":
            gone.add(name)
        elif kind == "u":
            gone.discard(name)
        else:
            deletes += 1
            stored.discard(name)
    return puts, deletes


def live_and_die(
    path: Path, backend: str, codec: str, seed: int, stored: Names, gone: Names
) -> tuple[int, int]:
    """Run a writer and end it with SIGKILL, sometimes before its store is open."""
    rng = random.Random(seed)
    command = [sys.executable, __file__, str(path), backend, codec, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        head = b""
        if rng.random() < 0.8:
            head = process.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
        else:
            time.sleep(rng.uniform(0.1, 0.5))
        # The pipe must not be full at the kill, or the writer would already be blocked. Its
        # 64 KiB are enough for the time it has.
        process.kill()
        report = (head + process.stdout.read()).decode()
        problem = process.stderr.read().decode()
        process.wait()
    assert problem == "", problem
    return read_report(report, stored, gone)


def kill_loop(path: Path, backend: str, codec: str, kills: int, seed: int) -> dict[str, float]:
    """Kill `kills` writers and read every acknowledged block after each; returns figures of the
    run."""
    stored: Names = set()
    figures = {"kills": 0, "puts": 0, "deletes": 0, "gone": 0, "blocks_read": 0}
    recovery_s: list[float] = []
    began = time.monotonic()
    for kill in range(kills):
        gone: Names = set()  # deleted for good in this life
        puts, deletes = live_and_die(path, backend, codec, seed * 100_000 + kill, stored, gone)
        with device(path, backend) as storage:
            opened = time.monotonic()
            store = Store(storage, config(codec), lock(path, backend))
            recovery_s.append(time.monotonic() - opened)
            with store:
                assert store.verify() == 0
                assert not gone & {(one.key, one.layer) for one in store.scan()}
                for key, layer in sorted(stored):
                    done = store.get_wait(key, layer)
                    assert (done.rc, done.payload) == (0, payload(key, layer)), (
                        f"seed {seed} kill {kill}: block {key} layer {layer} ended {done.rc}"
                    )
                for one in store.scan():  # any other block has its own bytes too
                    if (one.key, one.layer) not in stored:
                        done = store.get_wait(one.key, one.layer)
                        assert done.payload in (None, payload(one.key, one.layer))
        figures["kills"] += 1
        figures["puts"] += puts
        figures["deletes"] += deletes
        figures["gone"] += len(gone)
        figures["blocks_read"] += len(stored)
    recovery_s.sort()
    return figures | {
        "recovery_ms_p50": 1e3 * recovery_s[len(recovery_s) // 2],
        "recovery_ms_max": 1e3 * recovery_s[-1],
        "elapsed_s": time.monotonic() - began,
    }


def has_uring(path: Path) -> bool:
    try:
        with device(path, "io_uring"):
            return True
    except Exception as error:
        return "io_uring" not in str(error)


@pytest.mark.parametrize(
    ("backend", "codec"), [("io_uring", "off"), ("posix", "off"), ("io_uring", "fp8_e4m3")]
)
def test_a_dozen_kills(tmp_path: Path, backend: str, codec: str) -> None:
    """The store survives six kills on each side. `-m slow` runs two hundred."""
    if backend == "io_uring" and not has_uring(tmp_path / "probe"):
        pytest.skip("io_uring is not available here; see `offstage doctor`")
    figures = kill_loop(tmp_path / "store.offstage", backend, codec, 6, 1)
    assert bool(inspect(tmp_path / "store.offstage")["coded"]) == (codec != "off")
    assert figures["puts"] > 0


@pytest.mark.spdk
@pytest.mark.parametrize("transport", ["TCP", "VFIOUSER"])
def test_six_kills_over_spdk(transport: str) -> None:
    """As above, on a drive of a real target, which completes writes that the killed process had
    sent."""
    import spdk_drives  # imported here: the writer does not need it

    path = Path(spdk_drives.drive(transport, SIZE_BYTES))
    assert kill_loop(path, "spdk", "off", 6, 3)["puts"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "OFFSTAGE_SLOW" not in os.environ, reason="takes minutes; set OFFSTAGE_SLOW=1 to run it"
)
@pytest.mark.parametrize(
    ("backend", "codec"), [("io_uring", "off"), ("posix", "off"), ("io_uring", "fp8_e4m3")]
)
def test_two_hundred_kills(tmp_path: Path, backend: str, codec: str) -> None:
    """As above, 200 times, with enough puts and deletes for the result to mean something."""
    figures = kill_loop(tmp_path / "store.offstage", backend, codec, 200, 2)
    print(backend, {name: round(value, 1) for name, value in figures.items()})
    assert figures["puts"] > 10_000 and figures["deletes"] > 100 and figures["gone"] > 100


if __name__ == "__main__":
    Writer(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
