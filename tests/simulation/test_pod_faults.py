"""Are the hosts' blocks right, and does every request end, under every fault of a pod?

Runs the product's host of a pod, its sessions, fabric, suspicion and follower, over daemons, links
and an etcd in virtual time. One seed determines the order of all events.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from pod_sim import FAULTS, Broken, run_seed

from offstage.host.pod import pod_sessions
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.joined import Joined

SEEDS = 24


def run_seeds(seeds: range) -> Counter[str]:
    return sum((run_seed(seed) for seed in seeds), Counter[str]())


def test_whatever_fails() -> None:
    """No invariant fails, and the seeds do reach faults, misses and their reasons."""
    found = run_seeds(range(SEEDS))
    assert all(found[fault] for fault in FAULTS)
    assert found["hits"] > 1000 and found["elsewhere"] > 0 and found["EHOSTDOWN"] > 0


@pytest.mark.slow
def test_whatever_fails_longer() -> None:
    assert run_seeds(range(SEEDS, 500))["hits"] > 0


def _wrong_row(fabric: PodFabric) -> None:
    """Report fetched blocks in the wrong rows."""
    right = fabric.fetch_end

    def end(fetch: Any) -> Any:
        result = right(fetch)
        target = fetch.request.target
        target[: len(fetch.rcs)] = np.roll(target[: len(fetch.rcs)], 1, axis=0)
        return result

    def fetch(*args: Any, **words: Any) -> Any:
        return end(fabric.fetch_begin(*args, **words))

    fabric.fetch = fetch  # type: ignore[method-assign]


def test_a_host_that_mixes_up_its_blocks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., None] = PodFabric.__init__

    def init(self: PodFabric, *args: Any) -> None:
        right(self, *args)
        _wrong_row(self)

    monkeypatch.setattr(PodFabric, "__init__", init)
    with pytest.raises(Broken, match="wrong bytes"):
        run_seed(1)


def test_a_placement_that_changes_by_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every lookup computes another home, stored blocks are missed even after all faults."""
    turn = [0]

    def anywhere(members: Sequence[Joined], shard: Any) -> Joined:
        turn[0] += 1
        return members[turn[0] % len(members)]

    monkeypatch.setattr(pod_sessions, "_best", anywhere)
    with pytest.raises(Broken, match="where nothing fails"):
        run_seeds(range(4))


def test_a_miss_that_is_invented_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that has all blocks reports that it has none."""
    right = pod_sessions.PodSessions._told

    def told(self: Any, shard: Any, batch: Any) -> Any:
        found = right(self, shard, batch)
        found.stored_layers[:] = [0] * len(found.stored_layers)
        return found

    monkeypatch.setattr(pod_sessions.PodSessions, "_told", told)
    with pytest.raises(Broken, match="did not say so"):
        run_seed(1)
