"""The reference of the verbs fabric: perftest's reads of as many bytes between two processes.

perftest is a Debian package; `ib_read_lat` reads one after another, `ib_read_bw` keeps a batch
in flight.
"""

import itertools
import math
import shutil
import socket
import subprocess
import time

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.verbs import Adapter

__all__ = ["Perftest"]

TIMEOUT_S = 120.0
RETRY_S = 0.2
ROUNDS_MIN = 100
RUNS_MAX = 5


class Perftest:
    """Reads of `size` bytes over `adapter`, each call a run of both its processes."""

    def __init__(self, adapter: Adapter, size: int) -> None:
        """BadInput if perftest is not installed."""
        self._adapter, self._size = adapter, size
        for program in ("ib_read_lat", "ib_read_bw"):
            if shutil.which(program) is None:
                raise BadInput(
                    f"{program}, the reference of verbs, is missing",
                    "bench fabric",
                    "apt-get install perftest",
                )

    def __call__(self, batch: int, rounds: int) -> NDArray[np.uint64]:
        """ns of a round of `batch` reads, as perftest reports it for all its rounds together."""
        count = str(max(rounds * batch, ROUNDS_MIN))
        if batch == 1:
            typical_us = self._figure(["ib_read_lat", "-n", count], 4)
            return np.array([typical_us * 1e3], np.uint64)
        words = ["ib_read_bw", "-n", count, "-t", str(batch), "--report_gbits"]
        gigabits = self._figure(words, 3)
        return np.array([self._size * batch * 8 / gigabits], np.uint64)

    def _figure(self, words: list[str], column: int) -> float:
        """One figure; perftest prints 0 or inf if it could not calibrate its clock."""
        for _ in range(RUNS_MAX):
            figure = self._run(words)[column]
            if 0 < figure < math.inf:
                return figure
        raise RunFailed(
            f"{words[0]} could not calibrate its clock in {RUNS_MAX} runs",
            "bench fabric",
            "run it on an idle machine",
        )

    def _run(self, words: list[str]) -> list[float]:
        """The line of figures that the client prints."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        command = [
            *words,
            "-F",
            "-d",
            self._adapter.device,
            "-i",
            str(self._adapter.port),
            "-x",
            str(self._adapter.gid_index),
            "-m",
            str(self._adapter.mtu_bytes),
            "-s",
            str(self._size),
            "-p",
            port,
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return self._client([*command, "127.0.0.1"])
        finally:
            server.kill()
            server.wait()

    def _client(self, command: list[str]) -> list[float]:
        until_s = time.monotonic() + TIMEOUT_S
        said = "it printed nothing"
        while True:
            left_s = until_s - time.monotonic()
            try:
                done = subprocess.run(
                    command,
                    check=False,
                    capture_output=True,
                    errors="replace",
                    timeout=max(left_s, 0.0),
                )
            except subprocess.TimeoutExpired:
                raise RunFailed(
                    f"{command[0]} failed in {TIMEOUT_S:.0f} s: {said}",
                    "bench fabric",
                    "check that rdma_rxe or the adapter is up: rdma link",
                ) from None
            lines = done.stdout.splitlines()
            for header, line in itertools.pairwise(lines):
                if header.lstrip().startswith("#bytes") and done.returncode == 0:
                    return [float(one) for one in line.split()]
            said = ((done.stderr or done.stdout).strip().splitlines() or [said])[-1]
            time.sleep(RETRY_S)  # its server may not listen yet
