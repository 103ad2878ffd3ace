"""Does QoS keep a victim's latency where another tenant asks for more than there is?"""

from offstage.asic_model.neighbours import neighbours
from offstage.asic_model.parameters import read_preset


def test_a_victim_is_kept_from_an_aggressor_by_qos_alone() -> None:
    found = {(one.qos, one.aggressor_share): one.victim_ns_p99
             for one in neighbours(read_preset("asic_7nm"), (0.1, 1.2), 32768)}  # fmt: skip
    assert found[True, 1.2] < 3 * found[True, 0.1], "served at once, whatever the other asks"
    assert found[False, 1.2] > 5 * found[True, 1.2], "in order of arrival it waits behind all"
