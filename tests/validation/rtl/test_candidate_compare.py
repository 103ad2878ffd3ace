"""Do the Verilog comparators propose what the decision core does, in the engine's cycles?"""

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from core_model_calibrate import HIGHEST, LEVELS, TRIVIAL, prior
from core_model_prefetch import PATTERN, Guesses, rank_cut

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Network, Stage, Unit, make_requests
from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.sim import populate

CYCLE_PS = 1_000
BLOCK = BLOCKS["candidate_compare"]
LANES, CELLS = BLOCK.tested["LANES"], BLOCK.tested["CELLS"]
Simulate = Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]
Row = Sequence[int]


class Turn:
    """A command, and what the decision core makes of it."""

    def __init__(self, shift: int, permille: int, rank: int, room: int, chances: Row) -> None:
        self.shift, self.permille, self.rank, self.room = shift, permille, rank, room
        self.chances = chances

    def scored(self, scores: Row, averages: Row, known: int) -> "Turn":
        """With these scores; averages of the first `known` blocks."""
        self.scores, self.averages, self.known = scores, averages, known
        moved = [
            a - (a >> self.shift) + (s >> self.shift) for s, a in zip(scores, averages, strict=True)
        ]
        self.after = moved[:known] + list(scores[known:])
        self.cut = rank_cut(self.after, self.rank)
        return self

    def placed(self, absent: Row, queued: Row, by_rule: Row) -> "Turn":
        """A bit of each block: stored and not staged, queued by the session, selected by rule."""
        self.absent, self.queued, self.by_rule = absent, queued, by_rule
        return self

    def chance(self, ordinal: int) -> int:
        return self.chances[TRIVIAL if self.by_rule[ordinal] else self.after[ordinal] >> 10]

    def best(self) -> list[list[int]]:
        """Ordinal and chance of each that gets a place in the row, by the plain model."""
        rule = SimpleNamespace(
            policy=SimpleNamespace(probability_permille_min=self.permille, residency_percent=100),
            proposed=0,
            _degree=lambda session: self.room,
            _readable=lambda chunk, layer: self.absent[chunk],
        )
        session = SimpleNamespace(
            config=SimpleNamespace(select_blocks=self.rank),
            chunks=range(len(self.after)),
            nontrivial=lambda ordinal: not self.by_rule[ordinal],
        )
        chances = [self.chance(ordinal) for ordinal in range(len(self.after))]
        found = Guesses._best(rule, session, 0, self.after, chances, PATTERN)  # type: ignore[arg-type]
        return [[ordinal, chance] for ordinal, _, chance in found]

    def picked(self) -> list[int]:
        """Of each beat how many blocks go on from its lanes."""
        goes = [
            absent and (average >= self.cut or by_rule)
            for absent, average, by_rule in zip(self.absent, self.after, self.by_rule, strict=True)
        ]
        return [sum(goes[first : first + LANES]) for first in range(0, len(goes), LANES)]

    def stimulus(self, gaps: Iterator[int]) -> dict[str, Any]:
        """What the driver applies; lanes behind the last block are 0."""
        columns = {
            "scores": (self.scores, 16),
            "averages": (self.averages, 16),
            "known": ([int(one < self.known) for one in range(len(self.scores))], 1),
            "absent": (self.absent, 1),
            "queued": (self.queued, 1),
            "by_rule": (self.by_rule, 1),
        }
        beats, at = [], 1
        for first in range(0, len(self.scores), LANES):
            at += next(gaps)
            lanes = {
                name: packed(row[first : first + LANES], bits)
                for name, (row, bits) in columns.items()
            }
            beats.append({"at": at, "lanes": lanes})
        enough = -(-self.permille * HIGHEST // 1000)
        start = {"shift": self.shift, "cut": self.cut, "enough": enough, "room": self.room}
        words = {name: f"{value:x}" for name, value in start.items()}
        return {"start": words | {"chances": packed(self.chances, 16)}, "beats": beats}


def packed(values: Row, bits: int) -> str:
    return f"{sum(int(value) << bits * place for place, value in enumerate(values)):x}"


def check(turns: list[Turn], simulate: Simulate, seed: int) -> list[list[list[int]]]:
    """Averages, candidates and cycles of all turns; gives the candidates that went to the heap."""
    draw = random.Random(seed)
    gaps = iter(lambda: draw.choice([0, 1, 1, 1, 3]), None)
    stalls = [draw.random() < 0.3 for _ in range(997)]
    commands = [turn.stimulus(gaps) for turn in turns]
    stimulus = {"commands": commands, "stalls": stalls}
    answers = simulate("candidate_compare", BLOCK.tested, stimulus)["answers"]
    occupied = [[max(1, count) for count in turn.picked()] for turn in turns]
    at_ps = [
        (begun + beat["at"]) * CYCLE_PS
        for command, (begun, *_) in zip(commands, answers, strict=True)
        for beat in command["beats"]
    ]
    lanes = Unit("lanes", item_ps=CYCLE_PS)
    chip = Chip(Network((lanes,), {"beat": (Stage("lanes", items="blocks"),)}))
    ends = chip.run(
        make_requests(len(at_ps), at_ps=at_ps, count=[one for cycles in occupied for one in cycles])
    )
    ends.sort(order="tag")
    end = iter((ends["end_ps"] // CYCLE_PS).tolist())
    free, proposed = answers[0][0], []
    for turn, cycles, (begun, entered, averages, out, above) in zip(
        turns, occupied, answers, strict=True
    ):
        assert begun == free
        left = [next(end) for _ in cycles]
        assert entered == [one - count for one, count in zip(left, cycles, strict=True)]
        firsts = range(0, len(turn.after), LANES)
        known = [packed(turn.after[first : first + LANES], 16) for first in firsts]
        assert averages == known
        cycle, expected = left[-1] + BLOCK.cycles, []
        for ordinal, chance in turn.best():
            if not turn.queued[ordinal]:
                while stalls[cycle % len(stalls)]:
                    cycle += 1
                expected.append([cycle, ordinal, chance])
            cycle += 1
        assert out == expected
        free = cycle + 1
        assert above == sum(average >= turn.cut for average in turn.after)
        proposed.append([[ordinal, chance] for _, ordinal, chance in out])
    return proposed


@pytest.mark.parametrize("seed", [1, 2])
def test_decisions_and_cycles(seed: int, simulate: Simulate) -> None:
    """Each beat is taken in the engine's cycle; averages, candidates and their cycles are those of
    the core's rules, with tables of chances in any order."""
    draw, turns = random.Random(seed), []
    for _ in range(200):
        count, top = draw.randint(1, 120), draw.choice([3, 2000, 1 << 16])
        chances = [draw.randrange(draw.choice([1, 1 << 16])) for _ in range(LEVELS + 1)]
        shift, rank, room = draw.randrange(5), draw.randint(1, count + 2), draw.randint(1, CELLS)
        turn = Turn(shift, draw.choice([0, 100, 500, 1000]), rank, room, chances)
        scores, averages = ([draw.randrange(top) for _ in range(count)] for _ in range(2))
        often = [draw.choice([0.05, 0.5, 1.0]) for _ in range(3)]
        bits = [
            [int(draw.random() < one / part) for _ in range(count)]
            for one, part in zip(often, (1, 2, 5), strict=True)
        ]
        turns.append(turn.scored(scores, averages, draw.randint(0, count)).placed(*bits))
    proposed = check(turns, simulate, seed)
    # Coverage: rows that are full, candidates that were queued, beats of more than one block.
    assert sum(len(turn.best()) == turn.room for turn in turns) > 30
    assert sum(len(turn.best()) > len(out) for turn, out in zip(turns, proposed, strict=True)) > 30
    assert sum(count > 1 for turn in turns for count in turn.picked()) > 500


def core_turns(draw: random.Random) -> Iterator[tuple[Turn, list[int]]]:
    """Two steps of a session in each layer of the decision core; what it reads ahead then. The
    chances are still those that it begins with."""
    layers, count, sinks, window = 4, draw.randint(30, 90), 2, 3
    select, percent = draw.randint(2, 20), draw.choice([50, 100, 400])
    shift, room, permille = draw.randint(1, 3), draw.randint(1, CELLS), draw.choice([0, 20, 100])
    config = CoreConfig(
        2000,
        512,
        128,
        layers + 1,
        demand_max=128,
        block_size_bytes=4096,
        io_max=2000,
        queue_max=512,
    )
    policy = Policy("ema", ema_shift=shift, residency_percent=percent, degree_max=room)
    policy = policy.with_(probability_permille_min=permille, prefetch_in_flight_max=2000)
    core = Core(config, policy)
    tenant = core.tenant_add(0, b"of a test secret", 2000)
    session = core.session_open(0, SessionConfig(tenant, select, sinks, window, 1_000_000))
    populate(core, session, count)
    core.session_set_generating(0, session, True)
    core.actions()
    core.step(0, session, 0, layers, range(count))  # its reads say which chunk each block is
    places = core.actions()["chunk"].tolist()
    chances = [prior(level) for level in range(LEVELS + 1)]
    by_rule = [int(one < sinks or one >= count - window) for one in range(count)]
    absent = [[1] * count for _ in range(layers)]
    averages = [[0] * count for _ in range(layers)]
    for step, layer in ((step, layer) for step in range(2) for layer in range(layers)):
        scores = [draw.randrange(draw.choice([1000, 1 << 16])) for _ in range(count)]
        turn = Turn(shift, permille, select * percent // 100, room, chances)
        turn.scored(scores, averages[layer], count if step else 0)
        demands = draw.sample(range(count), 3)
        core.step(1000 + step, session, step, layer, demands, scores=np.array(scores, np.uint16))
        for ordinal in demands:
            absent[layer][ordinal] = 0
        read = [places.index(one["chunk"]) for one in core.actions() if one["cause"] == PATTERN]
        yield turn.placed(list(absent[layer]), [0] * count, by_rule), read
        for ordinal in read:
            absent[layer][ordinal] = 0
        averages[layer] = turn.after


def test_candidates_are_the_cores(simulate: Simulate) -> None:
    """What the decision core itself reads ahead after a step is what the lanes put out."""
    draw = random.Random(3)
    turns, reads = zip(*(one for _ in range(20) for one in core_turns(draw)), strict=True)
    proposed = check(list(turns), simulate, 3)
    assert [[ordinal for ordinal, _ in out] for out in proposed] == list(reads)
    assert sum(map(len, reads)) > 200
