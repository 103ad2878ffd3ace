"""`make mutants-python`: does a module's own test notice small mistakes in it?

cosmic-ray makes the mistakes (an operator, a comparison, a constant, a branch, a loop) in a copy of
the tree and runs the tests that modules.toml names. A sample of each module is tried, drawn by a
seed. What survives is shown with its line, for a person to judge.

    modules.py                       25 mutants of each module
    modules.py --count 0             all of them, which takes hours
    modules.py --only pod/fence      modules whose path contains this

Exit code 0: every module reaches its `killed_percent_min`; 1: one does not, or its tests fail
without a mutant.
"""

import argparse
import random
import re
import shlex
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tree import Tree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEST_SECONDS = 120.0
COMMAND_SECONDS = 12 * 3600.0
PYTEST = "-m pytest -x -q --no-header -p no:cacheprovider -p no:xdist --hypothesis-seed=1"
SKIPPED = "core/ReplaceBinaryOperator_BitOr"  # unions in annotations


@dataclass(frozen=True)
class Module:
    """A row of modules.toml."""

    file: str
    tests: str
    killed_percent_min: int

    @property
    def test_command(self) -> str:
        return f"{shlex.quote(sys.executable)} {PYTEST} {self.tests}"


def load(path: Path = HERE / "modules.toml") -> list[Module]:
    """Return the rows in order."""
    return [Module(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["module"]]


def try_module(module: Module, tree: Tree, count: int, seed: str) -> str:
    """Mutate a sample of `count` places (0: all), print the verdict; return what is wrong."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    session = tree.root / "session.sqlite"
    session.unlink(missing_ok=True)
    config = tree.root / "cosmic-ray.toml"
    config.write_text(
        f"[cosmic-ray]\nmodule-path = '{module.file}'\ntimeout = {TEST_SECONDS}\n"
        f'excluded-modules = []\ntest-command = """{module.test_command}"""\n'
        "[cosmic-ray.distributor]\nname = 'local'\n",
        encoding="utf-8",
    )
    tool = [sys.executable, "-m", "cosmic_ray.cli"]
    baseline = tree.run([*tool, "baseline", str(config)], limit_s=COMMAND_SECONDS)
    if baseline.returncode != 0:
        return f"{module.tests} fails without a mutant:\n{baseline.stdout[-2000:]}"
    tree.run([*tool, "init", str(config), str(session)], check=True, limit_s=COMMAND_SECONDS)
    with use_db(str(session), WorkDB.Mode.open) as work:
        items = [
            item
            for item in work.work_items
            if not item.mutations[0].operator_name.startswith(SKIPPED)
        ]
        items.sort(key=lambda item: (item.mutations[0].operator_name, item.mutations[0].occurrence))
        drawn = random.Random(seed).sample(items, min(count or len(items), len(items)))
        kept = {item.job_id for item in drawn}
        left = [item.job_id for item in work.work_items if item.job_id not in kept]
        work.set_multiple_results(left, WorkResult(WorkerOutcome.SKIPPED))
    tree.run([*tool, "exec", str(config), str(session)], check=True, limit_s=COMMAND_SECONDS)
    with use_db(str(session), WorkDB.Mode.open) as work:
        results = {job: result for job, result in work.results if job in kept}
    survivors = [item for item in drawn if not results[item.job_id].is_killed]
    percent = 100 * (len(drawn) - len(survivors)) // len(drawn)
    print(f"{percent:3} % of {len(drawn):3} killed: {module.file}", flush=True)
    for item in survivors:
        for line in (results[item.job_id].diff or "").splitlines():
            if re.match(r"[-+](?![-+])", line):
                print(f"      {line}")
    if percent < module.killed_percent_min:
        return f"{module.file}: {percent} % killed, at least {module.killed_percent_min} % expected"
    return ""


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seed", default="1", help="a text or number that draws the sample")
    parser.add_argument("--count", type=int, default=25, help="mutants of a module; 0: all")
    parser.add_argument("--only", default="", help="modules whose path contains this")
    options = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="offstage-mutants.") as scratch:
        tree = Tree.copy(ROOT, Path(scratch))
        for module in load():
            if options.only in module.file:
                wrong.append(try_module(module, tree, options.count, options.seed))
    wrong = [one for one in wrong if one]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
