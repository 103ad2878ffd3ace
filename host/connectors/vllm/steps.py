"""Messages about a step: from the scheduler to its workers, and back when the step is done."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from offstage.host.model.identity import Weights

__all__ = ["PATIENCE_S", "Landed", "Report", "Step", "There"]

PATIENCE_S = 5.0  # limit for a step's loads, until the time of computing is known


@dataclass
class Step:
    """Loads and saves of one step, from scheduler to worker."""

    loads: list[tuple[bytes, int]] = field(default_factory=list)
    """Key and block."""
    apart: list[tuple[str, list[tuple[bytes, int]], float]] = field(default_factory=list)
    """Asynchronous loads by request, and their deadline in seconds."""
    saves: list[tuple[list[bytes], list[int]]] = field(default_factory=list)
    """Keys of the newly filled blocks by request, and all its blocks up to them."""
    noted: set[int] = field(default_factory=set)
    """Blocks that failed to load, and that the scheduler has handled."""
    adapters: list[Weights] = field(default_factory=list)
    """Of its requests: what the keys name."""
    number: int = 0
    tokens: int = 0
    patience_s: float = PATIENCE_S
    """Limit in seconds for all of its loads together; later blocks are computed."""
    others: list["Step"] = field(default_factory=list)
    """Of a model with several groups of layers: the step of each group after the first."""

    @property
    def groups(self) -> list["Step"]:
        """Of each group of layers, in vLLM's order."""
        return [self, *self.others] if self.others else [self]

    @classmethod
    def of(cls, groups: int) -> "Step":
        """An empty step of so many groups."""
        return cls(others=[cls() for _ in range(groups - 1)])

    def holds(self) -> bool:
        """Whether the adapters are what the keys name, as far as their files say."""
        return all(one.unchanged() for one in self.adapters)


@dataclass
class There:
    """When the first and the last block of loads were in the worker's memory: seconds before its
    report, since a worker may have another clock. None: none came."""

    first_s: float | None = None
    last_s: float | None = None

    @classmethod
    def of(cls, loads: Iterable["There"]) -> "There":
        """Of several loads, or several workers."""
        known = [(one.first_s, one.last_s) for one in loads]
        firsts = [first for first, _ in known if first is not None]
        lasts = [last for _, last in known if last is not None]
        return cls(max(firsts, default=None), min(lasts, default=None))


@dataclass
class Landed:
    """A piece of a load apart that has ended. With the last piece of the request come the seconds
    of all of them, and those in which no load before it was in flight; with others -1."""

    request: str
    loaded_bytes: int
    took_s: float
    alone_s: float
    there: There = field(default_factory=There)


@dataclass
class Report:
    """Outcome of a step, from one worker or merged from all of them."""

    number: int
    tokens: int
    loaded_bytes: int = 0
    waited_s: float = 0.0
    took_s: float = 0.0
    stored: list[bytes] = field(default_factory=list)
    """Blocks of which this worker's part is stored; of all workers, once for each of them."""
    landed: list[Landed] = field(default_factory=list)
    """Of loads apart."""
    there: There = field(default_factory=There)
    """Of the step's own loads."""

    def aggregate(self, other: "Report") -> "Report":
        """Merge the reports of two workers, which wait for each other in every layer."""
        return Report(
            self.number,
            self.tokens,
            self.loaded_bytes + other.loaded_bytes,
            max(self.waited_s, other.waited_s),
            max(self.took_s, other.took_s),
            self.stored + other.stored,
            self.landed + other.landed,
            There.of((self.there, other.there)),
        )
