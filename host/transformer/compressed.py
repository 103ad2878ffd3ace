"""What DeepSeek-V4's compressors keep: of a context all of it, of a session what it goes on with.

transformers' compressors ask a layer of the cache to hold their inputs until an entry's tokens are
there, the half of them that the next entry overlaps, and the entries. `WholeLayer` holds these of a
context to its end, and so can be cut to any front of it. `SessionLayer` has what a decode step
needs: the tokens of the entry not yet full, the overlap, and index keys. Entries are the tier's: a
new one is handed over, and none is asked of it.

A session's states stay resident and belong to no chunk. With the window and the entries of blocks
not yet full they are what a context goes on with behind the tier's whole blocks: a checkpoint
(`checkpoints`), at which a `WholeLayer` may begin; it then has nothing of the tokens before that is
not read again. One thread. Tensors are replaced and never written, so that copies share them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["SessionLayer", "WholeCache", "WholeLayer", "joined"]

INPUTS = "kv", "gate"
"""What there is for each token, `[1, tokens, width]`."""
OVERLAP = "overlap_kv", "overlap_gate"
"""What there is for each entry: its tokens' part of the next one, `[1, entries, rate, dim]`."""
ENTRIES = "entries"
"""The entries of attention or index keys, `[1, entries, dim]`."""
BEGUN = "begun"
"""Of a checkpoint: those of the block not yet full."""

State = dict[str, Any]
"""Of one compressor, by these names; those that it has."""


class _Compressors:
    """The part of a cache layer that compressors call, by their names (`compressor`, `indexer`)."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.states: dict[str, State] = {}
        self.seen: dict[str, int] = {}

    def store_compression_weights(self, name: str, kv: Any, gate: Any) -> tuple[Any, Any, int]:
        """Take tokens: the inputs of the entries that they complete, and their first position."""
        state, seen = self.states.setdefault(name, {}), self.seen.get(name, 0)
        for part, new in zip(INPUTS, (kv, gate), strict=True):
            state[part] = _grown(state, part, new)
        self.seen[name] = seen + kv.shape[1]
        waiting = self.seen[name] - seen // self.rate * self.rate
        chunks = (state[part][:, state[part].shape[1] - waiting :] for part in INPUTS)
        usable = waiting // self.rate * self.rate
        kv, gate = (one[:, :usable] for one in chunks)
        self._drop_inputs(state, waiting - usable)
        return kv, gate, seen // self.rate * self.rate

    def update_overlap_state(self, name: str, kv: Any, gate: Any, dim: int) -> tuple[Any, Any]:
        """Take whole entries' inputs `[1, entries, rate, 2 * dim]`: what the one before them left,
        `[1, rate, dim]` each, None before the first."""
        state, before = self.states[name], []
        for part, new in zip(OVERLAP, (kv, gate), strict=True):
            there = part in state and state[part].shape[1]
            before.append(state[part][:, -1] if there else None)
            state[part] = self._kept_overlap(_grown(state, part, new[..., :dim]))
        return before[0], before[1]

    def update_compressor_states(self, name: str, compressed: Any) -> Any:
        """Take entries: all that there are."""
        state = self.states[name]
        state[ENTRIES] = _grown(state, ENTRIES, compressed)
        return state[ENTRIES]

    def _drop_inputs(self, state: State, waiting: int) -> None:
        """Inputs of whole entries may go."""

    def _kept_overlap(self, overlap: Any) -> Any:
        return overlap


class SessionLayer(_Compressors):
    """Of one layer of a session that decodes. `closed`: the entries that the newest token has
    completed, `[1, entries, dim]`: one or none."""

    closed: Any = None
    _keys: Callable[[Any], Any] | None = None

    def keys_elsewhere(self, keys: Callable[[Any], Any]) -> None:
        """Keep no index keys: `keys` gives all from the new ones, `[1, entries, dim]` each."""
        self._keys = keys
        del self.states["indexer"][ENTRIES]

    def update_compressor_states(self, name: str, compressed: Any) -> Any:
        """As before; of attention's entries the new ones alone."""
        if name == "compressor":
            self.closed = compressed
            return compressed
        if self._keys is not None:
            return self._keys(compressed)
        return super().update_compressor_states(name, compressed)

    def _drop_inputs(self, state: State, waiting: int) -> None:
        state |= {part: state[part][:, state[part].shape[1] - waiting :] for part in INPUTS}

    def _kept_overlap(self, overlap: Any) -> Any:
        return overlap[:, -1:]

    @property
    def index_keys(self) -> Any:
        """`[1, entries, dim]`; None in a layer without an indexer."""
        return self.states.get("indexer", {}).get(ENTRIES)

    @property
    def state_bytes(self) -> int:
        """Bytes of what its compressors go on with, without index keys."""
        states = self.states.values()
        return sum(one.nbytes for state in states for part, one in state.items() if part != ENTRIES)


def joined(layers: Sequence[SessionLayer]) -> SessionLayer:
    """One layer of several sessions after as many tokens as one of a batch."""
    import torch

    found = SessionLayer(layers[0].rate)
    found.seen = dict(layers[0].seen)
    for name, state in layers[0].states.items():
        each = [one.states[name] for one in layers]
        found.states[name] = {part: torch.cat([one[part] for one in each]) for part in state}
    return found


class WholeLayer(_Compressors):
    """A layer of transformers' cache that keeps a whole context: `keys` `[1, 1, tokens, dim]`, read
    as keys and as values, and all that its compressors had and made; or, of one that began at a
    checkpoint, what that had and all since. `rate`: tokens of an entry; 0 in a layer that
    compresses nothing. `window`: tokens that one token reads of `keys`, itself included."""

    def __init__(self, rate: int, window: int) -> None:
        super().__init__(rate)
        self._window = window
        self.keys: Any = None
        self.tokens = 0
        """Those of the context, held or not."""

    def update(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Take tokens: those that a window of theirs reaches, as many wherever it began, so that
        sums are the same to the bit. K and V are one."""
        import torch

        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=2)
        self.tokens += keys.shape[2]
        read = self.keys[:, :, -(self._window - 1 + keys.shape[2]) :]
        return read, read

    def window(self, span: slice) -> Any:
        """The keys of some tokens, `[1, 1, tokens, dim]`; 0 for those that it does not have."""
        from torch.nn.functional import pad

        dropped = self.tokens - self.keys.shape[2]
        held = self.keys[:, :, max(0, span.start - dropped) : max(0, span.stop - dropped)]
        return pad(held, (0, 0, span.stop - span.start - held.shape[2], 0))

    @property
    def entries(self) -> Any:
        """Compressed entries, `[1, 1, entries, dim]`."""
        return self.states["compressor"][ENTRIES][None]

    def front(self, tokens: int) -> dict[str, Any]:
        """All that it has of the first `tokens` tokens, by name, for `restore`. Of one that began
        at a checkpoint: no fewer tokens than that."""
        behind = self.tokens - tokens
        found = {"k": self.keys[:, :, : self.keys.shape[2] - behind]}
        for name, state in self.states.items():
            for part, one in state.items():
                more = behind if part in INPUTS else self.tokens // self.rate - tokens // self.rate
                found[f"{name}.{part}"] = one[:, : one.shape[1] - more]
        return found

    def whole_blocks(self, tokens: int, block_tokens: int) -> dict[str, Any]:
        """Entries and index keys that are in whole blocks after `tokens` tokens, by name: with a
        `checkpoint` there, all that `restore` needs."""
        full = self._in_blocks(tokens, block_tokens)
        return {f"{name}.{ENTRIES}": one[ENTRIES][:, :full] for name, one in self.states.items()}

    def checkpoint(self, block_tokens: int) -> dict[str, Any]:
        """What a context goes on with after these tokens beside whole blocks, by name: its window
        from a block's first token on, its compressors' states, and what blocks not full have."""
        first = max(0, self.tokens + 1 - self._window) // block_tokens * block_tokens
        found = {"k": self.window(slice(first, self.tokens))}
        full = self._in_blocks(self.tokens, block_tokens)
        for name, state in self.session().states.items():
            own = {part: one for part, one in state.items() if part != ENTRIES}
            own[BEGUN] = self.states[name][ENTRIES][:, full:]
            found |= {f"{name}.{part}": one for part, one in own.items()}
        return {name: one.clone() for name, one in found.items()}

    def _in_blocks(self, tokens: int, block_tokens: int) -> int:
        return tokens // self.rate // block_tokens * block_tokens if self.rate else 0

    def restore(self, tensors: Mapping[str, Any], tokens: int) -> None:
        """Take these of `tokens` tokens in place of what it has."""
        self.keys, self.tokens = tensors["k"], tokens
        self.states.clear()
        for name in tensors.keys() - {"k"}:
            of, part = name.split(".")
            self.states.setdefault(of, {})[part] = tensors[name]
        for state in self.states.values():
            if BEGUN in state:
                state[ENTRIES] = _grown(state, ENTRIES, state.pop(BEGUN))
        self.seen = dict.fromkeys(self.states, tokens)

    def session(self) -> SessionLayer:
        """What a session goes on with after these tokens."""
        found = SessionLayer(self.rate)
        found.seen = dict(self.seen)
        for name, state in self.states.items():
            begun = self.seen[name] % self.rate
            own = {part: one for part, one in state.items() if part != ENTRIES or name == "indexer"}
            own |= {part: own[part][:, own[part].shape[1] - begun :] for part in INPUTS}
            own |= {part: own[part][:, -1:] for part in OVERLAP if part in own}
            found.states[name] = own
        return found


class WholeCache:
    """What transformers asks of a cache, with a `WholeLayer` of each of `rates`; all layers have
    one `window`."""

    is_compileable = False

    def __init__(self, rates: Sequence[int], window: int) -> None:
        self.layers = [WholeLayer(rate, window) for rate in rates]
        self.is_sliding = [False] * len(rates)
        self._window = window

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Take a layer's tokens: all that there are."""
        return self.layers[layer].update(keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that a layer has."""
        return self.layers[layer_idx].tokens

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Tokens that a pass of so many reads, and the first of them."""
        before = self.get_seq_length(layer_idx)
        read = min(before, self._window - 1)
        return read + query_length, before - read

    def crop(self, tokens: int) -> None:
        """Forget the last `-tokens` tokens of every layer."""
        for layer in self.layers:
            layer.restore(layer.front(layer.tokens + tokens), layer.tokens + tokens)


def _grown(state: State, part: str, new: Any) -> Any:
    import torch

    return torch.cat([state[part], new], dim=1) if part in state else new
