"""Stand-ins of the tests of vLLM's scheduler side: a tier that answers when told, and a request."""

from types import SimpleNamespace
from typing import Any

from offstage.host.connectors.objects import Completion, State

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
