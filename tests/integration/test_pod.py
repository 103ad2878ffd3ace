"""Do several real daemons form one tier: are blocks placed, read right, drained and purged, even if
one is killed?"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from damaged import damage_fetches
from pod_daemons import TENANT, UNHURRIED_NS, Pod, pod_of

from offstage.bindings.ledger import Ledger
from offstage.dpu.pod.membership import open_membership
from offstage.host.endpoint import Endpoint
from offstage.host.link.control import Control
from offstage.host.model.models import geometry
from offstage.testbeds.cli import run
from offstage.testbeds.live import pod_run
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.pod_figures import PodResult
from offstage.testbeds.live.pod_run import run as drive
from offstage.testbeds.progress import Silent

STEPS = 40
DEADLINE_NS = 300_000_000


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    with pod_of(3, tmp_path_factory.mktemp("pod")) as one:
        yield one


class Sends(Silent):
    """Sends a signal to a daemon after a third of the tokens was decoded."""

    def __init__(self, pod: Pod, number: int, what: int) -> None:
        self._process, self._what, self._left = pod.tiers[number].process, what, -1

    def start(self, phase: str, total: int, unit: str) -> None:
        """Decoding begins."""
        self._left = total // 3 if phase.startswith("decode") else -1

    def advance(self, count: int) -> None:
        """Count decoded tokens."""
        if 0 <= self._left < count:
            self._process.send_signal(self._what)
        self._left -= count


def options(steps: int = STEPS) -> DriveOptions:
    return DriveOptions(
        geometry=geometry("tiny"),
        sessions=2,
        context_tokens=4096,
        steps=steps,
        time_per_token_s=0.001,
    )


def driven(
    pod: Pod, fabric: str = "shm", progress: Any = None, deadline_ns: int = DEADLINE_NS
) -> PodResult:
    link = Endpoint("", TENANT, fabric, "pod", timeout_s=1.0)
    found = open_membership(pod.place).map()
    return drive(options(), found, link, pod.folder, deadline_ns, progress or Silent())


def words_of(pod: Pod, *more: str) -> list[str]:
    return [
        "pod",
        "run",
        pod.place,
        "--runtime-dir",
        str(pod.folder),
        "--tenant",
        TENANT,
        *"--geometry tiny --sessions 2 --context-tokens 4096".split(),
        "--steps",
        str(STEPS),
        *"--time-per-token 1ms --format json".split(),
        *more,
    ]


def check(one: PodResult) -> None:
    """Check that fetched blocks are right, all tokens decoded, and attention is dense attention."""
    assert one.tokens == 2 * STEPS and one.blocks_corrupt == 0
    assert one.blocks_verified + one.blocks_recomputed == one.demands > 0
    assert one.attention_checked > 0 and one.attention_error_max < 1e-4
    assert one.hit_rate + one.late_rate + one.miss_rate + one.lost_rate == pytest.approx(1.0)


def test_one_tier_of_three(pod: Pod, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each member serves its part and agrees with the host on it. The second run finds every block
    over another fabric. The demands are those of any tier."""
    assert run(words_of(pod, "--out", str(tmp_path / "out"))) == 0
    first = checked("pod run", capsys.readouterr().out)
    assert first.pop("failed") == []
    assert json.loads((tmp_path / "out/pod.json").read_text()) == first
    second = driven(pod, "zmq")
    check(second)
    for one in (first["demands"], second.demands):
        assert one == first["blocks_verified"]
    assert [one["state"] for one in first["members"].values()] == ["served"] * 3
    assert all(one["demands"] > 0 for one in first["members"].values())
    assert sum(one["demands"] for one in first["members"].values()) == first["demands"]
    assert 0 < first["load_cv"] < 1.5 and first["shards_rehomed"] == 0


def test_what_a_drained_member_has_is_read(pod: Pod) -> None:
    """After a drain the same run computes nothing again, and the member still serves."""
    driven(pod, deadline_ns=UNHURRIED_NS)
    name = "dpu2"
    assert run(["pod", "drain", pod.place, name]) == 0
    try:
        drained = driven(pod, deadline_ns=UNHURRIED_NS)
        check(drained)
        assert drained.blocks_recomputed == 0 and drained.members[name].demands > 0
    finally:
        assert run(["pod", "drain", pod.place, name, "--undo"]) == 0


@pytest.mark.parametrize(
    ("fabric", "what"),
    [
        ("shm", signal.SIGKILL),
        pytest.param("zmq", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("shm", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("zmq", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_one_dies_under_way(fabric: str, what: int, tmp_path: Path) -> None:
    """Lost blocks are computed again and put at other members, with no wrong byte and no missing
    token. The others' ledgers still agree with the host, and the report names the lost member."""
    with pytest.raises(Dead), pod_of(3, tmp_path) as pod:
        found = driven(pod, fabric, Sends(pod, 2, what))
        check(found)
        assert found.blocks_recomputed > 0 and found.shards_rehomed > 0
        assert found.members["dpu2"].state.startswith(("lost", "suspected"))
        assert [found.members[name].state for name in ("dpu0", "dpu1")] == ["served"] * 2
        raise Dead


class Dead(Exception):
    """One daemon was killed on purpose; the others are then killed too and need not drain."""


def test_a_purge_is_acknowledged_when_all_have_carried_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both members acknowledge; then one is killed, and the purge names it as missing."""
    with pytest.raises(Dead), pod_of(2, tmp_path) as pod:
        words = [pod.place, TENANT, "--runtime-dir", str(tmp_path), "--format", "json"]
        assert run(["pod", "purge", *words]) == 0
        assert set(checked("pod purge", capsys.readouterr().out)["members"]) == {"dpu0", "dpu1"}
        pod.tiers[1].process.kill()
        pod.tiers[1].process.wait()
        assert run(["pod", "purge", *words]) == 1
        assert "dpu1: not carried out there" in capsys.readouterr().err
        assert run(["pod", "status", pod.place, "--runtime-dir", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "yes" in shown and "no daemon answers" in shown
        raise Dead


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--geometry", "demo"], "give --geometry tiny"),
        (["--fetch-deadline", "0s"], "give 1ms to 60s"),
        (["--tenant", "nobody"], "nobody"),
        (["--sessions", "12"], "shards at once"),
    ],
)
def test_what_does_not_fit_is_one_line(
    pod: Pod, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words_of(pod, *more)) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1] and "Traceback" not in error


def test_a_corrupt_block_fails_the_run(
    pod: Pod, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pod.json is there, and the exit code is 1."""
    damage_fetches(monkeypatch)
    assert run(words_of(pod, "--out", str(tmp_path / "out"))) == 1
    said = capsys.readouterr()
    assert "were not what prefill wrote" in said.err
    assert json.loads(said.out)["failed"]
    assert json.loads((tmp_path / "out/pod.json").read_text())["blocks_corrupt"] > 0


def test_a_member_whose_ledger_differs_fails_the_run(
    pod: Pod, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one more demand in each ledger than the host counted, pod.json is there and the exit
    code is 1."""
    told = Control.ledger
    looks: dict[Control, int] = {}

    def one_more(control: Control) -> Ledger:
        looks[control] = looks.get(control, -1) + 1
        ledger = told(control)
        ledger.ends = [*ledger.ends[:-1], ledger.ends[-1] + looks[control]]
        return ledger

    monkeypatch.setattr(Control, "ledger", one_more)
    assert run(words_of(pod, "--out", str(tmp_path / "out"))) == 1
    said = capsys.readouterr()
    assert "disagree on how demands ended, at least 3 of them" in said.err
    assert json.loads(said.out)["failed"]
    found = checked("file pod", (tmp_path / "out/pod.json").read_text())
    assert found["ends_differ"] == 3
    assert [one["ends_differ"] for one in found["members"].values()] == [1, 1, 1]


def test_a_member_that_did_not_keep_its_chips_pace_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of 101 requests too late at one of two members, pod.json is there and the exit code
    is 1."""
    late = iter([1, 2])

    def counted(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
        return {
            **after,
            "reads": 40,
            "writes": 20,
            "paced": 41,
            "emulation_late": 0,
            "paced_late": next(late),
        }

    monkeypatch.setattr(pod_run, "counters_since", counted)
    with pod_of(2, tmp_path, device="asic_7nm") as chips:
        words = words_of(chips, "--out", str(tmp_path / "out"), "--fetch-deadline", "10s")
        assert run(words) == 1
    assert "2.0% of all requests ended later than the modelled" in capsys.readouterr().err
    found = checked("file pod", (tmp_path / "out/pod.json").read_text())
    assert found["pace_overruns"] == pytest.approx(2 / 101) and found["blocks_corrupt"] == 0
