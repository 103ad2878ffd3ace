"""Does the set-up ask before it changes the system, say what it does, and work for any user?"""

import os
import pty
import pwd
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "env", "date", "basename", "cat", "tail")
ALL = ("gcc", "pkg-config", "libxxhash", "liburing")
WAIT_S = 1_800.0
LIST = "git ls-files -z --cached --others --exclude-standard"
COPY = f'{LIST} | tar --null --ignore-failed-read -T - -cf - | tar -C "$0" -xf -'


@dataclass
class Machine:
    """Programs of a machine that lacks some, and an apt-get that only writes down what it does."""

    folder: Path

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def has(self, *names: str, uid: int = 0) -> None:
        self.folder.mkdir()
        for name in TOOLS:
            (self.folder / name).symlink_to(str(shutil.which(name)))
        libraries = " | ".join(name for name in names if name.startswith("lib"))
        known = f'case "$2" in {libraries or "none"}) ;; *) exit 1 ;; esac'
        for name, text in {"gcc": "cat", "pkg-config": known}.items():
            if name in names:
                self.program(name, text)
        self.program("python", "")
        self.program("id", f"echo {uid}")
        kept = f">> {self.folder}/done"
        self.program("apt-get", f'echo "apt-get $*" {kept}')
        self.program("sudo", f'echo "sudo $*" {kept}\n[ "$1" != -n ] || shift\nexec "$@"')

    def done(self) -> str:
        """What became of the system."""
        path = self.folder / "done"
        return path.read_text() if path.exists() else ""

    def set_up(self, answer: str | None = None, **settings: str) -> tuple[int, str]:
        """Exit code and text of the first stage. `answer`: typed at a terminal; None: without."""
        python = str(self.folder / "python")
        places = {"PATH": str(self.folder), "PYTHON": python, "VENV": str(self.folder / "venv")}
        ours, theirs = pty.openpty() if answer is not None else os.pipe()
        if answer is not None:
            os.write(ours, answer.encode())
        with subprocess.Popen(
            [str(ROOT / ".ci/setup"), "system"],
            stdin=theirs if answer is not None else subprocess.DEVNULL,
            stderr=theirs,
            env=places | settings,
        ) as child:
            os.close(theirs)
            said = b""
            while more := read(ours):
                said += more
        os.close(ours)
        return child.returncode, said.decode()


def read(of: int) -> bytes:
    """What comes next; nothing at the end, which a terminal reports as an error."""
    try:
        return os.read(of, 65_536)
    except OSError:
        return b""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "bin")


def test_where_all_is_there_nothing_is_said(machine: Machine) -> None:
    machine.has(*ALL)
    assert machine.set_up() == (0, "") and machine.done() == ""


@pytest.mark.parametrize(
    ("uid", "answer", "settings", "installs"),
    [
        (0, None, {}, True),
        (0, None, {"OFFSTAGE_YES": "0"}, False),
        (0, None, {"OFFSTAGE_YES": "0", "CI": "true"}, False),
        (1000, None, {}, False),
        (1000, None, {"OFFSTAGE_YES": "1"}, True),
        (1000, None, {"CI": "true"}, True),
        (1000, None, {"CI": "false"}, False),
        (0, "n\n", {}, False),
        (0, "\n", {}, True),
        (1000, "y\n", {}, True),
        (0, "n\n", {"OFFSTAGE_YES": "1"}, True),
    ],
)
def test_who_may_install(
    machine: Machine, uid: int, answer: str | None, settings: dict[str, str], installs: bool
) -> None:
    """It asks at a terminal, unless it was told before. Without one root installs, and others are
    told what to type. What was installed is named."""
    machine.has("pkg-config", "liburing", uid=uid)
    code, said = machine.set_up(answer, **settings)
    assert "  gcc: the C compiler" in said and "  libxxhash-dev: checksums of blocks" in said
    assert ("? [Y/n]" in said) == (answer is not None and "OFFSTAGE_YES" not in settings)
    if installs:
        assert code == 0 and " s: installed gcc libxxhash-dev" in said
        assert "apt-get install -y -q gcc libxxhash-dev" in machine.done()
        assert ("sudo" in machine.done()) == (uid != 0)
    else:
        assert code == 1 and machine.done() == ""
        last = said.splitlines()[-1]
        assert "as root" in last and "apt-get install gcc libxxhash-dev" in last


def test_without_what_is_optional_the_set_up_goes_on(machine: Machine) -> None:
    """It is offered with the first set-up alone."""
    machine.has("gcc", "pkg-config", "libxxhash", uid=1000)
    code, said = machine.set_up()
    assert code == 0 and "liburing-dev: storage by io_uring; optional" in said
    (machine.folder / "venv").mkdir()
    (machine.folder / "venv/.stamp-base").touch()
    assert machine.set_up() == (0, "")


def test_what_apt_refuses_is_said(machine: Machine) -> None:
    machine.has("pkg-config", "libxxhash", "liburing")
    machine.program("apt-get", "echo E: Unable to locate package gcc; exit 100")
    code, said = machine.set_up()
    assert code == 1 and "E: Unable to locate package gcc" in said
    assert "apt-get install gcc" in said.splitlines()[-1]


@pytest.mark.parametrize("name", ["Darwin", "MINGW64_NT-10.0"])
def test_another_system_gets_one_line_at_once(machine: Machine, name: str) -> None:
    machine.folder.mkdir()
    machine.program("uname", f"echo {name}")
    done = subprocess.run(
        ["make", "-n", "demo"],
        cwd=ROOT,
        env={"PATH": f"{machine.folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f"offstage: needs Linux; on {name} use a virtual machine" in done.stderr


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_pip_on_another_system_gets_one_line(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setup.py ends before anything is compiled."""
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SystemExit, match=r"^offstage: needs Linux; use .*$"):
        runpy.run_path(str(ROOT / "setup.py"))


@pytest.fixture
def tree() -> Iterator[Path]:
    """A copy of the checkout where others than root reach it, with blanks in its path."""
    with tempfile.TemporaryDirectory(prefix="offstage ") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "a tree")
        path.mkdir()
        subprocess.run(["sh", "-c", COPY, str(path)], check=True, cwd=ROOT)
        yield path


@pytest.mark.slow
@pytest.mark.timeout(WAIT_S)
def test_a_fresh_copy_of_another_user_in_a_path_with_blanks(tree: Path) -> None:
    """Without root, from pip's index; a line for each stage, and a command that runs."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tree.parent)]
    if subprocess.run([*pip, "cffi"], capture_output=True, timeout=WAIT_S).returncode:
        pytest.skip("pip reaches no index")
    user = []
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        subprocess.run(["chown", "-R", f"{nobody.pw_uid}:{nobody.pw_gid}", tree], check=True)
    able = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        # By way of env, since setpriv itself may still enter the folders of root.
        if not subprocess.run([*user, "env", python, "-c", able], capture_output=True).returncode:
            break
    else:
        pytest.skip("another user can run no Python that is new enough")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tree), "OFFSTAGE_YES": "0"}
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*user, *words],
            cwd=tree,
            env=environment | kept,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    made = run("make", "dev", "EXTRAS=s3", f"PYTHON={python}")
    assert made.returncode == 0, made.stdout + made.stderr
    for stage in ("[2/4] virtual environment .venv", "[3/4] packages", "[4/4] the ext"):
        assert stage in made.stderr and f"{stage[:5]} done, " in made.stderr
    version = run(".venv/bin/offstage", "--version")
    assert version.stdout.startswith("offstage "), version.stderr
    assert run("make", "dev", "EXTRAS=s3", f"PYTHON={python}").stderr == ""
