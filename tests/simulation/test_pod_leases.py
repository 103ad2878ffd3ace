"""Do leases, epochs and deletions keep their guarantees under every fault, with drifting clocks?

Each daemon runs the product's keeper and member in virtual time. One seed determines the order of
all events.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pod_sim_chaos import DRIFT, FAULTS, Broken, run_seed

from offstage.dpu.control import pod_member
from offstage.dpu.pod import keeper as pod_keeper
from offstage.dpu.pod.keeper import Keeper
from offstage.dpu.pod.map import MemberIncarnation

SEEDS = 16
NOTICED = 200
"""Of this many seeds, at least one reaches what each rule guards against."""


def run_seeds(seeds: range, folder: Path, drift: float = DRIFT) -> Counter[str]:
    found = Counter[str]()
    for seed in seeds:
        (folder / f"{seed}").mkdir()
        found += run_seed(seed, folder / f"{seed}", drift=drift)
    return found


def test_whatever_fails(tmp_path: Path) -> None:
    """No invariant fails, and the seeds do reach faults, deletions and reads of memory."""
    found = run_seeds(range(SEEDS), tmp_path)
    assert all(found[fault] for fault in FAULTS)
    assert found["hits"] > 1000 and found["memory"] > 1000 and found["deletions"] > 5


@pytest.mark.slow
def test_whatever_fails_longer(tmp_path: Path) -> None:
    found = run_seeds(range(SEEDS, 160), tmp_path)
    assert found["deletions"] > 50


def test_whatever_fails_where_etcd_is_put_back(tmp_path: Path) -> None:
    """If etcd is restored from an older copy amid all other faults, no acknowledged deletion is
    undone, even by a member that was away, and all members serve once an operator accepts the
    map."""
    found = Counter[str]()
    for seed in range(SEEDS):
        (tmp_path / f"{seed}").mkdir()
        found += run_seed(seed, tmp_path / f"{seed}", restores=True)
    assert found["restore"] > 10 and found["accepted"] > 5 and found["deletions"] > 20


def _serves_its_whole_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_keeper, "serves_until", lambda standing: standing.asked + standing.ttl)


def _promises_though_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(self: Keeper, asking: MemberIncarnation) -> bool:
        self.promised[asking] = self.now()
        return True

    monkeypatch.setattr(Keeper, "promise", promise)
    monkeypatch.setattr(pod_keeper, "takes_out", lambda *_: True)


def _nothing_is_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_member, "adopts", lambda written, deleted: True)


def _old_epochs_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., Any] = pod_member.refusal

    def refusal(*words: Any, writes: bool) -> str:
        said: str = right(*words, writes=False)
        return said

    monkeypatch.setattr(pod_member, "refusal", refusal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_serves_its_whole_lease, "the map has"),
        (_promises_though_it_hears, "the map has"),
        (_nothing_is_purged, "is back"),
        (_old_epochs_are_let_in, "is back"),
    ],
)
def test_each_rule_is_missed(
    wrong: Callable[[pytest.MonkeyPatch], None],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong(monkeypatch)
    with pytest.raises(Broken, match=said):
        run_seeds(range(NOTICED), tmp_path)


@pytest.mark.slow
def test_clocks_that_drift_too_far_are_noticed(tmp_path: Path) -> None:
    """The fence allows for a drift of one eighth of a lease."""
    with pytest.raises(Broken, match="the map has"):
        run_seeds(range(NOTICED), tmp_path, 0.6)
