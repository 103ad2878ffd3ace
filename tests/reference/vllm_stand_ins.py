"""Stand-ins of the tests of vLLM's connector: a tier that answers when told, and a request, for the
scheduler's side; for the worker's side objects in memory."""

from types import SimpleNamespace
from typing import Any

from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.steps import Step

BLOCK = 4
SIZE = 100


class Store:
    """A stand-in for an object client: the stored objects. Lookups end at the call of `answer`."""

    def __init__(self) -> None:
        self.stored: set[bytes] = set()
        self.released: list[bytes] = []
        self.lookups: list[Any] = []
        self.leases: list[dict[str, Any]] = []

    def prefetch(self, keys: list[bytes], sizes: list[int], *, tell: Any, **more: Any) -> None:
        assert sizes == [SIZE] * len(keys) and more["lease_s"] > 0
        self.leases.append(more)
        self.lookups.append((keys, tell))

    exists = prefetch

    def answer(self) -> None:
        for keys, tell in self.lookups:
            states = tuple(State.DONE if key in self.stored else State.ABSENT for key in keys)
            tell(Completion(1, states, ("",) * len(keys)))
        self.lookups.clear()

    def release(self, keys: list[bytes]) -> None:
        self.released += keys


def request(name: str, tokens: list[int], **more: Any) -> Any:
    fields = {
        "request_id": name,
        "all_token_ids": tokens,
        "num_tokens": len(tokens),
        "num_prompt_tokens": len(tokens),
        "max_tokens": 4,
        "mm_features": [],
        "prompt_embeds": None,
        "lora_request": None,
        "cache_salt": None,
        "block_hashes": [b"h%d" % i for i in range(len(tokens) // BLOCK)],
    }
    return SimpleNamespace(**fields | more)


class Memory:
    """A stand-in for an object client: objects by key; absent ones cannot be read. Reads land a
    part at a time, at the call of `land`; `order` is the order of events."""

    streams_max = 8

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.unended: list[Any] = []
        self.order: list[str] = []

    def put(self, keys: list[bytes], buffers: Any, *, tell: Any) -> None:
        self.objects.update((key, bytes(one)) for key, one in zip(keys, buffers, strict=True))
        self.unended.append((keys, tell))

    def stream(self, keys: list[bytes], buffers: Any, *, tell: Any) -> Any:
        def drop() -> None:
            tell(Completion(1, (State.ABSENT,) * len(keys), ()))

        return SimpleNamespace(
            fill=lambda size: self.order.append(f"sent {size}"),
            drop=drop,
            commit=lambda: self.put(keys, buffers, tell=tell),
        )

    def get(
        self, keys: list[bytes], buffers: Any, *, cuts: Any, landed: Any, tell: Any, within_s: float
    ) -> None:
        lost = frozenset(row for row, key in enumerate(keys) if key not in self.objects)
        for row, (key, buffer) in enumerate(zip(keys, buffers, strict=True)):
            buffer[:] = 99 if row in lost else list(self.objects[key])
        for part in range(len(cuts)):
            landed(part, lost)
        states = (State.UNREADABLE if row in lost else State.DONE for row in range(len(keys)))
        tell(Completion(1, tuple(states), ()))


def one_step(worker: Copies, step: Step) -> None:
    """Run one step as vLLM does, with two layers."""
    worker.load(step)
    for layer in range(2):
        worker.wait_for(layer)
        worker.save_layer(step, layer)
    worker.end(step)
