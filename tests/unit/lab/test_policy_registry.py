"""Does a spec open the policy it names, and is every bad answer or package one line?"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from policy_views import setting, view

from offstage.bindings.core import Core, CoreConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES, EVICTIONS
from offstage.testbeds.lab.policies.carried import EVICTION_SOURCES
from offstage.testbeds.lab.policies.checked import Opened, checked_begin, checked_step
from offstage.testbeds.lab.policies.policy import (
    GUESS,
    CoreSwitches,
    Setting,
    View,
    guesses,
    no_guesses,
)
from offstage.testbeds.lab.policies.registry import GROUP, find, listing, parse

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/policies.md"
PATTERN = CAUSES.index("pattern")


def test_components_are_joined() -> None:
    joined = parse("window + ema+lru+coschedule+granule").core
    assert joined.prefetchers == ("window", "ema")
    assert joined.eviction == "lru", "of ema's score and lru, the last one"
    assert (joined.schedule, joined.granule) == ("together", True)
    assert parse("window").core.eviction == "lru"
    assert not parse("window+ema").guesses and parse("window+warmup").guesses


def test_parameters_are_the_daemons_then_the_components_then_the_runs() -> None:
    from offstage.dpu.config.options import PolicyOptions as DaemonPolicy

    policy = parse("window+next_n").core_policy(64, degree_max=9)
    assert (policy.prefetchers, policy.window_blocks) == ("window+next_n", 4096 // 64)
    assert (policy.degree_max, policy.ema_shift) == (9, DaemonPolicy().ema_shift)
    assert parse("window").core_policy(64, window_tokens=65).window_blocks == 2
    with pytest.raises(BadInput, match="degree_max"):
        parse("window").core_policy(64, degre_max=1)


@pytest.mark.parametrize("name", [row.name for row in listing()])
def test_the_core_takes_every_policy(name: str) -> None:
    config = CoreConfig(slot_count=8, chunk_max=8, session_chunk_max=4)
    assert Core(config, parse(name).core_policy(64)).verify()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("emma", "did you mean 'ema'"),
        ("window+lokahead", "did you mean 'lookahead'"),
        ("", "a name is missing"),
        ("ema++lru", "a name is missing"),
        ("ema+ema", "'ema' appears twice"),
        ("nowhere_at_all:X", "cannot be loaded: ModuleNotFoundError"),
        ("json:nothing", "cannot be loaded: AttributeError"),
        ("json:JSONDecoder", "'name'"),
        ("os:path", "not a class"),
    ],
)
def test_a_wrong_spec_is_one_line(spec: str, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        parse(spec)


GOOD = """
from offstage.testbeds.lab.policies.policy import CoreSwitches, no_guesses
class Good:
    name, uses, source = "{name}", "nothing", "a test"
    core = CoreSwitches({core})
    def __init__(self, setting): pass
    def begin(self, session, blocks, prefill): return no_guesses()
    def step(self, view): return no_guesses()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return an installer of a package with one module and one entry point."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, code: str, package: str = "acme", target: str = "") -> None:
        module = re.sub(r"\W", "_", f"{package}_{name}_{tmp_path.name}")  # imported only once
        (tmp_path / f"{module}.py").write_text(code)
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        with (folder / "entry_points.txt").open("a") as file:
            file.write(f"[{GROUP}]\n{name} = {target or module + ':Good'}\n")

    return install


def test_an_installed_package_adds_a_name(package: Callable[..., None]) -> None:
    package("acme-one", GOOD.format(name="acme-one", core="eviction='fifo'"))
    assert parse("window+acme-one").core.eviction == "fifo"
    [row] = [row for row in listing() if row.name == "acme-one"]
    assert row.package == "acme"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("Good = 3", "not a class"),
        (GOOD.format(name="another", core=""), "'another'"),
        (GOOD.format(name="acme-bad", core="prefetchers=('emma',)"), "unknown prefetcher 'emma'"),
        (GOOD.format(name="acme-bad", core="eviction='mru'"), "unknown eviction 'mru'"),
        (GOOD.format(name="acme-bad", core="schedule='later'"), "unknown schedule 'later'"),
        (
            GOOD.format(name="acme-bad", core="parameters={'degree': 1}"),
            "unknown parameter 'degree'",
        ),
        (GOOD.format(name="acme-bad", core="parameters={'next_n': -1}"), "next_n is -1"),
        (GOOD.format(name="acme-bad", core="").replace("def step", "def stop"), "no method 'step'"),
        (GOOD.format(name="acme-bad", core="").replace("uses", "used"), "'uses'"),
    ],
)
def test_a_broken_package_is_named(package: Callable[..., None], code: str, said: str) -> None:
    package("acme-bad", code)
    with pytest.raises(BadInput, match="'acme-bad' of package 'acme'") as caught:
        parse("acme-bad")
    assert said in str(caught.value)
    with pytest.raises(BadInput, match="'acme-bad' of package 'acme'"):
        listing()
    assert parse("window").core.prefetchers == ("window",), "others are not loaded"


def test_a_taken_name_is_refused(package: Callable[..., None]) -> None:
    package("ema", GOOD.format(name="ema", core=""))
    with pytest.raises(BadInput, match=r"'acme'.*also defined by Offstage"):
        parse("ema")
    package("mine", GOOD.format(name="mine", core=""), package="one")
    package("mine", GOOD.format(name="mine", core=""), package="two")
    with pytest.raises(BadInput, match="also defined by package"):
        parse("mine")


def test_two_values_of_one_parameter_are_refused(package: Callable[..., None]) -> None:
    package("acme-wide", GOOD.format(name="acme-wide", core="parameters={'window_tokens': 8192}"))
    with pytest.raises(BadInput, match="window_tokens to 4096 and to 8192"):
        parse("window+acme-wide")


# Answers


class Answers:
    """A policy that returns one fixed answer, or raises it."""

    name: ClassVar[str] = "fixed"
    uses: ClassVar[str] = "nothing"
    source: ClassVar[str] = "this test"
    core: ClassVar[CoreSwitches] = CoreSwitches()
    answer: ClassVar[Any] = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def begin(self, session: int, blocks: int, prefill: Any) -> Any:
        return self.step(view(0, [[1]]))

    def step(self, view: View) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def fixed(answer: Any) -> Answers:
    kind: type[Answers] = type("Fixed", (Answers,), {"answer": answer})
    return kind(setting())


def one(ordinal: int = 0, layer: int = 1, **more: Any) -> Any:
    more = {"after_layer": 0, "steps": 0, "cause": PATTERN, **more}
    reserved = more.pop("reserved", 0)
    answer = guesses([layer], [ordinal], **more)
    answer["reserved"] = reserved
    return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "GUESS array"),
        ([], "GUESS array"),
        (np.zeros(1, np.int64), "GUESS array"),
        (np.zeros((1, 1), GUESS), "GUESS array"),
        (one(ordinal=3), "guessed ordinal 3; the limit is 3"),
        (one(layer=2), "guessed layer 2; the limit is 2"),
        (one(layer=1, after_layer=2, steps=1), "after_layer 2"),
        (one(layer=1, after_layer=1), "a layer of this step"),
        (one(cause=CAUSES.index("write")), "a cause that is not one of window,"),
        (one(cause=len(CAUSES)), "a cause that is not one of window,"),
        (one(reserved=1), "'reserved'"),
        (ValueError("two\nlines"), "raised ValueError: two lines ("),
        (SystemExit(0), "raised SystemExit: 0 ("),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_wrong_answer_is_one_line(answer: Any, said: str) -> None:
    shown = view(12, [[1, 2, 3], [1, 2, 3]], session=3)
    with pytest.raises(BadInput) as caught:
        checked_step(fixed(answer), shown)
    line = str(caught.value)
    assert "step 12 of session 3: policy 'fixed'" in line and said in line
    assert "\n" not in line and caught.value.fix


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("ordinal", np.array([2**32 + 1]), "ordinal is 4294967297, not 0 to 4,294,967,295"),
        ("ordinal", np.array([-1]), "ordinal is -1, not 0"),
        ("ordinal", [2**70], "type object, not whole numbers"),
        ("ordinal", np.array([1.5]), "type float64, not whole numbers"),
        ("ordinal", [np.nan], "type float64"),
        ("layer", [65537], "layer is 65537, not 0 to 65,535"),
        ("after_layer", np.array([65536]), "after_layer is 65536"),
        ("steps", np.array([-1]), "steps is -1"),
        ("cause", np.array([256 + PATTERN]), "cause is"),
        ("probability", np.nan, "a probability is nan, not 0 to 1"),
        ("probability", [0.5, 7.0], "a probability is 7, not 0 to 1"),
        ("probability", -0.25, "a probability is -0.25"),
        ("probability", np.inf, "a probability is inf"),
    ],
)
def test_a_number_that_a_guess_cannot_hold_is_refused(column: str, value: Any, said: str) -> None:
    """Does a cast make another guess of it without a word? Ordinal 2^32 + 1 would be block 1."""
    right: dict[str, Any] = {"layer": [1], "ordinal": [1], "after_layer": 0, "cause": PATTERN}
    assert len(guesses(**right)) == 1 and len(guesses(**right | {"layer": [], "ordinal": []})) == 0
    with pytest.raises(ValueError, match=re.escape(said)):
        guesses(**right | {column: value})


def test_a_wrong_beginning_is_one_line() -> None:
    for answer, said in ((one(ordinal=3), "ordinal 3;"), (KeyError("x"), "KeyError")):
        with pytest.raises(BadInput, match=f"begin of session 4: policy 'fixed'.*{said}"):
            checked_begin(fixed(answer), 4, 3, None, 2)
    first = one(layer=0)
    assert checked_begin(fixed(first), 4, 3, None, 2) is first, "no layer has run yet"


def test_components_answer_in_their_order() -> None:
    kinds = [type(fixed(one(ordinal=ordinal))) for ordinal in (2, 0, 1)]
    answer = Opened(kinds, setting()).step(view(0, [[1, 2, 3]] * 2))
    assert answer["ordinal"].tolist() == [2, 0, 1]
    assert len(Opened([], setting()).step(view(0, [[1]] * 2))) == 0


def test_what_fails_to_open_is_bad_input() -> None:
    def fails(self: Any, setting: Setting) -> None:
        raise error

    kind: Any = type("Fails", (Answers,), {"__init__": fails})
    for error in (OSError("no such weights"), SystemExit("no such weights")):
        said = f"'fixed' cannot be opened: {type(error).__name__}: no such weights"
        with pytest.raises(BadInput, match=said):
            Opened([kind], setting())
    names = {row.name for row in listing() if "lookahead" in row.name} | {"oasiskv-draft"}
    for name in names:
        with pytest.raises(BadInput, match=f"policy '{name}'"):
            parse(name).open(setting())


def test_the_page_lists_what_there_is() -> None:
    text = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", text, re.MULTILINE)
    unbuilt = EVICTION_SOURCES.keys() - set(EVICTIONS)  # evictions this core does not have
    rows = [row for row in rows if row[0] not in unbuilt]
    assert rows == [(row.name, row.uses, row.source) for row in listing()]


def test_every_eviction_is_a_policy() -> None:
    for name in EVICTIONS:
        assert find(name).core == CoreSwitches(eviction=name)
    assert no_guesses().dtype == GUESS and GUESS.itemsize == 16
