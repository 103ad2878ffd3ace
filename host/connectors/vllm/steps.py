"""What the scheduler tells its workers of a step, and what they tell it when the step is done."""

from dataclasses import dataclass, field

from offstage.host.model.identity import Weights

__all__ = ["PATIENCE_S", "Report", "Step"]

PATIENCE_S = 5.0  # for what a step loads, until it is known how long computing it takes


@dataclass
class Step:
    """What one step loads and saves, as it goes from scheduler to worker."""

    loads: list[tuple[bytes, int]] = field(default_factory=list)
    """Key and block."""
    apart: list[tuple[str, list[tuple[bytes, int]], float]] = field(default_factory=list)
    """By request: loads that no step waits for, and in how many seconds they have to be there."""
    saves: list[tuple[list[bytes], list[int]]] = field(default_factory=list)
    """By request: keys of its last blocks that are full now, and all blocks up to them."""
    noted: set[int] = field(default_factory=set)
    """Blocks that had not loaded, and of which the scheduler has taken note."""
    adapters: list[Weights] = field(default_factory=list)
    """Of its requests: what the keys name."""
    number: int = 0
    tokens: int = 0
    patience_s: float = PATIENCE_S
    """Seconds for all of its loads together: what has not come by then is computed."""

    def holds(self) -> bool:
        """Whether the adapters are what the keys name, as far as their files say."""
        return all(one.unchanged() for one in self.adapters)


@dataclass
class Report:
    """What became of a step, as it goes back from a worker, or from all of them."""

    number: int
    tokens: int
    loaded_bytes: int = 0
    waited_s: float = 0.0
    took_s: float = 0.0
    stored: list[bytes] = field(default_factory=list)
    """Blocks of which this worker's part is stored; of all workers, once for each of them."""
    landed: list[tuple[str, int, float]] = field(default_factory=list)
    """Of loads apart: the request, bytes, and with its last ones the seconds of all (else -1)."""

    def aggregate(self, other: "Report") -> "Report":
        """Of two workers, which wait for each other in every layer."""
        return Report(
            self.number,
            self.tokens,
            self.loaded_bytes + other.loaded_bytes,
            max(self.waited_s, other.waited_s),
            max(self.took_s, other.took_s),
            self.stored + other.stored,
            self.landed + other.landed,
        )
