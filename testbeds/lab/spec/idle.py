"""Refuse the keys of a spec that have no effect with its kind of workload, before any file is
opened. Only keys that the file or the command line sets count; defaults do not. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import declared
from offstage.testbeds.lab.spec.schema import (
    GeometrySpec,
    ReferenceSpec,
    SelectionSpec,
    Spec,
    TierSpec,
)

__all__ = ["IDLE", "Idle", "refuse_idle"]

DRAWN = (
    "profile",
    "context_tokens",
    "sessions",
    "tenants",
    "steps",
    "turn_steps",
    "shared_prefix_tokens",
    "groups",
    "draft_agreement",
    "layers",
    "index_group",
    "indexers",
    "trace",
    "context_tokens_min",
    "split",
)
CACHED = ("ttl_s", "admission", "capacity_share")


@dataclass(frozen=True)
class Idle:
    """`keys` of `[table]` have no effect on a spec where `when` is true; `why` is the reason."""

    table: str
    keys: tuple[str, ...]
    when: Callable[[Spec], bool]
    why: str


def _kind(*kinds: str) -> Callable[[Spec], bool]:
    return lambda spec: spec.workload.kind in kinds


_WHOLE = 'without [geometry] staged = "selected"'
_REQUESTS = "in a workload of kind 'requests', which caches whole prompts"

IDLE = (
    Idle(
        "workload",
        (*DRAWN, *CACHED),
        _kind("captured", "selections"),
        "with recorded selections: the file has the sessions, lengths and layers",
    ),
    Idle(
        "selection",
        tuple(declared(SelectionSpec)),
        _kind("selections"),
        "with recorded selections: the file has them",
    ),
    Idle(
        "workload",
        CACHED,
        _kind("generated"),
        "in a workload of kind 'generated': it applies to caches of requests",
    ),
    Idle(
        "workload",
        ("context_tokens_min", "split"),
        lambda spec: spec.workload.kind == "generated" and not spec.workload.trace,
        "without [workload] trace",
    ),
    Idle("workload", ("indexers",), lambda spec: not spec.staged, _WHOLE),
    Idle("geometry", ("top_k",), lambda spec: not spec.staged, _WHOLE),
    Idle("workload", (*DRAWN, "concurrent", "draft_cost"), _kind("requests"), _REQUESTS),
    *(
        Idle(table, tuple(declared(kind)), _kind("requests"), _REQUESTS)
        for table, kind in (
            ("geometry", GeometrySpec),
            ("selection", SelectionSpec),
            ("tier", TierSpec),
            ("reference", ReferenceSpec),
        )
    ),
)


def refuse_idle(tables: Mapping[str, Any], spec: Spec, where: str) -> None:
    """BadInput for the first key without effect in `tables`, from which `spec` was built."""
    for row in IDLE:
        table = tables.get(row.table, {})
        given = [key for key in row.keys if key in table] if row.when(spec) else []
        if given:
            raise BadInput(
                f"{given[0]} has no effect {row.why}",
                f"{where}: [{row.table}] {given[0]}",
                "leave it out",
            )
