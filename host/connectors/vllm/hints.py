"""Hints of an orchestrator about a request's KV.

They come in vLLM's `kv_hints`, an envelope of actions, or in `kv_transfer_params`, which vLLM's
HTTP server passes on, with the same actions by name under "offstage":

| action | payload | effect |
|---|---|---|
| priority | chance | probability that this KV will be needed, which ranks its prefetch |
| retain | seconds | the tier keeps the request's KV for this long after its end |
| prefetch | in_seconds, chance | the request pauses, as at a tool call: prefetch its KV by then |
| share | tokens | store only this many first tokens; 0: none |
| expect | tokens, seconds | another engine prefills this many tokens: wait this long for them |

Unknown hints are ignored, with one log line for each kind.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Hints", "hints_of"]

log = logging.getLogger("offstage.connectors")
ACTIONS = {
    "priority": ("chance",),
    "retain": ("seconds",),
    "prefetch": ("in_seconds", "chance"),
    "share": ("tokens",),
    "expect": ("tokens", "seconds"),
}
NEEDED = {"expect": ("tokens", "seconds")}  # of those: one without the other would do nothing
SECONDS_MAX, NUMBER_MAX = 86_400.0, 1e15
_said: set[str] = set()


@dataclass
class Hints:
    """Hints of one request; the defaults have no effect."""

    chance: float = 1.0
    retain_s: float = 0.0
    resume_s: float = -1.0
    resume_chance: float = 1.0
    share_tokens: int = -1
    expect_tokens: int = 0
    expect_s: float = 0.0


def hints_of(request: Any) -> Hints:
    """The hints from both sources; `kv_transfer_params` overrides `kv_hints`."""
    found = Hints()
    for name, payload in _actions(request):
        if name not in ACTIONS or not isinstance(payload, dict) or not _take(found, name, payload):
            _say(name, payload)
    return found


def _actions(request: Any) -> Iterator[tuple[str, Any]]:
    envelope = getattr(request, "kv_hints", None)
    for action in envelope.actions if envelope is not None else ():
        yield action.action_type, action.payload
    params = getattr(request, "kv_transfer_params", None)
    ours = params.get("offstage", {}) if isinstance(params, dict) else {}
    yield from ours.items() if isinstance(ours, dict) else [("offstage", ours)]


def _take(found: Hints, name: str, payload: dict[str, Any]) -> bool:
    """Apply one hint; returns whether it is known."""
    given = {key: _number(payload[key]) for key in ACTIONS[name] if key in payload}
    needs = set(NEEDED.get(name, ()))
    if not given or needs - set(given) or set(payload) - set(given) or min(given.values()) < 0:
        return False
    chance = min(1.0, given.get("chance", 1.0))
    seconds = min(SECONDS_MAX, given.get("seconds", given.get("in_seconds", 0.0)))
    if name == "priority":
        found.chance = chance
    elif name == "retain":
        found.retain_s = seconds
    elif name == "prefetch":
        found.resume_s, found.resume_chance = seconds, chance
    elif name == "share":
        found.share_tokens = int(given["tokens"])
    else:
        found.expect_tokens, found.expect_s = int(given["tokens"]), seconds
    return True


def _number(value: Any) -> float:
    """What a client of the engine sent; -1: it is no number, or too large to be one of these."""
    right = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if right and 0 <= value <= NUMBER_MAX else -1.0


def _say(name: str, payload: Any) -> None:
    if name not in _said and len(_said) < 64:
        _said.add(name)
        log.warning("a hint that is not understood: %.40r %.80r; it is left out", name, payload)
