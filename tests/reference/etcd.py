"""A real etcd of one member on loopback, for the tests of a pod, which stop, kill and start it."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from socket import socket

import pytest

START_S = 30.0
FIX = "needs etcd: apt-get install etcd-server etcd-client"


class Etcd:
    """One member; its data are in `folder`, so that a restart keeps them."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        """Start it, at an address of this machine. Skips if etcd is not installed."""
        found = shutil.which("etcd")
        if found is None:
            pytest.skip(FIX)
        self._command, self._folder = found, folder
        self.address, self._peer = (f"{host}:{_free_port(host)}" for _ in range(2))
        self.start()

    def start(self) -> None:
        """Start it on its data, and wait until it answers."""
        peer = f"http://{self._peer}"
        with (self._folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self._command,
                    "--name=one",
                    f"--data-dir={self._folder / 'etcd'}",
                    f"--listen-client-urls=http://{self.address}",
                    f"--advertise-client-urls=http://{self.address}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=one={peer}",
                ],
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < until and self.process.poll() is None, "etcd did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        import urllib.request

        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as reply:
                return b"true" in reply.read()
        except OSError:
            return False

    def pause(self) -> None:
        """Stop it without ending it: every thread has stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def resume(self) -> None:
        """Let it answer again."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash of the machine would."""
        self.process.kill()
        self.process.wait()


def _free_port(host: str) -> int:
    with socket() as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])
