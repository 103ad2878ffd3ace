"""Does vLLM's worker call the connector for each layer only in steps whose layers load or save?"""

from typing import Any

from vllm_stand_ins import BLOCK, SIZE

from offstage.host.connectors.vllm import Connector
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.groups import Group, Groups
from offstage.host.connectors.vllm.steps import Step
from offstage.host.connectors.vllm.worker import Worker


class Base:
    """A stand-in for vLLM's class."""

    _connector_metadata: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None


def test_layers_are_left_alone_where_nothing_moves() -> None:
    """vLLM asks `has_connector_metadata` before it calls for a layer: yes from the begin of a step
    to its end, if any group of layers has something to load or to save. A load apart is no work of
    layers."""
    groups = Groups([Group(BLOCK, SIZE, names=("a",)), Group(BLOCK, SIZE, 8, ("b",))])
    kind: Any = type("It", (Connector, Base), {})
    one = kind.__new__(kind)
    one._worker = Worker(groups, [Copies(None, SIZE) for _ in groups])
    assert not one.has_connector_metadata()
    for group, name, work, asked in (
        (0, "saves", ([], []), True),
        (1, "saves", ([b"k"], [1]), True),
        (0, "loads", (b"k", 1), True),
        (1, "loads", (b"k", 1), True),
        (0, "apart", ("r", [(b"k", 1)], 1.0), False),
        (0, "noted", None, False),
    ):
        step = Step.of(len(groups))
        if work is not None:
            getattr(step.groups[group], name).append(work)
        one.bind_connector_metadata(step)
        assert one.has_connector_metadata() == asked, (group, name)
        one.clear_connector_metadata()
        assert not one.has_connector_metadata()
