"""Is an output or input that cannot be written, read or reached one line with the right exit
code?"""

import contextlib
import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from offstage import __version__
from offstage.bindings.errors import DeviceTimeout, NoAnswer, Unreachable
from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.cli import COMMANDS, PANELS, run
from offstage.testbeds.cli.common import one_line_errors

ROW = '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n'


def offstage(*arguments: str, out: int, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        offstage_words(*arguments),
        stdout=out,
        text=True,
        stderr=subprocess.PIPE,
        check=False,
        timeout=120,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_output_is_one_line_and_exit_1(tmp_path: Path, form: str) -> None:
    """A full output device gives one line, in either format."""
    trace = tmp_path / "t.jsonl"
    trace.write_text(ROW)
    full = os.open("/dev/full", os.O_WRONLY)
    done = offstage("trace", "info", str(trace), "--format", form, out=full)
    os.close(full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot be written (No space left on device)" in done.stderr


def test_a_character_that_the_output_lacks_is_replaced(tmp_path: Path) -> None:
    """Text is printed even if the terminal cannot show all of it."""
    trace = tmp_path / "t\u2192.jsonl"
    trace.write_text(ROW)
    done = offstage(
        "trace",
        "info",
        str(trace),
        out=subprocess.PIPE,
        PYTHONIOENCODING="latin-1",
        PYTHONUTF8="0",
        LC_ALL="C.UTF-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "t?.jsonl" in done.stdout


SHORT = [
    ["--help"],
    ["lab", "policies"],
    ["lab", "policies", "--format", "json"],
    ["asic", "presets"],
    ["plan"],
]


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_fault(words: list[str]) -> None:
    """`| head` gives no message and exit code 0."""
    read, write = os.pipe()
    os.close(read)
    done = offstage(*words, out=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "code"), [*((one, 0) for one in SHORT), (["nonsense"], 2)])
def test_closed_outputs_are_no_traceback(words: list[str], code: int) -> None:
    """A service may be started without stdout or stderr."""
    program = shlex.join(offstage_words(*words))
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{program} {closed}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == code and "Traceback" not in done.stderr


def test_help_begins_with_what_a_newcomer_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command in one panel, and five of them in the first; without a word it is the same."""
    pages = []
    for words in (["-h"], []):
        assert run(words) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    panels = re.findall(r"^╭─ ([\w ]+?) ─+╮\n(.*?)^╰", pages[0], re.MULTILINE | re.DOTALL)
    shown = {title: re.findall(r"^. (\w+)  +\S", text, re.MULTILINE) for title, text in panels}
    assert [title for title, _ in panels] == ["Options", *PANELS]
    assert shown["Start here"] == ["demo", "doctor", "plan", "compare", "report"]
    assert [name for title in PANELS for name in shown[title]] == list(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("offstage de", "demo"),
        ("offstage dpu stat", "status"),
        ("offstage lab run --ou", "--out"),
        ("offstage plan --gpu h2", "h200"),
        ("offstage plan --dpu blue", "bluefield3"),
        ("offstage lab run sha", "shared-index"),
        ("offstage dpu serve --device asic_5", "asic_5nm_hbm4"),
        ("offstage demo --model smol", "smollm2-135m"),
        ("offstage model show glm", "glm-5.2"),
    ],
)
def test_a_shell_completes_commands_and_options(shell: str, line: str, expected: str) -> None:
    """As each asks: by the environment."""
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = offstage(out=subprocess.PIPE, _OFFSTAGE_COMPLETE=f"complete_{shell}", **asked)
    assert done.returncode == 0
    assert re.findall(r"(?<![\w.-])(?:--)?\w[\w.-]*(?=\"|\t|\n|$)", done.stdout)[0] == expected


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/offstage.sh"),
        ("zsh", ".zfunc/_offstage"),
        ("fish", ".config/fish/completions/offstage.fish"),
    ],
)
def test_completion_is_installed_for_each_shell(shell: str, file: str, tmp_path: Path) -> None:
    """Where it looks, in the home of the user, which is another one here."""
    done = offstage(
        "--install-completion",
        shell,
        out=subprocess.PIPE,
        HOME=str(tmp_path),
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",  # it is given here
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "offstage" in (tmp_path / file).read_text(encoding="utf-8")


def test_a_shells_name_may_follow() -> None:
    """Is the script that is shown the one of the shell that is named, and no other's?"""
    marks = {"bash": "complete -o default -F", "zsh": "#compdef", "fish": "complete --command"}
    for shell, mark in marks.items():
        done = offstage("--show-completion", shell, out=subprocess.PIPE)
        assert done.returncode == 0
        assert [one for one in marks.values() if one in done.stdout] == [mark]
    refused = offstage("--show-completion=ksh", out=subprocess.PIPE)
    assert refused.returncode == 2 and "'ksh' is not one of 'bash'" in refused.stderr


ENCODINGS = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "cp1252"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("environ", ENCODINGS, ids=str)
def test_every_command_prints_in_any_encoding(environ: dict[str, str]) -> None:
    """The help of each command, with characters of tables and plots, and the quick commands."""
    code = (
        "import sys; from offstage.testbeds.cli import COMMANDS, build, run\n"
        "import typer\n"
        "def each(group, words):\n"
        "    for name, one in sorted(getattr(group, 'commands', {}).items()):\n"
        "        yield [*words, name, '--help']\n"
        "        yield from each(one, [*words, name])\n"
        "every = list(each(typer.main.get_group(build(list(COMMANDS))), []))\n"
        "assert len(every) > 60, len(every)\n"
        f"every += {SHORT!r}\n"
        "print('\\u2192 \\u2588'.encode(sys.stdout.encoding, 'replace'))\n"
        "for words in every: assert run(words) == 0, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        timeout=300,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]


LONG = {
    "bench core": ["bench", "core"],
    "demo": ["demo", "--storage", "emulated", "--out", "{}/out"],
    "host calibrate": ["host", "calibrate", "--out", "{}/cost.json"],
    "a trace of a pipe": ["trace", "info", "{}/pipe"],
}


@pytest.mark.parametrize("case", LONG)
def test_an_interrupt_is_one_line_and_exit_130(case: str, tmp_path: Path) -> None:
    """Holds for long commands, wherever they are interrupted."""
    os.mkfifo(tmp_path / "pipe")
    holds = os.open(tmp_path / "pipe", os.O_RDWR)
    words = [one.format(tmp_path) for one in LONG[case]]
    started = "import sys; from offstage.testbeds.cli import main; print(flush=True); main()"
    with subprocess.Popen(
        [sys.executable, "-c", started, *words],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3.0)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    os.close(holds)
    assert process.returncode == 130 and "Traceback" not in said
    assert "interrupted" in said.strip().splitlines()[-1]


def test_python_m_offstage_is_the_command(tmp_path: Path) -> None:
    """From any folder, with its exit codes, and under the command's own name."""

    def ran(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "offstage", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stdout, done.stderr

    assert ran("--version") == (0, f"offstage {__version__}\n", "")
    assert "Usage: offstage dpu" in ran("dpu", "--help")[1]
    code, said, line = ran("no-such-command")
    assert (code, said) == (2, "") and re.fullmatch(r"offstage: .*no-such-command.*\n", line)


@pytest.mark.parametrize("there", [False, True])
def test_a_namesake_is_warned_of(there: bool, tmp_path: Path) -> None:
    """Another project's package `offstage` in the environment: one line on stderr, and the command
    works as far as its files are still ours."""
    if there:
        (tmp_path / "offstage-9.1.dist-info").mkdir()
        (tmp_path / "offstage-9.1.dist-info/METADATA").write_text("Name: offstage\nVersion: 9.1\n")
    done = subprocess.run(
        [sys.executable, "-c", "from offstage.testbeds.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.startswith("offstage ") and done.stderr.count("\n") == there
    assert ("offstage` 9.1" in done.stderr) is there


def test_json_without_bottom_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decode cost of endlessly nested lists is bad input, reported with its line."""
    deep = tmp_path / "deep.json"
    deep.write_text('{"a":' + "[" * 200_000)
    assert run(["demo", "--decode-cost", str(deep), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{deep}:1" in said


@pytest.mark.parametrize(
    ("endpoint", "what"),
    [
        ("ipc:///nonexistent/offstage.sock", "nothing listens there"),
        ("tcp://no-such-host.invalid:7100", "cannot resolve 'no-such-host.invalid'"),
    ],
)
def test_no_daemon_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: str, what: str
) -> None:
    """A script can tell an absent daemon from bad input, and a bad name from a closed port."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    options = ["--endpoint", endpoint, "--secret", str(secret), "--runtime-dir", str(tmp_path)]
    assert run(["dpu", "status", *options]) == 3
    assert what in capsys.readouterr().err
    assert (Unreachable.exit_code, NoAnswer.exit_code) == (3, 3)


def test_a_pod_that_is_down_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command that queries the members first prints what it can."""
    pod = str(tmp_path / "pod.toml")
    for name in ("a", "b"):
        assert run(["pod", "add", pod, name, f"ipc://{tmp_path}/{name}/control"]) == 0
    capsys.readouterr()
    here = ["--runtime-dir", str(tmp_path)]
    assert run(["pod", "status", pod, *here, "--format", "json"]) == 3
    shown = capsys.readouterr()
    assert '"answers": "no: ' in shown.out and "no member answers" in shown.err
    assert run(["pod", "purge", pod, "lab", *here]) == 3
    sizes = ["--geometry", "tiny", "--context-tokens", "4096", "--steps", "4"]
    assert run(["pod", "run", pod, *here, *sizes]) == 3
    assert run(["pod", "status", "etcd:127.0.0.1:1"]) == 3


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["a", "foo"], "not an endpoint"),
        (["a", ""], "not an endpoint"),
        (["a", "http://foo"], "not an endpoint"),
        (["a", "tcp://127.0.0.1:99999"], "has no port"),
        (["a", "tcp://127.0.0.1:*"], "has no port"),
        (["../a", "tcp://127.0.0.1:7411"], "not a name for a member"),
        (["", "tcp://127.0.0.1:7411"], "has a name"),
    ],
)
def test_a_map_takes_no_member_that_nobody_can_reach(
    words: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name is also a folder's; nothing is written."""
    assert run(["pod", "add", str(tmp_path / "pod.toml"), *words]) == 2
    assert what in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert run(["pod", "add", str(tmp_path / "none/pod.toml"), "a", "ipc:///a"]) == 2


OTHER = 30_001  # an id that belongs to no user


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize(
    ("folder_mode", "socket_mode", "what"),
    [
        (0o755, 0o600, f"the daemon there is of user {OTHER}, and user {OTHER + 1} may not use"),
        (0o700, 0o600, f"user {OTHER + 1} may not look into the folder of its socket"),
    ],
)
def test_another_users_daemon_is_told_by_name(
    tmp_path: Path, folder_mode: int, socket_mode: int, what: str
) -> None:
    """It is bad input, since a retry does not help."""
    from offstage.host.link.reached import why_silent
    from offstage.testbeds.beds.child import Child

    at = tmp_path
    while at != at.parent:  # let all users traverse the path, as in /run and /tmp
        at.chmod(at.stat().st_mode | 0o011)
        at = at.parent
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(theirs / "control"))
        daemon.listen()
        for path, mode in ((theirs / "control", socket_mode), (theirs, folder_mode)):
            os.chown(path, OTHER, OTHER)
            path.chmod(mode)

        def told() -> dict[str, object]:
            error = why_silent(set(), f"ipc://{theirs}/control", "")
            return {"code": error.exit_code, "line": str(error)}

        child = Child(OTHER + 1, told)
        found = child.line()
        assert child.wait() == 0
    assert found["code"] == 2 and what in str(found["line"])


@pytest.mark.parametrize(
    "error",
    [
        RecursionError("maximum depth"),
        OSError(errno.EMFILE, "Too many open files"),
        OSError("odd"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        MemoryError(),
        OSError(errno.ENOSPC, "No space left on device", "out/summary.json"),
    ],
)
def test_no_error_of_the_machine_is_a_traceback(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers every exception that an input or a machine can raise up to the entry point."""
    with one_line_errors() as outcome:
        raise error
    said = capsys.readouterr().err
    assert outcome.code == 1 and said.startswith("offstage: ") and said.count("\n") == 1


def test_a_peer_that_is_late_is_not_reachable() -> None:
    """Scripts can tell a deadline from a failed run."""
    assert DeviceTimeout("no answer").exit_code == Unreachable("none").exit_code == 3
