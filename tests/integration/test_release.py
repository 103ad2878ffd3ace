"""Does the release refuse, in one line, what would be a wrong release?"""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    ".ci/release",
    "CHANGELOG.md",
    "CITATION.cff",
    "pyproject.toml",
    "src/offstage/__init__.py",
)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

Edit = Callable[[Path], None]


def git(tree: Path, *words: str) -> None:
    """One call of git, by an author of its own."""
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "tag.gpgsign=false")
    subprocess.run(["git", *author, *words], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of the files that are looked at before anything is built."""
    tree = tmp_path / "tree"
    for name in COPIED:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    git(tree, "init", "-q")
    commit(tree)
    return tree


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m", "a tree")


def write(name: str, old: str, new: str) -> Edit:
    """An edit of a file, committed."""

    def edit(tree: Path) -> None:
        text = (tree / name).read_text(encoding="utf-8")
        assert old in text
        (tree / name).write_text(text.replace(old, new, 1), encoding="utf-8")
        commit(tree)

    return edit


def dirty(tree: Path) -> None:
    (tree / "left-over").touch()


def tagged(tree: Path) -> None:
    git(tree, "tag", f"v{VERSION}")


def tagged_before(tree: Path) -> None:
    tagged(tree)
    commit(tree)


def unchanged(tree: Path) -> None:
    """The tree is good as it is."""


@pytest.mark.parametrize(
    ("edit", "words", "said"),
    [
        (unchanged, (), "give a folder to write to"),
        (unchanged, ("pyproject.toml",), "is there: name another folder"),
        (unchanged, ("src",), "is there: name another folder"),
        (dirty, ("out",), "the tree has changes: commit them, or try it with --trial"),
        (write("CITATION.cff", VERSION, "9.9"), ("out",), "CITATION.cff: not the version"),
        (
            write("src/offstage/__init__.py", VERSION, "9.9"),
            ("out",),
            "__init__.py: not the version",
        ),
        (write("CHANGELOG.md", f"## {VERSION} (", "## 9.9 ("), ("out",), "CHANGELOG.md: nothing"),
        (unchanged, ("out", "v9.9"), f"tag v9.9: the version is {VERSION}; name it v{VERSION}"),
        (unchanged, ("out", f"v{VERSION}"), "not on this commit"),
        (tagged_before, ("out", f"v{VERSION}"), "not on this commit"),
    ],
)
def test_what_would_be_a_wrong_release_is_one_line(
    tree: Path, edit: Edit, words: tuple[str, ...], said: str
) -> None:
    """A dirty tree, a version named differently somewhere, no entry of the changelog, and a tag of
    something else end with exit code 2, and nothing is written."""
    edit(tree)
    done = subprocess.run([".ci/release", *words], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("release: ") and said in line
    assert not (tree / "out").exists()


def test_a_release_has_its_date_in_the_changelog(tree: Path) -> None:
    """A tag is refused while the changelog says that its version is not released."""
    changelog = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"(?m)^## {re.escape(VERSION)} .*$", changelog)
    assert heading
    write("CHANGELOG.md", heading[0], f"## {VERSION} (unreleased)")(tree)
    tagged(tree)
    words = [".ci/release", "out", f"v{VERSION}"]
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no date" in done.stderr and len(done.stderr.splitlines()) == 1
