"""Is every format of request traces read correctly, and every defect named in one line?"""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_schema import checked
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run
from offstage.testbeds.workloads.requests.collector import runs_of
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.lmcache import chained_ids
from offstage.testbeds.workloads.requests.importer import FORMATS, open_trace, write_trace

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))
REAL = {
    "mooncake_conversation_0-2400s.jsonl.gz": ("mooncake", 7_851, 512),
    "lmcache_magagent_dev.jsonl.gz": ("lmcache", 529, 64),
    "lmcache_miniswe_dev.jsonl.gz": ("lmcache", 260, 64),
    "sharegpt_llmservingsim_300.jsonl.gz": ("sharegpt", 300, 16),
    "azure_llm_2023_conv.csv.gz": ("azure", 19_366, None),
}

WEKA = {
    "id": "one",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "type": "s", "in": 130, "out": 5, "hash_ids": [1, 2, 3], "think_time": 0.0},
        {
            "t": 10.0,
            "type": "subagent",
            "requests": [{"t": 2.5, "in": 64, "out": 1, "hash_ids": [7]}],
        },
        {"t": 11.0, "type": "n", "in": 128, "out": 5, "hash_ids": [1, 2], "think_time": 4.0},
    ],
}
CALLS = [
    {"timestamp": 5_000_000, "input": "x" * 300, "output": "y" * 40, "session_id": "s"},
    {"timestamp": 3_000_000, "input": "x" * 256, "output": "", "session_id": "s"},
]
HASHED = {"timestamp": 5, "input_length": 32, "output_length": 7, "hash_runs": [[4, 2]]}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n"


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def same(a: Trace, b: Trace) -> bool:
    """Return whether all columns, session names and block sizes are equal."""
    arrays = ("arrival_s", "think_s", "input_tokens", "output_tokens", "offsets", "run_first")
    equal = all(
        np.array_equal(getattr(a, name), getattr(b, name), equal_nan=name == "think_s")
        for name in (*arrays, "run_count", "turn")
    )
    names = [
        [one.session_names[i] if i >= 0 else None for i in one.session.tolist()] for one in (a, b)
    ]
    return equal and names[0] == names[1] and a.block_tokens == b.block_tokens


@pytest.mark.parametrize("name", REAL)
def test_the_content_tells_the_format(name: str, tmp_path: Path) -> None:
    """Each published file is recognised by its content and unchanged by an import."""
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"no {name}; point OFFSTAGE_TRACES at the folder that holds it")
    trace = open_trace(path)
    assert (trace.origin.format, len(trace), trace.block_tokens) == REAL[name]
    assert trace.origin.licence and len(trace.origin.sha256[0]) == 64
    out = tmp_path / "t.jsonl.gz"
    write_trace(trace, out)
    again = open_trace(out)
    assert same(trace, again) and again.origin == trace.origin
    first = out.read_bytes()
    write_trace(again, out)
    assert out.read_bytes() == first, "the same trace gives the same bytes"
    assert len(open_trace(out, limit=10)) == 10


def test_weka_upstream_and_re_encoded_are_one_trace(tmp_path: Path) -> None:
    """Both forms give the same requests, sub-agents included, and ids private to each session."""
    other = {**WEKA, "id": "two"}
    flat = [
        {"t": 0.0, "in": 130, "out": 5, "runs": [[1, 3]], "think": 0.0},
        {"t": 12.5, "in": 64, "out": 1, "runs": [[7, 1]]},
        {"t": 11.0, "in": 128, "out": 5, "runs": [[1, 2]], "think": 4.0},
    ]
    one = tmp_path / "trace_0001.json"
    one.write_text(json.dumps(WEKA, indent=2))
    two = jsonl(tmp_path / "trace_0002.json", other)
    lines = jsonl(tmp_path / "s.jsonl", *({**s, "requests": flat} for s in (WEKA, other)))
    upstream, coded = open_trace([one, two]), open_trace(lines)
    assert same(upstream, coded)
    assert upstream.origin.format == coded.origin.format == "weka"
    assert upstream.session_names == ("one", "two")
    firsts = upstream.arrival_s[upstream.turn == 0]
    assert firsts.tolist() == [0.0, 8 * 3600 * 0.6180339887498949]
    assert upstream.arrival_s[:3].tolist() == [0.0, 11.0, 12.5]
    sets = [set(upstream.block_ids(i).tolist()) for i in range(6)]
    assert not set.union(*sets[:3]) & set.union(*sets[3:])
    shared = open_trace(
        [jsonl(tmp_path / f"{i}.json", {**WEKA, "hash_id_scope": "global"}) for i in (1, 2)]
    )
    assert shared.runs.block_count == 4


def test_lmcache_text_becomes_chained_blocks_in_order_of_time(tmp_path: Path) -> None:
    """A prompt's text is hashed by prefix, lengths are in tokens, and the order is that of time."""
    trace = open_trace(jsonl(tmp_path / "session.jsonl", *CALLS))
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.input_tokens.tolist() == [64, 75] and trace.output_tokens.tolist() == [0, 10]
    short, long = (trace.block_ids(i).tolist() for i in (0, 1))
    assert len(long) == 2 and long[:1] == short
    assert chained_ids(b"a" * 512)[1] != chained_ids(b"b" * 256 + b"a" * 256)[1]
    assert trace.turn.tolist() == [0, 1] and trace.gap_s[1] == 2.0


def test_servegen_draws_what_the_rates_say(tmp_path: Path) -> None:
    """The rates give the number of arrivals, the seed their times, independent of other clients."""
    rates = "0,0,0,,0,0\n600,2.0,1.0,Gamma,1.0,0.5\n"
    bursty = "600,4.0,3.0,Weibull,0.6,0.1\n"
    both = archive(tmp_path / "a.tar.gz", {"x/b-trace.csv": bursty, "x/a-trace.csv": rates})
    alone = archive(tmp_path / "b.tar.gz", {"x/a-trace.csv": rates})
    trace, again = open_trace(both, seed=3), open_trace(both, seed=3)
    assert same(trace, again) and not same(trace, open_trace(both, seed=4))
    assert abs(len(trace) - 3600) < 600  # 10 minutes of 6 requests a second
    assert (np.diff(trace.arrival_s) >= 0).all() and trace.arrival_s[-1] < 600
    assert set(open_trace(alone, seed=3).arrival_s) < set(trace.arrival_s)
    assert "synthetic" in trace.origin.notes[0] and trace.block_tokens is None
    with pytest.raises(BadInput, match="no folder 'y'"):
        open_trace(both, "servegen:y")


def test_servegen_draws_lengths_from_the_clients_own(tmp_path: Path) -> None:
    """Those of the last window that began, in their shares; a client without any is told."""
    rates = "0,0,0,,0,0\n600,2.0,1.0,Gamma,1.0,0.5\n"
    lengths = {
        "0": {"input_tokens": "{10: 1.0}", "output_tokens": "{1: 1}", "image_tokens": "{}"},
        "300": {"input_tokens": "{100: 3, 200.0: 1}", "output_tokens": "{7: 0.5}"},
        "900": {"input_tokens": "{9: 1}", "output_tokens": "{9: 1}"},
    }
    files = {"x/a-trace.csv": rates, "x/a-dataset.json": json.dumps(lengths)}
    trace = open_trace(archive(tmp_path / "a.tar.gz", files))
    assert set(trace.input_tokens.tolist()) == {100, 200} and set(trace.output_tokens) == {7}
    assert 0.7 < (trace.input_tokens == 100).mean() < 0.8
    assert trace.origin.notes[1] == "lengths drawn from those of 1 of 1 clients"
    assert "the tables image_tokens" in trace.origin.notes[2]
    both = open_trace(archive(tmp_path / "b.tar.gz", {**files, "x/b-trace.csv": rates}))
    assert both.origin.notes[1].endswith("1 of 2 clients") and "Azure" in both.origin.notes[2]
    assert both.input_tokens.max() > 200


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        ("{", "not JSON"),
        ('{"a": {"input_tokens": "{}", "output_tokens": "{}"}}', "at no time"),
        ('{"0": {"input_tokens": "{1: 1}"}}', "no output_tokens"),
        ('{"0": {"input_tokens": "{1: 1}", "output_tokens": 7}}', "no text of a dict"),
        (
            '{"0": {"input_tokens": "{1: -1}", "output_tokens": "{1: 1}"}}',
            "'1: -1' is not a length",
        ),
        (
            '{"0": {"input_tokens": "{-1: 1}", "output_tokens": "{1: 1}"}}',
            "'-1: 1' is not a length",
        ),
        ('{"0": {"input_tokens": "{1: 0}", "output_tokens": "{1: 1}"}}', "shares of 0"),
    ],
)
def test_lengths_that_are_none(lengths: str, what: str, tmp_path: Path) -> None:
    files = {"x/a-trace.csv": "600,2.0,1.0,Gamma,1.0,0.5\n", "x/a-dataset.json": lengths}
    with pytest.raises(BadInput) as caught:
        open_trace(archive(tmp_path / "t", files))
    assert what in caught.value.what and "x/a-dataset.json" in caught.value.where
    assert "\n" not in str(caught.value)


Bad = Callable[[Path], Path | Sequence[Path]]


def text(content: str) -> Bad:
    def write(folder: Path) -> Path:
        path = folder / "t"
        path.write_text(content)
        return path

    return write


def rows(*values: object) -> Bad:
    return lambda folder: jsonl(folder / "t", *values)


def packed(content: bytes, keep: float) -> Bad:
    def write(folder: Path) -> Path:
        path, data = folder / "t", gzip.compress(content)
        path.write_bytes(data[: int(len(data) * keep)])
        return path

    return write


OURS = {"offstage_trace": 1, "name": "n", "format": "f", "requests": 1, "block_tokens": 64}
LONG = b"".join(json.dumps({**HASHED, "timestamp": n}).encode() + b"\n" for n in range(900))


@pytest.mark.parametrize(
    ("bad", "place", "what"),
    [
        (text(""), "t", "holds no request"),
        (text("hello\n"), "t:1", "no format of request traces"),
        (text("[1]\n"), "t:1", "no format of request traces"),
        (packed(LONG, 0.6), "t:", "torn"),
        (rows(HASHED, {**HASHED, "timestamp": 4}), "t:2", "before"),
        (rows(HASHED, {**HASHED, "timestamp": -4}), "t:2", ">= 0"),
        (rows(HASHED, {**HASHED, "hash_runs": [[4, 9]]}), "t:2", "9 blocks for 32 input tokens"),
        (rows(HASHED, {**HASHED, "hash_runs": [[4, 0]]}), "t:2", "run of 0 ids"),
        (rows(HASHED, {**HASHED, "hash_runs": [[2**63 - 2, 2]]}), "t:2", "run of 2 ids"),
        (rows(HASHED, {**HASHED, "session": 3}), "t:2", 'only some lines have "session"'),
        (rows({**HASHED, "timestamp": None}), "t:1", "Expected `float`"),
        (text(json.dumps(HASHED) + "\n" + '{"timestamp": NaN}\n'), "t:2", "not JSON"),
        (text(json.dumps(HASHED) + "\n" + json.dumps(HASHED)[:30]), "t:2", "torn"),
        (rows({**WEKA, "requests": [{"t": 1, "in": 64, "out": 1}]}), "t:1", "neither"),
        (rows({**WEKA, "requests": [{"t": -1, "in": 0, "hash_ids": []}]}), "t:1", ">= 0"),
        (rows({**WEKA, "requests": []}), "t", "hold no request"),
        (rows(WEKA, {**WEKA, "block_size": 16}), "t:2", "blocks of 16 tokens, of 64 before"),
        (rows({k: v for k, v in WEKA.items() if k != "id"}), "t:1", "missing required field `id`"),
        (rows({**CALLS[0], "session_id": 3}), "t:1", "Expected `str`"),
        (text(AZURE + "2023-11-16 18:15:46.4,374,44\n"), "t:3", "earlier than the first"),
        (text(AZURE + "2023-11-16 18:15:47,NaN,44\n"), "t:3", "not a number of tokens"),
        (text(AZURE + "2023-11-16 18:15:47,-3,44\n"), "t:3", "not a number of tokens"),
        (text(AZURE + "2023-13-16 18:15:47,3,44\n"), "t:3", "'2023-13-16 18:15:47'"),
        (text(AZURE + "2023-11-16 18:15:47,3\n"), "t:3", "2 fields"),
        (text(AZURE.splitlines()[0] + "\n"), "t", "holds no request"),
        (
            lambda d: archive(d / "t", {"x/a-trace.csv": "600,nan,1,Gamma,1,1\n"}),
            "a-trace.csv:1",
            "rate",
        ),
        (
            lambda d: archive(d / "t", {"x/a-trace.csv": "600,1,1,Pareto,1,1\n"}),
            "a-trace.csv:1",
            "rate",
        ),
        (lambda d: archive(d / "t", {"x/a-trace.csv": "600,0,0,,0,0\n"}), "t", "no rate above 0"),
        (rows({**OURS, "offstage_trace": 2}), "t:1", "version 2"),
        (rows(OURS), "t", "0 requests, the header says 1"),
        (
            rows({**OURS, "block_tokens": None}, {"t": 0, "in": 64, "out": 1, "runs": [[1, 1]]}),
            "t:2",
            "without block_tokens",
        ),
        (lambda d: [jsonl(d / "t", HASHED)] * 2, "t", "2 files of a format"),
        (lambda d: d / "absent", "absent", "no such file"),
        (lambda d: d, "", "cannot be read"),
    ],
)
def test_every_defect_is_one_line_with_its_place(
    tmp_path: Path, bad: Bad, place: str, what: str
) -> None:
    """Nothing is skipped, and no defect causes a traceback."""
    with pytest.raises(BadInput) as caught:
        open_trace(bad(tmp_path))
    assert what in caught.value.what
    assert place in caught.value.where
    assert caught.value.fix and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "servegen"])
@given(garbage=st.binary(max_size=200))
def test_garbage_is_bad_input_to_every_reader(
    tmp_path_factory: Any, name: str, garbage: bytes
) -> None:
    """Every byte string is a trace or a BadInput, even when the user names a format."""
    path = tmp_path_factory.mktemp("garbage") / "t"
    begins = (b"", json.dumps(HASHED).encode() + b"\n", AZURE.encode(), json.dumps(OURS).encode())
    for begin in begins:
        path.write_bytes(begin + garbage)
        for format in (None, name):
            try:
                assert len(open_trace(path, format).arrival_s) > 0
            except BadInput as error:
                assert "\n" not in str(error) and error.where and error.fix


@pytest.mark.parametrize("raw", [b"a,b\rc,d\r", b'a,"' + b"x" * 200_000])
def test_a_file_of_another_kind_is_of_no_format(raw: bytes, tmp_path: Path) -> None:
    """A comma in it does not make it a table, whose lines are then complained of."""
    (tmp_path / "t").write_bytes(raw)
    with pytest.raises(BadInput, match=r"t:1: matches no format of request traces; check the file"):
        open_trace(tmp_path / "t")


@given(st.lists(st.integers(0, 2**63 - 2), max_size=20))
def test_runs_hold_the_ids_in_order(ids: list[int]) -> None:
    """Run-length coding loses nothing, whatever the ids."""
    assert [first + i for first, count in runs_of(ids) for i in range(count)] == ids


def test_the_command_imports_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`trace info` reads the output of `trace import`; a refusal is one line with exit code 2."""
    session = jsonl(tmp_path / "s.jsonl", *CALLS)
    out = tmp_path / "o.jsonl.gz"

    def offstage(*words: object) -> int:
        return run([str(word) for word in words])

    assert offstage("trace", "import", session, "--out", out, "--format", "json") == 0
    done = checked("trace import", capsys.readouterr().out)
    assert (done["format"], done["requests"], done["sessions"]) == ("lmcache", 2, 1)
    assert offstage("trace", "info", out, "--format", "json") == 0
    info = checked("trace info", capsys.readouterr().out)
    assert info["format"] == "lmcache" and info["session_count"] == 1
    assert info["notes"] == done["notes"] and len(info["notes"]) == 2
    other = jsonl(tmp_path / "t.jsonl", *({**call, "session_id": "u"} for call in CALLS))
    few = ("trace", "import", session, other, "--limit", 1, "--format", "json")
    assert offstage(*few, "--out", tmp_path / "few.jsonl") == 0
    done = checked("trace import", capsys.readouterr().out)
    assert (done["requests"], done["sessions"]) == (1, 1), "sessions of what is left out count"
    assert offstage("trace", "import", session, "--out", session / "o") == 2
    assert offstage("trace", "import", session, "--trace-format", "csv", "--out", out) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and "is not a folder" in errors[0] and "no format 'csv'" in errors[1]
