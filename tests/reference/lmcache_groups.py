"""Objects of several groups through LMCache's own factory, memory and prefetch controller, over
Offstage, in the environment that has LMCache.

`lmcache_groups.py PARAMS`: PARAMS is the JSON of `adapter_params`. For `plugin` and
`native_plugin`: objects of four groups, with one and with several tensors, are filled in LMCache's
memory and stored; a second memory asks for a prompt whose rows are of full attention, of a window
and of recurrent states, some chunks of which were never stored. The last line has what was found,
as JSON; `right`: whether each found object has the bytes that were stored.
"""

import json
import os
import select
import sys
import time
from typing import Any

import torch
from lmcache import torch_dev
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
from lmcache.v1.distributed.l1_manager import L1Manager
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import NativePluginL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.distributed.storage_controllers.prefetch_controller import PrefetchController
from lmcache.v1.distributed.storage_controllers.prefetch_policy import DefaultPrefetchPolicy
from lmcache.v1.distributed.storage_controllers.utils import (
    L1ManagerDescriptor,
    L2AdapterDescriptor,
)

CHUNKS, FULL = 5, -1
BF16, FP8, FP32, U8 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.uint8
GROUPS: list[tuple[list[tuple[list[int], Any]], int, set[int]]] = [
    # tensors of an object, chunks that a prefix needs of it, chunks that are stored
    ([([2, 3, 16, 32], BF16)], FULL, {0, 1, 2, 3, 4}),  # KV of heads
    ([([1, 2, 16, 72], BF16), ([1, 2, 16, 33], U8)], FULL, {0, 1, 2, 3}),  # latents, index keys
    ([([2, 2, 16, 32], FP8), ([2, 2, 16, 1], FP32)], 2, {2, 3, 4}),  # a window's, with scales
    ([([3, 2, 8, 4], FP32), ([3, 10, 3], BF16), ([5], U8)], 1, {1, 3, 4}),  # recurrent states
]


def layout(tensors: list[tuple[list[int], Any]]) -> Any:
    return MemoryLayoutDesc([torch.Size(shape) for shape, _ in tensors], [t for _, t in tensors])


def key(group: int, chunk: int) -> Any:
    return ObjectKey(bytes([chunk]) * 16, "m/8b", 3, group, "salt")


def memory() -> tuple[Any, Any]:
    held = L1MemoryManagerConfig(size_in_bytes=1 << 26, use_lazy=False, init_size_in_bytes=1 << 26)
    config = L1ManagerConfig(memory_config=held, write_ttl_seconds=600, read_ttl_seconds=300)
    return L1Manager(config), config


def ended(adapter: Any, task: int) -> Any:
    found: dict[int, Any] = {}
    while task not in found:
        fd = adapter.get_store_event_fd()
        assert select.select([fd], [], [], 60.0)[0], "nothing ended"
        os.eventfd_read(fd)
        found |= adapter.pop_completed_store_tasks()
    return found[task]


def stored(adapter: Any) -> dict[Any, bytes]:
    """The bytes of each object that was stored out of LMCache's memory."""
    manager, found = memory()[0], {}
    for number, (tensors, _, chunks) in enumerate(GROUPS):
        keys = [key(number, chunk) for chunk in sorted(chunks)]
        got = manager.reserve_write(keys, [False] * len(keys), layout(tensors))
        objects = [got[one][1] for one in keys]
        for one in objects:
            raw = one.raw_data.view(-1).view(torch.uint8)[: one.get_size()]
            raw.copy_(torch.randint(0, 255, raw.shape, dtype=torch.uint8))
        found |= {one: bytes(o.byte_array) for one, o in zip(keys, objects, strict=True)}
        task = adapter.submit_store_task(keys, objects)
        assert ended(adapter, task).is_successful()
        manager.finish_write(keys)
    manager.close()
    return found


def asked(adapter: Any, config: Any, kept: dict[Any, bytes]) -> dict[str, Any]:
    manager, own = memory()
    controller = PrefetchController(
        l1_managers=[manager],
        l1_manager_descriptors=[L1ManagerDescriptor(index=0, config=own)],
        l2_adapters=[adapter],
        adapter_descriptors=[L2AdapterDescriptor(index=0, config=config)],
        policy=DefaultPrefetchPolicy(),
        max_in_flight=8,
    )
    controller.start()
    rows = [
        GroupedObjectKeys([key(number, i) for i in range(CHUNKS)], number, layout(tensors), window)
        for number, (tensors, window, _) in enumerate(GROUPS)
    ]
    request, result = controller.submit_prefetch_request(PrefetchTaskSpec(key_groups=rows)), None
    until_s = time.monotonic() + 60.0
    while result is None and time.monotonic() < until_s:
        time.sleep(0.01)
        result = controller.query_prefetch_result(request)
    assert result is not None, "the prefetch did not end"
    cells = [row.get_indices_list() for row in result.hit_cells]
    names = [key(number, i) for number, row in enumerate(cells) for i in row]
    read = manager.unsafe_read(names)
    right = [bytes(read[one][1].byte_array) == kept[one] for one in names]
    manager.finish_read(names)
    controller.stop()
    manager.close()
    return {"rows": cells, "right": right}


def main() -> None:
    params, answer = json.loads(sys.argv[1]), {}
    type(torch_dev).is_available = lambda self: True
    kinds = {"plugin": PluginL2AdapterConfig, "native_plugin": NativePluginL2AdapterConfig}
    for name, kind in kinds.items():
        config = kind.from_dict(
            {
                "module_path": "offstage.host.connectors.lmcache",
                "class_name": "OffstageL2" if name == "plugin" else "NativeClient",
                "adapter_params": params | {"weights_id": name},
            }
        )
        adapter = create_l2_adapter(config)
        answer[name] = asked(adapter, config, stored(adapter))
        adapter.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
