"""Does QoS keep a victim's latency while another tenant or session overloads the device, and does
the session reach the chip through the timing seam?"""

from offstage.asic_model.chip import open_chip
from offstage.asic_model.neighbours import neighbours
from offstage.asic_model.parameters import read_preset
from offstage.bindings.network import Limits


def test_a_victim_is_kept_from_an_aggressor_by_qos_alone() -> None:
    found = {
        (one.qos, one.same_tenant, one.aggressor_share): one.victim_ns_p99
        for one in neighbours(read_preset("asic_7nm"), (0.1, 1.2), 32768)
    }
    assert len(found) == 6
    for same_tenant in (False, True):
        kept, alone = found[True, same_tenant, 1.2], found[True, same_tenant, 0.1]
        assert kept < 3 * alone, "served at once, whatever the other asks"
        assert found[False, False, 1.2] > 5 * kept, "in order of arrival it waits behind all"


def test_sessions_are_told_apart_through_the_timing_seam() -> None:
    """On a drive that takes one read at a time, a session submits forty blocks, then another one of
    its tenant submits one. It waits only for the few already granted; with a long round, or no
    entry for either session in the chip, it waits for all."""

    def place(**changes: float) -> tuple[int, list[dict[str, int | None]]]:
        preset = read_preset("asic_7nm").with_({"nvme.drives": 1, "nvme.queue": 1, **changes})
        chip = open_chip(preset, Limits(in_flight_max=256))
        timing = chip.timing()
        for tag in range(40):
            assert (
                timing.ask("read", 0, tag=tag, size_bytes=65536, session=7, offset_bytes=tag << 16)
                is None
            )
        timing.ask("read", 0, tag=40, size_bytes=65536, session=8, offset_bytes=40 << 16)
        ends = [tag for tag, _ in timing.poll(10**12)]
        return ends.index(40), chip.session_stats("qos")

    at, stats = place()
    assert at < 6 and [(one["session"], one["taken"]) for one in stats] == [(7, 40), (8, 1)]
    at, stats = place(**{"qos.sessions": 8})  # session 8 has no entry: it shares its tenant's
    assert at < 6 and [(one["session"], one["taken"]) for one in stats] == [(7, 40), (None, 1)]
    at, stats = place(**{"qos.sessions": 4})
    assert at == 40 and [(one["session"], one["taken"]) for one in stats] == [(None, 41)]
    at, _ = place(**{"qos.session_rounds": 64})
    assert at == 40, "a round as long as the whole load"
