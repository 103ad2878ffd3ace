"""Cores: a DPU's general-purpose cores, which run the firmware instead of the units of a chip.

What it does: a reactor takes commands, decides, submits reads, checks completed blocks and
publishes them, one after another. Hashing and, where enabled, the codec run in software on the same
or on other cores.

Pipeline: none: a core does one thing at a time.
Initiation interval: the cost of the current stage; for a command, plus that of each demand and
score.
State: the decision core's tables in DRAM, the rings.
When full: submissions wait in their rings, and hosts wait for room.
"""

from offstage.asic_model.blocks import Cores
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Stage, Unit

__all__ = ["decide", "publish", "reactors", "submit"]


def reactors(cores: Cores) -> tuple[Unit, ...]:
    """The reactors, and the remaining cores, for a codec in software."""
    rest = max(1, cores.cores.whole - cores.reactors.whole)
    return (
        Unit("reactor", queue="priority", servers=cores.reactors.whole),
        Unit(
            "codec_core", queue="priority", servers=rest, mib_ps=per_mib_ps(cores.codec_rate.base)
        ),
    )


def decide(cores: Cores) -> tuple[Stage, ...]:
    """A command with its demands, then its scores."""
    return (
        Stage(
            "reactor",
            bytes_permille=0,
            items="blocks",
            fixed_ps=cores.command.whole,
            item_ps=cores.demand.whole,
        ),
        Stage("reactor", bytes_permille=0, items="scores", item_ps=cores.score.whole),
    )


def submit(cores: Cores) -> Stage:
    """A read is built and submitted to the storage."""
    return Stage("reactor", bytes_permille=0, fixed_ps=cores.read.whole)


def publish(cores: Cores) -> Stage:
    """A block is checked, entered in the directory, and its demand answered."""
    return Stage("reactor", bytes_permille=0, fixed_ps=cores.publish.whole)
