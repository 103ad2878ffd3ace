"""Are traces with sessions, other block sizes or lengths alone read as their authors mean them?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run
from offstage.testbeds.workloads.requests.importer import open_trace, write_trace


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def asked(tokens: int, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """Return a line of Mooncake's form, with an answer of 10 tokens."""
    named = {} if ids is None else {"hash_ids": ids}
    return {"input_length": tokens, "output_length": 10} | named | more


def chat(chat_id: int, parent: int, at_s: float, ids: list[int], **more: Any) -> dict[str, Any]:
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": at_s,
        "input_length": 16 * len(ids) - 3,
        "output_length": 7,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    } | more


# AIPerf's sessions in Mooncake's form.


def test_a_turn_with_a_delay_follows_the_one_before(tmp_path: Path) -> None:
    """Sessions that overlap are sorted by time, and the delay counts from the turn before."""
    trace = open_trace(
        jsonl(
            tmp_path / "t",
            asked(600, [1, 2], session_id="a", timestamp=1000),
            asked(100, [3], session_id="a", delay=2500),
            asked(100, [4], session_id="a", delay=500),
            asked(100, [5], session_id="b", timestamp=2000),
        )
    )
    assert trace.arrival_s.tolist() == [1.0, 2.0, 3.5, 4.0]
    assert [trace.session_names[one] for one in trace.session] == ["a", "b", "a", "a"]
    assert trace.follows.tolist() == [False, False, True, True]
    assert trace.think_s[2:].tolist() == [2.5, 0.5] and np.isnan(trace.think_s[:2]).all()
    assert any("2 turns with a delay in place of a timestamp" in one for one in trace.origin.notes)
    again = tmp_path / "o.jsonl"
    write_trace(trace, again)
    assert open_trace(again).follows.tolist() == trace.follows.tolist()
    assert open_trace(again).origin.notes == trace.origin.notes


def test_what_is_new_in_a_turn_continues_its_session(tmp_path: Path) -> None:
    """A prompt is all before it, answers included: whole blocks are shared with later turns of the
    session, a tail is not, and other sessions share what the first turns name."""
    trace = open_trace(
        jsonl(
            tmp_path / "t",
            asked(1300, [1, 2, 3], session_id="a", timestamp=0),
            asked(800, [4, 5], session_id="a", delay=1000),
            asked(5, [6], session_id="a", delay=1000),
            asked(1300, [1, 2, 7], session_id="b", timestamp=9000),
            asked(800, [8, 9], session_id="b", delay=1000),
        )
    )
    assert trace.input_tokens.tolist() == [1300, 2110, 2125, 1300, 2110]
    first, second, third, other, others = (trace.block_ids(n).tolist() for n in range(5))
    assert first == [1, 2, 3] and other == [1, 2, 7]
    assert len(second) == 5 and second[:2] == [1, 2] and 3 not in second
    assert third[:4] == second[:4] and third[4] != second[4], "tails of different length"
    assert others[:2] == [1, 2] and not set(others[2:]) & set(second)
    assert any("3 turns of what is new alone" in one for one in trace.origin.notes)


def common(a: list[Any], b: list[Any]) -> int:
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_prompts_of_turns_share_what_their_tokens_share(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int, int]], alike: int
) -> None:
    """Against tokens written out: turns, answers and what is new, in blocks of 4 tokens. First
    turns share their first blocks, and no two texts of later turns are alike."""
    block, fresh = 4, iter(range(100, 10**6))
    said: dict[int, list[tuple[int, int]]] = {}
    rows, texts = [], []
    for session, new, answer in turns:
        shared = alike if session not in said else 0
        ids = [n if n < shared else next(fresh) for n in range(-(-new // block))]
        if shared and new < block * shared:
            ids[new // block :] = [next(fresh) for _ in ids[new // block :]]
        text = [*said.get(session, []), *((ids[n // block], n % block) for n in range(new))]
        follows = {"delay": 1} if session in said else {"timestamp": len(rows)}
        rows.append(
            asked(new, ids, session_id=f"s{session}", **follows) | {"output_length": answer}
        )
        said[session] = [*text, *((-next(fresh), n) for n in range(answer))]
        texts.append((session, text))
    path = jsonl(tmp_path_factory.mktemp("turns") / "t", *rows)
    trace = open_trace(path, "mooncake", block_tokens=block)
    taken: dict[str, list[list[tuple[int, int]]]] = {}
    for session, text in texts:
        taken.setdefault(f"s{session}", []).append(text)
    order = [taken[trace.session_names[one]].pop(0) for one in trace.session.tolist()]
    assert trace.input_tokens.tolist() == [len(text) for text in order]
    ids_of = [trace.block_ids(n).tolist() for n in range(len(trace))]
    for n, one in enumerate(order):
        for m in range(n):
            assert common(ids_of[n], ids_of[m]) == common(one, order[m]) // block


@pytest.mark.parametrize("mode", [{}, {"context_mode": "message_array_with_responses"}])
def test_a_turn_may_have_its_whole_prompt(mode: dict[str, str], tmp_path: Path) -> None:
    """It says so, or begins with the block with which the turn before began."""
    trace = open_trace(
        jsonl(
            tmp_path / "t",
            asked(600, [1, 2], session_id=1, timestamp=0, **mode),
            asked(1100, [1, 3, 4], session_id=1, timestamp=500, delay=20, **mode),
        )
    )
    assert trace.input_tokens.tolist() == [600, 1100]
    assert trace.block_ids(1).tolist() == [1, 3, 4]
    assert not trace.follows.any() and trace.think_s[1] == 0.02
    assert trace.origin.notes == ()


def test_lengths_without_ids_or_times(tmp_path: Path) -> None:
    """Requests without a time begin together, and nothing is said to be shared."""
    trace = open_trace(jsonl(tmp_path / "t", asked(600), asked(70)))
    assert trace.block_tokens is None and trace.arrival_s.tolist() == [0.0, 0.0]
    assert trace.origin.notes == (
        "no timestamps: all requests begin together at 0 s",
        "format mooncake names no blocks: what prompts share is not known, and no reuse is assumed",
    )


# Block sizes.


def in_blocks(path: Path, block_tokens: int, count: int = 9) -> Path:
    """Write prompts of 3 blocks and a part, with ids of `block_tokens` tokens."""
    return jsonl(
        path,
        *(
            asked(
                3 * block_tokens + 1 + n % (block_tokens - 1), [0, 1, 2, 9 + n], timestamp=1000 * n
            )
            for n in range(count)
        ),
    )


@pytest.mark.parametrize("block_tokens", [16, 64, 256, 2048])
def test_a_block_size_is_detected_if_one_fits(block_tokens: int, tmp_path: Path) -> None:
    trace = open_trace(in_blocks(tmp_path / "t", block_tokens))
    assert trace.block_tokens == block_tokens
    assert f"blocks read as {block_tokens} tokens" in trace.origin.notes[0]


def test_a_block_size_is_the_users(tmp_path: Path) -> None:
    """One that is no power of two is told; one that does not fit is refused at its line, as are
    too few lines to tell."""
    path = in_blocks(tmp_path / "t", 100)
    with pytest.raises(BadInput, match="--block-tokens: 78 to 100 fit"):
        open_trace(path)
    trace = open_trace(path, block_tokens=100)
    assert trace.block_tokens == 100
    assert trace.origin.notes == ("blocks read as 100 tokens; format mooncake has 512",)
    with pytest.raises(BadInput, match="4 hash_ids for 301 input tokens") as caught:
        open_trace(path, block_tokens=200)
    assert caught.value.where == f"{path}:1"
    with pytest.raises(BadInput, match="--block-tokens"):
        open_trace(in_blocks(tmp_path / "few", 64, 3))
    alike = jsonl(tmp_path / "alike", *(asked(96, [0, 1, 2, 9], timestamp=n) for n in range(9)))
    with pytest.raises(BadInput, match="--block-tokens: 24 to 31 fit"):
        open_trace(alike)
    azure = text(
        tmp_path / "a", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n"
    )
    with pytest.raises(BadInput, match="azure leaves no choice"):
        open_trace(azure, block_tokens=64)


# Other services.


def test_qwen_names_the_chat_of_each_request(tmp_path: Path) -> None:
    """Requests belong to the chat of their parent, also to one from before the trace."""
    path = jsonl(
        tmp_path / "t",
        chat(5, -1, 0.25, [1, 2]),
        chat(6, 99, 1.0, [8]),
        chat(7, 5, 61.5, [1, 2, 3], turn=2),
        chat(9, 7, 90.0, [1, 2, 3, 4], turn=3),
        chat(8, 99, 91.0, [8, 9]),
    )
    trace = open_trace(path)
    assert (trace.origin.format, trace.block_tokens) == ("qwen", 16)
    assert [trace.session_names[one] for one in trace.session] == ["5", "99", "5", "5", "99"]
    assert trace.turn.tolist() == [0, 0, 1, 2, 1]
    assert trace.arrival_s.tolist() == [0.25, 1.0, 61.5, 90.0, 91.0]
    assert trace.origin.notes == (
        "keys that format qwen does not read have no effect: turn (5 times), type (5 times)",
    )


V1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
V2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


def test_burstgpt_of_both_versions(tmp_path: Path) -> None:
    """Columns are found by name; failures are kept; calls of the API are of no session."""
    one = open_trace(text(tmp_path / "1", V1 + "5,ChatGPT,472,18,490,Conversation log\n"))
    assert (one.origin.format, one.input_tokens[0], one.output_tokens[0]) == ("burstgpt", 472, 18)
    assert one.arrival_s[0] == 5.0 and not one.has_sessions
    two = open_trace(
        text(
            tmp_path / "2",
            V2
            + "19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log\n"
            + "19440161.5,,2,ChatGPT,36,0,36,API log\n",
        )
    )
    assert two.session.tolist() == [0, -1] and two.session_names == ("1722ac82-0a46",)
    assert two.arrival_s[1] - two.arrival_s[0] == 51.5
    assert two.origin.notes[:2] == (
        "1 request without an answer: failed upstream, kept here",
        "sessions named by 1 of 2 requests: no figures of them",
    )
    assert two.origin.notes[-1].startswith("columns that format burstgpt does not read")


def test_azure_of_three_years(tmp_path: Path) -> None:
    """Each year writes its times in another way, and 2025 counts images."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    of_2024 = "2024-05-12 00:00:00.001163+00:00,1452,3\n2024-05-12 00:00:02+00:00,584,3\n"
    trace = open_trace(text(tmp_path / "2024", head + of_2024))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 1.998837])
    of_2025 = "2024-10-15T12:00:00.269Z,0,770,491\n2024-10-15T12:00:05.819Z,3,949,126\n"
    images = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    trace = open_trace(text(tmp_path / "2025", images + of_2025))
    assert trace.origin.format == "azure" and trace.input_tokens.tolist() == [770, 949]
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 5.55])
    assert trace.origin.notes[-1] == (
        "columns that format azure does not read have no effect: NumImages (2 times)"
    )


SESSION = {"session_id": "a"}
Rows = Callable[[Path], Path]


def rows(*values: object) -> Rows:
    return lambda path: jsonl(path, *values)


def lines(content: str) -> Rows:
    return lambda path: text(path, content)


@pytest.mark.parametrize(
    ("bad", "line", "what"),
    [
        (rows(asked(9, **SESSION, timestamp=0), asked(9, timestamp=0)), 2, '"session_id"'),
        (rows(asked(9, timestamp=0), asked(9, [1], timestamp=1)), 2, 'some lines have "hash_ids"'),
        (rows(asked(9, timestamp=0), asked(9)), 2, 'some lines have "timestamp"'),
        (
            rows(asked(9, **SESSION, timestamp=0), asked(9, session_id="b")),
            2,
            'only some first turns have "timestamp"',
        ),
        (
            rows(asked(9, **SESSION), asked(9, **SESSION, timestamp=7)),
            2,
            "the first turn of the session has no",
        ),
        (
            rows(
                asked(9, **SESSION, timestamp=0),
                asked(9, **SESSION, timestamp=7),
                asked(9, **SESSION, delay=7),
            ),
            3,
            'only some later turns of a session have "timestamp"',
        ),
        (
            rows(asked(9, **SESSION, timestamp=8), asked(9, **SESSION, timestamp=7)),
            2,
            "is before its session's last",
        ),
        (rows(asked(9, **SESSION, timestamp=0), asked(9, **SESSION, delay=-7)), 2, ">= 0"),
        (rows(asked(9, timestamp=0), {"input_length": 9, "timestamp": 1}), 2, "`output_length`"),
        (rows(chat(1, -1, 0, [1]), chat(1, -1, 1, [1])), 2, "chat_id 1 appears twice"),
        (rows(chat(2, 1, 0, [1]), chat(1, -1, 1, [1])), 2, "chat_id 1 comes after an answer"),
        (rows(chat(2, 1, 5, [1]), chat(3, -1, 1, [1])), 2, "before the previous one"),
        (rows(chat(2, 1, 5, [1]), chat(3, -1, 6, [1], input_length=90)), 2, "1 blocks for 90"),
        (
            lines(V1 + "5,ChatGPT,472,18,490,log\n-1,ChatGPT,472,18,490,log\n"),
            3,
            "'-1' is not a time",
        ),
        (lines(V1 + "5,ChatGPT,472,18,490,log\n4,ChatGPT,472,18,490,log\n"), 3, "before the prev"),
        (lines(V1 + "5,ChatGPT,472,18,490,log\n6,Chat"), 3, "the last line is torn"),
        (lines(V1 + "5,ChatGPT,47.5,18,490,log\n"), 2, "Request tokens '47.5' is not a number"),
        (lines(V1 + "5,ChatGPT,47,18,490,log\n\n"), 3, "0 fields"),
        (
            lines(
                "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                "2024-05-12 00:00:00Z,1,1\n2024-05-12 00:00:01,1,1\n"
            ),
            3,
            "only some times name a zone",
        ),
    ],
)
def test_a_defect_is_named_with_its_line(bad: Rows, line: int, what: str, tmp_path: Path) -> None:
    path = bad(tmp_path / "t")
    with pytest.raises(BadInput) as caught:
        open_trace(path)
    assert what in caught.value.what and caught.value.where == f"{path}:{line}"
    assert caught.value.fix and "\n" not in str(caught.value)


def test_a_table_without_a_column_is_named(tmp_path: Path) -> None:
    path = text(tmp_path / "t", "Timestamp,Model,Request tokens\n5,ChatGPT,472\n")
    with pytest.raises(BadInput, match="has no column Response tokens"):
        open_trace(path, "burstgpt")


def test_ids_that_leave_no_room_are_refused(tmp_path: Path) -> None:
    """Blocks of continued prompts have ids of their own, which a trace must not use."""
    path = jsonl(
        tmp_path / "t",
        asked(600, [2**63 - 3, 2**63 - 2], session_id="a", timestamp=0),
        asked(600, [1, 2], session_id="a", delay=0),
    )
    with pytest.raises(BadInput, match="leaves no room"):
        open_trace(path)


def test_a_long_file_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes are counted as they lie on disk; a short file is read in silence."""
    path = in_blocks(tmp_path / "t", 512, 400)
    assert run(["trace", "info", str(path)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("offstage.testbeds.cli.trace.LONG_BYTES", 1)
    assert run(["trace", "info", str(path)]) == 0
    assert f"[1/2] read: {path.stat().st_size:,} bytes" in capsys.readouterr().err
    told: list[int] = []
    open_trace(path, counted=told.append)
    assert sum(told) == path.stat().st_size
