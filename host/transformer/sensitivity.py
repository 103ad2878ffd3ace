"""Which types the KV heads of a model bear: measured on the end of its own context.

The context's last tokens are read once more by dense attention, with one head of one layer
quantized at a time; the KL of the logits is that head's effect. Effects are taken to add up, so
that their sum says which types a block of a given size holds best; each such choice is then checked
on the same tokens with all its heads quantized at once. Eight bits have steps 17 times as small as
four, and an error has its square as effect: that of `int8` is `int4`'s over 289, not measured.

The tier has one block size for all layers. What is chosen is therefore the smallest block in which
the check stays within the bound, filled in every layer by the types of least effect: a layer that
bears less spends the room that others need on precision. One thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.host.model.quantized import BlockQuantizer, HeadType, head_bytes, padded
from offstage.host.transformer.dense import DenseKv

__all__ = ["CHOICES", "TAIL_TOKENS", "Choice", "Probe", "choose", "measured"]

CHOICES: tuple[HeadType, ...] = ("int4", "fp8-e4m3", "int8", "model")
"""From the smallest to the largest; e5m2 has the size of e4m3 and a bit of precision less."""

TAIL_TOKENS = 128
"""Tokens at the end of the context that are read once more."""

_INT8_SHARE = (15 / 255) ** 2

Kinds = tuple[HeadType, ...]
Effects = NDArray[np.float64]


class Probe:
    """The end of a prefilled context, and what the model says there with its own KV."""

    def __init__(self, kv: DenseKv, tokens: Sequence[int], tail_tokens: int = TAIL_TOKENS) -> None:
        self.geometry = kv.geometry
        size = self.geometry.block_tokens
        if len(tokens) <= size:
            raise BadInput(
                "a context of one block has no end to measure on",
                "--kv-dtype auto",
                "give more --context-tokens",
            )
        blocks = max(1, (len(tokens) - tail_tokens) // size)
        self._kv = kv.front(blocks * size)
        self._blocks = range(blocks)
        self._tail = list(tokens[blocks * size :][:tail_tokens])
        self._exact = self._log_softmax()

    @property
    def tail_tokens(self) -> int:
        """Tokens that are read once more."""
        return len(self._tail)

    def kl(self, quantizer: BlockQuantizer, layers: Iterable[int]) -> float:
        """KL in nats a token of the model's own output to that with these layers quantized."""
        undo: list[Callable[[], None]] = []
        for layer in layers:
            quantized = quantizer.quantize(layer, self._kv.blocks(layer, 0, self._blocks))
            undo.append(self._kv.replace(layer, quantizer.dequantize(quantized)))
        own = self._log_softmax()
        for one in undo:
            one()
        each = (self._exact.exp() * (self._exact - own)).sum(dim=-1)
        return max(0.0, float(each.mean()))

    def _log_softmax(self) -> Any:
        return self._kv.logits(self._tail).log_softmax(dim=-1)


def measured(probe: Probe, advance: Callable[[int], None]) -> Effects:
    """The effect of every head in each of `CHOICES`: nats a token, `[layers, heads, choices]`."""
    geometry = probe.geometry
    shape = geometry.layer_count, geometry.layers[0].kv_heads
    found = np.zeros((*shape, len(CHOICES)))
    for layer, head in np.ndindex(shape):
        for choice, kind in enumerate(CHOICES[:2]):
            own: list[HeadType] = ["model"] * shape[1]
            own[head] = kind
            quantizer = padded(geometry, [tuple(own)] * shape[0], 1)
            found[layer, head, choice] = probe.kl(quantizer, [layer])
        found[layer, head, 2] = found[layer, head, 0] * _INT8_SHARE
        advance(1)
    return found


@dataclass(frozen=True)
class Choice:
    """What was chosen: the quantizer, None where only the model's own type stays within the bound.
    `predicted`: sum of the effects; `checked`: KL with all heads quantized, on the same tokens."""

    quantizer: BlockQuantizer | None
    predicted: float
    checked: float
    tail_tokens: int


def choose(probe: Probe, effects: Effects, kl_max: float, lba_bytes: int) -> Choice:
    """The smallest block whose KL, checked, is at most `kl_max`, by bisection."""
    geometry, heads = probe.geometry, effects.shape[1]
    sizes = [head_bytes(geometry, kind) for kind in CHOICES]
    fronts = [_front(one, sizes) for one in effects]
    first = -(-(heads + heads * sizes[0]) // lba_bytes) * lba_bytes
    payloads = range(first, geometry.block_bytes(0), lba_bytes)
    best = Choice(None, 0.0, 0.0, probe.tail_tokens)
    low, high = 0, len(payloads)
    while low < high:
        middle = (low + high) // 2
        chosen = [_within(front, payloads[middle] - heads) for front in fronts]
        quantizer = BlockQuantizer(geometry, tuple(kinds for _, kinds in chosen), payloads[middle])
        checked = probe.kl(quantizer, range(geometry.layer_count))
        if checked <= kl_max:
            high = middle
            best = Choice(quantizer, sum(one for one, _ in chosen), checked, probe.tail_tokens)
        else:
            low = middle + 1
    return best


_Front = list[tuple[int, float, Kinds]]


def _front(effects: NDArray[np.float64], sizes: Sequence[int]) -> _Front:
    """Of one layer: bytes, effect and types of the choices that no other beats in both; bytes grow
    and effects fall."""
    front: _Front = [(0, 0.0, ())]
    for head in effects:
        every = sorted(
            (
                (size + own, effect + float(more), (*kinds, kind))
                for size, effect, kinds in front
                for own, more, kind in zip(sizes, head, CHOICES, strict=True)
            ),
            key=lambda one: one[:2],
        )
        front = [every[0], *_falling(every)]
    return front


def _falling(every: _Front) -> Iterable[tuple[int, float, Kinds]]:
    least = every[0][1]
    for one in every[1:]:
        if one[1] < least:
            least = one[1]
            yield one


def _within(front: _Front, size: int) -> tuple[float, Kinds]:
    *_, found = (one for one in front if one[0] <= size)
    return found[1], found[2]
