"""Each limit against the worst of the figures that were seen: pass, fail, or absent with a reason.

Nothing here can fail. The worst, because a limit is kept only where every source keeps it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from offstage.testbeds.report.accept.rules import HELD, IN_WORDS, RULES, Comparison, Limits, Rule

__all__ = ["Acceptance", "Judged", "Provenance", "Seen", "judge"]

Verdict = Literal["pass", "fail", "absent"]
Provenance = Literal["measured", "emulated", "modelled"]


@dataclass(frozen=True)
class Seen:
    """A figure of one source for the limit `name`. `value` None: `reason` says why the source has
    none."""

    name: str
    value: float | None
    provenance: Provenance = "measured"
    source: str = ""
    reason: str = ""


class Judged(msgspec.Struct, kw_only=True, frozen=True):
    """One limit. `value`: its figure, of `source` and `provenance`; None: the verdict is absent,
    and `reason` says why. `value` is to be `comparison` `limit`. `required`: without a figure the
    tier is not accepted."""

    name: str
    text: str
    verdict: Verdict
    value: float | None
    comparison: Comparison
    limit: float
    required: bool
    provenance: Provenance | None = None
    source: str = ""
    reason: str = ""


class Acceptance(msgspec.Struct, kw_only=True, frozen=True):
    """The judgement of a run. `accepted`: no limit fails, and each required one has a figure.
    `subject`: the arm that was judged; `run_sha256`: of the run's summary.json or pod.json."""

    accepted: bool
    sentence: str
    run: str
    subject: str
    run_sha256: str
    limits: list[Judged]


def judge(
    limits: Limits, seen: Iterable[Seen], run: str, subject: str, run_sha256: str
) -> Acceptance:
    """Every limit, in the order of `RULES`."""
    given = list(seen)
    rows = [
        _judged(rule, limits, [one for one in given if one.name == name])
        for name, rule in RULES.items()
    ]
    return Acceptance(
        accepted=not any(_stands_against(row) for row in rows),
        sentence=_sentence(rows),
        run=run,
        subject=subject,
        run_sha256=run_sha256,
        limits=rows,
    )


def _judged(rule: Rule, limits: Limits, given: list[Seen]) -> Judged:
    limit = limits.values[rule.name]
    known = {one: one.value for one in given if one.value is not None}
    reasons = dict.fromkeys(one.reason for one in given if one.reason)
    least_is_worst = rule.comparison in (">=", ">")
    worst = min(known, key=lambda one: known[one] if least_is_worst else -known[one], default=None)
    value = None if worst is None else known[worst]
    verdict: Verdict = "absent"
    if value is not None:
        verdict = "pass" if HELD[rule.comparison](value, limit) else "fail"
    return Judged(
        name=rule.name,
        text=rule.text,
        verdict=verdict,
        value=value,
        comparison=rule.comparison,
        limit=limit,
        required=rule.name in limits.required,
        provenance=None if worst is None else worst.provenance,
        source="" if worst is None else worst.source,
        reason="" if worst is not None else "; ".join(reasons) or rule.get,
    )


def _stands_against(row: Judged) -> bool:
    return row.verdict == "fail" or (row.required and row.verdict == "absent")


def _sentence(rows: list[Judged]) -> str:
    """The verdict, what stands against it, and how much was judged."""
    against = [_against(row) for row in rows if _stands_against(row)]
    passed = sum(row.verdict == "pass" for row in rows)
    told = f"Not accepted: {', '.join(against)}" if against else "Accepted: no limit fails"
    absent = sum(row.verdict == "absent" for row in rows)
    return f"{told}; {passed} of {len(rows)} pass, {absent} have no figure."


def _against(row: Judged) -> str:
    if row.value is None:
        return f"{row.name} is required and has no figure"
    shown = RULES[row.name].shown
    return f"{row.name} is {shown(row.value)} ({IN_WORDS[row.comparison]} {shown(row.limit)})"
