"""Do daemons that are killed, stopped or restarted serve only under leases of a real etcd?"""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_schema import checked
from cut import Cut
from etcd import Etcd
from pod_daemons import TENANT, UNHURRIED_NS
from pod_leases import LEASE_S, PATIENCE_S, Leased, leased

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric, open_fabric
from offstage.host.link.control import Control
from offstage.host.model.models import geometry
from offstage.testbeds.cli import run
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.pod_figures import PodResult
from offstage.testbeds.live.pod_run import run as drive
from offstage.testbeds.progress import Silent

STEPS = 40
NAMES = ("dpu0", "dpu1", "dpu2")
BLOCKS = 4


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    one = Etcd(tmp_path)
    yield one
    one.kill()


@pytest.fixture
def pod(tmp_path: Path, etcd: Etcd) -> Iterator[Leased]:
    with leased(tmp_path, [etcd.address], *NAMES) as one:
        yield one


def driven(pod: Leased, steps: int = STEPS, progress: Any = None) -> PodResult:
    options = DriveOptions(
        geometry=geometry("tiny"),
        sessions=2,
        context_tokens=4096,
        steps=steps,
        time_per_token_s=0.001,
    )
    link = Endpoint("", TENANT, "shm", "pod", timeout_s=5.0)
    return drive(options, pod.etcd.map(), link, pod.folder, UNHURRIED_NS, progress or Silent())


@contextlib.contextmanager
def joined(pod: Leased, name: str) -> Iterator[tuple[Control, Fabric]]:
    """Attach a host to that member alone, over the fabric that reads its memory."""
    found = pod.member(name)
    link = Endpoint(
        found.endpoint,
        TENANT,
        "shm",
        "alone",
        runtime_dir=pod.folder / name,
        timeout_s=2.0,
        incarnation=found.incarnation,
        epoch=pod.etcd.map().epoch,
    )
    with link.control() as control:
        fabric = open_fabric(control, "shm")
        try:
            yield control, fabric
        finally:
            fabric.close()


@pytest.mark.slow
def test_killed_and_back(pod: Leased) -> None:
    """The other members remove a killed daemon when its lease ends. It returns as a new incarnation
    with its blocks, and no block is computed again."""
    first = driven(pod)
    assert first.blocks_corrupt == 0 and first.blocks_verified == first.demands
    epoch = pod.etcd.map().epoch
    pod.send("dpu1", signal.SIGKILL)
    pod.until(lambda: pod.member("dpu1").state == "gone", "it stays in the map")
    assert pod.etcd.map().epoch > epoch
    pod.start("dpu1")
    back = pod.member("dpu1")
    assert (back.state, back.incarnation) == ("up", 2)
    again = driven(pod)
    assert again.blocks_corrupt == 0 and again.blocks_recomputed == 0
    assert all(one.state == "served" and one.demands > 0 for one in again.members.values())
    pod.send("dpu1", signal.SIGTERM)
    assert pod.tiers["dpu1"].process.returncode == 0


def test_stopped_past_its_lease(pod: Leased) -> None:
    """A host stops reading the mapped memory of a daemon that was stopped past its lease, without
    being notified. The daemon rejoins and refuses logins to its old incarnation."""
    with joined(pod, "dpu0") as (control, fabric):
        session = control.session_open(select_blocks=BLOCKS)
        names = [bytes([1 + n]) * 16 for n in range(BLOCKS)]
        appended = control.append(session, names)
        keys = np.ascontiguousarray(block_keys(appended.keys, 2)[0])
        ordinals = np.arange(BLOCKS, dtype=np.uint32)
        rows = np.full((BLOCKS, fabric.payload_size_bytes), 7, np.uint8)
        target = np.zeros_like(rows)
        fabric.register(target)
        assert not fabric.put(PutRequest(session, 0, ordinals, rows)).any()
        for step in range(2):
            assert not fabric.fetch(
                FetchRequest(session, step, 0, ordinals, keys, target)
            ).rcs.any()
        assert fabric.stats()["hits"] >= BLOCKS and (target == rows).all()
        pod.send("dpu0", signal.SIGSTOP)
        pod.until(lambda: pod.member("dpu0").state == "gone", "it stays in the map")
        fetch = fabric.fetch_begin(
            FetchRequest(session, 2, 0, ordinals, keys, target, timeout_ns=10**9)
        )
        time.sleep(0.1)
        pod.send("dpu0", signal.SIGCONT)
        with pytest.raises(RunFailed):
            fabric.fetch_end(fetch)
        with pytest.raises(OffstageError):
            control.append(session, names)
    pod.until(lambda: pod.member("dpu0").incarnation == 2, "it does not come back")
    assert '"pod_fenced"' in pod.log("dpu0")
    with pytest.raises(RunFailed, match="incarnation"):
        Endpoint(
            pod.member("dpu0").endpoint,
            TENANT,
            runtime_dir=pod.folder / "dpu0",
            incarnation=1,
            epoch=pod.etcd.map().epoch,
        ).control()
    pod.until(lambda: driven(pod).blocks_recomputed == 0, "it serves nobody")


@pytest.mark.slow
def test_a_deletion_reaches_a_member_that_was_away(
    pod: Leased, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is acknowledged without the dead member, which deletes everything before it serves a
    host."""
    driven(pod)
    pod.send("dpu2", signal.SIGKILL)
    pod.until(lambda: pod.member("dpu2").state == "gone", "it stays in the map")
    assert run(["pod", "purge", pod.place, TENANT, "--format", "json"]) == 0
    assert set(checked("pod purge", capsys.readouterr().out)["members"]) == {"dpu0", "dpu1"}
    pod.start("dpu2")
    with joined(pod, "dpu2") as (control, _):
        assert control.purge(TENANT)["chunks"] == 0
    again = driven(pod)
    assert again.blocks_corrupt == 0 and again.tokens == 2 * STEPS


def serves(pod: Leased, name: str) -> bool:
    """Whether the daemon says that it serves."""
    at = pod.member(name).endpoint
    link = Endpoint(at, "operator", runtime_dir=pod.folder / name, timeout_s=20.0)
    with link.control(heartbeat=False) as control:
        return bool(control.status()["pod"]["serves"])


@pytest.fixture
def ways(tmp_path: Path, etcd: Etcd) -> Iterator[tuple[Leased, dict[str, Cut]]]:
    """A pod in which each daemon has its own path to etcd."""
    cuts = {name: Cut(etcd.address) for name in NAMES}
    with leased(tmp_path, [etcd.address]) as pod:
        for name, cut in cuts.items():
            pod.start(name, f"etcd:{cut.address}")
        yield pod, cuts
    for cut in cuts.values():
        cut.close()


@pytest.mark.slow
def test_cut_from_etcd_alone(ways: tuple[Leased, dict[str, Cut]]) -> None:
    """A daemon that alone is cut off from etcd gets no promise, stops serving within half its lease
    and leaves the map. It joins as a new incarnation when it reaches etcd again."""
    pod, cuts = ways
    driven(pod)
    begun = pod.member("dpu1")
    cuts["dpu1"].off()
    took_s = pod.until(lambda: not serves(pod, "dpu1"), "it serves on")
    assert pod.etcd.map().find("dpu1") == begun, "it served until it was taken out"
    with pytest.raises(RunFailed, match="not confirmed"):
        Endpoint(
            begun.endpoint,
            TENANT,
            runtime_dir=pod.folder / "dpu1",
            incarnation=begun.incarnation,
            epoch=pod.etcd.map().epoch,
        ).control()
    pod.until(lambda: pod.member("dpu1").state == "gone", "it stays in the map")
    assert took_s < PATIENCE_S
    without = driven(pod)
    assert without.blocks_corrupt == 0 and "dpu1" not in without.members
    cuts["dpu1"].on()
    pod.until(lambda: pod.member("dpu1").incarnation == 2, "it does not come back")
    pod.until(lambda: serves(pod, "dpu1"), "it serves nobody")
    assert driven(pod).blocks_corrupt == 0


@pytest.mark.slow
def test_etcd_is_gone_for_all(pod: Leased, etcd: Etcd) -> None:
    """If etcd is down for all, members serve on by each other's promises, three leases long. The
    map cannot change; when etcd returns, it lists the same incarnations."""
    driven(pod)
    pod.settle()
    before = pod.etcd.map()
    etcd.kill()
    until_s = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < until_s:
        assert all(serves(pod, name) for name in NAMES)
        time.sleep(0.05)
    assert pod.etcd.map() == before and not pod.etcd.fresh
    frozen = driven(pod)
    assert frozen.blocks_corrupt == 0 and frozen.blocks_recomputed == 0
    assert run(["pod", "purge", pod.place, TENANT]) == 3
    etcd.start()
    pod.until(lambda: pod.etcd.map() == before and pod.etcd.fresh, "the map is another")
    time.sleep(2 * LEASE_S)
    assert [pod.member(name).incarnation for name in NAMES] == [1, 1, 1]
    assert driven(pod).blocks_recomputed == 0


@pytest.mark.slow
def test_with_a_member_dead_etcd_is_missed(pod: Leased, etcd: Etcd) -> None:
    """All members stop serving if etcd is down and one member is dead, which cannot promise. They
    serve again when etcd is back."""
    pod.settle()
    etcd.kill()
    pod.send("dpu2", signal.SIGKILL)
    pod.until(lambda: not serves(pod, "dpu0") and not serves(pod, "dpu1"), "they serve on")
    etcd.start()
    pod.until(lambda: serves(pod, "dpu0") and serves(pod, "dpu1"), "they serve nobody")
    assert pod.member("dpu0").state == pod.member("dpu1").state == "up"


@pytest.mark.slow
def test_an_operator_removes_a_member_that_no_other_may(
    pod: Leased, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator can remove a dead member that the others must not, as each joined after its last
    report. Its lease prevents that while it holds; hosts work without it, and it may return."""
    driven(pod)
    remove = ["pod", "remove", pod.place, "dpu1"]
    assert run(remove) == 2 and "the lease of dpu1 holds" in capsys.readouterr().err
    for name in NAMES:
        pod.send(name, signal.SIGKILL)
    pod.start("dpu0")
    pod.start("dpu2")
    pod.until(lambda: "dpu1" not in {one.name for one in pod.etcd.alive()}, "its lease holds")
    time.sleep(2 * LEASE_S)
    assert pod.member("dpu1").state == "up", "who did not know it took it out"
    assert run(remove) == 0 and pod.member("dpu1").state == "gone"
    without = driven(pod)
    assert without.blocks_corrupt == 0 and set(without.members) == {"dpu0", "dpu2"}
    assert run(remove) == 2 and "no member is called 'dpu1'" in capsys.readouterr().err
    pod.start("dpu1")
    assert pod.member("dpu1").incarnation == 2
    assert driven(pod).blocks_corrupt == 0


def test_two_daemons_of_one_name(pod: Leased, tmp_path: Path) -> None:
    """A second daemon of the same name exits and says which process has it. The first serves on as
    the same incarnation; if it is killed, it gets its name back at once."""
    second = tmp_path / "second"
    second.mkdir()
    with contextlib.closing(Leased(second, [pod.place.removeprefix("etcd:")])) as other:
        with pytest.raises(OffstageError):
            other.start("dpu0")
        said = other.log("dpu0")
    first = pod.tiers["dpu0"].process.pid
    assert "'dpu0' is another daemon's" in said and f"process {first} on" in said
    assert pod.member("dpu0").incarnation == 1 and serves(pod, "dpu0")
    pod.send("dpu0", signal.SIGKILL)
    pod.start("dpu0")
    assert pod.member("dpu0").incarnation == 2
