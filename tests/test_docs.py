"""Are the pages true: do commands run or say why not, options exist, and links lead somewhere?"""

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
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
RUN_ELSEWHERE = ("sh on dpu", "sh on node")
"""Blocks whose commands test_two_machines.py runs, each on its machine."""
NOT_RUN = re.compile(r"not\s+run\s+by\s+the\s+tests:\s\S", re.IGNORECASE)
"""What a reader sees in a block of commands that no test runs, in its section, or above the first
section for all blocks of a page."""


class Block(NamedTuple):
    """One fenced block: its page, first line, info string and text."""

    page: Path
    line: int
    info: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    def says_why_not(self) -> bool:
        """Whether its reader sees why the tests do not run it."""
        text = self.page.read_text(encoding="utf-8")
        lines = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text).split("\n")
        above, below = "\n".join(lines[: self.line]), "\n".join(lines[self.line :])
        section = above.rpartition("\n## ")[2] + below.partition("\n## ")[0]
        head = "\n".join(lines).partition("\n## ")[0]
        return any(NOT_RUN.search(seen) for seen in (self.body, section, head))


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


def split(line: str, more: Iterator[str]) -> list[str]:
    """Return the words of a line; of several, where a quoted text has them."""
    while True:
        try:
            return shlex.split(line, comments=True)
        except ValueError:
            line += "\n" + next(more)


def commands(block: Block, program: str) -> list[list[str]]:
    """Return the words of each command of a block that begins with this program."""
    found = []
    lines = iter(block.body.replace("\\\n", " ").splitlines())
    for line in lines:
        if not re.match(rf" *(\w+=\S* )*{program} ", line):
            continue
        words = split(line, lines)
        for stop in (word for word in ("|", "&&", ";", ">", "&") if word in words):
            words = words[: words.index(stop)]
        found.append(words[words.index(program) :])
    return found


SHELL_BLOCKS = [block for block in BLOCKS if block.language == "sh"]
COMMANDS = sorted({tuple(words) for one in SHELL_BLOCKS for words in commands(one, "offstage")})
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


def test_every_block_has_the_syntax_of_its_language() -> None:
    wrong = []
    for block in BLOCKS:
        try:
            parse(block)
        except (ValueError, SyntaxError, subprocess.CalledProcessError) as error:
            wrong.append(f"{block}: {getattr(error, 'stderr', '') or error}")
    assert not wrong, "\n".join(wrong)


def parse(block: Block) -> None:
    """A ValueError, SyntaxError or CalledProcessError where it is not of the language it names."""
    if block.language == "sh":
        shell = ["bash", "-n"]
        subprocess.run(shell, input=block.body, text=True, check=True, capture_output=True)
    elif block.language == "python":
        ast.parse(block.body)
    elif block.language == "toml":
        tomllib.loads(block.body)
    elif block.language == "json":
        for text in block.body.splitlines() if block.info.endswith(".jsonl") else [block.body]:
            json.loads(text)
    elif block.language == "yaml":
        yaml = pytest.importorskip("yaml")
        try:
            yaml.safe_load(block.body)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from None
    elif block.language == "c":
        include = f"-I{ROOT / 'host/doca/include'}"
        check = ["gcc", "-fsyntax-only", "-Werror", include, "-xc", "-"]
        subprocess.run(check, input=block.body, text=True, check=True, capture_output=True)
    elif block.language != "text":
        raise ValueError(f"no language that a test knows: {block.info!r}")


def test_every_block_of_commands_is_run_or_says_why_not() -> None:
    """One that the tests do not run says to its reader `not run by the tests: REASON`."""
    silent = [
        str(block)
        for block in SHELL_BLOCKS
        if block.info not in ("sh run", *RUN_ELSEWHERE) and not block.says_why_not()
    ]
    assert silent == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_shown_exists(words: tuple[str, ...]) -> None:
    """The parser takes each command of the pages as it stands: options, values, nothing missing."""
    needs_cli()
    import typer

    from offstage.testbeds.cli import COMMANDS as KNOWN
    from offstage.testbeds.cli import build

    name, *rest = words
    command = typer.main.get_command(build([rest[0]] if rest[0] in KNOWN else list(KNOWN)))
    while rest and rest[0] in (known := getattr(command, "commands", {})):
        name, *rest = rest
        command = known[name]
    assert command.make_context(name, rest).args == []


def test_every_target_of_make_shown_exists() -> None:
    unknown = []
    for block in SHELL_BLOCKS:
        for words in commands(block, "make"):
            folder = words[words.index("-C") + 1] if "-C" in words else "."
            text = (ROOT / folder / "Makefile").read_text(encoding="utf-8")
            targets = set(re.findall(r"^([a-z0-9-]+):", text, re.MULTILINE))
            named = {word for word in words[1:] if not re.search(r"^-|[=/]", word)}
            unknown += [f"{block}: {one}" for one in sorted(named - targets - {folder})]
    assert unknown == []


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
