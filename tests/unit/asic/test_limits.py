"""What does a table of the chip that is too small cost, and is a large enough one without cost?"""

import json
import os
from pathlib import Path

import pytest
from against_schema import checked

from offstage.asic_model.known import KnownPrefixes
from offstage.asic_model.limits import limit_rows
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.result import ChipRun
from offstage.asic_model.trace import Trace, read_trace
from offstage.testbeds.cli import run
from offstage.testbeds.lab.run.experiment import plan
from offstage.testbeds.lab.run.record import record
from offstage.testbeds.progress import Silent

LAYERS, CHUNKS, SHARED = 4, 64, 32
ROOT = Path(__file__).resolve().parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))
CONVERSATION = TRACES / "mooncake_conversation_0-2400s.jsonl.gz"


def decided(folder: Path, policy: str, concurrent: int, **changes: object) -> Path:
    """Four sessions of 64 chunks; the first and third begin with the same 32, so do the others."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "e.toml").write_text("")
    keys: dict[str, object] = {
        "workload.context_tokens": CHUNKS * 64,
        "workload.shared_prefix_tokens": SHARED * 64,
        "workload.groups": 2,
        "workload.sessions": 4,
        "workload.concurrent": concurrent,
        "workload.steps": 12,
        "geometry.model": "demo",
        "selection.k_blocks": 8,
        "tier.buffer_over_k": [4],
        "policy": [{"use": policy}],
    }
    keys |= {f"workload.{key}": value for key, value in changes.items()}
    return record(plan(folder / "e.toml", keys), policy, folder, Silent())


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(decided(tmp_path, "window+shared", 1))


def with_entries(trace: Trace, entries: int) -> tuple[ChipRun, KnownPrefixes]:
    found = closed_loop(trace, read_preset("asic_7nm").with_({"dedup.entries": entries}))
    assert found.prefixes is not None
    return found, found.prefixes


@pytest.mark.parametrize(
    ("entries", "known"), [(10_000, 64), (96, 64), (95, 62), (80, 32), (64, 0)]
)
def test_an_index_finds_what_was_used_last(trace: Trace, entries: int, known: int) -> None:
    """Between two uses of a prefix come the 64 chunks of another session: an index of 64 and the
    prefix's 32 finds it, one less loses its end each time. What was lost is written again."""
    run, found = with_entries(trace, entries)
    assert (found.named, found.known_unlimited, found.known) == (4 * CHUNKS, 2 * SHARED, known)
    lost = 2 * SHARED - known
    assert found.bytes_written_again == lost * LAYERS * trace.block_bytes
    assert run.demands == trace.ends.sum() and "refused append" not in run.diverged


def test_what_is_not_known_is_read_beside(tmp_path: Path) -> None:
    """Sessions that decode together share staged blocks; where the index lost the prefix, each
    has its own, and more is read. In software there is no such limit."""
    together = read_trace(decided(tmp_path, "window+shared", 4))
    (all_of_it, _), (none, lost) = with_entries(together, 10_000), with_entries(together, 1)
    assert none.reads > all_of_it.reads and lost.known == 0
    assert none.bytes_to_hosts == all_of_it.bytes_to_hosts == together.ends.sum() * 32768
    assert sum(none.diverged.values()) > sum(all_of_it.diverged.values())
    software = closed_loop(together, read_preset("bluefield3")).prefixes
    assert software is not None and software.entries is None
    assert software.known == software.known_unlimited == 2 * SHARED


@pytest.mark.skipif(
    not CONVERSATION.exists(),
    reason=f"no {CONVERSATION.name}; point OFFSTAGE_TRACES at the folder that holds it",
)
def test_a_smaller_index_finds_less_of_a_real_trace(tmp_path: Path) -> None:
    """Requests of a chat service that begin with the same 512 tokens, 8 chunks, and have no more in
    common: an index of 64 finds all of them, one of 4 the first half. The rest is written again."""
    lengths = {"context_tokens_min": 4096, "sessions": 48, "steps": 2, "layers": 1}
    many = {"trace": str(CONVERSATION), "shared_prefix_tokens": 0, "groups": 1, **lengths}
    trace = read_trace(decided(tmp_path, "window+shared", 2, **many))
    found = [with_entries(trace, entries)[1] for entries in (10**6, 64, 4)]
    assert found[0].known == found[0].known_unlimited > 0
    assert [one.known for one in found] == [47 * 8, 47 * 8, 47 * 4]
    for one in found:
        lost = one.known_unlimited - one.known
        assert one.bytes_written_again == lost * trace.block_bytes


def test_a_row_says_what_a_size_costs_or_that_it_costs_nothing(trace: Trace) -> None:
    asked = {"dedup.entries": [10_000, 64], "scheduler.candidates": [4096, 1]}
    rows = list(limit_rows(trace, read_preset("asic_7nm"), asked, advance=lambda count: None))
    index, candidates = rows[:3], rows[3:]
    assert [one.entries for one in index] == [None, 10_000, 64]
    assert [one.has_effect for one in index] == [False, False, True]
    assert index[2].known_lost_points == pytest.approx(100 * 2 * SHARED / (4 * CHUNKS))
    assert index[1].hit == index[0].hit and index[1].hit_lost_points == 0
    assert not candidates[1].has_effect and candidates[2].has_effect
    assert candidates[2].bytes_written_again == 0


def test_guesses_come_in_no_more_than_the_table_holds(tmp_path: Path) -> None:
    """As the firmware hands them to its core: a table of 16 takes a first hint of hundreds."""
    warmed = read_trace(decided(tmp_path, "warmup+ema", 4))
    small = read_preset("asic_7nm").with_({"scheduler.candidates": 16})
    assert "refused hint" not in closed_loop(warmed, small).diverged


def test_the_command_prints_and_keeps_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(decided(tmp_path, "window+shared", 1))
    many = ["asic", "run", folder, "--closed-loop", "--limit", "dedup.entries=96,64"]
    assert run(many) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "A dedup index of 96 entries has no effect" in said
    assert "A dedup index of 64 entries loses 25.0 points of sharing, writes" in said
    assert run([*many, "--format", "json"]) == 0
    document = capsys.readouterr().out
    checked("asic run", document)
    assert [one["known"] for one in json.loads(document)["limits"]] == [0.25, 0.25, 0.0]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--limit", "dedup.entries=64"], "add --closed-loop"),
        (["--closed-loop", "--limit", "dedup.entries=x"], "not a list of sizes"),
        (["--closed-loop", "--limit", "dedup.entrys=64"], "did you mean 'dedup.entries'"),
        (["--closed-loop", "--limit", "dedup.entries=0"], "dedup.entries"),
        (["--closed-loop", "--preset", "bluefield3", "--limit", "dedup.entries=9"], "in memory"),
    ],
)
def test_a_table_that_cannot_be_is_one_line(
    options: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the log is read."""
    assert run(["asic", "run", "nowhere", *options]) == 2
    said = capsys.readouterr().err
    assert what in said and said.count("\n") == 1
