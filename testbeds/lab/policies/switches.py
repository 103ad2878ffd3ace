"""Components without guesses that change how a run is set up: who runs the sessions reads them."""

from typing import ClassVar

from offstage.testbeds.lab.policies.base import Component
from offstage.testbeds.lab.policies.policy import CoreSwitches

__all__ = ["Coschedule", "Granule"]


class Coschedule(Component):
    """Requests that share a prefix are admitted one after another, so that they find it staged."""

    name: ClassVar[str] = "coschedule"
    uses: ClassVar[str] = "which requests share a prefix"
    source: ClassVar[str] = "Offstage; prefix-aware scheduling as in SGLang, arXiv:2312.07104"
    core: ClassVar[CoreSwitches] = CoreSwitches(schedule="together")


class Granule(Component):
    """Only the granules of a block that were selected are staged, not the block around them."""

    name: ClassVar[str] = "granule"
    uses: ClassVar[str] = "which part of a block was selected"
    source: ClassVar[str] = "Offstage; sectors as in sectored caches"
    core: ClassVar[CoreSwitches] = CoreSwitches(granule=True)
