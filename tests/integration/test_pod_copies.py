"""Do copies take load off a hot member, does a joining member receive only requested shards, and
does a drain move the shards in use? Over real daemons, with every block checked."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from msgspec.structs import replace
from pod_daemons import TENANT, UNHURRIED_NS, Pod, pod_of

from offstage.dpu.pod.heat import CopyRule
from offstage.dpu.pod.map import PodMap, added, moved
from offstage.dpu.pod.membership import open_membership
from offstage.host.endpoint import Endpoint
from offstage.host.model.models import geometry
from offstage.testbeds.cli import run
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.pod_figures import PodResult
from offstage.testbeds.live.pod_run import run as drive
from offstage.testbeds.progress import Silent

LAYERS, BLOCK_BYTES = 2, 4096


class Does(Silent):
    """Calls a function after a quarter of the tokens was decoded."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what, self._left = what, -1

    def start(self, phase: str, total: int, unit: str) -> None:
        """Decoding begins."""
        self._left = total // 4 if phase.startswith("decode") else -1

    def advance(self, count: int) -> None:
        """Count decoded tokens."""
        if 0 <= self._left < count:
            self._what()
        self._left -= count


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    with pod_of(4, tmp_path_factory.mktemp("pod")) as one:
        yield one


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Pod]:
    """A pod of its own: in a shared one that earlier runs have heated, counts are unpredictable."""
    with pod_of(4, tmp_path) as one:
        yield one


def change(pod: Pod, transition: Callable[[PodMap], PodMap]) -> PodMap:
    return open_membership(pod.place).change(transition)


def driven(pod: Pod, progress: Silent | None = None, **more: Any) -> PodResult:
    """Run a host by the map; every fetched block was right and none was computed again. Hosts
    report to homes twice a second, so tokens take long enough that even a fast machine's run sees
    several reports."""
    settings: dict[str, Any] = {"context_tokens": 4096, "time_per_token_s": 0.01, **more}
    options = DriveOptions(geometry=geometry("tiny"), **settings)
    membership = open_membership(pod.place)
    found = drive(
        options,
        membership.map(),
        Endpoint("", TENANT, "shm", "pod", timeout_s=2.0),
        pod.folder,
        UNHURRIED_NS,
        progress or Silent(),
        membership,
    )
    assert found.blocks_corrupt == found.blocks_recomputed == 0
    assert found.blocks_verified == found.demands > 0 and found.lost_rate == 0
    assert sum(one.demands for one in found.members.values()) == found.demands
    return found


def test_a_hot_prefix_gets_copies_and_load_evens_out(
    pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without copies one member serves nearly all of five sessions that read one shard. Copies cut
    the coefficient of variation, and members' ledgers still agree with the host."""
    cv = []
    for most, steps in ((0, 20), (3, 80)):
        rule = CopyRule(copies_max=most, hot_blocks_per_s=20)
        change(pod, partial(replace, shard_tokens=4096, first_shard_tokens=0, copies=rule))
        found = driven(
            pod, sessions=5, shared_prefix_tokens=4096, steps=steps, time_per_token_s=0.05
        )
        assert bool(found.copies_made) == bool(most) and found.copies_held == found.copies_made
        each = LAYERS * 256 * BLOCK_BYTES  # one copy may be in flight when the run ends
        assert 0 <= found.bytes_copied - found.copies_made * each < each
        cv.append(found.load_cv)
    assert cv[0] > 1.2 and cv[1] < 0.7 * cv[0]
    words = ["pod", "status", pod.place, "--runtime-dir", str(pod.folder), "--format", "json"]
    assert run(words) == 0
    shown = checked("pod status", capsys.readouterr().out)["pod"]
    assert shown["copies"] == found.copies_held > 0 and shown["copied_bytes"] == found.bytes_copied
    assert shown["load_per_s"] > 0 and 0 < shown["load_cv"] < cv[0]
    assert 0 < shown["hit_rate"] <= 1 and shown["demands"] > found.demands


def test_joining_and_drained_members_exchange_only_their_shards(pod: Pod) -> None:
    """A member joins and one is drained during a run: only shards whose home changed move, about as
    many as any placement must, and the next run finds all of them at home."""
    before = change(pod, lambda one: one)
    last, none = before.member[3], CopyRule(copies_max=0)
    change(pod, partial(replace, member=before.member[:3], shard_tokens=512, copies=none))
    change(pod, lambda one: replace(one, former=()))
    joining = Does(lambda: change(pod, lambda one: added(one, last)))
    joined = driven(pod, joining, sessions=2, steps=240)
    assert joined.shards_filled > 0 and joined.members["dpu3"].demands > 0
    assert joined.least_share == pytest.approx(0.25)
    assert 0 < joined.filled_share <= joined.least_share + 0.1
    assert sum(one.moved_blocks for one in joined.members.values()) * BLOCK_BYTES == (
        joined.bytes_filled
    )
    draining = Does(lambda: change(pod, lambda one: moved(one, "dpu2", "draining")))
    drained = driven(pod, draining, sessions=2, steps=240)
    assert drained.shards_filled > 0 and drained.members["dpu2"].moved_blocks > 0
    after = driven(pod, sessions=2, steps=4)
    assert after.members["dpu2"].demands == 0 and after.bytes_filled == 0


def test_a_shard_is_read_where_it_was_until_it_is_home(pod: Pod) -> None:
    """After a join, shards written before it are read at their former home, then moved. Without the
    former homes in the map they would be computed again."""
    change(pod, lambda one: moved(moved(one, "dpu2", "up"), "dpu1", "draining"))
    change(pod, lambda one: replace(one, former=()))
    driven(pod, sessions=2, steps=4, seed=7)
    change(pod, lambda one: moved(one, "dpu1", "up"))
    found = driven(pod, sessions=2, steps=40, seed=7)
    assert found.stale_lookups > 0 and found.shards_filled > 0
    assert found.members["dpu1"].demands > 0


def test_a_drain_pushes_what_was_hot_and_nothing_else(
    cold: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right after a run, with its sessions closed, the command alone moves one member's hot shards
    to their new homes; the next run reads none of them at the drained one."""
    pod, rule = cold, CopyRule(copies_max=0, hot_blocks_per_s=1)
    change(pod, partial(replace, shard_tokens=512, copies=rule))
    before = driven(pod, sessions=2, steps=40, seed=7, time_per_token_s=0.05)
    name = max(before.members, key=lambda one: before.members[one].demands)
    words = [pod.place, name, "--tenant", TENANT, "--runtime-dir", str(pod.folder)]
    assert run(["pod", "drain", *words, "--format", "json"]) == 0
    pushed = checked("pod drain", capsys.readouterr().out)["pushed"][TENANT]
    assert pushed["shards"] >= pushed["whole"] > 0 == pushed["unnamed"]
    assert pushed["bytes"] > 0
    again = driven(pod, sessions=2, steps=8, seed=7)
    assert again.members[name].demands < before.members[name].demands / 5
    assert run(["pod", "drain", pod.place, name, "--undo"]) == 0
    assert run(["pod", "drain", pod.place, name, "--tenant", "nobody", "--format", "json"]) == 0
    assert "nothing" in capsys.readouterr().out
