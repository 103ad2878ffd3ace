"""What binds a pod: each member's recording again in virtual time, joined as its hosts wait.

Model: a token asks all members at once and goes on when the last has answered, so it waits as long
as for the slowest. Of each member the closed loop of its own log gives the mean wait of a step that
asked it; times the share of the pod's tokens that did, that is a token's wait for this member. The
pod's wait is the largest of them, which the mean over tokens of the slowest one cannot be below.
The rest of a token is the host's own time, as `pod run` measured it. A change is made at every
member at once. The device's figures are those of the member where they are highest.

What can fail: `BadInput` for a pod.json that is none, and as in `compare.recorded` for a log. A
member without a recording leaves the pod with the figures of pod.json alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from offstage.asic_model.trace import read_trace
from offstage.asic_model.twice import PARTS, used
from offstage.bindings.layouts import ENDS
from offstage.bindings.notes import Note
from offstage.bindings.outside import read_json
from offstage.testbeds.lab.pod.summary import POD_JSON
from offstage.testbeds.live.pod_figures import MemberResult, PodResult
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.bottleneck.figures import compute_share, of_counts
from offstage.testbeds.report.bottleneck.tree import (
    ARENA,
    COMPUTE,
    Bottleneck,
    Figure,
    MemberBinds,
    Outcome,
    check,
    signed,
    unchecked,
)
from offstage.testbeds.report.compare.build import own_model, runs_of
from offstage.testbeds.report.compare.recorded import LOG_NAME
from offstage.testbeds.report.page.files import SUMMARY_NAME
from offstage.testbeds.report.page.numbers import milliseconds
from offstage.testbeds.report.rerun.recorded import Again

__all__ = ["holds_pod", "pod_bottleneck", "pod_by_figures", "read_pod"]

FIX = "give the folder that `offstage pod run --out` wrote"
SLOWEST = Note(
    "slowest-member",
    "the modelled wait is that for the member that is slowest in the mean; which one is slowest "
    "changes from token to token, so tokens really wait as long or longer",
)


@dataclass(frozen=True)
class _Member:
    """A member's recording: its loop, and the share of the pod's tokens that asked it."""

    again: Again
    share: float
    ends: dict[str, int]
    used: dict[str, float]
    stall_ms: float


def holds_pod(folder: Path) -> bool:
    """Whether the folder has the result of a run over a pod, and no other run's summary."""
    return (folder / POD_JSON).is_file() and not (folder / SUMMARY_NAME).is_file()


def read_pod(folder: Path) -> PodResult:
    """The result of a run over a pod. BadInput: none lies there."""
    return read_json(folder / POD_JSON, FIX, PodResult, what="not the result of a pod")


def pod_by_figures(folder: Path, why: str) -> Bottleneck:
    """What binds by the figures of pod.json alone; `why` there is no re-run."""
    pod = read_pod(folder)
    told = unchecked(str(folder), _subject(pod), _figures(pod, {}), why)
    return _with_members(told, pod, {}, dict.fromkeys(pod.members, why))


def pod_bottleneck(folder: Path, progress: Progress) -> Bottleneck:
    """What binds the pod whose pod.json is in `folder`; each member's recording lies in a folder of
    its name beside it."""
    pod = read_pod(folder)
    lacking = [name for name in pod.members if not (folder / name / LOG_NAME).is_file()]
    if lacking:
        where = ", ".join(f"{name}/" for name in lacking)
        return pod_by_figures(
            folder, f"no recording in {where} (`offstage dpu serve --record FOLDER/NAME`)"
        )
    found = {name: _recorded(folder / name, pod, progress) for name in pod.members}

    def rerun(rows: Sequence[tuple[str, ...]]) -> list[Outcome | str]:
        each = [one.again.outcomes(rows) for one in found.values()]
        shares = [one.share for one in found.values()]
        return [
            _joined(pod, shares, its, row)
            for row, its in zip(rows, zip(*each, strict=True), strict=True)
        ]

    told = check(str(folder), _subject(pod), _figures(pod, found), rerun, [*pod.notes, SLOWEST])
    told = msgspec.structs.replace(
        told,
        run_tokens_per_s=pod.tokens_per_s,
        run_stall_ms=pod.stall_ms_mean,
        run_provenance=_provenance(pod),
    )
    return _with_members(told, pod, found, {})


def _recorded(folder: Path, pod: PodResult, progress: Progress) -> _Member:
    (run,) = runs_of([folder])
    progress.start(f"decisions of {folder.name}", 1, "")
    trace = read_trace(run.path)
    preset = own_model(run, trace).for_heads(trace.heads)
    again = Again(trace, preset, progress)
    base = again.run(())
    progress.advance(1)
    share = min(1.0, base.tokens / pod.tokens) if pod.tokens else 0.0
    ends = dict(zip(ENDS, trace.ends.tolist(), strict=False))
    return _Member(again, share, ends, used(base, preset, trace), share * base.stall_ns.mean / 1e6)


def _joined(
    pod: PodResult, shares: Sequence[float], its: Sequence[Outcome | str], changed: tuple[str, ...]
) -> Outcome | str:
    """One change at all members; why it cannot be run, where it cannot at one of them."""
    stalls = []
    for share, one in zip(shares, its, strict=True):
        if isinstance(one, str):
            return one
        stalls.append(share * one.stall_ms)
    return _at_stall(pod, max(stalls), 0.5 ** changed.count(COMPUTE))


def _at_stall(pod: PodResult, stall_ms: float, host: float = 1.0) -> Outcome:
    """The pod where a token waits so long; `host`: a factor of the host's own time."""
    own_ms = host * max(0.0, pod.token_ms_mean - pod.stall_ms_mean)
    at_once = pod.tokens_per_s * pod.token_ms_mean  # tokens/s of one session per ms
    return Outcome(at_once / (own_ms + stall_ms) if own_ms + stall_ms else 0.0, stall_ms)


def _figures(pod: PodResult, found: dict[str, _Member]) -> dict[str, Figure]:
    """Those of the host, and of the devices that of the member where it is highest."""
    source = _provenance(pod)
    why = "only a recording of every member has it"
    ends: dict[str, int] = {}
    for one in found.values():
        ends = {end: ends.get(end, 0) + count for end, count in one.ends.items()}
    figures = of_counts(pod.selected, pod.demands, {}, source)
    recorded = of_counts(sum(ends.values()), sum(ends.values()), ends, source)
    return {
        **figures,
        COMPUTE: compute_share(pod.stall_ms_mean, pod.token_ms_mean, source),
        ARENA: recorded[ARENA] if found else Figure(absent=why),
        **{
            part: Figure(max(one.used[part] for one in found.values()))
            if found
            else Figure(absent=why)
            for part in PARTS
        },
    }


def _with_members(
    told: Bottleneck, pod: PodResult, found: dict[str, _Member], absent: dict[str, str]
) -> Bottleneck:
    """The members beside the tree, which of them is waited for longest, and what even loads
    gain."""
    loads = _loads(pod.members)
    members = [
        MemberBinds(
            name=name,
            weight=one.weight,
            state=one.state,
            demands=one.demands,
            load=loads[name],
            hit_rate=one.hit_rate,
            bytes_read=one.bytes_read,
            stall_ms=found[name].stall_ms if name in found else None,
            used=found[name].used if name in found else {},
            absent=absent.get(name, ""),
        )
        for name, one in pod.members.items()
    ]
    if not found:
        return msgspec.structs.replace(told, members=members)
    waits = {name: one.stall_ms for name, one in found.items()}
    slowest = max(waits, key=lambda name: waits[name])
    if waits[slowest] <= 0.0:
        said = f" No token waits for one of the {len(waits)} members (modelled)."
        return msgspec.structs.replace(told, sentence=told.sentence + said, members=members)
    even = max(wait / loads[name] if loads[name] else 0.0 for name, wait in waits.items())
    gain = _at_stall(pod, even).tokens_per_s / _at_stall(pod, waits[slowest]).tokens_per_s - 1.0
    each = ", ".join(f"{milliseconds(wait)} for {name}" for name, wait in waits.items())
    said = (
        f" Of its {len(waits)} members {slowest} is waited for longest: a token waits {each} "
        f"(modelled). Demands spread by weight would give {signed(gain)} tokens/s."
    )
    return msgspec.structs.replace(
        told, sentence=told.sentence + said, members=members, member=slowest, even_gain=gain
    )


def _loads(members: dict[str, MemberResult]) -> dict[str, float]:
    """Demands over weight, in those of the mean member."""
    each = {name: one.demands / one.weight if one.weight else 0.0 for name, one in members.items()}
    mean = sum(each.values()) / len(each) if each else 0.0
    return {name: one / mean if mean else 0.0 for name, one in each.items()}


def _provenance(pod: PodResult) -> str:
    return "measured" if pod.pace_overruns < 0 else "emulated"


def _subject(pod: PodResult) -> str:
    return f"a pod of {len(pod.members)} members"
