"""Are the pages about two machines right as written, for a user in each of two namespaces?

The test makes only the copies: the `scp` of the page needs an SSH daemon on `dpu`.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.beds import netns

HOW_TO = Path(__file__).resolve().parents[2] / "docs/how-to"
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
USERS = {"dpu": 30_011, "node": 30_012}  # ids that need no account
WAIT_S = 500.0


def interpreter(uid: int) -> tuple[str, str]:
    """Return a Python that this user may run, and its path; the test skips if there is none."""
    path = ":".join(one for one in sys.path if one)
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        done = subprocess.run(
            [
                "setpriv",
                f"--reuid={uid}",
                f"--regid={uid}",
                "--clear-groups",
                "env",
                f"PYTHONPATH={path}",
                python,
                "-c",
                "import offstage.testbeds.cli",
            ],
            capture_output=True,
            check=False,
            timeout=WAIT_S,
            cwd="/",
        )
        if done.returncode == 0:
            return python, path
    pytest.skip("other users cannot run this checkout; chmod o+x the folders above it and Python")


@dataclass
class World:
    """Two users in two namespaces, each with a home and an `offstage` on its path."""

    base: Path
    link: netns.Network
    python: str
    path: str
    more: dict[str, str] = field(default_factory=dict)
    """What both have in their environment besides."""

    def begin(self, place: str, script: str, output: Path) -> "subprocess.Popen[bytes]":
        home = self.base / place
        environment = {
            "HOME": str(home),
            "PYTHONPATH": self.path,
            "PATH": f"{self.base}/bin:/usr/bin:/bin",
            "NO_COLOR": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **self.more,
        }
        command = [*self.link.words(place, USERS[place]), "sh", "-ec", script]
        with output.open("wb") as out:
            return subprocess.Popen(
                command, cwd=home, env=environment, stdout=out, stderr=subprocess.STDOUT
            )

    def run(self, place: str, script: str) -> str:
        output = self.base / "said"
        process = self.begin(place, script, output)
        try:
            code = process.wait(WAIT_S)
        finally:
            process.kill()
        said = output.read_text()
        assert code == 0, f"{script}\n{said}"
        return said

    def copy(self, source: str, target: str) -> None:
        """Copy as the node's user does with `scp`."""
        ends = []
        for end in (source, target):
            host, colon, path = end.rpartition(":")
            ends.append((host if colon else "node", path))
        (there, what), (here, where) = ends
        to = self.base / here / where
        to = to / Path(what).name if to.is_dir() else to
        shutil.copy(self.base / there / what, to)
        os.chown(to, USERS[here], USERS[here])


@pytest.fixture
def world() -> Iterator[World]:
    try:
        netns.check()
    except BadInput as error:
        pytest.skip(str(error))
    python, path = interpreter(USERS["node"])
    base = Path(tempfile.mkdtemp(prefix="ofs-two-", dir="/tmp"))
    try:
        base.chmod(0o755)
        (base / "bin").mkdir()
        (base / "bin/offstage").write_text(f'#!/bin/sh\nexec {python} -m offstage "$@"\n')
        (base / "bin/offstage").chmod(0o755)
        for place, uid in USERS.items():
            (base / place).mkdir(mode=0o700)
            os.chown(base / place, uid, uid)
        with netns.network() as link:
            yield World(base, link, python, path)
    finally:
        shutil.rmtree(base)


def put(path: Path, text: str, uid: int) -> None:
    for folder in (path.parent.parent, path.parent):
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, uid, uid)
    path.write_text(text)
    os.chown(path, uid, uid)


@dataclass
class Readers:
    """Follows pages on both machines; the daemon that they start runs until `stop`."""

    world: World
    said: list[str] = field(default_factory=list)
    daemon: "subprocess.Popen[bytes] | None" = None

    def follow(self, page: Path, until: str = "") -> None:
        """Write each of the page's files that is theirs, and run its commands for the two machines,
        up to one that begins with `until`."""
        files = {
            "dpu.toml": ("dpu", "dpu.toml"),
            "daemons.toml": ("node", ".config/offstage/daemons.toml"),
        }
        for match in BLOCK.finditer(page.read_text()):
            language, _, name = match["info"].partition(" ")
            if language == "toml" and name in files:
                owner, path = files[name]
                put(self.world.base / owner / path, match["body"], USERS[owner])
            place = name.removeprefix("on ")
            body = match["body"].replace("\\\n", " ")
            for line in body.splitlines() if place in USERS else []:
                if until and line.startswith(until):
                    return
                self.do(place, line)

    def do(self, place: str, line: str) -> None:
        if line.startswith("scp "):
            self.world.copy(*shlex.split(line)[1:])
        elif line.startswith("offstage dpu serve"):
            self.daemon = self.world.begin(place, f"exec {line}", self.world.base / "daemon")
            until_ready(self.world.base / "daemon", self.daemon)
        else:
            self.said.append(self.world.run(place, line))

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()


@pytest.fixture
def readers(world: World) -> Iterator[Readers]:
    both = Readers(world)
    try:
        yield both
    finally:
        both.stop()


def ran_well(summary: Path) -> None:
    (one,) = json.loads(summary.read_text())["runs"]
    assert one["blocks_verified"] == one["demands"] > 0 and one["blocks_corrupt"] == 0


def test_the_page_is_followed_by_two_users_on_two_machines(readers: Readers) -> None:
    """Each command of the page succeeds, the run's blocks arrive intact over the link, and the
    daemon's files stay its own user's."""
    world = readers.world
    readers.follow(HOW_TO / "run-host-and-dpu.md")
    assert readers.daemon is not None
    ran_well(world.base / "node/host-run/summary.json")
    assert "drained" in readers.said[-2] and "accepts new work" in readers.said[-1]
    assert (world.base / "dpu/store.ofs").stat().st_mode & 0o777 == 0o600
    readers.daemon.send_signal(signal.SIGTERM)
    assert readers.daemon.wait(WAIT_S) == 0
    assert "nothing listens there" in refusal(world, "offstage dpu status --endpoint lab")


@pytest.mark.nixl
@pytest.mark.usefixtures("nixl_library")
def test_the_page_about_nixl_is_followed_on_the_same_machines(readers: Readers) -> None:
    """With the keys and the configuration of the other page, the two commands, exactly as printed,
    transfer every block intact over TCP alone."""
    readers.world.more["UCX_TLS"] = "tcp"  # two machines share no memory, but two namespaces do
    readers.follow(HOW_TO / "run-host-and-dpu.md", until="offstage dpu serve")
    readers.follow(HOW_TO / "links-and-drives.md")
    ran_well(readers.world.base / "node/nixl-run/summary.json")


def until_ready(output: Path, daemon: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + WAIT_S
    while '"event": "ready"' not in (text := output.read_text()):
        assert daemon.poll() is None and time.monotonic() < end, text
        time.sleep(0.05)


def refusal(world: World, line: str) -> str:
    """Return the node's error for a daemon that is stopped."""
    said = world.run("node", f"{line} && exit 1 || [ $? -eq 3 ]")
    assert "Traceback" not in said and len(said.splitlines()) == 1
    return said
