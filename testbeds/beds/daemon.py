"""A DPU daemon in a separate process, as a user starts it: `offstage dpu serve --config FILE`.

`start` writes the configuration, starts the daemon and waits for its ready line; `serve` also
drains and stops it. The configuration and the log stay in the folder for debugging. A daemon
ends with the process that started it, unless it `stays`: it watches its standard input, whose
other end the kernel closes however that process dies. A daemon restarted in the same folder
serves the contents of its store.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from offstage.bindings.durable import write_text
from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.outside import last_line, said_json
from offstage.dpu.config.values import SECTIONS
from offstage.dpu.watch.recorder import read_lost
from offstage.host.endpoint import Endpoint
from offstage.host.link.control import Control
from offstage.testbeds.beds.child import Child
from offstage.testbeds.beds.said import Lines

__all__ = [
    "Daemon",
    "Ready",
    "Sections",
    "fork",
    "offstage_words",
    "serve",
    "start",
    "write_config",
]

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0

Sections = Mapping[str, Any]
"""A daemon's configuration as in its file: keys by section, and `tenant`, a list of tables."""


def offstage_words(*words: str) -> list[str]:
    """The command `offstage WORDS` of this installation. `-P`: modules in the working directory
    do not shadow Python's own."""
    return [sys.executable, "-P", "-m", "offstage", *words]


def write_config(path: Path, sections: Sections) -> None:
    """Write a daemon's configuration file."""
    write_text(path, tomli_w.dumps(sections))


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon's ready line."""

    event: Literal["ready"]
    endpoint: str
    metrics_port: int
    runtime_dir: str
    storage: str
    pid: int


@dataclass
class Daemon:
    """A running daemon. `ready`: its ready line; `log`: the file of its stderr; `tenant`: the
    first tenant of its configuration; `record`: the folder of its decision log."""

    process: "subprocess.Popen[bytes] | Child"
    ready: Ready
    log: Path
    tenant: str = "default"
    record: Path | None = None

    @property
    def endpoint(self) -> str:
        """The address of its control socket."""
        return self.ready.endpoint

    @property
    def runtime_dir(self) -> Path:
        """The folder of its secrets and sockets."""
        return Path(self.ready.runtime_dir)

    @property
    def storage(self) -> str:
        """The kind of storage that it opened."""
        return self.ready.storage

    @property
    def metrics_port(self) -> int:
        """The TCP port of its metrics."""
        return self.ready.metrics_port

    def at(self, tenant: str = "", **more: Any) -> Endpoint:
        """The endpoint for a host on this machine, as the first tenant or another."""
        local = {"runtime_dir": self.runtime_dir} | more
        return Endpoint(self.endpoint, tenant or self.tenant, **local)

    def control(self, tenant: str = "", *, heartbeat: bool = True, **more: Any) -> Control:
        """Log in."""
        return self.at(tenant, **more).control(heartbeat=heartbeat)

    def complaint(self) -> str:
        """The last line of its log."""
        return _complaint(self.log)

    def stop(self) -> None:
        """Drain and stop it. RunFailed: it does not end in time, or ends with an error. An
        incomplete recording is no error here: `read_lost` reports it, and a run fails on it
        after writing its files."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RunFailed(
                "the daemon did not drain in time", str(self.log), "read that log"
            ) from None
        _close_pipes(self.process)
        if code != 0 and not (code == 1 and self._lacks()):
            raise RunFailed(
                f"the daemon ended with status {code}: {self.complaint()}",
                str(self.log),
                "read that log",
            )

    def kill(self) -> None:
        """Kill it; no effect after it has ended."""
        self.process.kill()
        self.process.wait()
        _close_pipes(self.process)

    def _lacks(self) -> bool:
        """Whether the rings lost records of the recording, with no write error on the disk."""
        lost = read_lost(self.record) if self.record else None
        return lost is not None and bool(lost) and not lost.write_errors


def start(
    sections: Sections,
    folder: Path,
    *,
    name: str = "daemon",
    record: Path | None = None,
    within: Sequence[str] = (),
    stays: bool = False,
    append: bool = False,
) -> Daemon:
    """Start a daemon by `folder/NAME.toml`, which logs to `folder/NAME.log`. By default its
    control socket and runtime directory are in `folder`, and metrics are off; `sections`
    overrides this. `within`: the words of a command that runs it, for example one in another
    namespace. `stays`: it outlives this process. `append`: keep the log of an earlier daemon.
    RunFailed, with the daemon's last line, if it does not come up."""
    config, log = folder / f"{name}.toml", folder / f"{name}.log"
    own = {"endpoint": f"ipc://{folder}/control", "runtime_dir": str(folder / "run")}
    daemon = {**own, "metrics_endpoint": "", **sections.get("daemon", {})}
    write_config(config, {**sections, "daemon": daemon})
    words = [*within, *offstage_words("dpu", "serve", "--config", str(config))]
    words += [] if stays else ["--watch-fd", "0"]
    words += ["--record", str(record)] if record is not None else []
    with log.open("ab" if append else "wb") as stderr:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stays else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env=_environment(),
        )
    try:
        ready = _ready(process, log)
    except BaseException:
        process.kill()
        process.wait()
        _close_pipes(process)
        raise
    if stays:
        _close_pipes(process)
    return Daemon(process, ready, log, _first_tenant(sections), record)


def _environment() -> dict[str, str]:
    """This process's environment without daemon settings, which would override the file."""
    names = tuple(f"OFFSTAGE_{section.upper()}_" for section in SECTIONS)
    return {name: value for name, value in os.environ.items() if not name.startswith(names)}


@contextmanager
def serve(sections: Sections, folder: Path, **more: Any) -> Iterator[Daemon]:
    """As `start`; on exit calls `Daemon.stop`, or `kill` after an exception."""
    one = start(sections, folder, **more)
    try:
        yield one
    except BaseException:
        one.kill()
        raise
    one.stop()


def fork(uid: int, sections: Sections, folder: Path, groups: tuple[int, ...] = ()) -> Daemon:
    """A daemon under another user, who may be unable to read this installation: a fork of this
    process (root), which should have no threads yet. It ends with this process. RunFailed as
    `start`."""
    # Imported before the fork: the other user may not be able to.
    from offstage.dpu.config.derive import derive
    from offstage.dpu.config.values import load
    from offstage.dpu.daemon import Daemon as Served
    from offstage.dpu.process import keep_private, make_room
    from offstage.dpu.storage.device import Device

    config, log = folder / "daemon.toml", folder / "daemon.log"
    write_config(config, sections)

    def served() -> None:
        try:
            loaded = load(config, environ={})
            derived = derive(loaded)
            keep_private()
            make_room(loaded)
            sys.exit(Served(loaded, derived, lambda: Device(loaded, derived)).run())
        except OffstageError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)

    child = Child(uid, served, groups=groups, log=log)
    try:
        ready = msgspec.convert(child.line(READY_TIMEOUT_S), Ready)
        return Daemon(child, ready, log, _first_tenant(sections))
    except BaseException:
        child.kill()
        raise


def _first_tenant(sections: Sections) -> str:
    return str(sections["tenant"][0]["name"]) if "tenant" in sections else "default"


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> Ready:
    assert process.stdout is not None
    line = Lines(process.stdout.fileno()).whole(READY_TIMEOUT_S)
    if not line:
        raise RunFailed(f"the daemon did not start: {_complaint(log)}", str(log), "read that log")
    said = log.read_text(encoding="utf-8", errors="replace")
    return said_json(line, said, str(log), "read that log", Ready)


def _complaint(log: Path) -> str:
    return last_line(log.read_text(encoding="utf-8", errors="replace"))


def _close_pipes(process: "subprocess.Popen[bytes] | Child") -> None:
    if isinstance(process, subprocess.Popen):
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
