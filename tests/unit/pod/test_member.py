"""Does a member of a pod delete what it must, and admit only the hosts it may?"""

import threading
from pathlib import Path

import pytest
from power_cut import Medium

from offstage.dpu import protocol as p
from offstage.dpu.config.options import Pod
from offstage.dpu.config.values import Config
from offstage.dpu.control.pod_member import PodMember
from offstage.dpu.log import Log
from offstage.dpu.pod.history import accepted
from offstage.dpu.pod.map import HISTORY_MAX, deleted
from offstage.dpu.pod.membership.static import StaticMembership
from offstage.dpu.tenants.hosts import Host, Hosts, Refused, TenantState

TENANT = TenantState("lab", 0, b"secret", 8)
TURNS = 50


PURGED = dict.fromkeys(("chunks", "blocks", "bytes", "more", "marking", "writing", "named"), 0)


class Device:
    """Counts purges; the tenant has nothing left after the first, or after those in `left`."""

    def __init__(self) -> None:
        self.purges = 0
        self.left: list[str] = []
        """The answers of the next purges: what is left after each."""

    def serve_until(self, until_ns: int) -> None: ...

    def detach(self, port: int) -> None: ...

    def tenant_purge(self, tenant: int, keep_blocks: int, again: bool = False) -> dict[str, int]:
        self.purges += 1
        return PURGED | ({self.left.pop(0): 1} if self.left else {})


class World:
    """One member of a map in a file, without its keeper's thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "pod.toml"
        self.map = StaticMembership(self.place)
        self.device = Device()
        self.left: list[Host] = []

    def start(self, name: str = "a", serves: bool = True) -> PodMember:
        """Start a member as a daemon does."""
        config = Config(pod=Pod(map=str(self.place), name=name))
        (self.folder / name).mkdir(exist_ok=True)
        hosts = self.hosts = Hosts(self.device, [TENANT], b"", 4, Log("error"))
        member = PodMember(
            config,
            f"ipc:///{name}",
            self.folder / name,
            self.device,  # type: ignore[arg-type]
            hosts,
            lambda host, why: self.left.append(host),
            lambda: None,
            Log("error"),
        )
        member.keeper.beat()
        if serves:
            self.turn(member)
        return member

    def turn(self, member: PodMember) -> None:
        for _ in range(TURNS):
            if member.keeper.phase == "serving" and not member.turn():
                return
            member.turn()
        raise AssertionError(f"it is {member.keeper.phase} for ever")


@pytest.fixture
def world(tmp_path: Path) -> World:
    one = World(tmp_path)
    one.map.change(lambda pod: pod)
    return one


def test_a_new_map_in_the_place_of_the_old_is_another_pod(world: World) -> None:
    """Its epochs start over, and deletions under a low epoch are carried out here too."""
    for _ in range(5):
        world.map.change(lambda pod: deleted(pod, "lab"))
    world.start()
    before = world.device.purges
    assert before > 0
    world.place.unlink()
    world.map.change(lambda pod: deleted(pod, "lab"))
    member = world.start()
    assert member.keeper.standing.epoch == member.keeper.newest.epoch < 6
    assert world.device.purges > before


def test_a_carried_out_deletion_is_durable_before_it_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion is in the file next to the store before the member reports it as carried out. With
    an older file, a store that comes back could serve under a map that was rolled back."""
    medium, told = Medium(monkeypatch), []
    member = world.start()
    path = world.folder / "a" / "memory.pod"
    carried_out = member.keeper.carried_out

    def tell(epoch: int) -> None:
        told.append((epoch, medium.left(path)))
        carried_out(epoch)

    monkeypatch.setattr(member.keeper, "carried_out", tell)
    pod = world.map.change(lambda pod: deleted(pod, "lab"))
    member.keeper.beat()
    world.turn(member)
    ((epoch, left),) = told
    assert epoch == pod.epoch and left == path.read_bytes()
    assert pod.purges["lab"][-1].encode() in left


def test_a_map_that_went_back_is_in_doubt_until_it_is_accepted(world: World) -> None:
    """This holds even if the map's counter has since passed the store's: epoch 6 of the restored
    map is not the one carried out. No host is served; once accepted, the map's deletions are
    carried out here too."""
    saved = world.place.read_bytes()
    for _ in range(3):
        world.map.change(lambda pod: pod)
    world.start()
    world.place.write_bytes(saved)
    for _ in range(12):
        world.map.change(lambda pod: deleted(pod, "lab"))
    before = world.device.purges
    member = world.start(serves=False)
    assert member.keeper.phase == "away" and not member.keeper.serves()
    assert "does not descend" in member.status().doubt
    with pytest.raises(Refused, match="in doubt"):
        member.admit(TENANT, 0, member.keeper.newest.epoch)
    assert world.map.map().doubt == {"a": 5}
    world.map.change(accepted)
    member.keeper.beat()
    world.turn(member)
    assert world.device.purges > before and not world.map.map().doubt
    assert member.keeper.standing.epoch == world.map.map().epoch


def test_a_deletion_that_a_map_lost_is_carried_out_everywhere(world: World) -> None:
    """The member that has carried a deletion out restores it to the map. Another, whose store saw
    nothing after the backup, serves no host meanwhile, and deletes its blocks before it serves."""
    world.map.change(lambda pod: pod)
    other = world.start("b")
    saved = world.place.read_bytes()
    world.map.change(lambda pod: deleted(pod, "lab"))
    member = world.start()
    lost = world.map.map()
    world.place.write_bytes(saved)
    member.keeper.beat()
    assert not member.keeper.serves()
    found = world.map.map()
    assert found.doubt == {"a": lost.epoch}
    assert found.purges == lost.purges
    other.keeper.beat()
    assert not other.keeper.serves()
    member.turn()
    other.turn()
    before = world.device.purges
    world.map.change(accepted)
    assert world.map.map().epoch > lost.epoch
    for one in (member, other):
        one.keeper.beat()
        world.turn(one)
    assert world.device.purges == before + 1, "who had carried it out has nothing to drop"


def test_a_running_member_sees_that_the_map_went_back(world: World) -> None:
    saved = world.place.read_bytes()
    world.map.change(lambda pod: pod)
    member = world.start()
    world.place.write_bytes(saved)
    for _ in range(9):  # far past the epochs it saw
        world.map.change(lambda pod: deleted(pod, "lab"))
    member.keeper.beat()
    assert not member.keeper.serves()
    member.turn()
    member.keeper.beat()
    assert not member.keeper.serves() and member.keeper.doubt
    world.map.change(accepted)
    before = world.device.purges
    member.keeper.beat()
    world.turn(member)
    assert member.keeper.standing.epoch == member.keeper.newest.epoch
    assert world.device.purges > before


def test_a_member_away_beyond_the_maps_history_drops_everything(world: World) -> None:
    """It cannot know what it missed; no other member is affected."""
    world.start()
    before = world.device.purges
    for _ in range(HISTORY_MAX):
        world.map.change(lambda pod: pod)
    member = world.start()
    assert world.device.purges > before and not member.keeper.doubt


def test_what_was_carried_out_is_not_done_again(world: World) -> None:
    world.map.change(lambda pod: deleted(pod, "lab"))
    world.start()
    before = world.device.purges
    world.start()
    assert world.device.purges == before > 0


@pytest.mark.parametrize("what", ["chunks", "more", "marking", "writing", "named"])
def test_a_deletion_is_carried_out_when_nothing_is_left(world: World, what: str) -> None:
    """This includes blocks that a write in flight would restore, and blocks still in use."""
    member = world.start()
    nonce = world.hosts.challenge(
        p.Hello(versions=[6], name="host", tenant="lab", nonce=b"a" * 16)
    ).nonce
    host = world.hosts.login(nonce, p.prove(TENANT.secret, nonce, "lab", "host"))
    world.device.left = [what] * 3
    newer = world.map.change(lambda pod: deleted(pod, "lab"))
    member.keeper.beat()
    for purges in range(1, 4):
        member.turn()
        assert member.deleting and world.device.purges == purges
        assert member.keeper.standing.epoch < newer.epoch
    world.turn(member)
    assert world.device.purges == 4 and member.keeper.standing.epoch == newer.epoch
    assert world.left == [host] * (1 + (3 if what == "named" else 0))


def test_a_host_with_a_newer_map_waits_until_it_is_carried_out(world: World) -> None:
    """Otherwise the host would read deleted blocks, and put them where they are deleted already."""
    member = world.start()
    newer = world.map.change(lambda pod: deleted(pod, "lab"))
    for turned in (lambda: None, member.keeper.beat):
        turned()
        with pytest.raises(Refused) as refused:
            member.admit(TENANT, 0, newer.epoch)
        assert refused.value.code == "stale"
    before = world.device.purges
    world.turn(member)
    assert world.device.purges > before
    member.admit(TENANT, 0, newer.epoch)


def test_a_host_with_a_newer_map_makes_the_member_read_it(world: World) -> None:
    """It reads at once, not at its next poll; an epoch of no map delays the loop once."""
    member = world.start()
    newer = world.map.change(lambda pod: pod)
    thread = threading.Thread(target=member.keeper._run, daemon=True)
    thread.start()
    member.admit(TENANT, 0, newer.epoch)
    with pytest.raises(Refused):
        member.admit(TENANT, 0, newer.epoch + 1)
    member.close()
    thread.join()
