"""Notes on runs whose hits say nothing, and on options without effect.

Pure functions of sizes and counts; nothing can fail. `lab/results/vacuous.py` does this for the
laboratory, which knows both before it runs.
"""

from collections.abc import Mapping, Sequence

from offstage.bindings.ledger import Ledger
from offstage.bindings.notes import Note

__all__ = [
    "all_staged",
    "kl_beyond",
    "pool_holds_all",
    "selected_alike",
    "text_unread",
    "told_in_vain",
    "warm_start",
]


def all_staged(blocks: int, slots: int) -> list[Note]:
    """Noted if the arena, of `slots` slots, has room for every block of the run, layers counted."""
    if blocks > slots:
        return []
    return [
        Note(
            "all-staged",
            f"the arena has room for all {blocks:,} blocks of the workload ({slots:,} slots): hits "
            "say nothing about a policy",
            "give more or longer contexts, or a smaller arena",
        )
    ]


def pool_holds_all(blocks: int, pool_blocks: int, what: str) -> list[Note]:
    """Noted if the HBM pool has room for every block of `what`: the tier serves each once."""
    if blocks > pool_blocks:
        return []
    return [
        Note(
            "pool-holds-all",
            f"the HBM pool has room for all {blocks:,} blocks of {what}: the tier serves each "
            "once, and hits say nothing about a policy",
            "give a longer context, or a smaller pool",
        )
    ]


def warm_start(ledger: Ledger) -> list[Note]:
    """Noted if decoding began with blocks already staged; `ledger` is from that moment."""
    staged = ledger.resident_slots
    if staged == 0:
        return []
    return [
        Note(
            "warm-start",
            f"{staged:,} blocks of the tenant were staged when decoding began",
            "for a cold start, run `offstage dpu reset` first",
        )
    ]


def selected_alike(asked: Sequence[int], selected: Sequence[int]) -> list[Note]:
    """Noted if several selections of one model are equal because each covers all blocks."""
    twice = [count for count in dict.fromkeys(selected) if selected.count(count) > 1]
    return [
        Note(
            "selected-alike",
            f"--select-blocks asks for {len(asked)} selections, and "
            f"{selected.count(count)} of them select all {count:,} blocks",
            "leave out all but one of these",
        )
        for count in twice
    ]


def text_unread(name: str, tokens: int, read: int, block_tokens: int) -> list[Note]:
    """Noted if a block or more at the end of a text is not read."""
    if tokens - read < block_tokens:
        return []
    return [
        Note(
            "text-unread",
            f"the last {tokens - read:,} of the {tokens:,} tokens of {name} "
            "are not read and have no effect",
        )
    ]


def kl_beyond(kl: float, kl_max: float | None, tail_tokens: int) -> list[Note]:
    """Noted if types of KV chosen within a bound cost more over the decoded tokens."""
    if kl_max is None or kl <= kl_max:
        return []
    return [
        Note(
            "kl-beyond",
            f"--max-kl {kl_max:g} was kept on the last {tail_tokens} tokens of the context, and "
            "the decoded tokens cost more",
            "lower it",
            figures=f"KL {kl:.2g}",
        )
    ]


def told_in_vain(guesses: int, fates: Mapping[str, int]) -> list[Note]:
    """Noted if the tier read none of the blocks announced ahead; `fates` of the queued ones, by
    name."""
    if guesses == 0 or any(count for fate, count in fates.items() if fate != "dropped"):
        return []
    return [
        Note(
            "hints-unused",
            "--ahead hint had no effect: the tier read none of the predicted "
            "blocks before they were demanded",
            figures=f"{guesses:,} predicted",
        )
    ]
