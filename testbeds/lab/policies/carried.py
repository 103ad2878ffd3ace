"""Components that the decision core implements completely: a daemon runs the same code.

Python only switches them on; the implementations are in `dpu/firmware/src/core`. `Coschedule` and
`Granule` guess nothing: they change the setup of a run.
"""

from typing import ClassVar

from offstage.bindings.layouts import EVICTIONS
from offstage.testbeds.lab.policies.base import Component
from offstage.testbeds.lab.policies.policy import CoreSwitches, PolicyComponent

__all__ = [
    "EVICTION_ONLY",
    "EVICTION_SOURCES",
    "Coschedule",
    "Ema",
    "Granule",
    "NextN",
    "Nothing",
    "PrevLayer",
    "PrevStep",
    "Shared",
    "Window",
]


class Nothing(Component):
    """Demand-only staging."""

    name: ClassVar[str] = "none"
    uses: ClassVar[str] = "nothing"
    source: ClassVar[str] = "the reference point: demands only, eviction of the least recently used"


class Window(Component):
    """Stage the last tokens when a session begins, and new ones as they are written."""

    name: ClassVar[str] = "window"
    uses: ClassVar[str] = "the decode position"
    source: ClassVar[str] = (
        "sliding window as in StreamingLLM arXiv:2309.17453; 4,096 tokens as in the daemon"
    )
    core: ClassVar[CoreSwitches] = CoreSwitches(
        prefetchers=("window",), parameters={"window_tokens": 4096}
    )


class Ema(Component):
    """Stage and keep blocks with a high decayed average score."""

    name: ClassVar[str] = "ema"
    uses: ClassVar[str] = "scores of all blocks, selected or not"
    source: ClassVar[str] = "Offstage: decayed scores ranked by the measured chance of a demand"
    core: ClassVar[CoreSwitches] = CoreSwitches(prefetchers=("ema",), eviction="score")


class Shared(Component):
    """Stage the blocks that other sessions with the same prefix attend to."""

    name: ClassVar[str] = "shared"
    uses: ClassVar[str] = "scores of sessions on the same prefix"
    source: ClassVar[str] = "Offstage: averages of sibling sessions for a session that has none yet"
    core: ClassVar[CoreSwitches] = CoreSwitches(prefetchers=("shared",))


class PrevStep(Component):
    """Stage the blocks that the next layer demanded in the previous step."""

    name: ClassVar[str] = "prev_step"
    uses: ClassVar[str] = "demands of the previous step"
    source: ClassVar[str] = "a baseline: the idea of SolidAttention (FAST '26), from demands only"
    core: ClassVar[CoreSwitches] = CoreSwitches(prefetchers=("prev_step",))


class PrevLayer(Component):
    """Stage for the next layer the blocks that this layer demands."""

    name: ClassVar[str] = "prev_layer"
    uses: ClassVar[str] = "demands of the previous layer"
    source: ClassVar[str] = "a baseline; IndexCache arXiv:2603.12201 on overlap of adjacent layers"
    core: ClassVar[CoreSwitches] = CoreSwitches(prefetchers=("prev_layer",))


class NextN(Component):
    """Stage the blocks that follow each demanded block."""

    name: ClassVar[str] = "next_n"
    uses: ClassVar[str] = "neighbourhood in the context"
    source: ClassVar[str] = "a baseline: read-ahead; four neighbours as in the daemon"
    core: ClassVar[CoreSwitches] = CoreSwitches(prefetchers=("next_n",), parameters={"next_n": 4})


_EVICTION_USES = {
    "fifo": "order of arrival",
    "random": "nothing",
    "score": "scores of all blocks, selected or not",
}
EVICTION_SOURCES = {
    "lru": "a baseline: evict the least recently used",
    "fifo": "a baseline: evict the oldest",
    "random": "a baseline: evict at random, by the run's seed",
    "s3fifo": "S3-FIFO: Yang et al., SOSP '23",
    "score": "Offstage: evict the least probable demand; as ema, without its prefetch",
    "sieve": "SIEVE: Zhang et al., NSDI '24",
    "lru_k": "LRU-K with K = 2: O'Neil et al., SIGMOD '93",
    "arc": "ARC: Megiddo, Modha, FAST '03",
}


def _eviction_only(name: str) -> type[PolicyComponent]:
    members = {
        "__doc__": f"No prefetch; eviction `{name}`.",
        "__module__": __name__,
        "name": name,
        "uses": _EVICTION_USES.get(name, "past demands"),
        "source": EVICTION_SOURCES[name],
        "core": CoreSwitches(eviction=name),
    }
    kind: type[PolicyComponent] = type(f"Evict_{name}", (Component,), members)
    return kind


EVICTION_ONLY = tuple(_eviction_only(name) for name in EVICTIONS)
"""One component without prefetch for each eviction policy of the core."""


class Coschedule(Component):
    """Admit requests that share a prefix one after another, so that they find it staged."""

    name: ClassVar[str] = "coschedule"
    uses: ClassVar[str] = "which requests share a prefix"
    source: ClassVar[str] = "Offstage; prefix-aware scheduling as in SGLang, arXiv:2312.07104"
    core: ClassVar[CoreSwitches] = CoreSwitches(schedule="together")


class Granule(Component):
    """Stage only the selected granules of a block, not the whole block."""

    name: ClassVar[str] = "granule"
    uses: ClassVar[str] = "which part of a block was selected"
    source: ClassVar[str] = "Offstage; sectors as in sectored caches"
    core: ClassVar[CoreSwitches] = CoreSwitches(granule=True)
