"""The registry of policies, and the parser of specs such as `window+ema+lookahead`.

A name is looked up among the built-in components and the entry points `offstage.policies` of
installed packages, which are loaded only when a spec names them; `FILE.py:Class` names a class of a
file (`from_file.py`), and `module:Class` one on the module path. A bad name, or a bad class of
another package, is a BadInput that names the package at fault. Nothing here uses the core.
"""

import functools
import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.bindings.core import Policy
from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.layouts import EVICTIONS, PREFETCHERS
from offstage.dpu.config.derive import core_policy
from offstage.dpu.config.options import PolicyOptions
from offstage.testbeds.lab.policies import BUILT_IN
from offstage.testbeds.lab.policies.checked import Opened, raised
from offstage.testbeds.lab.policies.from_file import by_file, class_of
from offstage.testbeds.lab.policies.policy import SCHEDULES, CoreSwitches, PolicyComponent, Setting

__all__ = [
    "GRANULE",
    "GROUP",
    "TRAFFIC",
    "TRAFFIC_PERMILLE",
    "Combined",
    "Listed",
    "find",
    "listing",
    "parse",
]


GROUP = "offstage.policies"
"""The group of entry points for policies of other packages: name = "module:Class"."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_BUILT_IN = {one.name: one for one in BUILT_IN}
_NUMBERS = tuple(one.name for one in fields(Policy) if one.type in (int, "int"))
TRAFFIC = "traffic_permille_max"
"""The parameter of components with a budget: reads over those of LRU without prefetch at 2 k."""
TRAFFIC_PERMILLE = 1300
"""Its default."""
GRANULE = "granule_tokens"
"""The parameter of the component `granule`: tokens that are staged together."""
PARAMETERS = ("window_tokens", TRAFFIC, GRANULE, *_NUMBERS)


@dataclass(frozen=True)
class Combined:
    """Components joined by `+`.

    core: their switches, merged; the eviction is that of the last component that names one, else
    LRU. Two components that set a parameter to different values are BadInput.
    """

    spec: str
    components: tuple[type[PolicyComponent], ...]
    core: CoreSwitches = field(default_factory=CoreSwitches)

    @property
    def guesses(self) -> bool:
        """Whether any component has Python that runs in each step."""
        return bool(self.asked)

    @property
    def asked(self) -> tuple[type[PolicyComponent], ...]:
        """The components that have such Python code."""
        return tuple(one for one in self.components if _has_python(one))

    def open(self, setting: Setting) -> Opened:
        """The objects of one run. BadInput if a component cannot work on this workload."""
        return Opened(self.asked, setting)

    def core_policy(self, block_tokens: int, **changes: int) -> Policy:
        """The core's policy: the daemon's defaults, the components' parameters, then `changes`."""
        values = {}
        for name, value in {**self.core.parameters, **changes}.items():
            _check_parameter(name, value, "policy parameters")
            if name == TRAFFIC:
                self._check_budget(value)
                continue
            if name == GRANULE:
                self._check_granule()
                continue
            if name == "window_tokens":
                name, value = "window_blocks", -(-value // block_tokens)
            values[name] = value
        options = PolicyOptions(
            prefetchers=self.core.prefetchers,
            eviction=self.core.eviction or EVICTIONS[0],
            window_tokens=0,  # without the component `window`, none
        )
        return core_policy(options, block_tokens).with_(**values)

    def _check_budget(self, value: int) -> None:
        if not any(getattr(one, "budgets", False) for one in self.components):
            raise BadInput(
                f"{TRAFFIC} is set, but no component has a budget",
                f"policy {self.spec!r}",
                "leave it out, or use lookahead-measured",
            )
        if value == 0:
            raise BadInput(f"{TRAFFIC} is 0", f"policy {self.spec!r}", "give 1 or more")

    def _check_granule(self) -> None:
        if not self.core.granule:
            raise BadInput(
                f"{GRANULE} is set, but whole blocks are staged",
                f"policy {self.spec!r}",
                "leave it out, or add the component granule",
            )


def parse(spec: str) -> Combined:
    """The policy that a spec names. Raises BadInput; loads another package only if it is named."""
    names = [name.strip() for name in spec.split("+")]
    for name in names:
        if not name:
            raise BadInput("a name is missing", f"policy {spec!r}", "write window+ema, or none")
        if names.count(name) > 1:
            raise BadInput(f"{name!r} appears twice", f"policy {spec!r}", "name it once")
    components = tuple(find(name) for name in names)
    return Combined("+".join(names), components, _join(spec, components))


def find(name: str) -> type[PolicyComponent]:
    """The class of one component: built in, from another package, `FILE.py:Class`, or
    `module:Class`."""
    with np.errstate():  # a module may call np.seterr, which holds for the whole process
        return _found(name)


def _found(name: str) -> type[PolicyComponent]:
    if by_file(name):
        return _checked_class(class_of(name), f"policy {name!r}")
    if ":" in name:
        return _from_path(name)
    offered = _offered()
    if name in offered:
        return _load(_only(offered[name]))
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    raise BadInput(f"unknown policy {name!r}", "policy", nearest(name, [*_BUILT_IN, *offered]))


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that can be named: the package it is from, and its switches."""

    name: str
    uses: str
    source: str
    package: str = msgspec.field(name="from")
    guesses: bool
    prefetchers: tuple[str, ...]
    eviction: str | None
    parameters: Mapping[str, int]
    schedule: str | None
    granule: bool


def listing() -> list[Listed]:
    """Every policy that can be named."""
    found = [(one, "offstage") for one in BUILT_IN]
    for _, offers in sorted(_offered().items()):
        one = _only(offers)
        found.append((_load(one), _package(one)))
    return [
        Listed(
            name=one.name,
            uses=one.uses,
            source=one.source,
            package=package,
            guesses=_has_python(one),
            prefetchers=one.core.prefetchers,
            eviction=one.core.eviction,
            parameters=one.core.parameters,
            schedule=one.core.schedule,
            granule=one.core.granule,
        )
        for one, package in found
    ]


def _has_python(one: type[PolicyComponent]) -> bool:
    """Whether the class overrides a call; built-in components with switches alone do not."""
    silent = _BUILT_IN["none"]
    return any(getattr(one, call) is not getattr(silent, call) for call in ("begin", "step"))


def _join(spec: str, components: tuple[type[PolicyComponent], ...]) -> CoreSwitches:
    prefetchers: dict[str, None] = {}
    parameters: dict[str, int] = {}
    eviction, schedule, granule = EVICTIONS[0], None, False
    for one in components:
        prefetchers |= dict.fromkeys(one.core.prefetchers)
        eviction = one.core.eviction or eviction
        schedule = one.core.schedule or schedule
        granule |= one.core.granule
        for name, value in one.core.parameters.items():
            if parameters.setdefault(name, value) != value:
                raise BadInput(
                    f"its components set {name} to {parameters[name]} and to {value}",
                    f"policy {spec!r}",
                    f"leave out {one.name!r} or the other component",
                )
    return CoreSwitches(tuple(prefetchers), eviction, parameters, schedule, granule)


def _package(one: EntryPoint) -> str:
    return one.dist.name if one.dist is not None else one.value.partition(":")[0]


def _offered() -> dict[str, list[EntryPoint]]:
    """Entry points by name, without loading any."""
    return _offered_at(tuple((place, _changed_ns(place)) for place in sys.path))


def _changed_ns(place: str) -> int:
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=4)
def _offered_at(places: tuple[tuple[str, int], ...]) -> dict[str, list[EntryPoint]]:
    """Entry points in `places`, cached while these do not change: a policy is parsed for every
    point of every seed, and reading the installed packages takes longer than drawing a step."""
    offered: dict[str, list[EntryPoint]] = {}
    for one in entry_points(group=GROUP):
        offered.setdefault(one.name, []).append(one)
    return offered


def _only(offers: list[EntryPoint]) -> EntryPoint:
    """The only entry point of its name. BadInput if several packages use the name."""
    first, *others = offers
    taken = "Offstage" if first.name in _BUILT_IN else ""
    if others:
        taken = f"package {_package(others[0])!r}"
    if taken:
        raise BadInput(
            f"policy {first.name!r} is also defined by {taken}",
            f"package {_package(first)!r}",
            "rename its entry point, or remove the package",
        )
    return first


def _load(one: EntryPoint) -> type[PolicyComponent]:
    where = f"policy {one.name!r} of package {_package(one)!r}"
    try:
        found = one.load()
    except (Exception, SystemExit) as error:
        raise _cannot_load(where, error) from error
    kind = _checked_class(found, where)
    if kind.name != one.name:
        raise BadInput(f"the class is named {kind.name!r}", where, "give both the same name")
    return kind


def _from_path(path: str) -> type[PolicyComponent]:
    module, _, name = path.partition(":")
    where = f"policy {path!r}"
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise _cannot_load(where, error) from error
    return _checked_class(found, where)


def _cannot_load(where: str, error: BaseException) -> BadInput:
    return BadInput(
        f"cannot be loaded: {raised(error)}",
        where,
        "fix the package, or name a class by its file: path/to/policy.py:Class",
    )


def _checked_class(found: Any, where: str) -> type[PolicyComponent]:
    """The class, if it satisfies `PolicyComponent`; else BadInput."""
    fix = "see offstage.testbeds.lab.policies.policy"
    if not isinstance(found, type):
        raise BadInput(f"is not a class but {type(found).__name__}", where, fix)
    for attribute in ("name", "uses", "source"):
        value = getattr(found, attribute, None)
        if not isinstance(value, str) or not value.strip():
            raise BadInput(f"{attribute!r} is not a text", where, fix)
    kind: type[PolicyComponent] = found
    if not _NAME.fullmatch(kind.name):
        raise BadInput(
            f"{kind.name!r} is not a valid name", where, "use lower case, digits, - and _"
        )
    if not isinstance(getattr(kind, "core", None), CoreSwitches):
        raise BadInput("'core' is not a CoreSwitches", where, fix)
    for call in ("begin", "step"):
        if not callable(getattr(kind, call, None)):
            raise BadInput(f"has no method {call!r}", where, fix)
    _check_switches(kind.core, where)
    return kind


def _check_switches(core: CoreSwitches, where: str) -> None:
    named: list[tuple[str, Iterable[str], str]] = []
    named += [(one, PREFETCHERS, "prefetcher") for one in core.prefetchers]
    if core.eviction is not None:
        named.append((core.eviction, EVICTIONS, "eviction"))
    if core.schedule is not None:
        named.append((core.schedule, SCHEDULES, "schedule"))
    for name, known, noun in named:
        if name not in known:
            raise BadInput(f"unknown {noun} {name!r}", where, f"choose one of {', '.join(known)}")
    for name, value in core.parameters.items():
        _check_parameter(name, value, where)


def _check_parameter(name: str, value: object, where: str) -> None:
    if name not in PARAMETERS:
        raise BadInput(f"unknown parameter {name!r}", where, nearest(name, PARAMETERS))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"{name} is {value!r}", where, "give a whole number, 0 or more")
