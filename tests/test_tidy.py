"""Is the code within the limits of docs/style.md, and free of banned patterns?"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_trees import forget, functions_of

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("host", "dpu", "asic_model", "bindings", "testbeds", "tests", "docs", ".ci")
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_CHARS_MAX = 100

# Written in two parts so that this file does not hold what it looks for.
BANNED_WORDS = {
    "TO" + "DO": "do it, or open an issue",
    "FIX" + "ME": "fix it, or open an issue",
    "XX" + "X": "say what is meant",
    "NotImplemented" + "Error": "a Protocol, or the real thing",
}
BANNED_C_CALLS = {
    "alloca": "a fixed size",
    "atoi": "strtol",
    "gets": "fgets",
    "popen": "nothing: the firmware starts no process",
    "rand": "a generator told its seed",
    "sprintf": "snprintf",
    "strcat": "snprintf",
    "strcpy": "snprintf",
    "strtok": "strtok_r",
    "system": "nothing: the firmware starts no process",
    "usleep": "nanosleep, outside the seams never",
    "vsprintf": "vsnprintf",
}
# Paths of one machine, which mean nothing on another.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:" + "|".join(["work", "root", "home"]) + r")/\w")

# `offstage` on the package index is somebody else's package: installing it by name runs a
# stranger's code. From a checkout it is `.` or `.[extra]`, and a wheel is a file.
BY_NAME = r"(?<![\w./-])offstage(?![\w/.-])"
FROM_THE_INDEX = re.compile(
    r"\b(?:pip[3x]?|uvx?|poetry|pdm|conda|mamba)\b[^\n#;&|`)]*"
    r"\b(?:install|add|run|wheel|download|--from)\b"
    rf"[^\n#;&|`)]*?{BY_NAME}"
    rf"|\b(?:uvx|pipx run)\s+{BY_NAME}"
    r"|(?<![\w./-])offstage\\*\[[a-z]"
    r"|[\"']offstage *(?:[=<>~!]=|[<>@]|; *(?:python|sys|platform|extra))"
    r"|\b(?:dependencies|requires)\b\s*=\s*\[[^\]]*[\"']offstage[\"']",
    re.IGNORECASE,
)
TEXTS = (
    ".py",
    ".md",
    ".toml",
    ".ipynb",
    ".sh",
    ".txt",
    ".yml",
    ".yaml",
    ".cfg",
    ".service",
    ".c",
    ".h",
    ".cff",
    ".json",
    ".jsonl",
    ".html",
    ".js",
    ".svg",
    ".conf",
    ".in",
    "",
)


def files(*suffixes: str) -> list[Path]:
    """Return every file of ours with one of these endings, without builds and caches."""
    found = [path for path in ROOT.glob("*") if path.is_file() and path.suffix in suffixes]
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT).parts
            if path.is_file() and path.suffix in suffixes and "build" not in inside:
                found.append(path)
    return sorted(found)


PYTHON = files(".py", ".pyi")
C = files(".c", ".h")


def assert_none(wrong: list[str]) -> None:
    """Assert that there are no violations; otherwise show all of them."""
    assert not wrong, "\n" + "\n".join(wrong)


def shown(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def python_functions(path: Path) -> Iterator[tuple[int, int]]:
    """Yield start and length of every function."""
    for node in functions_of(path):
        yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(path: Path) -> Iterator[tuple[int, int]]:
    """Yield start and length of every function: `{` and `}` in column 0, after `name(...)`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if line == "{" and number and lines[number - 1].rstrip().endswith(")"):
            start = number - 1
        elif line.startswith("}") and start is not None:
            yield start + 1, number - start + 1
            start = None


def c_code(path: Path) -> str:
    """Return the source with comments and strings blanked, line numbers kept."""
    hidden = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    text = path.read_text(encoding="utf-8")
    return hidden.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


@pytest.fixture(scope="module", autouse=True)
def trees_are_let_go() -> Iterator[None]:
    yield
    forget()


def test_the_counter_of_c_functions_counts(tmp_path: Path) -> None:
    """The counter for the limit below finds functions at all."""
    source = tmp_path / "a.c"
    source.write_text("struct s {\n\tint a;\n};\n\nstatic int\nf(void)\n{\n\treturn 0;\n}\n")
    assert list(c_functions(source)) == [(6, 4)]


def test_files_are_short() -> None:
    assert_none(
        [
            f"{path.relative_to(ROOT)}: {count} lines"
            for path in PYTHON + C
            if (count := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
        ]
    )


def test_functions_are_short() -> None:
    found = [(path, *item) for path in PYTHON for item in python_functions(path)]
    found += [(path, *item) for path in C for item in c_functions(path)]
    assert_none(
        [
            f"{shown(path, line)}: {count} lines"
            for path, line, count in found
            if count > FUNCTION_LINES_MAX
        ]
    )


def test_lines_of_c_are_short() -> None:
    assert_none(
        [
            f"{shown(path, number)}: {len(line)} characters"
            for path in C
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if len(line) > LINE_CHARS_MAX
        ]
    )


def test_no_banned_word() -> None:
    pattern = re.compile(r"\b(" + "|".join(BANNED_WORDS) + r")\b")
    assert_none(
        [
            f"{shown(path, number)}: {match.group()}: {BANNED_WORDS[match.group()]}"
            for path in files(".py", ".pyi", ".c", ".h", ".md", ".toml", ".html", ".js", ".css")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if (match := pattern.search(line))
        ]
    )


# Phrases to avoid in product and docs; a test may quote anything.
TICS = re.compile(
    r"\b(whoever|in vain|is told|are told|it lives a|sees to that|of one's own affair"
    r"|is none of a|says? (nothing|little) of|asked for again|asked of the (DPU|tier)"
    r"|at most so many|names one twice|is there twice|in some lines only|known only later"
    r"|whose KV it is)\b"
)


def test_no_tic_of_old() -> None:
    """Say who does what: the subject, the verb, the object."""
    texts = files(".py", ".pyi", ".c", ".h", ".md")
    assert_none(
        [
            f"{shown(path, number)}: {match.group()}"
            for path in texts
            if "tests" not in path.relative_to(ROOT).parts and "test" not in path.parts
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if (match := TICS.search(line))
        ]
    )


def test_no_path_of_one_machine() -> None:
    texts = files(".py", ".pyi", ".c", ".h", ".md", ".toml", ".html", ".js", ".css", ".svg")
    assert_none(
        [
            shown(path, number)
            for path in texts
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
            if MACHINE_PATH.search(line)
        ]
    )


def test_no_banned_c_call() -> None:
    pattern = re.compile(r"\b(" + "|".join(BANNED_C_CALLS) + r")\s*\(")
    assert_none(
        [
            f"{shown(path, number)}: {match.group(1)}: {BANNED_C_CALLS[match.group(1)]}"
            for path in C
            for number, line in enumerate(c_code(path).splitlines(), 1)
            if (match := pattern.search(line))
        ]
    )


def test_what_decides_asks_nobody() -> None:
    """Decision core, scheduler and timing models stay deterministic: no kernel, no floats."""
    asked = re.compile(
        r"\b(clock_gettime|gettimeofday|time|nanosleep|random|getenv|syscall|open|read|write|mmap"
        r"|pthread_\w+)\s*\(|\b(float|double)\b"
    )
    firmware = ROOT / "dpu/firmware/src"
    deciding = [*firmware.glob("core/*"), *firmware.glob("nvme_*.c")]
    deciding += [firmware / name for name in ("placement.c", "qos.c", "siphash.c")]
    deciding += (ROOT / "asic_model/engine").glob("*.[ch]")
    assert len(deciding) > 3
    assert_none(
        [
            f"{shown(path, number)}: {match.group()}"
            for path in sorted(deciding)
            for number, line in enumerate(c_code(path).splitlines(), 1)
            if (match := asked.search(line))
        ]
    )


def test_every_header_opens_with_its_model() -> None:
    headers = [path for path in C if path.suffix == ".h"]
    assert_none(
        [
            str(path.relative_to(ROOT))
            for path in headers
            if not path.read_text(encoding="utf-8").startswith("/*")
        ]
    )


# Calls that fail a test by themselves. `verify` is not one of them: it returns a result
# that the test must assert.
CHECKS = re.compile(r"(^|[._])(assert|check|compare|expect|fail|raises|run_state_machine)")


def always_reached(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node, except exception handlers, which need not run."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ExceptHandler):
            yield child
            yield from always_reached(child)


def checks(function: ast.FunctionDef, checking: set[str]) -> bool:
    """Return whether it asserts or calls a function that does; comments and strings do not
    count."""
    for node in always_reached(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if CHECKS.search(name) or name.rpartition(".")[2] in checking:
                return True
    return False


def test_a_check_is_an_assertion_that_is_reached() -> None:
    """Asserts in handlers or strings, and unused results, do not count as checks."""
    empty = [
        "try:\n  f()\nexcept E as e:\n  assert str(e)",
        "'Does it check and assert?'\nf()",
        "core.verify()",
    ]
    full = [
        "assert core.verify()",
        "try:\n  assert f()\nexcept E:\n  pass",
        "with pytest.raises(E):\n  f()",
        "np.testing.assert_allclose(a, b)",
        "helper(1)",
    ]

    def found(body: str) -> bool:
        lines = "".join(f"  {line}\n" for line in body.splitlines())
        function = ast.parse(f"def test_it() -> None:\n{lines}").body[0]
        assert isinstance(function, ast.FunctionDef)
        return checks(function, {"helper"})

    assert not any(map(found, empty)) and all(map(found, full))


@pytest.mark.parametrize("path", files(".py"), ids=lambda path: path.name)
def test_every_test_can_fail(path: Path) -> None:
    """A test that cannot fail is a defect: it asserts, or calls something that checks."""
    if not path.name.startswith("test_"):
        return
    functions = [node for node in functions_of(path) if isinstance(node, ast.FunctionDef)]
    checking = {node.name for node in functions if checks(node, set())}
    assert_none(
        [
            shown(path, node.lineno)
            for node in functions
            if node.name.startswith("test_") and not checks(node, checking)
        ]
    )


def test_no_text_installs_offstage_by_name() -> None:
    """All pages, messages and packages of ours install a checkout or a file, not a name."""
    here = Path(__file__).resolve()
    found = []
    for path in files(*TEXTS):
        if path == here:
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", "  ")
        found += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, one.start()) + 1}: {one[0]!r}"
            for one in FROM_THE_INDEX.finditer(text)
        ]
        if path.name.startswith(("requirements", "constraints")):
            found += re.findall(r"(?im)^offstage(?![\w-]).*", text)
    assert not found, "say `pip install '.[extra]'` from a checkout, or a wheel's file"


@pytest.mark.parametrize(
    "said",
    [
        "pip install offstage",
        "pip install -U 'offstage[vllm]'",
        "pip3 install Offstage==0.1",
        "uv pip install offstage",
        "uv add offstage",
        "pipx install offstage",
        "uvx offstage demo",
        "%pip install -q offstage",
        "pip install offstage # now",
        "match='offstage\\[host\\]'",
        'dependencies = ["numpy",\n "offstage"]',
        'requires = ["offstage"]',
        'gpu = ["offstage>=0.1"]',
    ],
)
def test_what_names_the_stranger_is_seen(said: str) -> None:
    """The search finds every form of an install by name."""
    assert FROM_THE_INDEX.search(said)


@pytest.mark.parametrize(
    "said",
    [
        "pip install '.[vllm]'   # in a checkout of Offstage",
        "pip install docs/examples/policy-rising",
        'pip install "./dist/offstage_kv-0.1.0-cp311-abi3-linux_x86_64.whl[vllm]"',
        "offstage demo",
        "pip wheel --no-deps -w dist . && offstage --help",
        'requires = ["offstage-kv"]',
    ],
)
def test_a_checkout_and_a_file_are_let_by(said: str) -> None:
    """The search allows installs from a checkout or a file."""
    assert not FROM_THE_INDEX.search(said)
