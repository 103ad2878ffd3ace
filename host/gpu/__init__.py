"""Kernels for a GPU, written in Triton: bounds of blocks, scores and their best, paged attention.

`--kernel triton` selects `offstage.host.gpu.attention`. `offstage.host.gpu.bounds` keeps the
summaries from which `offstage.host.gpu.scores` finds the best blocks, and `offstage.host.gpu.step`
combines all three into a decode step of CUDA graphs.

Every module here has one or two kernels as plain functions, and the call that launches them, which
takes torch tensors on one device and does not wait. Triton is optional, so it is not imported at
module level: `compiled` turns the functions of a module into kernels at the first launch. On the
CPU they run slowly under Triton's interpreter, `TRITON_INTERPRET=1`, for correctness tests.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offstage.bindings.errors import BadInput, Missing

__all__ = ["check_device", "compiled", "constexpr", "interpreted", "product_type"]

if TYPE_CHECKING:
    constexpr = Any
else:

    class constexpr:
        """What a kernel is compiled for, not given: Triton knows the annotation by its name."""


_CAPABILITY_MIN = (8, 0)
"""Of a device: below there is no bfloat16 to multiply with."""
_FP8_CAPABILITY_MIN = (8, 9)


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on")


_KERNELS: dict[Callable[..., Any], Any] = {}


def compiled(function: Callable[..., Any], *parts: Callable[..., Any]) -> Any:
    """The function as a kernel; `tl` and `constexpr` of its module become Triton's own, and so do
    the `parts` of that module that the kernel calls."""
    if function not in _KERNELS:
        import triton
        import triton.language

        names = function.__globals__
        names["tl"], names["constexpr"] = triton.language, triton.language.constexpr
        names.update({part.__name__: triton.jit(part) for part in parts})
        _KERNELS[function] = triton.jit(function)
    return _KERNELS[function]


def check_device(device: str, value_type: str = "bfloat16") -> None:
    """Whether Triton's kernels can run on a device, tried before anything is laid out there.

    Raises `Missing` without Triton, `BadInput` for a device that they do not run on."""
    if importlib.util.find_spec("triton") is None:
        raise Missing("triton", "the triton kernel needs triton, which is not installed", "kernel")
    import torch

    if torch.device(device).type == "cpu":
        if not interpreted():
            raise BadInput(
                "the triton kernel runs on a GPU",
                "device 'cpu'",
                "add --device cuda, or set TRITON_INTERPRET=1 to try it on the CPU, slowly",
            )
        return
    if interpreted():
        raise BadInput(
            "TRITON_INTERPRET runs kernels on the CPU",
            f"device {device!r}",
            "unset it, or use --device cpu",
        )
    capability = torch.cuda.get_device_capability(device)
    least = _FP8_CAPABILITY_MIN if value_type.startswith("float8") else _CAPABILITY_MIN
    if capability < least:
        raise BadInput(
            f"the device has compute capability {capability[0]}.{capability[1]}, and {value_type} "
            f"needs {least[0]}.{least[1]}",
            f"device {device!r}",
            "use --kernel torch",
        )


def product_type(stored: Any) -> tuple[Any, Any]:
    """The type in which a kernel multiplies numbers stored as `stored`, rounded to the first
    and held in the second: one type, but under the interpreter, whose products know no bfloat16.
    """
    import torch
    import triton.language as language

    if stored == torch.float32:
        return language.float32, language.float32
    # What is stored in 8 bits becomes float16 by one instruction of the device.
    rounded = language.bfloat16 if stored == torch.bfloat16 else language.float16
    return rounded, language.float32 if interpreted() else rounded
