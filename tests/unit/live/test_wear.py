"""Are a run's bytes, including prefill, those written between two polls of its daemon?"""

from offstage.dpu.protocol.status import WearFigures
from offstage.testbeds.live.wear import Written, run_wear, written


def look(host: int, drive: int) -> WearFigures:
    return WearFigures(host_bytes=host, drive_bytes=drive, hits=0, drive_writes_per_day=0.5)


def test_a_run_has_what_prefill_and_decode_wrote() -> None:
    """1,000 B of prefill, and 200 of decode for 4 hits; 1,000 of them are the host's records."""
    empty, filled, ended = look(50, 70), look(950, 1070), look(1050, 1270)
    found = run_wear(4, written(empty, filled), written(filled, ended), ended)
    assert found == {
        "prefill_bytes": 1000,
        "decode_bytes": 200,
        "written_per_hit_bytes": 300.0,
        "amplification": 1.2,
        "drive_writes_per_day": 0.5,
        "life_years": None,
    }
    nothing = run_wear(0, written(empty, empty), written(empty, empty), empty)
    assert nothing["written_per_hit_bytes"] is None and nothing["amplification"] is None


def test_without_the_operators_status_there_is_no_wear() -> None:
    """If a poll was refused, there is no figure rather than an invented one."""
    some = look(1, 1)
    assert written(None, some) is None and written(some, None) is None
    assert run_wear(4, None, Written(1, 1), some) == {}
