"""Does a line of `dpu status --watch` show exactly the events between two polls?"""

from offstage.bindings.ledger import Ledger
from offstage.testbeds.cli.watch import COLUMNS, Look, _between, _shown


def look(read: int, wanted: int) -> Look:
    return Look(
        hosts=1,
        sessions=2,
        ledger=Ledger(demand_bytes_read=read, demand_bytes_wanted=wanted),
        bytes_read=1000,
        bytes_written=0,
        busy_ns=10,
        idle_ns=10,
        sleep_ns=20,
        dirty_blocks=0,
        errors=0,
        draining=False,
    )


def test_read_amplification_is_of_the_interval() -> None:
    """It covers the reads since the last poll; none without granules, or after a reset."""
    row = _between(look(5000, 4000), look(8000, 6000), 1.0)
    assert row.read_amplification == 1.5 and _shown(row)["over"] == "1.50"
    for before, after in ((look(0, 0), look(900, 0)), (look(9, 9), look(0, 0))):
        row = _between(before, after, 1.0)
        assert row.read_amplification is None and _shown(row)["over"] == "none"
    assert list(_shown(row)) == list(COLUMNS)
