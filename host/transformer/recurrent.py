"""What recurrent layers keep: linear attention's state and the last inputs of its convolution.

A state has one size whatever the length, and is of one position alone: a layer that has read a
token cannot go back. So what reads ahead and returns, as the reference does, keeps copies; and a
session that comes back begins at a position whose states were kept (`checkpoints`). The layers are
those of transformers' cache, which its modules read and write. One thread.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "States",
    "copies",
    "is_recurrent",
    "new_layer",
    "state_bytes",
    "states_of",
    "take",
    "together",
]

States = dict[str, Any]
"""Tensors by name: `3.conv0`, `3.state0` of layer 3; a module may have several of each."""

PARTS = {"conv": "conv_states", "state": "recurrent_states"}


def new_layer() -> Any:
    """A layer of transformers' cache that has read nothing."""
    from transformers.cache_utils import LinearAttentionLayer

    return LinearAttentionLayer()


def is_recurrent(layer: Any) -> bool:
    """Whether a layer of a cache keeps states."""
    return hasattr(layer, "recurrent_states")


def states_of(layers: Iterable[Any]) -> States:
    """The states of all recurrent layers of a cache, which go on to change."""
    return {
        f"{number}.{part}{at}": one
        for number, layer in enumerate(layers)
        if is_recurrent(layer)
        for part, name in PARTS.items()
        for at, one in getattr(layer, name).items()
        if one is not None
    }


def take(layers: Mapping[int, Any], states: Mapping[str, Any]) -> None:
    """Let layers, by number, go on from copies of these states. Others are left alone."""
    for name, tensor in states.items():
        number, _, part = name.partition(".")
        layer, kind, at = layers[int(number)], part.rstrip("0123456789"), int(part[-1])
        given = PARTS[kind]
        layer.lazy_initialization(**{given: tensor}, state_idx=at)
        getattr(layer, given)[at].copy_(tensor)
        layer.has_previous_state[at] = True


def copies(layers: Iterable[Any]) -> dict[int, Any]:
    """Each recurrent layer of a cache, by number, with states of its own."""
    return {
        number: copy.deepcopy(layer) for number, layer in enumerate(layers) if is_recurrent(layer)
    }


def together(layers: Sequence[Any]) -> Any:
    """A recurrent layer of several sessions as one of a batch, whose states go on by themselves; it
    takes the first session's layer."""
    import torch

    for name in PARTS.values():
        for at, state in getattr(layers[0], name).items():
            if state is not None:
                each = [getattr(one, name)[at] for one in layers]
                getattr(layers[0], name)[at] = torch.cat(each)
    return layers[0]


def state_bytes(layers: Iterable[Any]) -> int:
    """Bytes of the states of a cache."""
    return sum(one.nbytes for one in states_of(layers).values())
