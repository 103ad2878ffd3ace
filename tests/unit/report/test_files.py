"""Does a summary survive the disk, and is anything else refused in one line?"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_keys import RUN_KEYS

from offstage.bindings.errors import BadInput
from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report import DEFINITIONS, as_text, read_summary, write_report, write_summary


def test_round_trip(made: SimpleNamespace, tmp_path: Path) -> None:
    summary = made.summary()
    write_summary(summary, tmp_path / "new/summary.json")
    assert read_summary(tmp_path / "new") == summary == read_summary(tmp_path / "new/summary.json")
    plain = json.loads((tmp_path / "new/summary.json").read_text())
    assert RUN_KEYS <= set(plain["runs"][0]) and {"workload", "machine", "seed"} <= set(plain)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["summary.json"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(text=st.text(max_size=60))
def test_any_text_survives(made: SimpleNamespace, tmp_path: Path, text: str) -> None:
    """Each list is written on one line; a text that looks like a list is left as it is."""
    held = text + "[\n1, 2\n]"
    load = msgspec.structs.replace(made.WORKLOAD, sentence=held, policy={held: [held]})
    summary = made.summary(runs=[], command=held, workload=load)
    try:
        held.encode()
    except UnicodeEncodeError:
        return
    write_summary(summary, tmp_path / "summary.json")
    assert read_summary(tmp_path) == summary


def test_every_figure_is_defined_and_nothing_else() -> None:
    fields = list(RunResult.__struct_fields__)
    assert [entry.key for entry in DEFINITIONS if entry.key not in fields] == []
    assert [field for field in fields if field not in as_text()] == []
    assert len(DEFINITIONS) == len(fields)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not a summary"),
        (b"[]", "not a summary"),
        (b'{"runs": []}', "workload"),
        (b"\xff\xfe{}", "not a summary"),
        (b"[" * 100_000, "not a summary"),
        (b'{"runs": 1e999}', "not a summary"),
    ],
)
def test_what_is_no_summary_is_refused(tmp_path: Path, content: bytes, word: str) -> None:
    file = tmp_path / "summary.json"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=word) as refused:
        read_summary(tmp_path)
    assert "\n" not in str(refused.value) and str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hit", 1.5),
        ("miss", -0.1),
        ("demands", -1),
        ("hit_rate_by_step", [0.5]),
        ("hit_rate_by_step", [-0.5] * 300),
        ("stall_ms_by_token", [-1.0]),
        ("coverage", 1.5),
        ("hit", 0.5),
        ("late", 0.5),
        ("miss", 0.5),
        ("hit_without_cold", 0.5),
        ("selected", 1),
        ("ends", {"elsewhere": 1}),
        ("ends", {"late": -1}),
        ("nontrivial_ends", {"window": -1}),
        ("fates", {"window": {"used": -1}}),
        ("fates", {"window": {"lost": 1}}),
    ],
)
def test_what_cannot_be_true_is_refused(
    made: SimpleNamespace, tmp_path: Path, key: str, value: Any
) -> None:
    """Also a figure that the counts beside it contradict: a page would show both."""
    plain = json.loads(msgspec.json.encode(made.summary()))
    plain["runs"][2][key] = value
    (tmp_path / "summary.json").write_text(json.dumps(plain))
    with pytest.raises(BadInput, match=r"runs\[2\]"):
        read_summary(tmp_path)


def test_absent_and_unwritable(made: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_summary(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is not a folder"):
        write_report(made.summary(), tmp_path / "file/report.html")
