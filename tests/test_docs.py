"""Are the pages true: do commands run, options exist, and links lead somewhere?"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^ *```(?P<info>[^\n`]*)\n(?P<body>.*?)^ *```\s*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#([^)\s]+))?\)")
RUN_SECONDS_MAX = 500
SHELLS = ("sh", "sh on dpu", "sh on node")
"""Blocks whose commands are not run here; those on two machines are by test_two_machines.py."""


class Block(NamedTuple):
    """One fenced block: its page, first line, info string and text."""

    page: Path
    line: int
    info: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: match.start()].count("\n") + 1, match["info"].strip(), match["body"])
        for match in FENCE.finditer(text)
    ]


def without_blocks(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = {page: [one for one in BLOCKS if one.info == "sh run" and one.page == page] for page in PAGES}


def commands(block: Block) -> list[list[str]]:
    """Return the `offstage ...` commands of a block, prompts removed, continued lines joined."""
    found = []
    for line in block.body.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        for stop in (word for word in ("|", "&&", ";", ">", "&") if word in words):
            words = words[: words.index(stop)]
        if words and words[0] == "offstage":
            found.append(words)
    return found


COMMANDS = sorted(
    {tuple(words) for block in BLOCKS if block.info in SHELLS for words in commands(block)}
)
SHELL_END = """
finish() {
  code=$?
  for pid in $(jobs -p); do kill "$pid" || true; done
  wait
  exit $code
}
trap finish EXIT
"""


def environment() -> dict[str, str]:
    """Return a reader's environment: `offstage` on the path, no colours, our modules."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


def needs_cli() -> None:
    if importlib.util.find_spec("offstage.testbeds.cli") is None:
        pytest.skip("offstage.testbeds.cli does not exist; the command line comes with it")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_one_title(page: Path) -> None:
    titles = re.findall(r"^# .+$", without_blocks(page), re.MULTILINE)
    assert len(titles) == 1, titles
    assert page.read_text(encoding="utf-8").lstrip().startswith(titles[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(without_blocks(page)):
        path = (page.parent / target).resolve()
        if not path.exists():
            broken.append(target)
        elif anchor and path.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            names = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            if anchor not in names:
                broken.append(f"{target}#{anchor}")
    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    """Links lead from the README to every page."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            waiting.append((page.parent / target).resolve())
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_the_policy_of_a_page_is_that_of_its_package() -> None:
    """docs/examples/policy-rising has the class that the page explains."""
    page = ROOT / "docs/how-to/add-a-policy.md"
    (shown,) = [block.body for block in BLOCKS if block.page == page and "rising.py" in block.info]
    assert shown == (ROOT / "docs/examples/policy-rising/rising.py").read_text(encoding="utf-8")


def test_every_figure_is_described() -> None:
    """The page names each key that summary.json holds."""
    from offstage.testbeds.live.results import RunResult, Summary

    page = (ROOT / "docs/reference/summary-json.md").read_text(encoding="utf-8")
    keys = [*RunResult.__struct_fields__, *Summary.__struct_fields__]
    assert [key for key in keys if f"`{key}`" not in page] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_shown_exists(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Even with `--help` at the end, the parser refuses unknown options."""
    needs_cli()
    from offstage.testbeds.cli import run

    code = run([*words[1:], "--help"])
    printed = capsys.readouterr()
    assert code == 0 and "Usage:" in printed.out, printed.err or printed.out


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if RUN[page]], ids=lambda page: str(page.relative_to(ROOT))
)
def test_what_a_page_tells_to_run_runs(page: Path, tmp_path: Path) -> None:
    """A page's blocks run in order in one shell, as a reader runs them. A block of another language
    that names a file becomes that file.

    Pages name the default endpoint; here the environment moves the daemon and its clients to
    another one, so that a daemon that runs on this machine is not disturbed.
    """
    needs_cli()
    (tmp_path / "testbeds").symlink_to(ROOT / "testbeds")
    for name in ("conversation_trace.jsonl",):
        (tmp_path / name).symlink_to(ROOT / "tests/golden/data/tiny_mooncake.jsonl")
    for block in BLOCKS:
        language, _, name = block.info.partition(" ")
        if block.page == page and name and language != "sh":
            (tmp_path / name).write_text(block.body)
    moved = {
        "OFFSTAGE_DAEMON_ENDPOINT": f"ipc://{tmp_path}/control",
        "OFFSTAGE_DAEMON_METRICS_ENDPOINT": "",
    }
    steps = [f"echo '== {block}'\n{block.body}" for block in RUN[page]]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", SHELL_END + "\n".join(steps)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment(), **moved},
        timeout=RUN_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
