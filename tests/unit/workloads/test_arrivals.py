"""Do sessions start in order, within the limit at once, and is time compressed as stated?"""

from hypothesis import given
from hypothesis import strategies as st

from offstage.testbeds.workloads.requests.sessions import admit, compress, compression_for

seconds = st.floats(0, 100, allow_nan=False).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30), st.integers(1, 5))
def test_admission_is_first_come_first_served(
    rows: list[tuple[float, float]], sessions_max: int
) -> None:
    """A session starts at its arrival, or as soon as another ends, and never sooner."""
    arrivals = sorted(arrival for arrival, _ in rows)
    durations = [duration for _, duration in rows]
    starts = admit(arrivals, durations, sessions_max)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    assert starts == sorted(starts)
    for number, (arrival, start) in enumerate(zip(arrivals, starts, strict=True)):
        running_on_arrival = sum(end > arrival for end in ends[:number])
        running_on_start = sum(end > start for end in ends[:number])
        assert running_on_start < sessions_max
        assert start >= arrival
        if running_on_arrival < sessions_max:
            assert start == arrival
        else:
            assert start in ends[:number]


@given(st.floats(0, 1e5), st.floats(0.1, 100))
def test_compression_brings_the_span_to_the_target(span_s: float, target_s: float) -> None:
    """The factor fits the span into the target, uses most of it, and has two digits."""
    factor = compression_for(span_s, target_s)
    assert span_s / factor <= target_s * (1 + 1e-9) and factor >= 1
    if factor > 1:
        assert span_s / factor >= target_s * 0.9
        assert float(f"{factor:.1e}") == factor


def test_compression_divides_every_gap() -> None:
    """The first arrival is at zero; all gaps are divided by one factor."""
    assert compress([5000.0, 5000.0, 8000.0, 11000.0], 2.0) == [0.0, 0.0, 1.5, 3.0]
