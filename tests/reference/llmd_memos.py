"""llm-d's memos_backend on NIXL's plug-in DOCA_MEMOS, in an environment that has torch.

`llmd_memos.py SOCKET`: the socket of a tenant. The folder of `llmd_nixl` and NIXL's are in
PYTHONPATH, the plug-in's in NIXL_PLUGIN_DIR. CUDA's streams and pinned memory are stand-ins, and so
is vLLM's type of a result. The last line has the observations, as JSON.
"""

import contextlib
import json
import sys
import time
from collections import namedtuple
from types import ModuleType
from typing import Any

import torch

BLOCKS, LAYERS, FILES, OF_FILE = 64, 4, 16, 4


class Stream:
    """Everything is done when it is asked for."""

    def synchronize(self) -> None:
        return None


torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
torch.cuda.stream = lambda _: contextlib.nullcontext()  # type: ignore[assignment]
torch.Tensor.pin_memory = lambda self: self  # type: ignore[assignment,method-assign]
for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.worker"):
    sys.modules[name] = ModuleType(name)
worker = ModuleType("vllm.v1.kv_offload.worker.worker")
worker.TransferResult = namedtuple("TransferResult", "job_id success")  # type: ignore[attr-defined]
sys.modules[worker.__name__] = worker

from llmd_nixl.memos_backend import MemosBackend  # noqa: E402


def moved(begin: Any, job: int, files: list[str], blocks: list[list[int]], heads: Any) -> Any:
    """What became of a job: True or False, or the error's type."""
    engine = begin.__self__
    try:
        begin(job, [0], files, blocks, heads)
        for _ in range(600):
            for found, success in engine.get_finished():
                if found == job:
                    return success
            time.sleep(0.05)
    except Exception as error:
        engine._transfers.clear()
        return type(error).__name__
    return "silent"


def main(socket: str) -> None:
    tensors = [torch.zeros((BLOCKS, 4096), dtype=torch.float32) for _ in range(LAYERS)]
    engine = MemosBackend(2, OF_FILE, tensors, {"device_name": socket, "num_tasks": 256})
    source = [torch.randn_like(one) for one in tensors]
    files = [f"file{number}" for number in range(FILES)]
    blocks = [list(range(OF_FILE * n, OF_FILE * (n + 1))) for n in range(FILES)]
    store, load = engine.async_store_gpu_blocks, engine.async_load_gpu_blocks
    for one, other in zip(tensors, source, strict=True):
        one.copy_(other)
    found = {"stored": moved(store, 1, files, blocks, [0] * FILES)}
    for one in tensors:
        one.zero_()
    found["loaded"] = moved(load, 2, files, blocks, [0] * FILES)
    found["equal"] = all(torch.equal(*pair) for pair in zip(tensors, source, strict=True))
    tail = blocks[0][2:]
    moved(load, 3, files[:1], [tail], [2])
    found["tail"] = all(
        torch.equal(one[tail], other[tail]) for one, other in zip(tensors, source, strict=True)
    )
    found["absent"] = moved(load, 4, ["absent"], [blocks[0]], [0])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
