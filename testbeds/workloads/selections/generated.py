"""Workloads drawn from the fitted score processes: any length, any number of layers and sessions.

A unit is scored and selected as a whole: a block, or with `granule_tokens` a granule of one, as by
a selector that ranks tokens; `slab.Coarsened` turns granules into whole blocks. A step:
1. the process of every layer moves (`field.Field`); with `turn_steps` a new turn begins at every
   such step, and `turn_share` of the variance of slow is drawn anew in all layers;
2. scores become 16-bit numbers by a fixed map per layer, `q = 1 + floor((score - low) / unit)`,
   clamped to 1 to 65,534; `low` and `unit` are constant in time, 0 means "not written yet";
3. sinks, window and the highest of the rest are selected from these numbers (`slab.top_selection`).

Decode writes one block every `block_tokens` steps: it exists from the step after. Layers with
another layer's `index_source` have its scores and selection. A draft's scores are the step's own
with the last of the selected and the first of the rest exchanged, in the number that the given
agreement leaves; a plain top-k of them is the draft's selection. A draft model continues as the
model would: at the start of the user's next turn, it sees the step as if there were no turn.

The windows of the prefill are a block apart, each with the blocks written by then, as in the
capture format; the last one is the token before step 0.

Sessions are numbered from 0 and drawn independently, except for what a group shares: the contents
of its prefix, its static part there and `prefix_slow_share` of the slow part's innovations.
Everything follows from the seed. Bad options are `BadInput`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.model.score_process import BURST_SHARE, STATIC_SCALE
from offstage.testbeds.workloads.requests.trace_sessions import TraceSession
from offstage.testbeds.workloads.selections.coarse import Alike
from offstage.testbeds.workloads.selections.field import HEAVY_MAX, Field, FieldShape, words
from offstage.testbeds.workloads.selections.profiles import (
    CLUMP_TOKENS,
    STRUCTURES,
    Process,
    layer_processes,
)
from offstage.testbeds.workloads.selections.ranking import ranked, top_selection
from offstage.testbeds.workloads.selections.slab import SessionInfo, Slab

__all__ = ["PREFILL_WINDOWS", "GeneratedOptions", "GeneratedWorkload", "TracedWorkload"]

PREFILL_WINDOWS = 32
"""ESS (arXiv:2512.10576) warms up from the last 32 windows of the prefill. Fewer where a context
has fewer blocks."""

CELLS_MAX = 1 << 25
"""Maximum scores of one step, over the layers that select: 128 MiB per array of the process."""

_SCORE_MAX = 65534
_CONTENT = 20
"""Purpose of the words that identify contents; `field.py` uses smaller ones."""


@dataclass(frozen=True)
class GeneratedOptions:
    """What to draw. Tokens are not rounded: they must be whole blocks.

    layers: that store KV. select_blocks: a layer's selection, sinks and window included; with
    `granule_tokens` as many tokens are selected, granule by granule. groups: sessions are dealt to
    that many shared prefixes in turn; group: all share this one. draft_agreement: of a draft's
    selection, sinks and window included. index_source: the layer whose selection each layer uses;
    None: every layer its own. sampled: where a model of `of_layers` layers has too many, the
    numbers of those that are drawn: each has the process of its depth, and none that selects is
    near another.
    """

    profile: str = "published-mix"
    layers: int = 80
    context_tokens: int = 131072
    steps: int = 1000
    sessions: int = 1
    block_tokens: int = 64
    select_blocks: int = 32
    sink_blocks: int = 1
    window_blocks: int = 4
    granule_tokens: int | None = None
    turn_steps: int | None = None
    turn_share: float = BURST_SHARE
    shared_prefix_tokens: int = 0
    groups: int = 1
    group: int | None = None
    prefix_slow_share: float = 0.5
    draft_agreement: float | None = None
    index_source: tuple[int, ...] | None = None
    sampled: tuple[int, ...] | None = None
    of_layers: int = 0
    arrival_gap_s: float = 0.0
    seed: int = 1

    @property
    def unit_tokens(self) -> int:
        """Tokens of a unit."""
        return self.granule_tokens or self.block_tokens

    @property
    def factor(self) -> int:
        """Units of a block."""
        return self.block_tokens // self.unit_tokens


class GeneratedWorkload:
    """A `slab.Workload` that is computed on demand; holds no scores between calls."""

    def __init__(self, options: GeneratedOptions) -> None:
        source = options.index_source
        self._source = np.arange(options.layers) if source is None else np.array(source, np.int64)
        _check(options, self._source)
        self.options = options
        depth = options.of_layers if options.sampled else options.layers
        every = layer_processes(options.profile, depth, options.unit_tokens)
        self.processes = tuple(every[layer] for layer in options.sampled or range(depth))
        own = np.flatnonzero(self._source == np.arange(options.layers))
        self._own = tuple(self.processes[layer] for layer in own)
        self._spread = None if len(own) == options.layers else np.searchsorted(own, self._source)
        if len(own) * self._units > CELLS_MAX:
            raise _bad(
                f"{len(own)} layers of {self._units:,} units are more than {CELLS_MAX:,} scores",
                "make granule_tokens larger, or the context shorter",
            )
        self._low, self._unit = _affine(self._own)
        self.sessions = tuple(self._session(index) for index in range(options.sessions))
        self.layer_count = options.layers
        self.select_blocks = options.select_blocks * options.factor
        self.sink_blocks = options.sink_blocks * options.factor
        self.window_blocks = options.window_blocks * options.factor
        self.block_tokens = options.unit_tokens
        self.index_source = self._source
        self.draft_agreement = options.draft_agreement
        self.predicts = False
        self.prefill_windows = min(PREFILL_WINDOWS, options.context_tokens // options.block_tokens)

    def describe(self) -> dict[str, object]:
        """Kind, parameters, and which process drives which layers; `synthetic` is true."""
        used: dict[str, list[int]] = {}
        for layer in range(self.options.layers):
            process = self.processes[int(self._source[layer])]
            used.setdefault(process.name, []).append(layer)
        return {
            "kind": "generated",
            "synthetic": True,
            **asdict(self.options),
            "prefill_windows": self.prefill_windows,
            "structure": asdict(self.shape.structure),
            "processes": {
                process.name: {"layers": used[process.name], **asdict(process.params)}
                for process in self._own
            },
        }

    @property
    def score_unit(self) -> npt.NDArray[np.float32]:
        """`[layers, 1]`: one step of the 16-bit scores, in the process's unit."""
        return self._unit if self._spread is None else self._unit[self._spread]

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """Draw the session from its first step on."""
        options = self.options
        field = self._field(session)
        for _ in self._windows(field):
            pass
        turns = set(self.sessions[session].turns)
        for first in range(0, options.steps, steps):
            count = min(steps, options.steps - first)
            shape = (count, options.layers, self._units)
            scores = np.empty(shape, np.uint16)
            draft = None if options.draft_agreement is None else np.empty(shape, np.uint16)
            selected = np.empty((count, options.layers, self.select_blocks), np.uint32)
            for row in range(count):
                step = first + row
                field.advance()
                unturned = None
                if step in turns:
                    unturned = None if draft is None else self._quantised(field, step)
                    field.turn(options.turn_share)
                now = self._quantised(field, step)
                self._put(scores[row], now)
                self._put(selected[row], self._select(now, step))
                if draft is not None:
                    drafted = now if unturned is None else unturned
                    self._put(draft[row], self._drafted(drafted, step))
            for array in (scores, draft, selected):
                if array is not None:
                    array.setflags(write=False)
            yield Slab(session, first, selected, scores, draft)

    def prefill(self, session: int) -> npt.NDArray[np.uint16]:
        """The last query of each of the last blocks before step 0, oldest first: uint16 `[windows,
        layers, blocks of the context]`, 0 for blocks not written by then."""
        field = self._field(session)
        windows = np.empty((self.prefill_windows, self.options.layers, self._context), np.uint16)
        for window, step in zip(windows, self._windows(field), strict=True):
            self._put(window, self._quantised(field, step)[:, : self._context])
        return windows

    def _windows(self, field: Field) -> Iterator[int]:
        """Advance through the windows; yields the step at which the block after theirs begins."""
        for ahead in range(self.prefill_windows - 1, -1, -1):
            yield -ahead * self.options.block_tokens
            if ahead:
                field.advance(self.options.block_tokens)

    def written(self, step: int) -> int:
        """Units that exist at a step; negative steps are the prefill's. Granules are added by whole
        blocks: a part of one is not staged."""
        options = self.options
        return self._context + step // options.block_tokens * options.factor

    @property
    def _context(self) -> int:
        return self.options.context_tokens // self.options.unit_tokens

    @property
    def _units(self) -> int:
        return self._context + (self.options.steps - 1) // self.options.unit_tokens

    @property
    def _prefix(self) -> int:
        return self.options.shared_prefix_tokens // self.options.unit_tokens

    def _group(self, session: int) -> int:
        if not self._prefix:
            return -1
        return session % self.options.groups if self.options.group is None else self.options.group

    def _session(self, index: int) -> SessionInfo:
        options, group = self.options, self._group(index)
        # The front of a stream of words does not depend on the number taken.
        contents = words((options.seed, 2 * index), _CONTENT, 0, 2 * self._context)
        if group >= 0:
            shared = words((options.seed, 2 * group + 1), _CONTENT, 0, 2 * self._prefix)
            contents[: len(shared)] = shared
        turns = range(options.turn_steps or options.steps, options.steps, options.turn_steps or 1)
        return SessionInfo(
            f"generated-{index}",
            self._context,
            options.steps,
            contents.reshape(-1, 2),
            tuple(turns),
            group,
            index * options.arrival_gap_s,
        )

    def drawn(self, session: int) -> "GeneratedWorkload":
        """The workload that draws a session: itself."""
        return self

    @property
    def shape(self) -> FieldShape:
        """The shape of a session's field."""
        options = self.options
        structure = STRUCTURES[options.profile]
        return FieldShape(
            self._context,
            self._units - self._context,
            max(1, CLUMP_TOKENS // options.unit_tokens),
            self._prefix,
            options.prefix_slow_share,
            replace(structure, layers=0.0) if options.sampled else structure,
        )

    def _field(self, session: int) -> Field:
        params = [process.params for process in self._own]
        return Field(params, self.shape, self.options.seed, session, self._group(session))

    def _quantised(self, field: Field, step: int) -> npt.NDArray[np.uint16]:
        units = min(self.written(step), self._units)
        values = field.scores(units)
        values -= self._low
        values *= 1 / self._unit
        values += 1
        np.clip(values, 1, _SCORE_MAX, out=values)
        result = values.astype(np.uint16)
        result[:, units:] = 0
        return result

    def _select(self, scores: npt.NDArray[np.uint16], step: int) -> npt.NDArray[np.uint32]:
        return top_selection(
            scores, self.written(step), self.select_blocks, self.sink_blocks, self.window_blocks
        )

    def _drafted(self, ahead: npt.NDArray[np.uint16], step: int) -> npt.NDArray[np.uint16]:
        """The scores of a step with a share exchanged."""
        assert self.draft_agreement is not None
        written, select = self.written(step), self.select_blocks
        sinks, window = self.sink_blocks, self.window_blocks
        free = select - sinks - window
        wrong = select - round(self.draft_agreement * select)
        result = np.zeros_like(ahead)
        middle = ahead[:, sinks : written - window].copy()
        if wrong:
            order = ranked(middle, tuple({free - wrong, free, free + wrong} - {0}))
            kept, lost, won = np.split(order[:, : free + wrong], (free - wrong, free), axis=1)
            lost_scores = np.take_along_axis(middle, lost, 1)
            won_scores = np.take_along_axis(middle, won, 1)
            np.put_along_axis(middle, won, np.sort(lost_scores, axis=1), 1)
            np.put_along_axis(middle, lost, np.sort(won_scores, axis=1), 1)
            # Where equals lie on both sides of the border, only a step between them is exact.
            border = np.minimum(
                np.take_along_axis(middle, kept, 1).min(axis=1, initial=_SCORE_MAX),
                np.take_along_axis(middle, won, 1).min(axis=1),
            )[:, None]
            chosen = np.zeros(middle.shape, bool)
            np.put_along_axis(chosen, np.concatenate([kept, won], axis=1), True, 1)
            np.minimum(middle, border - 1, out=middle, where=~chosen)
        result[:, sinks : written - window] = middle
        result[:, :sinks] = result[:, written - window : written] = _SCORE_MAX + 1
        return result

    def _put(self, out: npt.NDArray[np.generic], rows: npt.NDArray[np.generic]) -> None:
        """Copy rows of the layers that select to all layers that use them."""
        if self._spread is None:
            out[...] = rows
        else:
            np.take(rows, self._spread, axis=0, out=out)


def _affine(
    processes: tuple[Process, ...],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """`low` and `unit` of each layer, float32 `[layers, 1]`: from six standard deviations below the
    mean to six above the largest static part with the whole recency part."""
    low, unit = [], []
    for params in (process.params for process in processes):
        spread = 6 * (1 + params.w_fast**2 + params.noise**2) ** 0.5
        top = spread + params.recency + params.w_static * STATIC_SCALE * HEAVY_MAX
        low.append(-spread)
        unit.append((top + spread) / _SCORE_MAX)
    return np.array(low, np.float32)[:, None], np.array(unit, np.float32)[:, None]


def _check(options: GeneratedOptions, source: npt.NDArray[np.int64]) -> None:
    for name in ("layers", "context_tokens", "steps", "sessions", "block_tokens", "select_blocks"):
        if getattr(options, name) < 1:
            raise _bad(f"{name} = {getattr(options, name)}", "give 1 or more")
    for name in ("sink_blocks", "window_blocks", "shared_prefix_tokens", "arrival_gap_s", "seed"):
        if not getattr(options, name) >= 0:
            raise _bad(f"{name} = {getattr(options, name)}", "give 0 or more")
    for name in ("granule_tokens", "turn_steps", "groups"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise _bad(f"{name} = {value}", "give 1 or more, or leave it out")
    for name in ("turn_share", "prefix_slow_share"):
        if not 0 <= getattr(options, name) <= 1:
            raise _bad(f"{name} = {getattr(options, name)}", "give a share of 0 to 1")
    if options.block_tokens % options.unit_tokens:
        raise _bad(
            f"granules of {options.unit_tokens} tokens do not divide {options.block_tokens}",
            "make block_tokens a multiple of granule_tokens",
        )
    for name in ("context_tokens", "shared_prefix_tokens"):
        if getattr(options, name) % options.block_tokens:
            raise _bad(
                f"{name} = {getattr(options, name)} is not a whole number of blocks",
                f"give a multiple of {options.block_tokens}",
            )
    if options.shared_prefix_tokens > options.context_tokens:
        raise _bad(
            "the shared prefix is longer than the context", "make shared_prefix_tokens smaller"
        )
    _check_selection(options)
    layers = np.arange(options.layers)
    if source.shape != layers.shape or (source < 0).any() or (source > layers).any():
        raise _bad("index_source names no earlier layer", "give each layer itself or one before")
    if (source[source] != source).any():
        raise _bad("index_source names a layer that selects nothing", "name its source instead")


def _check_selection(options: GeneratedOptions) -> None:
    blocks = options.context_tokens // options.block_tokens
    forced = options.sink_blocks + options.window_blocks
    if not forced <= options.select_blocks <= blocks:
        raise _bad(
            f"select_blocks = {options.select_blocks} of {blocks}, sinks and window are {forced}",
            "select at least those, and at most the context",
        )
    agreement = options.draft_agreement
    if agreement is not None:
        select = options.select_blocks * options.factor
        wrong = select - round(agreement * select) if 0 <= agreement <= 1 else select + 1
        room = min(options.select_blocks - forced, blocks - options.select_blocks) * options.factor
        if wrong > room:
            least = 1 - room / select
            raise _bad(
                f"draft_agreement = {agreement}", f"give {least:.3f} to 1 for this selection"
            )


def _bad(what: str, fix: str) -> BadInput:
    return BadInput(what, "workload", fix)


# Generated selections under real requests: lengths, order and sharing are a trace's.
#
# A request trace has each prompt's length, the number of tokens that followed and the prefix it
# shares, but nothing of what attention selects. So each session here has its recorded length and is
# drawn from the fitted processes, and sessions of a group share the static part of the prefix that
# they share in the trace. Everything follows from trace, part and seed.


class TracedWorkload(Alike):
    """A `slab.Workload`. `options` apply to all sessions, except for their lengths; `steps` is the
    maximum that a session decodes. `origin` names trace and part."""

    def __init__(
        self, options: GeneratedOptions, sessions: Sequence[TraceSession], origin: dict[str, object]
    ) -> None:
        self._origin = origin
        prefixes = _prefixes(sessions)
        self._each = [
            GeneratedWorkload(_options(options, number, one, prefix))
            for number, (one, prefix) in enumerate(zip(sessions, prefixes, strict=True))
        ]
        self.sessions = tuple(self._info(number, one) for number, one in enumerate(sessions))
        super().__init__(self._each[0])

    def describe(self) -> dict[str, object]:
        """As the generated workload's, with the trace and each session's length."""
        described = self._each[0].describe()
        for name in ("context_tokens", "steps", "sessions", "shared_prefix_tokens", "group"):
            described.pop(name, None)
        return {
            **described,
            **self._origin,
            "kind": "generated, lengths of a trace",
            "context_tokens": [one.blocks * self.block_tokens for one in self.sessions],
            "steps": [one.steps for one in self.sessions],
        }

    def drawn(self, session: int) -> GeneratedWorkload:
        """The workload that draws a session."""
        return self._each[session]

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The draws of the session."""
        return self._each[session].slabs(session, steps)

    def prefill(self, session: int) -> npt.NDArray[np.uint16]:
        """The process before step 0."""
        return self._each[session].prefill(session)

    def _info(self, number: int, one: TraceSession) -> SessionInfo:
        drawn = self._each[number].sessions[number]
        return replace(
            drawn,
            name=one.name,
            contents=np.ascontiguousarray(one.contents[: drawn.blocks]),
            group=one.group,
            arrival_s=one.arrival_s,
        )


def _options(
    options: GeneratedOptions, number: int, one: TraceSession, prefix: int
) -> GeneratedOptions:
    """The options of session `number`, the last of a separate workload, so that its draws are its
    number's."""
    block = options.block_tokens
    return replace(
        options,
        context_tokens=one.context_tokens // block * block,
        steps=min(one.output_tokens, options.steps),
        sessions=number + 1,
        group=one.group if prefix else None,
        shared_prefix_tokens=prefix * options.unit_tokens // block * block,
    )


def _prefixes(sessions: Sequence[TraceSession]) -> list[int]:
    """Units from the front that each session shares with another of its group."""
    found = []
    for one in sessions:
        others = [two for two in sessions if two is not one and two.group == one.group >= 0]
        found.append(max((_common(one, two) for two in others), default=0))
    return found


def _common(one: TraceSession, two: TraceSession) -> int:
    count = min(len(one.contents), len(two.contents))
    differs = (one.contents[:count] != two.contents[:count]).any(axis=1)
    return int(differs.argmax()) if differs.any() else count
