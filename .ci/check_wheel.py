"""Does the installed wheel hold every module and data file of the tree it was built from?

Run from outside the tree, in an environment that has the wheel and no checkout:
`python check_wheel.py TREE`.
"""

import importlib
import sys
from pathlib import Path

FOLDERS = ("host", "dpu", "asic_model", "bindings", "testbeds")
DATA = {".toml", ".html", ".css", ".js", ".svg", ".pyi"}


def main(tree: Path) -> int:
    """Print what is missing or does not import; the exit code says whether anything was."""
    offstage = importlib.import_module("offstage")
    installed = Path(offstage.__file__ or "").resolve().parent
    assert tree.resolve() not in installed.parents, "this is the checkout, not the wheel"
    wrong = []
    modules = 0
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            relative = path.relative_to(tree)
            if "firmware" in relative.parts[:2] or path.suffix not in DATA | {".py"}:
                continue
            if not (installed / relative).is_file():
                wrong.append(f"missing: {relative}")
            elif path.suffix == ".py" and path.name not in ("build_extensions.py", "__main__.py"):
                modules += 1
                name = ".".join(("offstage", *relative.with_suffix("").parts))
                try:
                    importlib.import_module(name.removesuffix(".__init__"))
                except Exception as error:
                    wrong.append(f"does not import: {name}: {error!r}")
    print("\n".join(wrong) or f"wheel: {modules} modules import from {installed.name}/")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
