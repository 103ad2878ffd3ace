"""What does a cut cable cost? Daemons in network namespaces, under leases of a real etcd.

A cut cable drops packets without ending connections, so only timeouts reveal it. Every fetched
block is compared.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd import Etcd
from pod_daemons import TENANT, UNHURRIED_NS
from pod_leases import LEASE_S, Leased, leased
from pod_net import Cables, cables

from offstage.bindings.errors import OffstageError
from offstage.host.endpoint import Endpoint
from offstage.host.model.models import geometry
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.pod_figures import PodResult
from offstage.testbeds.live.pod_run import run as drive
from offstage.testbeds.progress import Silent

pytestmark = pytest.mark.slow

NAMES = ("dpu0", "dpu1", "dpu2")
STEPS = 40
SESSIONS = 3


@pytest.fixture
def cabled(tmp_path: Path) -> Iterator[tuple[Leased, Cables, Etcd]]:
    with cables(*NAMES) as net:
        etcd = Etcd(tmp_path, net.etcd_host)
        try:
            with leased(tmp_path, [etcd.address]) as pod:
                for name in NAMES:
                    pod.start(
                        name, endpoint=f"tcp://{net.address[name]}:7411", within=net.within[name]
                    )
                pod.settle()
                yield pod, net, etcd
        finally:
            etcd.kill()


def driven(pod: Leased) -> PodResult:
    options = DriveOptions(
        geometry=geometry("tiny"),
        sessions=SESSIONS,
        context_tokens=4096,
        steps=STEPS,
        time_per_token_s=0.001,
    )
    link = Endpoint("", TENANT, "zmq", "pod", timeout_s=5.0)
    found = drive(options, pod.etcd.map(), link, pod.folder, UNHURRIED_NS, Silent())
    assert found.blocks_corrupt == 0 and found.tokens == SESSIONS * STEPS
    return found


def serves(pod: Leased, net: Cables, name: str) -> bool:
    """Whether the daemon says that it serves; asked in its own namespace, so without a cable."""
    said = pod.asked(name, net.within[name])
    return bool(said["pod"]["serves"])


def test_the_one_to_etcd(cabled: tuple[Leased, Cables, Etcd]) -> None:
    """A daemon cut off from etcd alone stops serving before the map removes it, although hosts
    still reach it. After the repair it joins as a new incarnation and keeps its blocks."""
    pod, net, _ = cabled
    driven(pod)
    begun = pod.member("dpu1")
    net.cut("dpu1", "etcd")
    pod.until(lambda: not serves(pod, net, "dpu1"), "it serves on")
    assert pod.member("dpu1") == begun, "it served until it was taken out"
    pod.until(lambda: pod.member("dpu1").state == "gone", "it stays in the map")
    assert "dpu1" not in driven(pod).members
    net.fix("dpu1", "etcd")
    pod.until(lambda: pod.member("dpu1").incarnation == begun.incarnation + 1, "it stays away")
    pod.until(lambda: serves(pod, net, "dpu1"), "it serves nobody")
    assert driven(pod).blocks_recomputed == 0


def test_the_one_to_hosts_and_others(cabled: tuple[Leased, Cables, Etcd]) -> None:
    """Hosts work without a daemon that only etcd reaches. It keeps its lease and stays in the map;
    after the repair it is the same incarnation and has all its blocks."""
    pod, net, _ = cabled
    driven(pod)
    begun = pod.member("dpu2")
    net.cut("dpu2", "pod")
    with pytest.raises(OffstageError):
        Endpoint(begun.endpoint, TENANT, runtime_dir=pod.folder / "dpu2", timeout_s=1.0).control()
    without = driven(pod)
    assert "dpu2" not in without.members and without.blocks_recomputed == 0
    time.sleep(2 * LEASE_S)
    assert pod.member("dpu2") == begun and serves(pod, net, "dpu2")
    net.fix("dpu2", "pod")
    again = driven(pod)
    assert again.members["dpu2"].demands > 0 and again.blocks_recomputed == 0


def test_between_daemons_with_and_without_etcd(cabled: tuple[Leased, Cables, Etcd]) -> None:
    """Daemons cut off from each other serve on while etcd answers. Without etcd they need each
    other's promises: they stop serving until the links are back."""
    pod, net, etcd = cabled
    driven(pod)
    net.part(apart=True)
    time.sleep(2 * LEASE_S)
    assert all(serves(pod, net, name) for name in NAMES)
    assert driven(pod).blocks_recomputed == 0
    etcd.pause()
    pod.until(lambda: not any(serves(pod, net, name) for name in NAMES), "they serve on")
    net.part(apart=False)
    etcd.resume()
    pod.until(lambda: all(serves(pod, net, name) for name in NAMES), "they serve nobody")
    assert driven(pod).blocks_recomputed == 0
