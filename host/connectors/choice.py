"""Recompute or fetch: decided for each request from measured times.

Two lines are fitted to an engine's recent samples: seconds of a step over its computed tokens,
which starts at the time of steps of a few tokens, and seconds that a load delayed a step over its
bytes. The formulas are those of `offstage plan` (`bindings.tradeoffs`), with these lines in place
of a data sheet's numbers. Until both lines are known, and while more tokens seem to cost no more
time, requests are fetched, since only what is done gives samples.

One thread: the engine's scheduler. Nothing fails.
"""

from collections import deque
from dataclasses import dataclass, field

from offstage.bindings.tradeoffs import fetch_s, prefill_s

__all__ = ["Choice", "Decision", "Line"]

FORGET = 0.9  # of what was known, at each new sample
TRY_EVERY = 8  # decisions against fetching, after which one fetches to see whether it still is so
SAMPLES_MIN = 3
KEPT = 4096


@dataclass
class Line:
    """Least-squares fit of seconds over an amount; older samples weigh less."""

    count: int = 0
    start_s: float | None = None
    """Of almost no amount: where it is known, the line is drawn through it as much as through all
    other samples, since samples of one amount do not tell their fixed part."""
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def learn(self, amount: float, seconds: float) -> None:
        """One sample."""
        self.count += 1
        self.age()
        for i, new in enumerate((1.0, amount, seconds, amount * amount, amount * seconds)):
            self._sums[i] += new

    def begins(self, seconds: float) -> None:
        """One sample of almost no amount."""
        before = seconds if self.start_s is None else self.start_s
        self.start_s = FORGET * before + (1 - FORGET) * seconds

    def age(self) -> None:
        """What is known counts less beside the next sample."""
        self._sums = [one * FORGET for one in self._sums]

    @property
    def known(self) -> bool:
        """Whether there are enough samples."""
        return self.count >= SAMPLES_MIN

    @property
    def fit(self) -> tuple[float, float]:
        """Intercept and slope in seconds; neither is negative."""
        n, x, y, xx, xy = self._sums
        if self.start_s is not None:
            n, y = 2 * n, y + n * self.start_s
        spread = n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > 1e-9 * n * xx else y / x
        if slope <= 0:
            return y / n, 0.0
        start = (y - slope * x) / n
        return (start, slope) if start >= 0 else (0.0, xy / xx)


@dataclass
class Decision:
    """The decision on a request's prefix, its reasons, and its outcome."""

    tokens: int
    fetched: bool
    apart: bool = False
    """It would be loaded apart from the steps of others."""
    fetch_s: float = 0.0
    compute_s: float = 0.0
    took_s: float = -1.0
    """Measured time of the choice; -1: not known yet."""
    regret_s: float = 0.0
    """How much longer it took than the estimate for the alternative."""


class Choice:
    """Whether a prefix of one model's KV, of `token_bytes` a token, is worth its fetch."""

    def __init__(self, token_bytes: float) -> None:
        """Start without samples."""
        self._token_bytes = token_bytes
        self.compute, self.fetch = Line(), Line()
        self.decisions: deque[Decision] = deque(maxlen=KEPT)
        self._against = 0

    def decide(self, tokens: int, queued_tokens: float = 0.0, *, apart: bool = False) -> Decision:
        """`queued_tokens`: tokens of the fetches queued before this one."""
        one = Decision(tokens, True, apart)
        self.decisions.append(one)
        if tokens and self.compute.known and self.fetch.known and self.compute.fit[1] > 0:
            one.fetch_s, one.compute_s = self._both(one, queued_tokens)
            one.fetched = one.fetch_s <= one.compute_s or self._against >= TRY_EVERY
            self._against = 0 if one.fetched else self._against + 1
            if not one.fetched:  # no sample will say whether it still is so
                self.fetch.age()
        return one

    def ended(self, one: Decision, took_s: float) -> None:
        """Record how long the choice took."""
        one.took_s = took_s + (self._step_s if one.fetched and one.apart else 0.0)
        if self.compute.known and self.fetch.known:
            fetch, compute = self._both(one, 0.0)
            one.regret_s = max(0.0, one.took_s - (compute if one.fetched else fetch))

    @property
    def _step_s(self) -> float:
        """A step's fixed time: a load apart ends beside a step, and its request joins the next."""
        return self.compute.fit[0] if self.compute.known else 0.0

    def _both(self, one: Decision, queued_tokens: float) -> tuple[float, float]:
        """Seconds of fetching and of computing. Computed tokens join a step that runs anyway, so
        the step's fixed time is not counted."""
        tokens = one.tokens
        start, per_byte = self.fetch.fit
        rate = 1.0 / per_byte if per_byte else float("inf")
        _, per_token = self.compute.fit
        speed = 1.0 / per_token if per_token else float("inf")
        start += self._step_s if one.apart else 0.0
        queued = queued_tokens / tokens
        return (fetch_s(tokens, self._token_bytes, rate, start, queued), prefill_s(tokens, speed))
