"""The counters that make a run fail, whatever else it measured.

Every command with such a counter writes its files, prints its table, and then exits with 1 and
one line. docs/reference/checks.md is this table, and a test compares them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import RunFailed

__all__ = ["CHECKS", "Check", "found", "refuse"]


@dataclass(frozen=True)
class Check:
    """`failed` tells whether a result's `field` makes the run fail; `what` is the message, with
    the value in place of {}. `commands` have the field."""

    field: str
    commands: tuple[str, ...]
    failed: Callable[[Any], bool]
    what: str


def _some(value: Any) -> bool:
    return bool(value > 0)


OVERRUNS_MAX = 0.01
"""The largest share of requests that may end later than on the modelled device."""
HOSTS = ("demo", "host run", "host run --model", "pod run", "testbed run")
RECORDERS = ("demo", "dpu serve --record")
REPORT = "(report it with the seed and its files)"

CHECKS = (
    Check("blocks_corrupt", HOSTS, _some, f"{{:,}} blocks were not what prefill wrote {REPORT}"),
    Check(
        "bit_equal",
        ("host run --model",),
        lambda value: value is False,
        f"all was read that the model reads, and the logits are not bit for bit those from memory "
        f"{REPORT}",
    ),
    Check(
        "ends_differ",
        HOSTS,
        _some,
        f"host and DPU disagree on how demands ended, at least {{:,}} of them {REPORT}",
    ),
    Check(
        "pace_overruns",
        ("host run", "host run --model", "pod run", "testbed run"),
        lambda value: value > OVERRUNS_MAX,
        "{:.1%} of all requests ended later than the modelled device would have ended them "
        "(take a larger --dilation, or a machine with less else to do)",
    ),
    Check("records_lost", RECORDERS, _some, "{:,} ledger records were lost (raise limits.records)"),
    Check(
        "log_bytes_lost",
        RECORDERS,
        _some,
        "{:,} bytes of the decision log were lost, and the "
        "rest cannot be replayed (raise limits.log)",
    ),
    Check(
        "write_errors",
        ("dpu serve --record",),
        _some,
        "the recording ends where the disk refused it",
    ),
    Check(
        "log_diverged_at",
        ("demo",),
        lambda value: value >= 0,
        f"the replay of the decision log differs from byte {{:,}} on {REPORT}",
    ),
)


def found(result: Any, name: str = "") -> list[str]:
    """Why this result is a failure, in words; empty if it is not."""
    begin = f"{name}: " if name else ""
    return [
        begin + check.what.format(value)
        for check in CHECKS
        if (value := getattr(result, check.field, None)) is not None and check.failed(value)
    ]


def refuse(failures: Iterable[str], where: str) -> None:
    """RunFailed if the result is a failure. Called after all files are written and the table is
    printed."""
    told = list(failures)
    if told:
        more = f", and {len(told) - 1} more" if len(told) > 1 else ""
        raise RunFailed(f"{told[0]}{more}", where, "do not use the figures of this run")
