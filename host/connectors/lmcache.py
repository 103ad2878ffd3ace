"""LMCache on the tier: its L2 adapter, and the client of its native plug-in.

`OffstageL2` is an adapter of the multi-process mode (`"type": "plugin"`): a lookup leases the
objects it finds and prefetches them into the tier's memory, a load reads them from there, an unlock
releases the lease. `NativeClient` serves `"type": "native_plugin"`: batches of keys and memory, one
event descriptor, drained completions. There LMCache does the locking, so a lease taken by a lookup
is released once the object is read.

Both run on the caller's threads and the object client's; none blocks on the tier. While the daemon
is lost every lookup is a miss and every store fails; LMCache then recomputes or gives up.

LMCache passes only names of models, and engines may restart under it. The settings therefore name
the content of KV: `model`, files whose content is part of every key and which are checked with each
batch, or `weights_id`; and `layout`, for what computes it. With a `model`, objects of any other
model name are refused. This module imports nothing of LMCache; `OffstageL2` is created on access.
"""

import itertools
import logging
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, ObjectClient, State
from offstage.host.connectors.tried import say_untried
from offstage.host.endpoint import Endpoint, text_of
from offstage.host.model.identity import Weights, digest_of, files_of, identity_of

__all__ = ["L2", "NativeClient", "client_of", "key_of"]

# A lookup does not say when the load comes: it is prefetched for any time until its lease ends.
# With an earlier deadline, what a busy drive has not begun by then would be dropped.
LEASE_S = 30.0  # of objects found by a lookup, unless they are unlocked
UNTOLD_LEASE_S = 10.0  # the same where LMCache does not unlock
TOLD_MAX = 64  # models of which the log says that they are not kept


GIB_MAX = 1 << 30  # of a second level
OWN = ("model", "layout", "weights_id")
log = logging.getLogger("offstage.connectors")


class Client(ObjectClient):
    """An object client whose objects are of one model's weights, or of those that were named."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `client_of`."""
        own = {name: text_of(settings, name, "adapter_params") for name in OWN}
        endpoint = Endpoint.of_engine(
            {name: one for name, one in settings.items() if name not in OWN}
        )
        say_untried("LMCache")
        self._of, named = own["model"], own["weights_id"]
        self._weights: Weights | None = None
        if not own["layout"]:
            raise BadInput(
                "the configuration does not identify what computes the KV",
                "layout",
                "set a text that changes with dtype, quantization and kernels",
            )
        if not named:
            found = digest_of(files_of(self._of) if self._of else (), "model")
            log.warning(
                "KV is of the weights %s (%s: %s)", found.digest[:16], self._of, found.cost()
            )
            self._weights = found
        computed = {"LMCache": own["layout"]}
        layout = identity_of(self._weights or self._of, computed, weights_id=named)
        super().__init__(endpoint, model=self._of, layout=layout)
        self._told: set[str] = set()

    def keeps(self, models: Sequence[str]) -> bool:
        """Whether objects of models of these names are of this client's weights."""
        if self._weights is None:
            return True
        same = self._weights.unchanged()
        others = {name for name in models if not same or name != self._of}
        for name in others - self._told if len(self._told) < TOLD_MAX else ():
            self._told.add(name)
            why = (
                "its files changed: start LMCache and its engines again"
                if not same
                else (f"this adapter serves {self._of}: give the other model a separate adapter")
            )
            log.warning("objects of the model %s are not kept: %s", name, why)
        return not others


def client_of(settings: dict[str, Any]) -> Client:
    """An object client from `adapter_params`: where the daemon is, and `model`, `layout` and
    `weights_id`. BadInput: a setting that is none, or they do not say what KV is of."""
    return Client(settings)


def nobodys(count: int) -> list[bytes]:
    """Keys under which nothing is stored."""
    return [os.urandom(32) for _ in range(count)]


def key_of(key: Any) -> bytes:
    """An `ObjectKey` as bytes; none of its texts holds an @, so that no two keys are alike."""
    parts = (
        key.model_name,
        f"{key.kv_rank:x}",
        f"{key.object_group_id:x}",
        key.chunk_hash.hex(),
        key.cache_salt,
    )
    return "@".join(parts).encode()


class NativeClient:
    """What a native connector of LMCache has, over an object client."""

    def __init__(self, **settings: Any) -> None:
        """Log in; see `client_of`."""
        self._client = client_of(settings)

    def event_fd(self) -> int:
        """Readable when a batch has ended."""
        return self._client.fd

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Read objects into memory; the number of the batch."""
        return self._client.get(self._names(keys), views)

    def submit_batch_set(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Store objects."""
        if not self._keeps(keys):
            return self._client.exists(self._names(keys))  # none of them is there
        return self._client.put([key.encode() for key in keys], views)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Whether objects are there. Those are leased, until they are read, replaced or deleted,
        and brought into the tier's memory."""
        return self._client.prefetch(
            self._names(keys), lease_s=UNTOLD_LEASE_S, due_s=UNTOLD_LEASE_S, once=True
        )

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Delete objects."""
        names = [key.encode() for key in keys]
        self._client.release(names)
        return self._client.delete(names)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """Batches that have ended: number, whether each object is there or was taken, why not, and
        which of them."""
        return [
            (
                one.ticket,
                all(state in (State.DONE, State.ABSENT) for state in one.states),
                next((why for why in one.reasons if why), ""),
                one.done,
            )
            for one in self._client.drain()
        ]

    def close(self) -> None:
        """Leave the daemon."""
        self._client.close()

    def _keeps(self, keys: Sequence[str]) -> bool:
        return self._client.keeps([key.partition("@")[0] for key in keys])

    def _names(self, keys: Sequence[str]) -> list[bytes]:
        if not self._keeps(keys):
            return nobodys(len(keys))
        return [key.encode() for key in keys]


class L2:
    """The logic of `OffstageL2`, which also derives from LMCache's interface. `store_result` and
    `bitmap` are LMCache's classes. Each `ended` keeps LMCache's objects until it is called:
    `byte_array` is their memory and does not own it."""

    store_result: Any
    bitmap: Any

    def __init__(self, params: dict[str, Any], **unused: Any) -> None:
        """Log in; `max_capacity_gb` switches LMCache's own eviction on."""
        settings = dict(params)
        super().__init__(_bytes_of(settings.pop("max_capacity_gb", 0)))  # type: ignore[call-arg]
        self._client = client_of(settings)
        self._fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(3)]
        self._lock = threading.Lock()
        self._tasks = itertools.count(1)
        self._stored: dict[int, Any] = {}
        self._looked: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}
        self._sizes: dict[Any, int] = {}  # of what was stored here, which LMCache counts

    def get_store_event_fd(self) -> int:
        """Signalled when a store has ended."""
        return self._fds[0]

    def get_lookup_and_lock_event_fd(self) -> int:
        """Signalled when a lookup has ended."""
        return self._fds[1]

    def get_load_event_fd(self) -> int:
        """Signalled when a load has ended."""
        return self._fds[2]

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Store objects; a task whose last object was not taken has failed."""
        views = [one.byte_array for one in objects]
        sizes = [len(view) for view in views]
        task = next(self._tasks)
        if not self._keeps(keys):
            self._end("_stored", task, self.store_result(False, 0), 0)
            return task

        def ended(completion: Completion, _: list[Any] = objects) -> None:
            ends = zip(keys, sizes, completion.done, strict=True)
            stored = [(key, size) for key, size, done in ends if done]
            with self._lock:
                grown = [0 if key in self._sizes else size for key, size in stored]
                self._sizes.update(stored)
            done = len(stored) == len(keys)
            try:
                self._tell("_notify_keys_stored", [key for key, _ in stored], grown)
            finally:
                self._end("_stored", task, self.store_result(done, sum(grown) if done else 0), 0)

        self._client.put([key_of(key) for key in keys], views, tell=ended)
        return task

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Stores that have ended since the last call."""
        with self._lock:
            ended, self._stored = self._stored, {}
        return ended

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        """Which objects are there. Those are leased and brought into the tier's memory. Layouts are
        of KV in LMCache's memory, which a `serde` codes before it is stored: sizes count at the
        load, where one of another size is a miss, as one that another process deletes meanwhile."""
        task = next(self._tasks)

        def ended(completion: Completion) -> None:
            self._end("_looked", task, self._bits(completion.done), 1)

        self._client.prefetch(self._names(keys), lease_s=LEASE_S, due_s=LEASE_S, tell=ended)
        return task

    def query_lookup_and_lock_result(self, task: int) -> Any:
        """The bits of an ended lookup, once; else None."""
        with self._lock:
            return self._looked.pop(task, None)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Release the leases of a lookup."""
        self._client.release([key_of(key) for key in keys])

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Read objects into LMCache's memory."""
        task = next(self._tasks)

        def ended(completion: Completion, _: list[Any] = objects) -> None:
            read = [key for key, done in zip(keys, completion.done, strict=True) if done]
            try:
                self._tell("_notify_keys_accessed", read)
            finally:
                self._end("_loaded", task, self._bits(completion.done), 2)

        self._client.get(self._names(keys), [one.byte_array for one in objects], tell=ended)
        return task

    def query_load_result(self, task: int) -> Any:
        """The bits of an ended load, once; else None."""
        with self._lock:
            return self._loaded.pop(task, None)

    def delete(self, keys: list[Any]) -> None:
        """Delete objects and wait for it, as LMCache's eviction expects."""
        gone = self._client.wait(self._client.delete, [key_of(key) for key in keys])
        deleted = [key for key, done in zip(keys, gone.done, strict=True) if done]
        with self._lock:
            sizes = [self._sizes.pop(key, 0) for key in deleted]
        self._tell("_notify_keys_deleted", deleted, sizes)

    def report_status(self) -> dict[str, bool | str | int]:
        """Whether the daemon is reachable, and counts of moved objects."""
        return {"is_healthy": not self._client.away, "type": "offstage", **self._client.counts()}

    def close(self) -> None:
        """Leave the daemon. Closing twice does nothing."""
        self._client.close()
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def _keeps(self, keys: list[Any]) -> bool:
        return self._client.keeps([key.model_name for key in keys])

    def _names(self, keys: list[Any]) -> list[bytes]:
        return [key_of(key) for key in keys] if self._keeps(keys) else nobodys(len(keys))

    def _bits(self, done: list[bool]) -> Any:
        bits = self.bitmap(len(done))
        for index, one in enumerate(done):
            if one:
                bits.set(index)
        return bits

    def _tell(self, name: str, keys: list[Any], *more: Any) -> None:
        if keys:
            getattr(self, name)(keys, *more)

    def _end(self, results: str, task: int, result: Any, kind: int) -> None:
        with self._lock:
            getattr(self, results)[task] = result
        if self._fds:
            self._client.signal(self._fds[kind])


def _bytes_of(gigabytes: Any) -> int:
    """Of `max_capacity_gb`. BadInput: no number from 0 on."""
    if type(gigabytes) not in (int, float) or not 0 <= gigabytes <= GIB_MAX:
        raise BadInput(
            f"max_capacity_gb is {gigabytes!r}", "adapter_params", f"write 0 to {GIB_MAX:,}"
        )
    return int(gigabytes * 2**30)


@lru_cache(maxsize=1)
def _offstage_l2() -> type:
    from lmcache.lmcache_native import Bitmap
    from lmcache.v1.distributed.internal_api import L2StoreResult
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

    names = {"store_result": L2StoreResult, "bitmap": Bitmap, "__module__": __name__}
    return type("OffstageL2", (L2, L2AdapterInterface), names)


def __getattr__(name: str) -> Any:
    if name == "OffstageL2":
        return _offstage_l2()
    raise AttributeError(name)
