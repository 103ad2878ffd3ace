"""Does the time unit of a trace reach every command that takes one?"""

from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.bench.engines.arrivals import arrivals_of
from offstage.testbeds.lab.pod.requests import requests_of
from offstage.testbeds.lab.pod.spec import load_spec
from offstage.testbeds.lab.run.requests import RequestsOptions, run_requests
from offstage.testbeds.workloads.requests.importer import open_trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trace in Mooncake's format, with times from 0 to 10 s in seconds."""
    file = tmp_path / "seconds.jsonl"
    file.write_text(
        "".join(
            f'{{"timestamp": {n}, "input_length": 1024, "output_length": 4, '
            f'"hash_ids": [1, {n + 2}]}}\n'
            for n in range(11)
        )
    )
    return file


@pytest.mark.parametrize(("unit", "last_s"), [("", 0.01), ("s", 10.0)])
def test_a_pod_of_the_laboratory(path: Path, unit: str, last_s: float) -> None:
    asked = requests_of(load_spec(None, {"trace": str(path), "time_unit": unit}), 1, 1)
    assert asked.arrival_ns[-1] / 1e9 == pytest.approx(last_s)


def test_times_that_change_their_unit_are_noted(tmp_path: Path) -> None:
    """From seconds to milliseconds; a long pause is none, and back again is out of order."""

    def notes(*times: int) -> str:
        file = tmp_path / "t.jsonl"
        lines = (
            f'{{"timestamp": {at}, "input_length": 9, "output_length": 1, "hash_ids": [1]}}\n'
            for at in times
        )
        file.write_text("".join(lines))
        return str(open_trace(file).origin.notes)

    assert "request 4 arrives at 64 s, the one before it at 0.063 s" in notes(0, 62, 63, 64000)
    assert notes(0, 62, 63, 50000) == "()"
    with pytest.raises(BadInput, match=r"t\.jsonl:3: .* is before"):
        notes(62000, 63000, 64)


def test_a_unit_without_a_trace_is_refused() -> None:
    with pytest.raises(BadInput, match="time_unit"):
        load_spec(None, {"time_unit": "s"})


def test_prompts_for_an_engine(path: Path) -> None:
    made = arrivals_of(
        path,
        count=20,
        context_tokens=512,
        vocabulary=1000,
        seconds=1.0,
        outputs=4,
        seed=1,
        time_unit="s",
    )
    assert made.hurry == pytest.approx(10.0)


def test_caches_of_requests(path: Path) -> None:
    """A TTL expires more blocks if the times are in seconds."""
    (in_ms,), (in_s,) = (
        {
            row.block_hit_rate
            for row in run_requests(
                RequestsOptions(
                    (path,),
                    time_unit=unit,
                    ttls_s=(0.5,),
                    evictions=("lru",),
                    capacity_shares=(0.5,),
                )
            )
        }
        for unit in (None, "s")
    )
    assert in_s < in_ms
