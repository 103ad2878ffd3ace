"""`make mutants`: does a named test fail for each small mistake in C of mutants.toml?

A mutant is one line of the code replaced by another. It is applied in a copy of the tree, never in
the tree itself; what it touches is rebuilt, and the test that the table names must fail. Before
that, the same tests must pass without any mutant. A mutant that survives is a hole in the tests.

    run.py                      all of them
    run.py --seed 7 --count 6   six, drawn by a seed
    run.py --only core-lru      those whose name contains this

Exit code 0: all were killed; 1: one survived, or a test fails without a mutant; 2: the table does
not fit the code, and it says which row and what to do.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tree import Tree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TABLE = HERE / "mutants.toml"
FIRST_SECONDS = 900  # for a test without a mutant, on a busy machine
TEST_SECONDS = 120  # a mutant that never ends is stopped after this or, if longer,
TIMES_SLOWER = 4  # times the test's own time without it
AREAS = ("core", "store", "driver", "device", "chip")


class BadTable(Exception):
    """A row that does not fit the code: which, and the fix."""


@dataclass(frozen=True)
class Mutant:
    """One row of the table. Lines have no indentation; the search for `old` begins at `after`, for
    a line that is there more than once."""

    id: str
    file: str
    old: str
    new: str
    test: str
    why: str
    after: str = ""

    @property
    def area(self) -> str:
        return self.id.partition("-")[0]

    @property
    def by_python(self) -> bool:
        return self.test.startswith("tests/")


def load(path: Path = TABLE) -> list[Mutant]:
    """Return the rows in order. BadTable: a repeated name, no C, no change, an unknown area."""
    rows = [Mutant(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]
    names = [row.id for row in rows]
    for row in rows:
        if names.count(row.id) > 1:
            raise BadTable(f"{row.id}: is in the table twice; give it another id")
        if row.area not in AREAS:
            raise BadTable(f"{row.id}: begins with none of {', '.join(AREAS)}")
        if not row.file.endswith((".c", ".h")):
            raise BadTable(f"{row.id}: {row.file} is not C; `make mutants-python` does Python")
        if row.old == row.new or not row.why:
            raise BadTable(f"{row.id}: changes nothing, or does not say why it matters")
    return rows


def mutate(text: str, mutant: Mutant) -> str:
    """Return `text` with the one line replaced. BadTable if the row does not name exactly one."""
    lines = text.splitlines(keepends=True)
    plain = [line.strip() for line in lines]
    begin = 0
    if mutant.after:
        if plain.count(mutant.after) != 1:
            raise BadTable(
                f"{mutant.id}: {plain.count(mutant.after)} lines of {mutant.file} are "
                f"{mutant.after!r}; give `after` a line that stands there once"
            )
        begin = plain.index(mutant.after) + 1
    found = [number for number in range(begin, len(lines)) if plain[number] == mutant.old]
    if not found or (len(found) > 1 and not mutant.after):
        raise BadTable(
            f"{mutant.id}: {len(found)} lines of {mutant.file} are {mutant.old!r}; "
            "was the code changed? Give `old` as it stands now, or `after`"
        )
    line = lines[found[0]]
    indent = line[: len(line) - len(line.lstrip())]
    lines[found[0]] = f"{indent}{mutant.new}\n"
    return "".join(lines)


def check_table(rows: Iterable[Mutant], root: Path = ROOT) -> None:
    """Check that every row names one line of an existing file, and an existing test."""
    for row in rows:
        path = root / row.file
        if not path.is_file():
            raise BadTable(f"{row.id}: {row.file} does not exist; was it moved? Correct `file`")
        mutate(path.read_text(encoding="utf-8"), row)
        source, _, function = row.test.partition("::")
        where = root / source if row.by_python else root / f"dpu/firmware/test/{row.test}.c"
        if not where.is_file() or f"def {function.partition('[')[0]}" not in (
            where.read_text(encoding="utf-8") if function else "def "
        ):
            raise BadTable(f"{row.id}: there is no test {row.test}; correct `test`")


def run(rows: list[Mutant], tree: Tree) -> list[str]:
    """Run the tests without a mutant, then each mutant with its own; return what went wrong."""
    wrong = []
    limits_s: dict[str, float] = {}
    tree.build()
    for test in dict.fromkeys(row.test for row in rows):
        begun = time.monotonic()
        code, said = tree.test(test, FIRST_SECONDS)
        limits_s[test] = max(TEST_SECONDS, TIMES_SLOWER * (time.monotonic() - begun))
        if code != 0:
            wrong.append(f"{test} fails without a mutant:\n{said}")
    if wrong:
        print(f"none of {len(rows)} mutants was tried")
        return wrong
    print(f"{len(limits_s)} tests pass without a mutant", flush=True)
    for number, row in enumerate(rows, 1):
        begun = time.monotonic()
        verdict = _one(row, tree, limits_s[row.test])
        print(
            f"{number:3}/{len(rows)} {verdict:9} {row.id:34} {row.test}  "
            f"{time.monotonic() - begun:.1f} s",
            flush=True,
        )
        if verdict != "killed":
            wrong.append(
                f"{row.id}: {verdict}: {row.file}: {row.new!r} instead of {row.old!r}, "
                f"and {row.test} does not fail: {row.why}"
            )
    print(f"{len(rows) - len(wrong)} of {len(rows)} mutants killed")
    return wrong


def _one(row: Mutant, tree: Tree, limit_s: float) -> str:
    path = tree.root / row.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutate(text, row), encoding="utf-8")
    try:
        if not tree.rebuild(row.test, row.file):
            return "no build"
        code, _ = tree.test(row.test, limit_s)
    finally:
        path.write_text(text, encoding="utf-8")
    return "survived" if code == 0 else "killed"


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seed", default="1", help="a text or number that draws --count of them")
    parser.add_argument("--count", type=int, default=0, help="so many; 0: all")
    parser.add_argument("--only", default="", help="those whose id contains this")
    options = parser.parse_args()
    try:
        rows = load()
        check_table(rows)
    except BadTable as error:
        print(f"mutants.toml: {error}", file=sys.stderr)
        return 2
    rows = [row for row in rows if options.only in row.id]
    if options.count:
        rows = random.Random(options.seed).sample(rows, min(options.count, len(rows)))
    with tempfile.TemporaryDirectory(prefix="offstage-mutants.") as scratch:
        wrong = run(rows, Tree.copy(ROOT, Path(scratch)))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        print(f"{error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
        sys.exit(1)
