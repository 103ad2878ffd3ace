"""A prefetch policy: its input in each step, and the answers that it may give.

A policy is a component. Part of it may be in the decision core, which a daemon runs as well: `core`
names those switches. Part of it may be Python: `step` is called once per step of a session with
arrays over all layers, and returns guesses. Components are joined by `+`.

The contract, which `tests/contract/test_policies.py` checks for every registered policy:

- **No future.** A guess with `after_layer = l` uses scores and selections of this step's layers 0
  to l and of earlier steps, and `predicted` rows 1 to l + 2, nothing else. `draft` is known when
  `draft_layers` layers have run; row 0 of `predicted`, after the last layer but one. A run checks
  this, see `causality`.
- **In range.** Ordinals below `view.blocks`, layers below the number of layers, and of this step
  (`steps = 0`) only layers after `after_layer`.
- **Deterministic.** The same views give the same guesses; no clock, no global random state.
- **Own state only.** One object serves one run; state is kept per `view.session`, and can be
  copied by `copy.deepcopy`.

The core applies the bandwidth cap, the bounds and the deadlines, and chooses the victims, as in a
daemon. A policy does not see which blocks are resident.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.core import GUESS

__all__ = [
    "GUESS",
    "SCHEDULES",
    "CoreSwitches",
    "PolicyComponent",
    "Setting",
    "View",
    "guesses",
    "no_guesses",
]


@dataclass(frozen=True)
class Setting:
    """The setting of a run: blocks are counted per layer, `index_source` as in `Workload`.
    `draft_layers`: as in `View`. `worth`: the lowest probability of a demand that justifies a
    read. `pool_blocks`: of the HBM pool, 0: none; `traffic`: reads that may be spent, over those of
    LRU without prefetch at 2 k. Both are for components with `budgets`."""

    layer_count: int
    select_blocks: int
    buffer_blocks: int
    sink_blocks: int
    window_blocks: int
    block_tokens: int
    index_source: npt.NDArray[np.int64]
    draft_agreement: float | None = None
    predicts: bool = False
    draft_layers: int = 1
    worth: float = 0.1
    pool_blocks: int = 0
    traffic: float = 1.3


@dataclass(frozen=True)
class View:
    """One step of one session, as the host knows it when the step has run.

    selected: uint32 `[layers, width]`, padded with `slab.ABSENT`. scores, draft, predicted:
    uint16 `[layers, blocks]`, as in `slab.Slab`. `draft_layers`: layers of this step that have run
    when the draft model has finished the step's token. `turn`: a new turn of the conversation
    begins with this step. `held`: what the HBM pool had before the step, as `selected`; only for
    components with `budgets`. Arrays are read-only and only valid during the call.
    """

    session: int
    step: int
    blocks: int
    selected: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.uint16]
    draft: npt.NDArray[np.uint16] | None
    turn: bool
    predicted: npt.NDArray[np.uint16] | None = None
    draft_layers: int = 1
    held: npt.NDArray[np.uint32] | None = None


@dataclass(frozen=True)
class CoreSwitches:
    """The part of a component outside its Python: in the decision core, or in the runner.

    prefetchers: names of `offstage.bindings.layouts.PREFETCHERS`. eviction: the default if the
    spec names none. parameters: fields of `offstage.bindings.core.Policy`, and `window_tokens`,
    which becomes `window_blocks` by the workload's block size. schedule: one of `SCHEDULES`, the
    order in which requests are admitted; None: in order of arrival. granule: only the selected
    granules are staged, not whole blocks.
    """

    prefetchers: tuple[str, ...] = ()
    eviction: str | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    schedule: str | None = None
    granule: bool = False


SCHEDULES = ("together",)
"""`together`: requests that share a prefix are admitted one after another."""


class PolicyComponent(Protocol):
    """One component; see the contract above. `uses` names in a few words the information that it
    has and a demand-only LRU lacks, `source` the origin of the idea. A component that affects
    prefetch by switches alone answers with `no_guesses()`."""

    name: ClassVar[str]
    uses: ClassVar[str]
    source: ClassVar[str]
    core: ClassVar[CoreSwitches]

    def __init__(self, setting: Setting) -> None: ...

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """Guesses before a session's first step (`steps` counts from the first step, which is 0;
        `after_layer` is not used). `prefill`: uint16 `[windows, layers, blocks]`."""

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses `GUESS` `[n]`, in any order."""


def no_guesses() -> npt.NDArray[np.void]:
    """An empty answer."""
    return np.zeros(0, GUESS)


def guesses(
    layer: npt.ArrayLike,
    ordinal: npt.ArrayLike,
    *,
    after_layer: npt.ArrayLike,
    steps: npt.ArrayLike = 1,
    probability: npt.ArrayLike = 1.0,
    cause: int,
) -> npt.NDArray[np.void]:
    """An answer from columns `[n]` or scalars. ValueError: a number that its column cannot hold,
    which a cast would turn into another one, or a `probability` outside 0 to 1."""
    shares = np.asarray(probability, np.float64)
    if shares.size and not (shares.min() >= 0 and shares.max() <= 1):
        worst = shares.min() if not shares.min() >= 0 else shares.max()
        raise ValueError(f"a probability is {worst:g}, not 0 to 1")
    answer = np.zeros(np.size(ordinal), GUESS)
    answer["probability"] = shares * 65535
    columns = {"layer": layer, "ordinal": ordinal, "after_layer": after_layer, "steps": steps}
    for name, values in {**columns, "cause": cause}.items():
        answer[name] = _whole(name, np.asarray(values))
    return answer


def _whole(name: str, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The values of a column. ValueError if a cast to its type would change one."""
    most = int(np.iinfo(GUESS[name]).max)
    if values.size and values.dtype.kind not in "iub":
        raise ValueError(f"{name} has values of type {values.dtype}, not whole numbers")
    if values.size and (int(values.min()) < 0 or int(values.max()) > most):
        wrong = values.min() if int(values.min()) < 0 else values.max()
        raise ValueError(f"{name} is {wrong}, not 0 to {most:,}")
    return values
