"""Is a requested GPU that cannot be used refused in one line that names the fix?

The GPU is too old, too small, has another driver, or is not seen by cupy. Each case is simulated at
the one call by which the host would find out.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.arrays import open_arrays
from offstage.host.arrays.torch_arrays import TorchArrays
from offstage.host.gpu import check_device
from offstage.host.transfers.cuda import cuda_kinds

torch = pytest.importorskip("torch", reason="pip install '.[host]'")

OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040).\nPlease update it"


def test_another_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's warning becomes the reason in the one line, and is not printed separately."""

    def none() -> bool:
        warnings.warn(OLD_DRIVER, stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", none)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            BadInput, match=r"no device 'cuda': The NVIDIA driver.*11040\); use"
        ) as told:
            open_arrays("torch", "cuda")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("capability", "value_type", "least"),
    [((7, 5), "bfloat16", "8.0"), ((8, 0), "float8_e4m3fn", "8.9"), ((7, 0), "float16", "8.0")],
)
def test_an_older_architecture_is_refused(
    capability: tuple[int, int], value_type: str, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    with pytest.raises(BadInput, match=f"{value_type} needs {least}.*use --kernel torch"):
        check_device("cuda", value_type)


def test_a_pool_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says how much device memory was needed, where, and what to change."""

    def full(*shape: Any, **more: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB")

    arrays = TorchArrays("cpu", staged=True)
    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(BadInput, match=r"HBM pool of 4\.0 GB does not fit.*'cpu'.*fewer sessions"):
        arrays.memory(1_000_000, 4_000, 64)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class cuda:\n    is_available = staticmethod(lambda: False)\n", "sees no CUDA device"),
        ("raise ImportError('libcuda.so.1: no such file\\nand more')", "does not import: libcuda"),
    ],
    ids=("no device", "another CUDA"),
)
def test_cupy_without_a_device_is_no_transfer(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other transfers still work; the doctor and the choice at start say why this one does
    not."""
    (tmp_path / "cupy.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    found = {one.name: one for one in cuda_kinds()}
    sys.modules.pop("cupy", None)
    assert found["gather"].open is None and reason in found["gather"].reason
    assert "\n" not in found["gather"].reason
