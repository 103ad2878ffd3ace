"""Is a policy found by its file, wherever the spec is, and is every fault of the file one line?"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.from_file import from_folder, without_folders
from offstage.testbeds.lab.policies.policy import Setting
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


def test_a_file_that_sets_how_numpy_errs_sets_it_for_itself(folder: Path) -> None:
    """Does `np.seterr` of a policy make our own arithmetic raise?"""
    sets = "import numpy as np\nnp.seterr(all='raise')\n"
    also = CODE.replace("return no_guesses()", "np.seterr(all='raise'); return no_guesses()")
    (folder / "own/mine.py").write_text(sets + also)
    before = np.geterr()
    opened = parse("own/mine.py:Mine").open(Setting(1, 1, 2, 0, 0, 64, np.zeros(1, np.int64)))
    assert len(opened.begin(0, 1, None)) == 0
    assert np.geterr() == before


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


DEEPER = {f"deeper_still/{name}.py": "" for name in ("__init__", "inner/__init__", "inner/most")}
PACKAGE = {
    "__init__": "",
    "main": "from . import near\nfrom .deep.far import FAR\n" + CODE,
    "near": "import apart_from_it",
    "deep/__init__": "",
    "deep/far": "def late():\n    import deeper_still.inner.most as most\nFAR = 1",
    "beside": "nobody imports it",
}


EDITS = {
    "several/main.py": 2,
    "several/near.py": 2,
    "several/deep/__init__.py": 2,
    "several/deep/far.py": 2,
    "apart_from_it.py": 2,
    "deeper_still/inner/most.py": 2,
    "several/beside.py": 0,
    "site-packages/somebodys.py": 0,
}
"""How many of the points are others after an edit of the file."""


def test_an_edit_of_what_a_policy_imports_makes_its_points_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is what an earlier version of a helper gave taken for a result of the new one? Each time is
    in a process of its own, as a module is imported once. Packages that are installed do not count,
    and nothing that is not imported."""
    files = {f"several/{name}.py": text for name, text in PACKAGE.items()}
    files |= {"apart_from_it.py": "import somebodys", "site-packages/somebodys.py": "", **DEEPER}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(folder / "site-packages"))))
    spec_of(folder, "several.main:Mine")
    before = named_elsewhere(folder)
    for edited, others in EDITS.items():
        (folder / edited).write_text(files[edited] + "\n# edited\n")
        after = named_elsewhere(folder)
        (folder / edited).write_text(files[edited])
        changed = [one != other for one, other in zip(before, after, strict=True)]
        assert sum(changed) == others, edited


def test_an_edit_of_what_was_imported_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is code that ran named after code that did not? A notebook imports a module once."""
    (folder / "imported_once.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    spec = load(spec_of(folder, "imported_once:Mine"))
    Task(spec, 1, tuple(points_of(spec, 0, 0))).parts("code")
    (folder / "imported_once.py").write_text(CODE.replace("a test", "another test"))
    with pytest.raises(BadInput, match="has changed since it was imported"):
        Task(spec, 1, tuple(points_of(spec, 0, 0))).parts("code")


def named_elsewhere(folder: Path) -> list[str]:
    """The names of the points of `mine.toml`, in another process."""
    code = (
        "from pathlib import Path\n"
        "from offstage.testbeds.lab.run.plan import Task, points_of\n"
        "from offstage.testbeds.lab.spec.load import load\n"
        "spec = load(Path('mine.toml'))\n"
        "print(*Task(spec, 1, tuple(points_of(spec, 0, 0))).parts('code'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


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
