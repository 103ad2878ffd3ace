"""The link to an engine in another process and environment: JSON lines, with deadlines."""

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import offstage
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import last_line, said_json

__all__ = ["End", "Engine", "engine"]

T = TypeVar("T")

MARK = "ENGINE "
START_S = 600.0
ANSWER_S = 300.0
END_S = 60.0
PROCESS = "offstage.testbeds.bench.engines.process"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


class End(msgspec.Struct):
    """How a request ended, as the engine reports it; `reused` tokens of its prompt."""

    id: int
    tokens: list[int]
    first_s: float
    reused: int


class Engine:
    """A running engine: its output, line by line. One thread reads, its owner asks."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log
        self._lines: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._lines.put(line.removeprefix(MARK))
        self._lines.put(None)

    def send(self, **line: Any) -> None:
        """RunFailed: it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed("it has ended") from None

    def answer(self, kind: type[T], timeout_s: float = ANSWER_S) -> T:
        """The next line, of a kind. RunFailed: none came in time, it is of another kind, or the
        engine has ended."""
        try:
            found = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise self._failed(f"no answer in {timeout_s:.0f} s") from None
        if found is None:
            raise self._failed("it has ended")
        return self._decoded(found, kind)

    def ready(self, timeout_s: float = 0.0) -> list[End]:
        """Requests that have ended; waits for the first."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(
                self._lines.get(timeout=timeout_s) if timeout_s > 0 else self._lines.get_nowait()
            )
            while True:
                found.append(self._lines.get_nowait())
        if None in found:
            raise self._failed("it has ended")
        return [self._decoded(one, End) for one in found]

    def _decoded(self, line: str, kind: type[T]) -> T:
        complaint = self._log.read_text(errors="replace")
        return said_json(line, complaint, "the engine", f"read {self._log}", kind)

    def _failed(self, what: str) -> RunFailed:
        said = last_line(self._log.read_text(errors="replace"))
        return RunFailed(what, "the engine", f"its last line, of {self._log}: {said}")


@contextlib.contextmanager
def engine(
    python: Path,
    model: Path,
    connector: Mapping[str, object] | None,
    arguments: Mapping[str, object],
    log: Path,
    **environment: str,
) -> Iterator[Engine]:
    """Start one, with `connector` as its KV transfer configuration; it is stopped on exit."""
    if not python.is_file():
        raise BadInput("no such program", str(python), "give the Python that has vLLM: --python")
    source = Path(offstage.__file__).resolve().parents[1]
    words = [str(python), "-m", PROCESS, str(model), json.dumps(connector), json.dumps(arguments)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            errors="replace",
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(source)} | environment,
        )
    running = Engine(process, log)
    try:
        running.answer(dict, START_S)
        yield running
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
