"""Faults of the pod in `pod_sim_lease`, drawn from one seed: they hit machines, links, etcd and
its copies, with deletions in between. When all are healed, every daemon must serve."""

from collections import Counter
from functools import partial
from pathlib import Path

from pod_sim_etcd import LEASE_NS, LeaseClient
from pod_sim_host import Broken
from pod_sim_lease import TENANTS, Pod, SimDaemon
from pod_world import MS, Machine, S

from offstage.bindings.errors import OffstageError
from offstage.dpu.pod.history import accepted, comes_of, told
from offstage.dpu.pod.map import PodMap

__all__ = ["DRIFT", "FAULTS", "Broken", "run_seed"]

DRIFT = 0.05
"""How far each clock drifts from etcd's; a lease leaves an eighth for two that drift apart."""
FAULTS = ("crash", "stop", "cut etcd", "cut peers", "cut host", "no quorum", "loss", "slow")
CALM_NS = 6 * LEASE_NS


def run_seed(
    seed: int, folder: Path, faults: int = 8, drift: float = DRIFT, *, restores: bool = False
) -> Counter[str]:
    """Run one world to its end; returns the counts. `restores`: etcd is also restored from older
    copies. Broken: an invariant does not hold."""
    pod = Pod(seed, folder, drift)
    try:
        pod.world.spawn(Machine("chaos"), lambda: _chaos(pod, faults, restores))
        if not pod.world.run(600 * S, lambda: pod.over):
            raise Broken("it does not end")
        return pod.counts
    except Broken as broken:
        raise Broken(f"seed {seed}, at {pod.world.now / S:.3f} s: {broken}") from broken
    finally:
        pod.over = True
        pod.world.close()


def _chaos(pod: Pod, count: int, restores: bool) -> None:
    """Inject faults, some at once, and deletions; once all heal, every daemon must serve."""
    world, rng = pod.world, pod.rng
    for _ in range(count):
        world.sleep(rng.randrange(100, 5000) * MS)
        fault = rng.choice((*FAULTS, "purge", "purge", *(["restore"] * 3 if restores else [])))
        pod.counts[fault] += 1
        lasts = rng.randrange(100, 3 * LEASE_NS // MS) * MS
        world.spawn(Machine(fault), partial(_fault, pod, fault, lasts))
    world.sleep(3 * LEASE_NS)
    while pod.put_back:
        world.sleep(S)
    world.sleep(CALM_NS)
    silent = [
        name
        for name, one in pod.daemons.items()
        if not one.member.keeper.serves() or one.clock() > one.until_ns
    ]
    if silent:
        raise Broken(f"{', '.join(silent)} serves nobody where nothing fails")
    pod.over = True


def _fault(pod: Pod, fault: str, lasts: int) -> None:
    world, rng = pod.world, pod.rng
    daemon = pod.daemons[rng.choice(sorted(pod.daemons))]
    match fault:
        case "restore":
            _put_back(pod, lasts)
        case "purge":
            pod.purge(rng.choice(TENANTS))
        case "crash":
            if not daemon.machine.dead:
                daemon.kill()
                world.sleep(lasts)
                daemon.start()
        case "stop":
            machine = daemon.machine
            if not machine.stopped and not machine.dead:
                machine.stopped = True
                world.sleep(lasts)
                if machine is daemon.machine and not machine.dead:
                    world.go_on(machine)
        case "cut etcd":
            pod.etcd.cut.add(daemon.name)
            world.sleep(lasts)
            pod.etcd.cut.discard(daemon.name)
        case "cut peers" | "cut host":
            others = pod.daemons if fault == "cut peers" else [one.name for one in pod.hosts]
            pairs = {frozenset((daemon.name, one)) for one in others if one != daemon.name}
            pod.cut |= pairs
            world.sleep(lasts)
            pod.cut -= pairs
        case "no quorum":
            pod.etcd.quorum = False
            world.sleep(lasts)
            pod.etcd.again()
        case "loss":
            pod.loss = pod.etcd.loss = 0.2
            world.sleep(lasts)
            pod.loss = pod.etcd.loss = 0.0
        case "slow":
            daemon.slow = 20
            world.sleep(lasts)
            daemon.slow = 1


def _put_back(pod: Pod, lasts: int) -> None:
    """After `lasts`, restore etcd from an older copy, with a deletion in between. An operator
    accepts it once each member has reported doubt or has seen nothing that the map lacks."""
    world, etcd = pod.world, pod.etcd
    copy = etcd.copy()
    world.spawn(Machine("purge"), partial(pod.purge, pod.rng.choice(TENANTS)))
    world.sleep(lasts)
    if pod.put_back:
        return
    etcd.put_back(copy)
    pod.put_back = pod.unsure = True
    said_at = 0
    while not pod.over:
        said_at = said_at or (world.now if etcd.pod.doubt else 0)
        pod.unsure = pod.unsure and not (said_at and world.now - said_at > LEASE_NS)
        if all(_has_said(one, etcd.pod) for one in pod.daemons.values()):
            break
        world.sleep(50 * MS)
    client = LeaseClient(etcd, Machine("operator"))
    while told(etcd.pod):
        try:
            client.change(accepted)
            pod.counts["accepted"] += 1
        except OffstageError:
            world.sleep(100 * MS)
    pod.put_back = pod.unsure = False


def _has_said(one: SimDaemon, found: PodMap) -> bool:
    return not one.machine.dead and (
        one.name in found.doubt or comes_of(found, one.member.keeper.seen)
    )
