"""Supervises the daemon's own target: if it dies, it is restarted with the same settings.

A thread waits for the program's exit. The new process has the same address, names and file, so the
storage reconnects by itself; I/Os submitted meanwhile wait for `storage.io_timeout`. After
RESTARTS_MAX restarts it stays down, and the storage's I/Os complete with errors.
"""

import threading
from dataclasses import dataclass

from offstage.bindings.errors import OffstageError
from offstage.dpu.config import options
from offstage.dpu.storage.spdk_target import Target

__all__ = ["RESTARTS_MAX", "OwnTarget"]

RESTARTS_MAX = 5
BACKOFF_S = 0.1
LOOK_S = 0.1
DRIVE = "store"


@dataclass
class _Told:
    """The state of the thread; one thread writes, others read."""

    restarts: int = 0
    given_up: str = ""


class OwnTarget:
    """A target of `storage.target` with the file `storage.target_file`. `path`: its transport id,
    which stays."""

    def __init__(self, storage: options.Storage) -> None:
        self._storage = storage
        self._told = _Told()
        self._ending = threading.Event()
        # The program ends with the thread that began it (pdeathsig), so one thread begins it.
        self._begun = threading.Event()
        self._refused: BaseException | None = None
        self._target: Target | None = None
        self.path = ""
        self._thread = threading.Thread(target=self._run, name="ofs-target", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._refused is not None:
            self._thread.join()
            raise self._refused

    @property
    def restarts(self) -> int:
        """How often the program was restarted."""
        return self._told.restarts

    @property
    def given_up(self) -> str:
        """Why it is no longer restarted; empty while it is."""
        return self._told.given_up

    @property
    def pid(self) -> int:
        """Pid of the running program; 0 if none runs."""
        target = self._target
        return 0 if target is None or target.ended() else target.pid

    def close(self) -> None:
        """End the program and the thread."""
        self._ending.set()
        self._thread.join()

    def _start(self, port: int) -> None:
        storage = self._storage
        target = Target(storage.target)
        try:
            drive = target.file_drive(
                DRIVE, storage.target_file, storage.size_bytes, storage.lba_bytes
            )
            self.path = target.serve(drive, port=port)
        except BaseException:
            target.close()
            raise
        self._target = target

    def _run(self) -> None:
        try:
            self._start(0)
        except BaseException as error:
            self._refused = error
            return
        finally:
            self._begun.set()
        port = int(dict(word.split(":", 1) for word in self.path.split())["trsvcid"])
        while not self._ending.wait(LOOK_S):
            if self._target is not None and self._target.ended():
                self._again(port)
        if self._target is not None:
            self._target.close()

    def _again(self, port: int) -> None:
        assert self._target is not None
        self._target.close()
        self._target = None
        pause_s = BACKOFF_S
        while self._told.restarts < RESTARTS_MAX and not self._ending.wait(pause_s):
            self._told.restarts += 1
            try:
                self._start(port)
                self._told.given_up = ""
                return
            except OffstageError as error:
                self._told.given_up = str(error)  # unless the next one does it
                pause_s = min(2 * pause_s, 2.0)
        if self._target is None and not self._ending.is_set():
            self._told.given_up = self._told.given_up or f"it died {RESTARTS_MAX + 1} times"
