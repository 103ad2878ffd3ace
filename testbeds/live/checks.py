"""Which counters make a run a failed one, whatever else it measured.

Every command that has such a counter writes its files, prints its table, and then exits with 1 and
one line. docs/reference/checks.md is this table, and a test holds them together.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import RunFailed

__all__ = ["CHECKS", "Check", "found", "refuse"]


@dataclass(frozen=True)
class Check:
    """`failed` says of a result's `field` whether it makes the run a failed one, and `what` says
    it, with the value in place of {}. `commands` have the field."""

    field: str
    commands: tuple[str, ...]
    failed: Callable[[Any], bool]
    what: str


def _some(value: Any) -> bool:
    return value is not None and value > 0


CHECKS = (
    Check("blocks_corrupt", ("demo", "host run", "host run --model", "pod run", "testbed run"),
          _some, "{:,} blocks were not what prefill wrote"),
    Check("bit_equal", ("host run --model",), lambda value: value is False,
          "every block was selected, and the logits are not bit for bit the model's own"),
    Check("ends_differ", ("demo", "host run", "testbed run"), _some,
          "host and DPU disagree on how demands ended, at least {:,} of them"),
    Check("log_bytes_lost", ("demo",), _some,
          "{:,} bytes of the decision log were lost, and the rest cannot be replayed"),
    Check("log_diverged_at", ("demo",), lambda value: value is not None and value >= 0,
          "the replay of the decision log differs from byte {:,} on"),
)  # fmt: skip


def found(result: Any, name: str = "") -> list[str]:
    """What makes this result a failed one, in words; empty where nothing does."""
    begin = f"{name}: " if name else ""
    return [
        begin + check.what.format(value)
        for check in CHECKS
        if check.failed(value := getattr(result, check.field, None))
    ]


def refuse(failures: Iterable[str], where: str) -> None:
    """RunFailed where there is one. Called when all files are written and the table is printed."""
    told = list(failures)
    if told:
        more = f", and {len(told) - 1} more" if len(told) > 1 else ""
        raise RunFailed(f"{told[0]}{more}", where, "the figures of this run are not to be used; "
                        "report it with the seed and its files")  # fmt: skip
