"""Are transfers issued in an order that cannot give wrong bytes, and is the fastest one chosen?

tests/contract/test_arrays.py compares the bytes. This module tests the sequence of the CUDA side,
over a stub of the runtime, and the errors on a machine without it.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput, RunFailed
from offstage.host.arrays import fastest_transfer as measure
from offstage.host.transfers import HostCopies, Kind, nixl, runtime
from offstage.host.transfers.batch import BatchCopies
from offstage.host.transfers.runtime import Cudart

COMPUTE, COPIES = 0, 1


def test_a_copy_waits_for_earlier_readers_of_its_blocks() -> None:
    """It does not wait for a kernel issued after them, which runs concurrently. Work issued after
    the copy waits for it."""
    pytest.importorskip("torch", reason="pip install '.[host]'")
    from later_runtime import LaterRuntime

    later = LaterRuntime()
    transfer = BatchCopies(later, lambda: COMPUTE, 10_000, 500, 64)
    fence = transfer.fence()
    later.record(COMPUTE)  # an unrelated kernel of the layer before
    transfer.move(fence, 2, np.array([7, 4]))
    assert later.asked == [
        (COMPUTE, "event", 1),
        (COMPUTE, "event", 2),
        (COPIES, "wait", 1),
        (COPIES, "copy", (10_000 + 7 * 64, 10_000 + 4 * 64), (500 + 2 * 64, 500 + 3 * 64), 64),
        (COPIES, "event", 3),
        (COMPUTE, "wait", 3),
    ]


class StubLibrary:
    """The runtime's calls as ctypes offers them; `calls` holds names and numbers of arguments."""

    def __init__(self, version: int, rc: int = 0) -> None:
        self.version, self.rc, self.calls = version, rc, list[tuple[str, int]]()
        self.cudaGetErrorString: Any = lambda rc: b"no such luck"

    def cudaRuntimeGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append((name, len(args)))
            if name == "cudaStreamCreateWithFlags":
                args[0]._obj.value = 4096
            return self.rc

        return call


@pytest.mark.parametrize(
    ("version", "calls"),
    [
        (12_040, [("cudaMemcpyAsync", 5)] * 3),
        (12_080, [("cudaMemcpyBatchAsync", 9)]),
        (13_000, [("cudaMemcpyBatchAsync", 8)]),
    ],
)
def test_a_batch_is_one_call_where_the_runtime_has_it(
    version: int, calls: list[tuple[str, int]]
) -> None:
    """CUDA 12.8 introduced the call, and 13 dropped one of its arguments."""
    library = StubLibrary(version)
    cudart = Cudart(library)
    stream = cudart.stream()
    addresses = np.array([16, 32, 48], np.uint64)
    library.calls.clear()
    cudart.copy(addresses, addresses, 16, stream)
    assert library.calls == calls and stream == 4096


def test_an_error_of_the_runtime_is_one_line() -> None:
    cudart = Cudart(StubLibrary(13_000, rc=35))
    with pytest.raises(RunFailed, match="no such luck while making a stream"):
        cudart.stream()


def test_without_a_runtime_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "LIBRARIES", ("libno-such-cudart.so.1",))
    with pytest.raises(BadInput, match="torch that is built for CUDA"):
        Cudart()


def test_the_fastest_that_works_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer that is absent or fails is never chosen, whatever speed it claims."""
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")

    def broken(storage: Any, staging: Any) -> Any:
        raise RuntimeError("launch failure\nand more of it")

    class Lazy(HostCopies):
        def fence(self) -> None:
            sum(range(30_000))

    there = [
        Kind("slow", Lazy),
        Kind("broken", broken),
        Kind("absent", None, "not installed"),
        Kind("good", HostCopies),
    ]
    monkeypatch.setattr(measure, "kinds", lambda device: there)
    found = {one.name: one for one in measure.measure(torch.device("cpu"), 256)}
    assert found["broken"].reason == "launch failure" and found["absent"].reason == "not installed"
    assert found["good"].bytes_per_s > 0 and found["slow"].bytes_per_s > 0
    best = max(found.values(), key=lambda one: one.bytes_per_s).name
    monkeypatch.setattr(measure, "measure", lambda device, size: list(found.values()))
    measure.chosen.cache_clear()
    assert measure.chosen("cpu", 1).name == best
    measure.chosen.cache_clear()


def test_the_command_prints_what_doctor_reads() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "offstage.host.arrays.fastest_transfer", "cpu"],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    one, *others = json.loads(done.stdout)
    assert one["name"] == "memcpy" and one["bytes_per_s"] > 0 and one["reason"] == ""
    assert [other["name"] for other in others] == ["nixl", "gpudirect"]
    assert {other["reason"].split(":")[0] for other in others} == {"no device"}


class StubAgent:
    """An agent with the interface of NIXL's, whose transfers are complete at the second poll."""

    broken = False

    def __init__(self, name: str, config: Any) -> None:
        self.name, self.transports = name, os.environ.get("UCX_TLS")
        self.registered: list[tuple[int, int]] = []

    def register_memory(self, tensors: list[Any]) -> None:
        self.registered += [(one.data_ptr(), one.data_ptr() + one.numel()) for one in tensors]

    def get_xfer_descs(self, parts: list[tuple[int, int, int]], kind: str) -> Any:
        for at, size, _ in parts:
            assert any(low <= at and at + size <= high for low, high in self.registered)
        return parts

    def initialize_xfer(self, what: str, source: Any, target: Any, remote: str) -> Any:
        assert (what, remote) == ("WRITE", self.name)
        return [source, target, 0]

    def transfer(self, handle: Any) -> str:
        return "PROC"

    def check_xfer_state(self, handle: Any) -> str:
        handle[2] += 1
        if handle[2] < 2:
            return "PROC"
        for (at, size, _), (to, _, _) in zip(handle[0], handle[1], strict=True):
            ctypes.memmove(to, at, size)
        return "ERR" if self.broken else "DONE"

    def release_xfer_handle(self, handle: Any) -> None:
        handle.clear()


def test_nixl_puts_registered_rows_into_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer has its own agent, which for `gpudirect` gets only the RDMA transports. A
    failure there is one line."""
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")
    api = SimpleNamespace(nixl_agent=StubAgent, nixl_agent_config=lambda backends: backends)
    monkeypatch.setattr(nixl, "_api", lambda: api)
    monkeypatch.delenv("UCX_TLS", raising=False)
    storage = torch.zeros((9, 64), dtype=torch.uint8)
    staging = torch.arange(4 * 64).to(torch.uint8).view(4, 64)
    for name, transports in (("nixl", ""), ("gpudirect", nixl.RDMA_ONLY)):
        moves = nixl.NixlRows(name, transports, storage, staging)
        assert moves._agent.transports == (transports or None) and "UCX_TLS" not in os.environ
        storage.zero_()
        moves.move(moves.fence(), 1, np.array([7, 0]))()
        assert torch.equal(storage[[7, 0]], staging[1:3]) and int(storage[1:7].sum()) == 0
    monkeypatch.setattr(StubAgent, "broken", True)
    with pytest.raises(RunFailed, match="copy into the device failed"):
        moves.move(moves.fence(), 0, np.array([1]))


def test_what_gpudirect_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing parts are listed in the order in which they are fixed. With none missing, both kinds
    are available like any other."""
    monkeypatch.setattr(nixl.importlib.util, "find_spec", lambda name: None)
    assert {one.reason for one in nixl.nixl_kinds(tmp_path)} == {
        "the nixl package is not installed (pip install nixl)"
    }
    monkeypatch.setattr(nixl.importlib.util, "find_spec", lambda name: name)
    steps = []
    for made in ("sys/class/infiniband/mlx5_0", "sys/module/nvidia_peermem", ""):
        plain, direct = nixl.nixl_kinds(tmp_path)
        assert plain.open is not None and bool(direct.open) == (not made)
        steps.append(direct.reason)
        (tmp_path / made).mkdir(parents=True, exist_ok=True)
    assert steps == [
        "no RDMA adapter",
        "nvidia-peermem is not loaded (modprobe nvidia-peermem)",
        "",
    ]


def test_an_event_is_given_up_with_its_object() -> None:
    library = StubLibrary(13_000)
    event = Cudart(library).record(7)
    event.handle = ctypes.c_void_p(99)
    del event
    assert library.calls[-1] == ("cudaEventDestroy", 1)
