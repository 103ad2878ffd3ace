"""Does every command show a name from outside as text, never as our markup?

In a terminal with colours, a name that opens a style, closes one that is not open, names an emoji
or has an escape sequence of its own is shown as written, its control characters as numbers.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
from offstage.dpu.pod.map import Member, added
from offstage.dpu.pod.membership.static import StaticMembership
from offstage.testbeds.cli import run
from offstage.testbeds.cli.common import Format, emit, table
from offstage.testbeds.cli.progress import Live, Plain, bars_of

NAME = "[red]\x1b[31m:smile:[zap"
CLOSED = "[/][/red]:smile:[red]"  # not valid as a file name


def mooncake(folder: Path) -> Path:
    rows = [
        {"timestamp": 1000 * at, "input_length": 1024, "output_length": 4, "hash_ids": [0, at % 3]}
        for at in range(12)
    ]
    return saved(folder / f"{NAME}.jsonl", "".join(json.dumps(one) + "\n" for one in rows))


def saved(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def sessions(folder: Path) -> Path:
    rows = [
        {"t": at, "in": 1024, "out": 4, "runs": [[at % 3, 2]], "s": f"{NAME}{CLOSED}{at % 2}"}
        for at in range(6)
    ]
    head = {
        "offstage_trace": 1,
        "name": NAME + CLOSED,
        "format": "x",
        "requests": len(rows),
        "block_tokens": 512,
    }
    return saved(folder / f"{NAME}.jsonl", "".join(json.dumps(one) + "\n" for one in (head, *rows)))


def store(folder: Path) -> Path:
    path = folder / NAME
    config = StorageConfig("posix", str(path), size_bytes=16 << 20, lba_size_bytes=4096)
    shape = StoreConfig(payload_size_bytes=8 * 4096, layer_count=4, segment_size_bytes=1 << 20)
    with Storage(config) as storage, Store(storage, shape, str(path)):
        pass
    return path


def pod(folder: Path) -> str:
    place = folder / "pod.toml"
    member = Member(name="dpu0", endpoint=f"ipc:///nowhere/{CLOSED}", zone=CLOSED)
    StaticMembership(place).change(lambda pod: added(pod, member))
    return str(place)


def config(folder: Path) -> Path:
    path = json.dumps(str(folder / "store [red]:smile:[red]"))
    return saved(folder / NAME, f"[storage]\npath = {path}\n")


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "trace info": lambda at: ["trace", "info", str(mooncake(at))],
    "trace info, sessions": lambda at: ["trace", "info", str(sessions(at))],
    "trace import": lambda at: ["trace", "import", str(sessions(at)), "--out", str(at / NAME)],
    "plan": lambda at: ["plan", "--trace", str(mooncake(at))],
    "pod status": lambda at: ["pod", "status", pod(at)],
    "dpu store": lambda at: ["dpu", "store", str(store(at))],
    "keys make": lambda at: ["keys", "make", "server", str(at / NAME)],
    "config show": lambda at: ["config", "show", "--config", str(config(at))],
}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_a_name_as_it_was_written(
    command: str,
    form: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = COMMANDS[command](tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "4000")
    capsys.readouterr()
    code = run([*words, "--format", form])
    out, err = capsys.readouterr()
    assert code == (3 if command == "pod status" else 0), err
    named = ":smile:[red]" if "[/red]" in out else ":smile:[zap"
    assert form == "json" or named in plain(out)
    for text in (out, err):
        assert "\x1b[31m" not in text and "\U0001f604" not in text


def plain(text: str) -> str:
    """The text without rich's colours."""
    return Text.from_ansi(text).plain


@pytest.mark.parametrize(
    "shown",
    [
        CLOSED + NAME,
        Text(CLOSED + NAME),
        table({CLOSED + NAME: CLOSED + NAME}, title=CLOSED + NAME),
        Table(CLOSED + NAME, title=Text(CLOSED + NAME)),
        Group("", Group(Text(CLOSED + NAME))),
    ],
    ids=["line", "text", "table", "heading", "group"],
)
def test_whatever_is_printed_has_no_markup(
    shown: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "4000")
    emit({}, Format.text, shown)
    out = capsys.readouterr().out
    assert f"{CLOSED}[red]\\x1b[31m:smile:[zap" in plain(out) and "\x1b[31m" not in out


@pytest.mark.parametrize("live", [True, False])
def test_progress_shows_a_phase_as_it_was_named(live: bool) -> None:
    out = io.StringIO()
    if live:
        with bars_of(Console(file=out, force_terminal=True, width=400)) as bars:
            tell(Live(1, bars))
    else:
        tell(Plain(1, out))
    text = out.getvalue()
    assert plain(text).count("[/][/red]:smile:[red]") > 1 and "\x1b[31m" not in text


def tell(progress: Live | Plain) -> None:
    progress.start(f"read {CLOSED}{NAME}", 3, "files")
    progress.note(f"seen {CLOSED}{NAME}")
    progress.advance(3)
    progress.finish()
