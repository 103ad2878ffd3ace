"""The plain model's probability of a demand: counted by class, with a weak prior.

A class is the level of an average, or `TRIVIAL` for blocks selected by rule.
"""

from dataclasses import dataclass, field
from math import floor, log2

LEVELS, STEPS, PRIOR_EXPOSURES, ROUNDS = 64, 4, 8, 256
HIGHEST = 65535
TRIVIAL = LEVELS


def prior(level: int) -> int:
    """1 % + 30 % (level / 64)^3, in 1/65536; one half for trivial blocks."""
    if level == TRIVIAL:
        return 32768
    return 655 + (19661 * level**3 >> 18)


def bucket_of(chance: int) -> int:
    """The bucket of a chance: eight to an octave, evenly spaced within it."""
    if chance == 0:
        return 0
    octave = floor(log2(chance))
    return 8 * octave + floor((chance / 2**octave - 1) * 8)


def odds_bucket(chance: int) -> int:
    """The bucket of the odds p / (1 - p)."""
    return bucket_of(65536 * chance // (65536 - chance))


def level_of(average: int) -> int:
    return average // (65536 // LEVELS)


UNKNOWN = bucket_of(prior(LEVELS // 2))


@dataclass
class Calibration:
    """The counts of one (session, layer)."""

    exposure: list[int] = field(default_factory=lambda: [0] * (LEVELS + 1))
    demanded: list[int] = field(default_factory=lambda: [0] * (LEVELS + 1))
    noted: list[int] = field(default_factory=list)  # class by ordinal when the round began
    asked: set[int] = field(default_factory=set)
    steps: int = 0

    def copy(self) -> "Calibration":
        """The counts alone: a round in progress is not copied."""
        return Calibration(list(self.exposure), list(self.demanded))

    def chance(self, level: int) -> int:
        """Ever narrower neighbourhoods of the level; each is the prior of the next."""
        chance = prior(level)
        for near in (0,) if level == TRIVIAL else (16, 4, 1, 0):
            around = range(max(level - near, 0), min(level + near + 1, LEVELS))
            if level == TRIVIAL:
                around = range(TRIVIAL, TRIVIAL + 1)
            exposure = sum(self.exposure[one] for one in around)
            demanded = sum(self.demanded[one] for one in around)
            chance = (demanded * 65536 + PRIOR_EXPOSURES * chance) // (exposure + PRIOR_EXPOSURES)
        return min(chance, HIGHEST)

    def demands(self, ordinals: list[int]) -> None:
        """Count one step's demands; the last step of a round ends it."""
        if not self.noted:
            return
        self.asked |= set(ordinals)
        self.steps += 1
        if self.steps < STEPS:
            return
        for ordinal, level in enumerate(self.noted):
            self.exposure[level] += 1
            self.demanded[level] += ordinal in self.asked
        if sum(self.exposure) > ROUNDS * len(self.noted):
            self.exposure = [count // 2 for count in self.exposure]
            self.demanded = [count // 2 for count in self.demanded]
        self.noted, self.asked, self.steps = [], set(), 0

    def note(self, levels: list[int]) -> None:
        """Begin a round, unless one is in progress."""
        if not self.noted:
            self.noted = levels
