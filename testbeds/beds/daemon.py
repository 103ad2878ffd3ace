"""A DPU daemon in a process of its own, for as long as one run takes.

The demo starts it as a user would, with `offstage dpu serve --config FILE`, waits for its ready
line, and ends it with SIGTERM, which drains. What the daemon logged stays beside the results.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings.durable import write_text
from offstage.bindings.errors import RunFailed
from offstage.bindings.outside import last_line, said_json
from offstage.dpu.recorder import read_lost
from offstage.testbeds.beds.said import Lines

__all__ = ["Tier", "begin", "offstage_words", "serve", "write_config"]

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0


def offstage_words(*words: str) -> list[str]:
    """The command `offstage WORDS` of this installation. `-P`: modules in the working directory are
    not imported in place of Python's own."""
    return [sys.executable, "-P", "-m", "offstage", *words]


@dataclass
class Tier:
    """A daemon that answers at `endpoint`; `ready` is its ready line."""

    process: "subprocess.Popen[bytes]"
    endpoint: str
    ready: dict[str, Any]
    log: Path


def write_config(path: Path, sections: Mapping[str, Mapping[str, Any]], tenant: str) -> None:
    """A daemon's TOML file: sections of `key = value`, and one tenant."""
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines.append("")
    lines += ["[[tenant]]", f"name = {json.dumps(tenant)}", ""]
    write_text(path, "\n".join(lines))


def begin(config: Path, log: Path, settings: Mapping[str, str], within: Sequence[str] = ()) -> Tier:
    """Start a daemon that outlives this process, by a command that is preceded by `within`. Raises
    RunFailed as `serve`."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [*within, *offstage_words("dpu", "serve", "--config", str(config))]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, *sets],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        ready = _await_ready(process, log)
    finally:
        _close_pipes(process)
    return Tier(process, str(ready["endpoint"]), ready, log)


@contextmanager
def serve(config: Path, log: Path, record: Path | None = None) -> Iterator[Tier]:
    """Start a daemon; on the way out, drain and end it.

    Raises RunFailed with the daemon's own last line where it does not come up or end well. That its
    recording lacks something is no end of that kind: `read_lost` tells it, for a run to fail by
    when its files are written."""
    # It watches its stdin: however this process dies, the kernel closes the other end.
    command = offstage_words("dpu", "serve", "--config", str(config))
    command += ["--watch-fd", "0"]
    if record is not None:
        command += ["--record", str(record)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        ready = _await_ready(process, log)
        yield Tier(process, str(ready["endpoint"]), ready, log)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        if process.poll() is not None:
            _close_pipes(process)
    _stop(process, log, record)


def _await_ready(process: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    try:
        line = Lines(process.stdout.fileno()).whole(READY_TIMEOUT_S)
        if not line:
            raise RunFailed(f"the daemon did not start: {_said(log)}", str(log), "read that log")
        return said_json(
            line, log.read_text(errors="replace"), str(log), "read that log", needs=("endpoint",)
        )
    except BaseException:
        process.kill()
        process.wait()
        raise


def _stop(process: "subprocess.Popen[bytes]", log: Path, record: Path | None) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RunFailed("the daemon did not drain in time", str(log), "read that log") from None
    finally:
        _close_pipes(process)
    if code != 0 and not (code == 1 and record is not None and _lacks(record)):
        raise RunFailed(
            f"the daemon ended with status {code}: {_said(log)}", str(log), "read that log"
        )


def _lacks(record: Path) -> bool:
    """Whether the rings lost a part of it. A disk that refused it is an end that is not well."""
    lost = read_lost(record)
    return bool(lost) and not lost.write_errors


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _said(log: Path) -> str:
    return last_line(log.read_text(encoding="utf-8", errors="replace"))
