"""Which figures of a run its notes make void, by the code of the note.

A note of another code is worth reading, and says nothing against a figure.
"""

from collections.abc import Sequence

from offstage.bindings.notes import Note
from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.run.runs import Group, labels

__all__ = ["HITS", "TIMES", "VOIDS", "reasons", "void_note", "why_void"]

HITS = (
    "hit",
    "nontrivial_hit",
    "hit_without_cold",
    "selection_hit",
    "late",
    "miss",
    "coverage",
    "accuracy",
)
TIMES = (
    "stall_ms_p50",
    "stall_ms_p99",
    "token_ms_p50",
    "token_ms_p99",
    "token_ms_mean",
    "fetch_ms_p50",
    "fetch_ms_p99",
    "tokens_per_s",
)
ALL = "all runs"
VOIDS = {
    # Blocks came later than from the drive that is emulated: a demand may have been late for that.
    "emulation-late": (*TIMES, *HITS),
    "all-staged": HITS,
    "pool-holds-all": HITS,
    "warm-start": HITS,
    "lru-missed-nothing": ("coverage", "traffic_ratio"),
}


def void_note(group: Group, run: RunResult, key: str) -> Note | None:
    """The note that makes a figure of the group's run void."""
    return next((one for one in (*run.notes, *group.notes) if key in VOIDS.get(one.code, ())), None)


def why_void(group: Group, run: RunResult, key: str) -> str:
    """What that note says of the run; empty if there is none."""
    note = void_note(group, run, key)
    return "" if note is None else _of(note.what, note.figures)


def reasons(groups: Sequence[Group], keys: Sequence[str]) -> list[str]:
    """What is said against any of these figures, each once, with the runs that it is said of where
    it is not said of all, and their figures where they are the same."""
    found: dict[str, dict[str, set[str]]] = {}
    for group in groups:
        for what, of in _against(group, keys).items():
            who = ALL if len(of) == len(group.runs) else "; ".join(of)
            where = f" on {group.where}" if len(groups) > 1 else ""
            found.setdefault(what, {})[who + where] = set(of.values())
    told = []
    for what, told_of in found.items():
        every = len(told_of) == len(groups) and all(who.startswith(ALL) for who in told_of)
        figures = set().union(*told_of.values())
        runs = "" if every else f" ({'; '.join(told_of)})"
        told.append(_of(what + runs, *figures) if len(figures) == 1 else what + runs)
    return told


def _against(group: Group, keys: Sequence[str]) -> dict[str, dict[str, str]]:
    """What is said against any of these figures of a group, and by run its figures."""
    found: dict[str, dict[str, str]] = {}
    for run, name in zip(group.runs, labels(group), strict=True):
        for note in dict.fromkeys(void_note(group, run, key) for key in keys):
            if note is not None:
                found.setdefault(note.what, {})[name] = note.figures
    return found


def _of(what: str, figures: str) -> str:
    return f"{what}: {figures}" if figures else what
