"""Does NIXL move bytes into and out of GPU memory without a copy in host memory?"""

import subprocess
import sys
from typing import Any

from gpu_checks import Run, check

__all__: list[str] = []

BLOCK_BYTES, BATCH = 64 << 10, 32
TARGET = "from offstage.testbeds.bench.links import nixl_target; nixl_target({})"


@check(point=2, needs=("torch", "zmq", "firmware"), limit_s=90)
def nixl_reads_into_gpu_memory(run: Run) -> dict[str, object]:
    """Do blocks written out of GPU memory to another process come back unchanged, and how fast?"""
    import torch

    from offstage.bindings import nixl
    from offstage.bindings.errors import BadInput

    if nixl.find() is None:
        run.skip(f"NIXL is not installed; {nixl.FIX}")
    size = BLOCK_BYTES * BATCH
    wanted = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    memory = wanted.clone()
    torch.cuda.synchronize()
    process = subprocess.Popen(
        [sys.executable, "-c", TARGET.format(64 << 20)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        blob = bytes.fromhex(process.stdout.readline().decode())
        times: Any = None
        with nixl.Loop.on_device(memory.data_ptr(), size, torch.cuda.current_device()) as loop:
            loop.run(blob, BLOCK_BYTES, BATCH, 1, write=True)
            memory.zero_()
            torch.cuda.synchronize()
            loop.run(blob, BLOCK_BYTES, BATCH, 1)
            assert torch.equal(memory, wanted), "what came back is not what was written"
            times = loop.run(blob, BLOCK_BYTES, BATCH, 200)
    except BadInput as error:
        run.skip(str(error))
    finally:
        process.stdin.close()
        process.wait(30)
    return {"gb_per_s": size / float(sorted(times)[100])}
