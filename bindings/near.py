"""Which name was meant by one that is unknown."""

from collections.abc import Iterable

__all__ = ["like"]

LETTERS_OF_A_SLIP = 3
"""What was typed may differ by one slip for so many of its letters."""


def like(typed: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that were probably meant, the likeliest first: they begin with what was
    typed, or are a slip away from it, two or more if it is long."""
    word = typed.lstrip("-")
    most = max(1, len(word) // LETTERS_OF_A_SLIP)
    found = []
    for name in known:
        bare = name.lstrip("-")
        slips = 0 if len(word) > 1 and bare.startswith(word) else _slips(word, bare)
        if slips <= most and slips < min(len(word), len(bare)):
            found.append((slips, name))
    return [name for _, name in sorted(found)]


def _slips(typed: str, meant: str) -> int:
    """Letters left out, added, replaced or swapped with the next: the four slips of Damerau, A
    technique for computer detection and correction of spelling errors, 1964."""
    rows = [list(range(len(meant) + 1))]
    for at, letter in enumerate(typed, 1):
        row = [at]
        for to, other in enumerate(meant, 1):
            least = min(row[-1] + 1, rows[-1][to] + 1, rows[-1][to - 1] + (letter != other))
            if min(at, to) > 1 and typed[at - 2 : at] == meant[to - 2 : to][::-1]:
                least = min(least, rows[-2][to - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]
