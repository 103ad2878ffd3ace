"""Is a policy found by its file, wherever the spec is, and is every fault of the file one line?"""

from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.from_file import from_folder, without_folders
from offstage.testbeds.lab.policies.registry import parse
from offstage.testbeds.lab.run.plan import Task, points_of
from offstage.testbeds.lab.spec.load import load

CODE = """
from offstage.testbeds.lab.policies.policy import CoreSwitches, no_guesses

class Mine:
    name, uses, source = "mine", "nothing", "a test"
    core = CoreSwitches(eviction="fifo")
    def __init__(self, setting): pass
    def begin(self, session, blocks, prefill): return no_guesses()
    def step(self, view): return no_guesses()
"""
SPEC = """
[workload]
context_tokens = 4096
steps = 4
sessions = 1
[geometry]
model = "demo"
[selection]
k_blocks = 8
[[policy]]
use = "{use}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which has `own/mine.py`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text(CODE)
    return tmp_path


def spec_of(folder: Path, use: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(SPEC.format(use=use))
    return path


def test_a_file_is_found_from_the_working_folder_and_by_its_whole_path(folder: Path) -> None:
    for name in ("own/mine.py:Mine", f"{folder}/own/mine.py:Mine"):
        combined = parse(f"window+{name}")
        assert combined.core.eviction == "fifo" and combined.components[1].name == "mine"


@pytest.mark.parametrize("use", ["mine.py:Mine", "own/mine.py:Mine", "ema + mine.py:Mine"])
def test_a_file_is_found_beside_the_spec_or_in_the_working_folder(folder: Path, use: str) -> None:
    """Its folder is no part of the policy's name in the results."""
    spec = load(spec_of(folder / "own", use))
    own = [one for one in points_of(spec, 0, 0) if "mine" in one.label]
    assert own and all(one.eviction == "fifo" for one in own)
    assert {one.label for one in own} == {use.replace("own/", "")}


def test_the_spec_comes_before_the_working_folder(folder: Path) -> None:
    (folder / "mine.py").write_text(CODE.replace("fifo", "lru"))
    [policy] = load(spec_of(folder / "own", "mine.py:Mine")).policy
    assert parse(policy.use).core.eviction == "fifo"


def test_a_reference_may_be_a_file(folder: Path) -> None:
    path = spec_of(folder / "own", "none")
    path.write_text(path.read_text() + '[reference]\nuse = "mine.py:Mine"\n')
    assert parse(load(path).reference.use).core.eviction == "fifo"


def test_an_edited_file_is_loaded_anew_and_its_points_are_others(folder: Path) -> None:
    """Its place does not matter: a folder that is moved keeps its results."""
    file = folder / "own/mine.py"

    def named(use: str) -> list[str]:
        spec = load(spec_of(folder, use))
        return Task(spec, 1, tuple(points_of(spec, 0, 0))).parts("code")

    before = named("own/mine.py:Mine")
    (folder / "mine.py").write_text(CODE)
    assert named("mine.py:Mine") == before
    file.write_text(CODE.replace("mine", "mind"))
    assert parse("own/mine.py:Mine").components[0].name == "mind"
    after = named("own/mine.py:Mine")
    assert [one == other for one, other in zip(before, after, strict=True)].count(False) == 2


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("nowhere.py:Mine", CODE, "there is no file nowhere.py; give its path from the spec's"),
        ("mine.py", CODE, "no class is named; write mine.py:CLASS"),
        ("mine.py:Mien", CODE, "mine.py has no class 'Mien'; did you mean 'Mine'?"),
        ("mine.py:Mine", "x = 1", "mine.py has no class 'Mine'; it defines none"),
        ("mine.py:Mine", "import nowhere_at_all", "No module named 'nowhere_at_all' ("),
        ("mine.py:Mine", "\n1 / 0", "cannot be loaded: ZeroDivisionError: division by zero ("),
        ("mine.py:Mine", "raise SystemExit(3)", "cannot be loaded: SystemExit: 3 ("),
        ("mine.py:Mine", "\ndef f(:", "cannot be loaded: SyntaxError: invalid syntax ("),
        ("mine.py:Mine", "# \udcff", "cannot be loaded: "),
        ("mine.py:Mine", "Mine = 3", "is not a class but int"),
        ("mine.py:Mine", CODE.replace("fifo", "mru"), "unknown eviction 'mru'"),
        ("..:Mine", CODE, "cannot be loaded"),
        (".py/.py:Mine", CODE, "there is no file"),
    ],
)
def test_a_wrong_file_is_one_line(
    name: str, code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says where in the file, if there is such a place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(code, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(BadInput) as caught:
        parse(name)
    line = str(caught.value)
    assert said in line and "\n" not in line and f"policy {name!r}" in line and caught.value.fix
    if "1 / 0" in code or "def f" in code:
        assert f"{tmp_path}/mine.py:2)" in line


def test_policies_without_files_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "ema").write_text("a file of that name")
    for policy in ("ema", "window + ema", "package.module:Class", ""):
        assert from_folder(policy, tmp_path) == policy == without_folders(policy)
