"""The lengths of ServeGen's clients: `chunk-N-dataset.json` beside `chunk-N-trace.csv`.

`{"START": {"input_tokens": "{tokens: share, ...}", "output_tokens": "{...}"}, ...}`: for each
window of time, by its start in seconds, two distributions as text of a Python dict. A request takes
those of the last window that began when it comes, or of the first one.
"""

import math
import re
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.bindings.outside import json_line
from offstage.testbeds.workloads.requests.collector import TOKENS_MAX

__all__ = ["LENGTHS_END", "Lengths"]

LENGTHS_END = "-dataset.json"
TABLES = ("input_tokens", "output_tokens")

_WINDOWS = msgspec.json.Decoder(dict[str, dict[str, object]])
_BIN = re.compile(r"\s*(\d{1,10})(?:\.0*)?\s*:\s*([0-9.eE+-]{1,40})\s*", flags=re.ASCII)
_EXPECTED = (
    '{"start": {"input_tokens": "{tokens: share, ...}", "output_tokens": "{...}"}} is expected'
)


@dataclass(frozen=True)
class _Table:
    """Tokens and their shares, which are 1 together."""

    tokens: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]


class Lengths:
    """The distributions of one client."""

    def __init__(self, text: bytes, where: str) -> None:
        """BadInput: the file is none of these."""
        found = json_line(_WINDOWS, text, where, _EXPECTED)
        self._windows: list[tuple[float, list[_Table]]] = []
        self.others: set[str] = set()
        for start, tables in found.items():
            place = f"{where}: {start[:40]}"
            if not re.fullmatch(r"\d{1,12}(\.\d+)?", start, flags=re.ASCII):
                raise BadInput("a window that begins at no time", place, _EXPECTED)
            if missing := [name for name in TABLES if name not in tables]:
                raise BadInput(f"no {' and no '.join(missing)}", place, _EXPECTED)
            self.others |= tables.keys() - set(TABLES)
            both = [_table(tables[name], f"{place}: {name}") for name in TABLES]
            if all(len(one.tokens) for one in both):
                self._windows.append((float(start), both))
        self._windows.sort(key=lambda one: one[0])

    def __bool__(self) -> bool:
        """Whether there is a window with lengths."""
        return bool(self._windows)

    def draw(
        self, random: np.random.Generator, start_s: float, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Input and output tokens, `[count]` each, of requests in the window at `start_s`."""
        begun = [tables for begin_s, tables in self._windows if begin_s <= start_s]
        inputs, outputs = begun[-1] if begun else self._windows[0][1]
        return (
            random.choice(inputs.tokens, count, p=inputs.shares),
            random.choice(outputs.tokens, count, p=outputs.shares),
        )


def _table(text: object, where: str) -> _Table:
    """The table in a text; empty for "{}"."""
    if not isinstance(text, str) or not (text.startswith("{") and text.endswith("}")):
        raise BadInput("no text of a dict", where, _EXPECTED)
    inner = text[1:-1].strip().rstrip(",")
    bins = [_BIN.fullmatch(part) for part in inner.split(",")] if inner else []
    shares = np.zeros(len(bins))
    tokens = np.zeros(len(bins), np.int64)
    for at, found in enumerate(bins):
        try:
            if found is None:
                raise ValueError
            tokens[at], shares[at] = int(found[1]), float(found[2])
            if not (0 <= shares[at] and math.isfinite(shares[at])) or tokens[at] > TOKENS_MAX:
                raise ValueError
        except ValueError:
            part = inner.split(",")[at][:40]
            raise BadInput(f"{part!r} is not a length and its share", where, _EXPECTED) from None
    total = shares.sum()
    if bins and not total > 0:
        raise BadInput("shares of 0 in all", where, _EXPECTED)
    return _Table(tokens, shares / total if bins else shares)
