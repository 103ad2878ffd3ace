"""The worker's side of vLLM's connector: a `Copies` for each group of layers, which act together.

A load of a request apart from the steps has ended when it has in all groups, and where a prefix is
loaded as a whole it is lost with any of its blocks. All of it runs on the worker's thread.
"""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any

from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.groups import Groups
from offstage.host.connectors.vllm.steps import Report, Step

__all__ = ["Worker"]


class Worker:
    """`copies` of each of `groups`, in their order."""

    def __init__(self, groups: Groups, copies: Sequence[Copies]) -> None:
        """Nothing is copied before `register`."""
        self._groups, self.copies = groups, list(copies)
        self._places = {
            name: (number, place)
            for number, group in enumerate(groups)
            for place, name in enumerate(group.names)
        }
        self._landing: Counter[str] = Counter()  # of a request: groups that still load for it
        self._lost: set[str] = set()  # requests of which a block did not load

    def register(self, kv_caches: dict[str, Any], block_count: int) -> None:
        """vLLM's memory, by layers. BadInput: it is not what the scheduler knows."""
        for group, one in zip(self._groups, self.copies, strict=True):
            one.register([kv_caches[name] for name in group.names], block_count)

    def begin(self) -> None:
        """A step begins."""
        for one in self.copies:
            one.begin()

    def load(self, step: Step) -> None:
        """Start the step's loads, and those apart from it."""
        for one, part in zip(self.copies, step.groups, strict=True):
            self._landing.update(request for request, _, _ in part.apart)
            one.load(part)

    def wait_for(self, layer: str) -> None:
        """Wait until this layer's KV is loaded."""
        number, place = self._places[layer]
        self.copies[number].wait_for(place)

    def save_layer(self, step: Step, layer: str) -> None:
        """This layer is computed."""
        number, place = self._places[layer]
        part = step.groups[number]
        if part.saves:
            self.copies[number].save_layer(part, place)

    def end(self, step: Step) -> None:
        """The step is over."""
        for one, part in zip(self.copies, step.groups, strict=True):
            one.end(part)

    def landed(self) -> tuple[set[str], set[str]]:
        """Requests whose loads apart have ended in all groups, and those of them of which a block
        did not load."""
        over = set()
        for one in self.copies:
            for request in one.landed():
                self._landing[request] -= 1
                if self._landing[request] == 0:
                    del self._landing[request]
                    over.add(request)
            self._lost |= one.unloaded
            one.unloaded.clear()
        lost = over & self._lost
        self._lost -= lost
        return over, lost

    def failed(self) -> set[int]:
        """Blocks that vLLM has to compute; none where `landed` names requests."""
        failed = set().union(*(one.failed() for one in self.copies))
        return set() if self._groups.whole else failed

    def report(self, step: Step) -> Report:
        """Outcome of the step."""
        parts = zip(self.copies, step.groups, strict=True)
        return reduce(Report.aggregate, [one.report(part) for one, part in parts])

    @property
    def counts(self) -> Counter[str]:
        """Counters of all groups."""
        if len(self.copies) == 1:
            return self.copies[0].counts
        counts = Counter(self.copies[0].counts)
        for one in self.copies[1:]:
            counts.update(one.counts)
        return counts
