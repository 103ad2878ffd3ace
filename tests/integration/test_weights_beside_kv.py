"""Do the laboratory and a live daemon agree on a cold start beside KV: its time, and the stall of
those who decode?

Both have the same sessions' selections, the same drive's model, the same floor and cap. The daemon
runs in dilated time, in which this machine's processor hardly counts if it has little else to do.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import daemon

import offstage
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.decode.timeline import Clock
from offstage.host.fabrics.shm import open_driver
from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.plan import points_of
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.run.source import build
from offstage.testbeds.lab.spec.load import built
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.weights import undisturbed

TIMED = "OFFSTAGE_TEST_TIMING" in os.environ
"""Whether this machine has nothing else to do, so that its times may be judged."""
DILATION, STEPS = (400, 48) if TIMED else (100, 16)
LAYERS, BLOCKS, BLOCK, K = 4, 64, 256 << 10, 16
VALUES, VALUE = (48, 4 << 20) if TIMED else (4, 4 << 20)
FLOOR, CAP, IN_FLIGHT = "2GB/s", "4GB/s", "2MiB"
COMPUTE_NS = 500_000
MEAN, P99, TOKENS = 0.10, 0.20, 0.05
"""The tolerances of the chip model's calibration."""
SPEC: dict[str, Any] = {
    "workload": {"context_tokens": 64 * BLOCKS, "sessions": 1, "steps": STEPS, "layers": LAYERS},
    "selection": {"k_blocks": K},
    "tier": {"buffer_over_k": [2.0], "time_per_token": "2ms", "warmup": "1ms"},
    "weights": {
        "bytes": VALUES * VALUE,
        "floor": FLOOR,
        "cap": CAP,
        "in_flight": IN_FLIGHT,
        "start": "1ms",
    },
    "policy": [{"use": "none"}],
}


@dataclass(frozen=True)
class Ran:
    """Stall of each token, and the cold start's time; 0 without one."""

    stall_ms: Any
    cold_ms: float = 0.0
    steps: str = ""
    """Where the time of KV's steps went in the daemon, in means."""

    def __str__(self) -> str:
        p99 = np.quantile(self.stall_ms, 0.99)
        told = f"stall mean {self.stall_ms.mean():.3f} ms, p99 {p99:.3f} ms"
        return f"{told}, {self.tokens_per_s:.1f} tokens/s, cold {self.cold_ms:.1f} ms {self.steps}"

    @property
    def tokens_per_s(self) -> float:
        """By the GPU's time and the stall."""
        return 1e3 / (LAYERS * COMPUTE_NS / 1e6 + float(self.stall_ms.mean()))


def in_laboratory(spec: Spec) -> Ran:
    workload = build(spec, 1)
    feed = Feed(workload, 1, {0: Kind(1, 0.0)})
    runner = Runner(0, points_of(spec, 0, 0)[0], spec, workload, feed, 1)
    while not runner.advance():
        feed.make()
    run, stall = runner.result(), np.zeros(STEPS)
    np.add.at(stall, run.rows["step"].astype(np.int64), run.rows["stall_ns"] / 1e6)
    weights = run.weights
    return Ran(stall, weights["end_ps"] / 1e9 - 1.0 if weights["read_bytes"] else 0.0)


def block(ordinal: int, layer: int) -> Any:
    return np.random.default_rng([ordinal, layer]).integers(0, 256, BLOCK, np.uint8)


def contents() -> list[bytes]:
    return [at.to_bytes(16, "big") for at in range(BLOCKS)]


def write(tier: Daemon) -> None:
    control = tier.control("kv")
    with open_driver(control.attach("shm")) as driver:
        session = control.session_open(select_blocks=K)
        control.append(session, contents())
        for layer in range(LAYERS):
            for at in range(0, BLOCKS, 8):
                source = np.stack([block(one, layer) for one in range(at, at + 8)])
                put = PutRequest(session, layer, np.arange(at, at + 8, dtype=np.uint32), source)
                assert not any(driver.put(put))
        control.session_close(session, keep=True)
    control.close()
    with values(tier) as at_drive:
        for number in range(VALUES):
            at_drive.store(b"shard%d" % number, shard(number))


def values(tier: Daemon) -> Any:
    return offstage.values(tier.endpoint, tenant="weights", runtime_dir=tier.runtime_dir)


def shard(number: int) -> bytes:
    return np.random.default_rng(number).integers(0, 256, VALUE, np.uint8).tobytes()


def decode(tier: Daemon, spec: Spec) -> Any:
    """The stall of every token in ms, of the laboratory's own selections."""
    workload = build(spec, 1)
    selected = np.concatenate([one.selected for one in workload.slabs(0)])
    control, target = tier.control("kv"), np.zeros((K, BLOCK), np.uint8)
    stall_ms = np.zeros(STEPS)
    with open_driver(control.attach("shm")) as driver:
        clock = Clock(driver.dilation)
        session = control.session_open(select_blocks=K)
        keys = block_keys(control.append(session, contents()).keys, LAYERS)
        for step in range(STEPS):
            for layer in range(LAYERS):
                wanted = selected[step, layer]
                wanted = wanted[wanted < BLOCKS]
                named = np.ascontiguousarray(keys[layer][wanted])
                got = driver.fetch(FetchRequest(session, step, layer, wanted, named, target))
                assert not any(got.rcs)
                stall_ms[step] += got.stall_ns / 1e6
                clock.sleep_until_ns(clock.now_ns() + COMPUTE_NS)
        assert np.array_equal(target[0], block(int(wanted[0]), LAYERS - 1))
    control.close()
    return stall_ms


def live(folder: Path, spec: Spec, *, weights: bool) -> Ran:
    """A daemon that begins with a cold arena."""
    with served(folder) as tier:
        clock, took = Clock(DILATION), []

        def load() -> None:
            with values(tier) as at_drive:
                begun_ns = clock.now_ns()
                for number in range(VALUES):
                    assert at_drive.retrieve(b"shard%d" % number) == shard_of[number]
                took.append((clock.now_ns() - begun_ns) / 1e6)

        shard_of = [shard(number) for number in range(VALUES)]
        loader = threading.Thread(target=load)
        if weights:
            loader.start()
        stall_ms = decode(tier, spec)
        if weights:
            loader.join()
        with tier.control("operator") as control:
            found = {one["name"]: one for one in control.status()["tenants"]}
        if weights:
            assert 0 < found["weights"]["floor_bytes"] <= found["weights"]["issued_bytes"]
            assert found["kv"]["floor_bytes"] == 0
        tier.stop()
    return Ran(stall_ms, took[0] if took else 0.0, str(found["kv"].get("steps", "")))


def served(folder: Path) -> Any:
    tenants = {
        "kv": {"weight": 8},
        "weights": {
            "floor": FLOOR,
            "bandwidth": CAP,
            "in_flight": IN_FLIGHT,
            "share_percent": 20,
        },
    }
    slots = 2 * K * LAYERS * 100 // 80 + 1
    return daemon(
        folder,
        tenants,
        arena__size=str(slots * (BLOCK + 4096)),
        arena__payload=str(BLOCK),
        storage__size="1GiB",
        arena__layers=str(LAYERS),
        storage__backend="emulated",
        storage__inner="posix",
        storage__direct="false",
        store__segment="4MiB",
        model__dilation=str(DILATION),
        limits__values="256",
        policy__prefetchers="",
        policy__eviction="lru",
    )


@pytest.mark.slow
def test_a_cold_start_beside_kv_is_the_laboratorys(tmp_path: Path) -> None:
    """Live, every block and every value is whole, the floor was used, and the stall grows; where
    the machine may be judged, cold start and stall are the laboratory's within the tolerances."""
    spec = built({**SPEC, "seeds": [1]}, "weights beside kv", {})
    lab = in_laboratory(spec), in_laboratory(undisturbed(spec))
    with served(tmp_path) as tier:
        write(tier)
        tier.stop()
    seen = tuple(live(tmp_path, spec, weights=one) for one in (True, False))
    for name, ours, theirs in zip(("beside", "alone"), lab, seen, strict=True):
        print(f"{name}: laboratory {ours}; daemon {theirs}")
    assert lab[0].cold_ms > 0 < seen[0].cold_ms
    assert lab[0].stall_ms.mean() > lab[1].stall_ms.mean() > 0
    if not TIMED:
        return
    assert seen[0].cold_ms == pytest.approx(lab[0].cold_ms, rel=MEAN)
    for ours, theirs in zip(lab, seen, strict=True):
        assert theirs.stall_ms.mean() == pytest.approx(ours.stall_ms.mean(), rel=MEAN)
        assert theirs.tokens_per_s == pytest.approx(ours.tokens_per_s, rel=TOKENS)
        p99 = [np.quantile(one.stall_ms, 0.99) for one in (ours, theirs)]
        assert p99[1] == pytest.approx(p99[0], rel=P99)
