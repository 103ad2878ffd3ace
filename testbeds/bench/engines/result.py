"""The result of `offstage bench engine`: by arm times to the first token, hits by tier, regret.

Its page is made from the same object, read back from the file of `--out`.
"""

import statistics
from collections.abc import Sequence

import msgspec

from offstage.testbeds.bench.rows import BenchResult, Row, aimed
from offstage.testbeds.lab.results.bootstrap import RESAMPLES, Bootstrap
from offstage.testbeds.table import Column, Table

__all__ = ["Arm", "Decision", "EngineResult", "Regret", "below"]


RECOMPUTE, CHOSEN = "recompute", "fetch or recompute"
BOUNDS = {6000: 1 / 8, 1500: 1 / 2, 0: 1.05}
"""Aims of a stored prompt that is alone: its time to the first token over that of computing it, by
the least length."""


def below(values: Sequence[float], share: float) -> float:
    """The quantile at that share; of one value, itself."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Decision(msgspec.Struct, frozen=True):
    """A decision to fetch or to compute `tokens`: its time (below 0 if unknown), and its excess
    over the alternative, in seconds."""

    took_s: float
    regret_s: float
    fetched: bool
    tokens: int = 0


class Regret(msgspec.Struct, frozen=True):
    """Decisions based on measurements: how many fetched, and the time that they lost."""

    decisions: int
    fetched: int
    took_s: float
    regret_s: float

    def __str__(self) -> str:
        return f"{self.regret_s * 1e3:.0f} of {self.took_s * 1e3:.0f} ms"


class Arm(msgspec.Struct):
    """Every request of every round of an arm, and its connector's counts meanwhile."""

    first_s: list[float] = []
    reused: list[int] = []
    counters: dict[str, float] = {}
    decisions: list[Decision] = []

    @property
    def hits(self) -> dict[str, float]:
        """Objects read, by where the tier had them, and those that vLLM had to compute after
        all."""
        names = {f"objects_{name}": name for name in ("on_time", "late", "missing")}
        names["load_failed_blocks"] = "failed"
        return {name: self.counters.get(key, 0) for key, name in names.items()}

    @property
    def regret(self) -> Regret:
        """The regret of the arm's decisions."""
        made = [one for one in self.decisions if one.took_s >= 0]
        return Regret(
            len(made),
            sum(one.fetched for one in made),
            sum(one.took_s for one in made),
            sum(one.regret_s for one in made),
        )

    @property
    def times(self) -> list[str]:
        """Median and p90 of the time to the first token."""
        return [f"{below(self.first_s, share) * 1e3:.0f} ms" for share in (0.5, 0.9)]


class EngineResult(BenchResult, kw_only=True):
    """What was asked, and each arm of it."""

    trace: str
    scale: float
    """Tokens here for each of the trace's."""
    hurry: float
    """The trace's seconds in one of ours."""
    requests: int
    reuse: float
    rounds: int
    tokens: list[int]
    arms: dict[str, Arm]
    storage: str = ""
    apart: bool = False
    """One engine prefills and another decodes."""
    load_before: float | None = None
    """Of prompts that are alone: processes that ran on this machine in the minute before, in the
    mean."""

    def compare(self) -> None:
        """Set the rows: each arm's times to the first token against those without the tier."""
        if self.load_before is not None:
            self._compare_lengths()
            return
        alone = self.arms[RECOMPUTE].first_s
        for name, arm in self.arms.items():
            for share, which in ((0.5, "p50"), (0.9, "p90")):
                one, other = below(arm.first_s, share), below(alone, share)
                self.rows.append(Row(f"{name}, {which}", "seconds", one, other, one / other))

    def _compare_lengths(self) -> None:
        """Rows of prompts that are alone, by length: medians, the interval of their ratio over
        rounds, of which each has both, and the aims of what decides."""
        for name, arm in self.arms.items():
            length, _, which = name.partition(" tokens, ")
            if which == RECOMPUTE:
                continue
            alone = self.arms[f"{length} tokens, {RECOMPUTE}"].first_s
            one, other = statistics.median(arm.first_s), statistics.median(alone)
            tokens = int(length.replace(",", ""))
            bound = next(bound for least, bound in BOUNDS.items() if tokens >= least)
            aim = aimed(one / other, "<=", bound) if which == CHOSEN else None
            drawn = Bootstrap(len(alone), RESAMPLES, 0).median_ratio(arm.first_s, alone)
            ends = None if drawn is None else drawn.ends
            self.rows.append(Row(name, "seconds", one, other, one / other, aim, ratio_range=ends))

    def about(self) -> list[str]:
        """Its setup."""
        if self.load_before is not None:
            return [
                f"{self.provenance} on {self.storage}: {self.requests} prompts, each alone in an "
                f"engine that never had it, {self.rounds} rounds; {self.load_before:.1f} processes "
                "ran on this machine before",
                "ratio: of medians; in brackets its 95 % interval, over rounds that each have both",
            ]
        return [
            f"{self.provenance} on {self.storage}: {self.requests} requests of "
            f"{self.trace}, a token is {1 / self.scale:.1f} of the trace's, a second "
            f"{self.hurry:.0f}; {100 * self.reuse:.0f} % of the tokens were a prefix before"
        ]

    def own_tables(self) -> list[Table]:
        """The hits in the tier by arm."""
        return (
            [self.arms_table()] if any(sum(arm.hits.values()) for arm in self.arms.values()) else []
        )

    def arms_table(self) -> Table:
        """A row for each arm; also on the page."""
        names = ("median", "p90", "on time", "late", "missing", "failed", "fetched", "regret")
        rows: list[list[object]] = []
        for name, arm in self.arms.items():
            chosen = f"{arm.regret.fetched} of {arm.regret.decisions}"
            hits = (f"{one:.0f}" for one in arm.hits.values())
            rows.append([name, *arm.times, *hits, chosen, str(arm.regret)])
        return Table.of([Column("arm", left=True), *map(Column, names)], rows)
