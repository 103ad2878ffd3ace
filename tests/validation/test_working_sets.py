"""How much SRAM does the chip's table need? Do its misses follow from the working set?

Commands of all sessions and layers come in turn, over and over: each entry and each line of
averages is used once a round, the order in which the least recently used is always the next needed.
So a set that is asked for more keys than it has ways misses all of them, and any other none. Keys
are hashed over the sets, so their number in a set is Poisson with the mean w of the working set
over the sets, and the share of misses is P(n >= ways) for that mean.
"""

import math

import pytest

from offstage.asic_model.chip import open_chip
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.units.metadata import AVERAGE_BYTES, set_count
from offstage.bindings.chip import Chip
from offstage.bindings.network import Limits
from offstage.bindings.timing import Timing

SESSIONS, LAYERS, DEMANDS, SCORES = 24, 80, 32, 2048
"""128K tokens in blocks of 64, of which 32 are demanded, in each layer of 24 sessions."""
APART_PS = 10**7


class Commands:
    """A chip that is sent commands one after the other, and its misses since the last look."""

    def __init__(self, preset: Preset) -> None:
        self.chip: Chip = open_chip(preset, Limits(in_flight_max=64))
        self.timing: Timing = self.chip.timing()
        self.at_ps = 0
        self.seen = (0, 0)

    def send(self, session: int, layer: int, blocks: "range | None", scores: int) -> None:
        """One command; without `blocks` of DEMANDS that have no names."""
        self.timing.ask(
            "command",
            self.at_ps,
            count=DEMANDS if blocks is None else len(blocks),
            score_count=scores,
            session=session,
            layer=layer,
            blocks=blocks,
            size_bytes=65536,
        )
        self.at_ps += APART_PS
        self.timing.poll(self.at_ps)

    def found(self) -> tuple[int, int]:
        """Hits and misses since the last call."""
        self.chip.run(until_ps=self.at_ps)
        stats, before = self.chip.stats()["metadata"], self.seen
        self.seen = (stats.hits, stats.misses)
        return stats.hits - before[0], stats.misses - before[1]


def misses_by_theory(preset: Preset, keys: int) -> float:
    """The share of misses of a working set of that many keys, used in turn."""
    table = preset.metadata
    assert table is not None
    mean, ways = keys / set_count(table), table.ways.whole
    fewer = sum(math.exp(-mean) * mean**n / math.factorial(n) for n in range(ways))
    return 1 - fewer


@pytest.mark.parametrize("mib", [4, 8, 16, 64])
def test_misses_follow_from_the_working_set(mib: float) -> None:
    """Entries and averages of 24 sessions are 9.4 MiB of 32 B: from 4 to 64 MiB the table goes from
    missing nearly everything to finding everything."""
    preset = read_preset("asic_7nm").with_({"metadata.sram": mib})
    assert preset.metadata is not None
    lines = math.ceil(SCORES / (preset.metadata.entry.whole // AVERAGE_BYTES))
    commands = Commands(preset)
    for _ in range(2):
        for session in range(SESSIONS):
            for layer in range(LAYERS):
                commands.send(session, layer, range(session, session + DEMANDS), SCORES)
        hits, misses = commands.found()
    each = DEMANDS + lines
    assert hits + misses == SESSIONS * LAYERS * each
    expected = misses_by_theory(preset, SESSIONS * LAYERS * each)
    assert misses / (hits + misses) == pytest.approx(expected, abs=0.01)
    assert mib != 4 or expected > 0.95
    assert mib != 64 or expected < 0.001


def test_a_selection_that_drifts_misses_what_is_new() -> None:
    """A block more in each step, and one less: the first command misses all, every other one. A
    command that names no blocks cannot drift."""
    for named, expected in ((True, DEMANDS + 9), (False, DEMANDS)):
        commands = Commands(read_preset("asic_7nm"))
        for step in range(10):
            commands.send(0, 0, range(step, step + DEMANDS) if named else None, 0)
        assert commands.found() == (10 * DEMANDS - expected, expected)


@pytest.mark.parametrize("mib", [1, 64])
def test_a_new_block_s_hash_is_never_on_the_die(mib: float) -> None:
    """However large the SRAM is: every write looks into the spill memory."""
    chip = open_chip(
        read_preset("asic_7nm").with_({"metadata.sram": mib}), Limits(in_flight_max=512)
    )
    timing = chip.timing()
    for number in range(300):
        timing.ask("write", number * APART_PS, size_bytes=65536, offset_bytes=number * 65536)
    chip.run()
    stats = chip.stats()
    assert (stats["metadata"].hits, stats["metadata"].misses) == (0, 300)
    assert stats["ddr"].arrivals == 300
