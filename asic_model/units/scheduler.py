"""Prefetch scheduler: takes demands and scores, and selects blocks to read ahead.

What it does: parses a command, streams its scores past comparators that keep the likely ones as
candidates, and orders these by urgency: when decode will need the block, from the session's pace
and the layers between, and with what probability. A candidate whose deadline has passed, or whose
layer has run, is dropped. A demand overtakes every candidate.

Pipeline: command, demands, scores, then the heap of candidates.
Initiation interval: of a command, `command` plus `demand` and `score` for each of its demands and
scores.
State: a table of `candidates` for each tenant, an average for each score in SRAM.
When full: the candidate that comes is dropped and counted. The bound is a limit of the decision
core (`queue_max`), so a smaller table changes decisions; in decision-replay it has no effect.
When more than `queue` commands wait, the link accepts no more.

The comparators are `rtl/candidate_compare.v`: as many scores in a cycle as it has lanes, and fewer
where more than one of them becomes a candidate, which is the upper end of the range of `score`.
The heap is `rtl/candidate_heap.v`, which begins a put or a take every four cycles and answers in
three. Neither is added here: no request says how many candidates its command proposes. At 1.2 GHz
a command of the preset has time for six of them; more fill the heap behind it.
"""

from offstage.asic_model.blocks import Scheduler
from offstage.bindings.network import Stage, Unit

__all__ = ["decide", "scheduler_pipeline"]


def scheduler_pipeline(scheduler: Scheduler) -> tuple[Unit, ...]:
    """One pipeline for all tenants."""
    return (
        Unit(
            "scheduler",
            queue="priority",
            queue_max=scheduler.queue.whole,
            latency_ps=scheduler.latency.whole,
        ),
    )


def decide(scheduler: Scheduler, label: str) -> tuple[Stage, ...]:
    """A command with its demands, then its scores."""
    return (
        Stage(
            "scheduler",
            label=label,
            bytes_permille=0,
            items="blocks",
            fixed_ps=scheduler.command.whole,
            item_ps=scheduler.demand.whole,
        ),
        Stage("scheduler", bytes_permille=0, items="scores", item_ps=scheduler.score.whole),
    )
