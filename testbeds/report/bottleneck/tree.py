"""What binds a run: seven steps with a figure each, and what a re-run gains with each one changed.

Model: the *tree* names a step by figures alone. Compute binds where tokens hardly wait. Else the
part of the device that is used most binds, if it is used at all. Else tokens wait though nothing
is full: for blocks that the arena, or the HBM pool, had no room for. Figures are only a
suspicion, so the run is *run again* in virtual time, once unchanged and once with each step
changed alone: what gains most tokens/s binds. Then each step is changed on top of that one, which
gives the next limit. Where both disagree, the re-run is the answer, and the sentence says so.

Nothing here can fail: a figure that a run lacks, and a change that cannot be run, are absent with a
reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from offstage.asic_model.result import BINDS_FROM
from offstage.asic_model.twice import CHANGES, CONTROL, DEVICE, FLASH, LINK, PARTS
from offstage.bindings.notes import Note
from offstage.testbeds.report.page.numbers import percent

__all__ = [
    "ARENA",
    "CHANGED",
    "COMPUTE",
    "DEFINED",
    "GAIN_MIN",
    "HBM",
    "NOTHING",
    "STEPS",
    "Bottleneck",
    "Figure",
    "MemberBinds",
    "Outcome",
    "Rerun",
    "Step",
    "binds_from",
    "by_figures",
    "check",
    "signed",
    "unchecked",
]

COMPUTE, HBM, ARENA = "compute", "HBM capacity", "arena"
NOTHING = "nothing"
GAIN_MIN = 0.01
"""A change that gains less in tokens/s relieves nothing."""
STEPS = (COMPUTE, HBM, ARENA, LINK, DEVICE, FLASH, CONTROL)
CHANGED = {
    COMPUTE: "half the GPU's own time per token",
    HBM: "twice the HBM pool",
    ARENA: "twice the arena",
    **CHANGES,
}
DEFINED = {
    COMPUTE: "share of a token's mean time in which it does not wait for blocks",
    HBM: "share of the selected blocks that the HBM pool did not have: D / selected",
    ARENA: "share of the demands that missed for want of room: (capacity + policy) / D",
    LINK: "utilisation of the link's busier direction",
    DEVICE: "utilisation of the busiest unit of the DPU that belongs to no other step",
    FLASH: "utilisation of the drives",
    CONTROL: "utilisation of what looks up and decides; of a DPU, its reactors' time for that",
}
"""The figure of each step."""
MEANS = {
    COMPUTE: "{} of a token's time is not spent waiting for blocks",
    HBM: "{} of the selected blocks were not in the HBM pool",
    ARENA: "{} of the demands missed for want of room in the arena",
    LINK: "the link is used {}",
    DEVICE: "the DPU is used {}",
    FLASH: "the flash is used {}",
    CONTROL: "what looks up and decides is used {}",
}
"""What a figure says, in words."""


@dataclass(frozen=True)
class Figure:
    """The figure of a step; `value` None: absent, and `absent` says why."""

    value: float | None = None
    provenance: str = "modelled"
    absent: str = ""


@dataclass(frozen=True)
class Outcome:
    """A run in virtual time: tokens of all sessions per second, the mean wait of a token."""

    tokens_per_s: float
    stall_ms: float


Rerun = Callable[[Sequence[tuple[str, ...]]], Sequence[Outcome | str]]
"""Runs again with the named steps changed, once for each tuple; a step that is named twice is
changed twice. A text in place of an outcome says why that change cannot be run."""


class Step(msgspec.Struct, kw_only=True, frozen=True):
    """One step of the tree. `figure`: its share, and from `binds_from` on it binds by that figure;
    None: `figure_absent` says why. `tokens_per_s`, `stall_ms`, `gain`: of the re-run with this step
    changed, `gain` over the unchanged one; None: `rerun_absent` says why. `gain_then`: on top of
    the change of what binds, over that."""

    name: str
    figure: float | None
    provenance: str
    figure_absent: str = ""
    binds_from: float
    change: str
    tokens_per_s: float | None = None
    stall_ms: float | None = None
    gain: float | None = None
    gain_then: float | None = None
    rerun_absent: str = ""


class MemberBinds(msgspec.Struct, kw_only=True, frozen=True):
    """One member of a pod. `load`: its demands over its weight, in those of the mean member.
    `stall_ms`: how long a token of the pod waits for it alone, in the mean, of its re-run without a
    change. `used`: the utilisation of its link, DPU, flash and control there. None and empty: it
    has no recording, and `absent` says so."""

    name: str
    weight: int
    state: str
    demands: int
    load: float
    hit_rate: float
    bytes_read: int
    """-1: it was gone at the end."""
    stall_ms: float | None = None
    used: dict[str, float] = {}
    absent: str = ""


class Bottleneck(msgspec.Struct, kw_only=True, frozen=True):
    """What binds a run. `subject`: its arm or point. `sentence`: the answer; `reading`: whether the
    figures agree. `by_figures`: the step that the figures name, or `nothing`; None: a figure that
    decides is absent. `binds`: the step whose change gains most, or `nothing`; None: there was no
    re-run, and `rerun_absent` says why. `next`: what binds once that is changed. `tier`: of the
    steps but compute, that whose change gains most. `tokens_per_s`, `stall_ms`: of the unchanged
    re-run; `run_tokens_per_s`, `run_stall_ms`: of the run itself, where it has them.
    Times of re-runs are modelled."""

    run: str
    subject: str
    sentence: str
    reading: str
    by_figures: str | None
    binds: str | None = None
    gain: float | None = None
    next: str | None = None
    next_gain: float | None = None
    tier: str | None = None
    tier_gain: float | None = None
    provenance: Literal["modelled"] = "modelled"
    tokens_per_s: float | None = None
    stall_ms: float | None = None
    run_tokens_per_s: float | None = None
    run_stall_ms: float | None = None
    run_provenance: str = ""
    steps: list[Step]
    rerun_absent: str = ""
    members: list[MemberBinds] = []
    """Of a pod."""
    member: str | None = None
    """The member that a token of the pod waits for longest."""
    even_gain: float | None = None
    """In tokens/s, were demands spread by weight and every wait as long as its load."""
    notes: list[Note] = []


def binds_from(name: str) -> float:
    """From which figure on a step binds: compute where tokens wait for less than a fifth of their
    time, every other one where it is used, or falls short, by a fifth."""
    return 1.0 - BINDS_FROM if name == COMPUTE else BINDS_FROM


def by_figures(figures: Mapping[str, Figure]) -> str | None:
    """The step that binds by its figure, or `nothing`; None where one that decides is absent."""
    values = {name: figures[name].value for name in STEPS}
    compute = values[COMPUTE]
    if compute is None:
        return None
    if compute >= binds_from(COMPUTE):
        return COMPUTE
    parts = {name: value for name in PARTS if (value := values[name]) is not None}
    if len(parts) < len(PARTS):
        return None
    most = max(PARTS, key=lambda name: parts[name])
    if parts[most] >= binds_from(most):
        return most
    for name in (ARENA, HBM):
        value = values[name]
        if value is None:
            return None
        if value >= binds_from(name):
            return name
    return NOTHING


def unchecked(run: str, subject: str, figures: Mapping[str, Figure], why: str) -> Bottleneck:
    """By figures alone; `why` there was no re-run."""
    named = by_figures(figures)
    return Bottleneck(
        run=run,
        subject=subject,
        sentence=_by_figures_alone(named, figures),
        reading=f"Not checked by a re-run: {why}.",
        by_figures=named,
        steps=[_step(name, figures[name], rerun_absent=why) for name in STEPS],
        rerun_absent=why,
    )


def check(
    run: str, subject: str, figures: Mapping[str, Figure], rerun: Rerun, notes: Sequence[Note] = ()
) -> Bottleneck:
    """By figures, and checked by re-runs."""
    base, *tried = rerun([(), *((name,) for name in STEPS)])
    if isinstance(base, str):
        return unchecked(run, subject, figures, base)
    found = dict(zip(STEPS, tried, strict=True))
    gains = _gains(found, base)
    binds = _most(gains)
    gains_then: dict[str, float] = {}
    after = found.get(binds)
    if isinstance(after, Outcome):
        again = rerun([(binds, name) for name in STEPS])
        gains_then = _gains(dict(zip(STEPS, again, strict=True)), after)
    following = _most(gains_then) if gains_then else None
    named = by_figures(figures)
    of_tier = {name: gain for name, gain in gains.items() if name != COMPUTE}
    tier = max(of_tier, key=lambda name: of_tier[name], default=None)
    return Bottleneck(
        run=run,
        subject=subject,
        sentence=_sentence(binds, base, after, gains, gains_then),
        reading=_reading(named, binds, figures, tier, gains),
        by_figures=named,
        binds=binds,
        gain=gains.get(binds),
        next=following,
        next_gain=gains_then.get(following or ""),
        tier=tier,
        tier_gain=gains.get(tier or ""),
        tokens_per_s=base.tokens_per_s,
        stall_ms=base.stall_ms,
        steps=[
            _step(name, figures[name], found[name], gains.get(name), gains_then.get(name))
            for name in STEPS
        ],
        notes=list(notes),
    )


def _gains(found: Mapping[str, Outcome | str], base: Outcome) -> dict[str, float]:
    return {
        name: one.tokens_per_s / base.tokens_per_s - 1.0
        for name, one in found.items()
        if isinstance(one, Outcome) and base.tokens_per_s
    }


def _most(gains: Mapping[str, float]) -> str:
    """The step that gains most, or `nothing`; of equal ones the first."""
    most = max(gains, key=lambda name: gains[name], default=NOTHING)
    return most if gains.get(most, 0.0) >= GAIN_MIN else NOTHING


def _step(
    name: str,
    figure: Figure,
    outcome: Outcome | str = "",
    gain: float | None = None,
    gain_then: float | None = None,
    rerun_absent: str = "",
) -> Step:
    ran = outcome if isinstance(outcome, Outcome) else None
    return Step(
        name=name,
        figure=figure.value,
        provenance=figure.provenance,
        figure_absent=figure.absent,
        binds_from=binds_from(name),
        change=CHANGED[name],
        tokens_per_s=None if ran is None else ran.tokens_per_s,
        stall_ms=None if ran is None else ran.stall_ms,
        gain=gain,
        gain_then=gain_then,
        rerun_absent=rerun_absent or (outcome if isinstance(outcome, str) else ""),
    )


def _sentence(
    binds: str,
    base: Outcome,
    after: Outcome | str | None,
    gains: Mapping[str, float],
    gains_then: Mapping[str, float],
) -> str:
    """The answer."""
    if not isinstance(after, Outcome):
        most = max(gains, key=lambda name: gains[name], default="")
        least = f"; the most is {signed(gains[most])}, with {CHANGED[most]}" if most else ""
        return (
            f"Nothing binds: no change of one thing gives {percent(GAIN_MIN)} more tokens/s{least}."
        )
    told = (
        f"{_capital(binds)} binds: {CHANGED[binds]} would give {signed(gains[binds])} tokens/s "
        f"({after.tokens_per_s:,.4g} instead of {base.tokens_per_s:,.4g}, modelled)"
    )
    following = _most(gains_then)
    if following == NOTHING:
        return f"{told}; then nothing binds any more."
    again = " again" * (following == binds)
    return f"{told}; then {following} binds{again} ({signed(gains_then[following])})."


def _reading(
    named: str | None,
    binds: str,
    figures: Mapping[str, Figure],
    tier: str | None,
    gains: Mapping[str, float],
) -> str:
    """Whether the figures agree; and where compute binds, what of the tier gains most."""
    told = f"{_capital(_agreement(named, binds, figures))}."
    if binds == COMPUTE and tier is not None:
        told += f" Of the tier, {CHANGED[tier]} gives most: {signed(gains[tier])}."
    return told


def _by_figures_alone(named: str | None, figures: Mapping[str, Figure]) -> str:
    if named is None:
        return (
            f"The figures of this run do not say what binds, without those of {_lacking(figures)}."
        )
    if named == NOTHING:
        return "By its figures nothing binds."
    return f"By its figures {named} binds: {_means(named, figures)}."


def _agreement(named: str | None, binds: str, figures: Mapping[str, Figure]) -> str:
    """Whether the figures say the same."""
    if named is None:
        return f"the figures alone do not say, without those of {_lacking(figures)}"
    if named == binds == NOTHING:
        return "no figure reaches its limit either"
    if named == binds:
        return f"the figures say so too: {_means(named, figures)}"
    if named == NOTHING:
        return "by the figures alone nothing would bind"
    return f"by the figures alone it would be {named}, as {_means(named, figures)}"


def _means(name: str, figures: Mapping[str, Figure]) -> str:
    value = figures[name].value
    assert value is not None, "a step is named by its figure"
    return MEANS[name].format(percent(value))


def _lacking(figures: Mapping[str, Figure]) -> str:
    """The steps without a figure, as a list in words."""
    *most, last = [name for name in STEPS if figures[name].value is None]
    return f"{', '.join(most)} and {last}" if most else last


def signed(gain: float) -> str:
    """A gain: `+12.4 %`."""
    text = f"{100 * gain:+.1f} %"
    return "0.0 %" if text[1:] == "0.0 %" else text.replace("-", "−")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
