"""The limits of an acceptance: what each one holds a figure to, and the file that changes them.

A file is TOML: a key for each limit that differs from the built-in one, and `required`, the limits
that must have a figure. What can fail: `BadInput` for an unknown name or a value that is no limit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, read_toml
from offstage.testbeds.report.page.numbers import count, milliseconds, percent

__all__ = [
    "HELD",
    "IN_WORDS",
    "LOST",
    "RULES",
    "Comparison",
    "Limits",
    "Rule",
    "defaults_text",
    "read_limits",
]

Comparison = Literal["<=", "<", ">=", ">"]
HELD: dict[Comparison, Callable[[float, float], bool]] = {
    "<=": lambda value, limit: value <= limit,
    "<": lambda value, limit: value < limit,
    ">=": lambda value, limit: value >= limit,
    ">": lambda value, limit: value > limit,
}
IN_WORDS: dict[Comparison, str] = {
    "<=": "at most",
    "<": "under",
    ">=": "at least",
    ">": "above",
}
LOST = "lost_or_wrong"
FIX = "`offstage accept --limits-default` prints a file to begin with"


@dataclass(frozen=True)
class Rule:
    """One limit: the figure `text`, held to `limit` unless a file says otherwise. `get`: what
    brings the figure, and the reason where nothing that was given has it."""

    name: str
    comparison: Comparison
    limit: float
    text: str
    get: str
    shown: Callable[[float], str]


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "p99_over_median",
            "<=",
            10.0,
            "p99 over the median of the time of a fetch",
            "needs the run of a host",
            "{:.3g}x".format,
        ),
        Rule(
            "link_rate",
            ">=",
            0.8,
            "bytes/s of the fabric over those of its reference in the same run",
            "needs `bench fabric --links`",
            percent,
        ),
        Rule(
            "drive_rate",
            ">=",
            0.8,
            "bytes/s of reads, several at once, over those of fio or spdk_nvme_perf",
            "needs `bench storage`",
            percent,
        ),
        Rule(
            "decision_ms",
            "<",
            1.0,
            "p99 of the time in which the core decides a step, in ms",
            "needs the run of a host",
            milliseconds,
        ),
        Rule(
            "load_cv",
            "<",
            0.3,
            "coefficient of variation of demands over weight, of the members of a pod",
            "needs `pod run` or `lab pod`",
            "{:.3f}".format,
        ),
        Rule(
            "reuse",
            ">",
            0.7,
            "share of a trace's prompt tokens whose KV was there",
            "needs a lab run of a trace, or `bench engine --trace`",
            percent,
        ),
        Rule(
            "ttft_cost",
            "<=",
            0.05,
            "median time to the first token over that without the tier, less 1, where nothing hits",
            "needs `bench engine`",
            percent,
        ),
        Rule(
            LOST,
            "<=",
            0.0,
            "blocks with other bytes, blocks not read back, and counts that contradict each other",
            "no block was compared",
            count,
        ),
    )
}
"""By name, in the order in which they are shown."""


@dataclass(frozen=True)
class Limits:
    """Each limit's value by its name, and the names of those that must have a figure."""

    values: dict[str, float]
    required: tuple[str, ...] = (LOST,)

    @classmethod
    def built_in(cls) -> "Limits":
        """Those of no file."""
        return cls({name: rule.limit for name, rule in RULES.items()})


def defaults_text() -> str:
    """The built-in limits as a file."""
    lines = ["# Limits of `offstage accept`; a key that is left out has the value it has here."]
    for name, rule in RULES.items():
        lines += ["", f"# {IN_WORDS[rule.comparison]}: {rule.text}", f"{name} = {rule.limit:g}"]
    required = ", ".join(f'"{name}"' for name in Limits.built_in().required)
    lines += ["", "# limits that must have a figure", f"required = [{required}]", ""]
    return "\n".join(lines)


def read_limits(path: Path | None) -> Limits:
    """The limits of a file over the built-in ones. BadInput for what is no limit."""
    found = Limits.built_in()
    if path is None:
        return found
    table, where = read_toml(path, FIX), str(path)
    required = table.pop("required", list(found.required))
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise BadInput("required is not a list of names", where, f'write ["{LOST}"]')
    for name in required:
        check_known(name, RULES, f"{where}: required", "limit")
    for key in table:
        check_known(key, [*RULES, "required"], where, "limit")
    values = {name: _limit(value, f"{where}: {name}") for name, value in table.items()}
    return Limits(found.values | values, tuple(dict.fromkeys(required)))


def _limit(value: Any, where: str) -> float:
    """A number from 0 on."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise BadInput(f"{value!r} is not a limit", where, "write a number from 0 on, such as 0.8")
    return float(value)
