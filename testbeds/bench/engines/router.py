"""What a router knows of an engine: the blocks that it holds, by the events that it publishes.

vLLM publishes its KV events by ZMQ, msgpack in arrays; Dynamo's and llm-d's routers subscribe to
them and keep an index. This one keeps the names of the blocks that one engine holds, each by all
tokens up to its end. Owned by the caller's thread, which takes what has come when it asks.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

__all__ = ["Router"]

ENGINE_MEDIUM = "GPU"
"""vLLM's own blocks, on any device; blocks of a connector have another medium."""


class Router:
    """Closes with `close`. `endpoint`: where engines connect to."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._names: dict[Any, int] = {}  # of vLLM's hashes
        self._held: set[int] = set()

    def events_config(self) -> dict[str, object]:
        """vLLM's `kv_events_config` for an engine that this router follows."""
        return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.endpoint}

    def held_tokens(self, prompt: Sequence[int], block_tokens: int) -> int:
        """Tokens at the front of a prompt that the engine holds, in whole blocks."""
        self._take()
        name, found = 0, 0
        for at in range(0, len(prompt) - block_tokens + 1, block_tokens):
            name = _named(name, prompt[at : at + block_tokens])
            if name not in self._held:
                break
            found = at + block_tokens
        return found

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(linger=0)
        self._context.term()

    def _take(self) -> None:
        while self._socket.poll(0):
            _, _, payload = self._socket.recv_multipart()
            for event in msgspec.msgpack.decode(payload)[1]:
                self.learn(event)

    def learn(self, event: Sequence[Any]) -> None:
        """One event, as an array that begins with its kind."""
        kind, *fields = event
        if kind == "AllBlocksCleared":
            self._held.clear()
        elif kind == "BlockStored":
            hashes, parent, tokens, size, _, medium = fields[:6]
            name = self._names.get(parent, 0)
            for place, one in enumerate(hashes):
                name = _named(name, tokens[place * size : (place + 1) * size])
                self._names[one] = name
                if medium == ENGINE_MEDIUM:
                    self._held.add(name)
        elif kind == "BlockRemoved" and fields[1] == ENGINE_MEDIUM:
            self._held.difference_update(self._names.get(one, 0) for one in fields[0])


def _named(before: int, tokens: Sequence[int]) -> int:
    return hash((before, *tokens))
