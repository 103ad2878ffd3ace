"""What a trace says and a run of decode sessions does not use: is each told where it is so?"""

from offstage.testbeds.workloads.requests.columns import Columns, Origin, Trace
from offstage.testbeds.workloads.requests.in_vain import unused


def trace_of(*, sessions: bool = False, think_s: float | None = None) -> Trace:
    columns = Columns(64, ordered=True)
    for number in range(4):
        columns.add("here", float(number), 640, 8, [(0, 10)],
                    session=f"s{number % 2}" if sessions else None, think_s=think_s)  # fmt: skip
    return columns.finish(Origin("some", "test"))


def codes(trace: Trace, contexts: list[int], steps: list[int], outputs: bool = True) -> set[str]:
    found = unused(trace, contexts, steps, context_tokens_max=512, steps_max=8,
                   lengths_of_outputs=outputs)  # fmt: skip
    assert all("some" in note.what for note in found)
    return {note.code for note in found}


def test_lengths_that_are_cut_alike() -> None:
    assert codes(trace_of(), [512, 512], [8, 3]) == {"cut-alike"}
    assert codes(trace_of(), [512, 448], [8, 8]) == {"outputs-cut-alike"}
    assert codes(trace_of(), [512, 448], [8, 3]) == set()
    assert codes(trace_of(), [512], [8]) == set(), "one request is no pattern"


def test_outputs_that_a_fixed_number_of_steps_replaces() -> None:
    assert codes(trace_of(), [512, 448], [8, 8], outputs=False) == {"outputs-unused"}


def test_sessions_and_think_times_that_nobody_follows() -> None:
    assert codes(trace_of(sessions=True), [512, 448], [8, 3]) == {"sessions-unused"}
    assert codes(trace_of(sessions=True, think_s=2.0), [512, 448], [8, 3]) == {
        "sessions-unused", "think-unused",
    }  # fmt: skip
