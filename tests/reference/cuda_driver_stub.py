"""A CUDA driver without a device: enough of `libcuda.so.1` for a library to load and find none.

Every call succeeds and does nothing, except that a pointer is never the device's: kvikio takes it
for host memory, and reads files into it without a GPU. For tests only: no figure is made with
it.
"""

import subprocess
from pathlib import Path

__all__ = ["build"]

NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
CALLS = (
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetDevice",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxSynchronize",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyBatchAsync",
    "cuMemGetAddressRange",
    "cuStreamSynchronize",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuMemcpyAsync",
    "cuLaunchHostFunc",
    "cuStreamWaitEvent",
    "cuGetProcAddress",
)
VERSIONS = ("", "_v2", "_v3")


def build(folder: Path) -> Path:
    """Compile it into `folder`, which must be in LD_LIBRARY_PATH; CalledProcessError if no C
    compiler works."""
    lines = [f"int {name}{version}(void) {{ return 0; }}" for name in CALLS for version in VERSIONS]
    lines += [
        f"int {name}(void) {{ return {NOT_INITIALIZED}; }}"
        for name in ("cuPointerGetAttribute", "cuPointerGetAttributes")
    ]
    source, library = folder / "stub.c", folder / "libcuda.so.1"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=True, timeout=100)
    return library
