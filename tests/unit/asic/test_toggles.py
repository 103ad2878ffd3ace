"""Is the energy of a netlist that of its toggles, pins and clock, as sums by hand give it?"""

import pytest

from offstage.asic_model.toggles import cycle_pj
from offstage.bindings.errors import BadInput

VOLTS, GATE_PIN, DATA_PIN, CLOCK_PIN = 0.5, 2.0, 4.0, 8.0
POWER = 'rise_power (t) { values ("RISE"); } fall_power (t) { values ("FALL"); }'
LIBRARY = """library (one) { nom_voltage : 0.5;
  cell (NAND) {
    pg_pin (VDD) { pg_type : primary_power; }
    pin (Y) { direction : output; function : "(!A) + (!B)";
      internal_power () { related_pin : "A"; related_pg_pin : VDD; POWER_Y }
      internal_power () { related_pin : "A"; related_pg_pin : VSS; POWER_Y } }
    pin (A) { direction : input; capacitance : 2.0; }
    pin (B) { direction : input; capacitance : 2.0; } }
  cell ("FLOP") {
    pin (QN) { direction : output; function : "IQN"; }
    pin (D) { direction : input; capacitance : 4.0; }
    pin (CLK) { direction : input; capacitance : 8.0;
      internal_power () { when : "D"; POWER_CLK } internal_power () { when : "!D"; POWER_CLK } }
    ff (IQN, IQNN) { clocked_on : "CLK"; next_state : "!D"; } }
  cell (TURNED) {
    pin (QN) { direction : output; function : "IQN"; }
    pin (D) { direction : input; capacitance : 4.0; }
    pin (CLK) { direction : input; capacitance : 8.0; internal_power () { when : "D"; POWER_CLK }
      internal_power () { when : "!D"; POWER_CLK } }
    ff (IQ, IQN) { clocked_on : "CLK"; next_state : "D"; } }
}
"""
GATE_FJ, CLOCK_FJ = 2 * (1 + 3) / 2, (5 + 7) / 2
LIBRARY = LIBRARY.replace("POWER_Y", POWER.replace("RISE", "1").replace("FALL", "3"))
LIBRARY = LIBRARY.replace("POWER_CLK", POWER.replace("RISE", "5").replace("FALL", "7"))


def port(bits: list[int], direction: str = "input") -> dict[str, object]:
    return {"direction": direction, "bits": bits}


def netlist(**cells: tuple[str, dict[str, object]]) -> dict[str, object]:
    """Clock 2, inputs a (3) and b (4); cells by name, with the net at each pin."""
    return {
        "ports": {"clk": port([2]), "a": port([3]), "b": port([4])},
        "cells": {
            name: {"type": kind, "connections": {pin: [net] for pin, net in pins.items()}}
            for name, (kind, pins) in cells.items()
        },
    }


def test_a_gate_takes_energy_as_it_toggles() -> None:
    """One input is drawn, the other held at one: the output follows, in half of all cycles. Held at
    zero, the output stands still, and only the drawn pin is charged."""
    one = netlist(gate=("NAND", {"A": 3, "B": 4, "Y": 5}))
    pin = GATE_PIN * VOLTS**2 / 2
    assert cycle_pj(one, LIBRARY, {"b": 1}) == pytest.approx(0.5 * (pin + GATE_FJ) / 1000, rel=0.05)
    assert cycle_pj(one, LIBRARY, {"b": 0}) == pytest.approx(0.5 * pin / 1000, rel=0.05)
    assert cycle_pj(one, LIBRARY, {"a": 1, "b": 1}) == 0


def test_a_flop_takes_its_clock_in_each_cycle() -> None:
    """Two edges charge the pin and take its power; what stands still adds nothing."""
    one = netlist(flop=("FLOP", {"D": 3, "CLK": 2, "QN": 5}))
    clock = 2 * (CLOCK_PIN * VOLTS**2 / 2 + CLOCK_FJ)
    assert cycle_pj(one, LIBRARY, {"a": 1, "b": 1}) == pytest.approx(clock / 1000)


@pytest.mark.parametrize("flop", ["FLOP", "TURNED"])
def test_a_flop_gives_what_it_had(flop: str) -> None:
    """A flop that takes its own inverted output toggles the pins behind it in every cycle."""
    ring = netlist(
        flop=(flop, {"D": 5, "CLK": 2, "QN": 5}), gate=("NAND", {"A": 5, "B": "0", "Y": 6})
    )
    pins = (DATA_PIN + GATE_PIN) * VOLTS**2 / 2
    clock = 2 * (CLOCK_PIN * VOLTS**2 / 2 + CLOCK_FJ)
    assert cycle_pj(ring, LIBRARY, {"a": 0, "b": 0}) == pytest.approx((pins + clock) / 1000)


def test_a_cell_that_no_library_has_is_refused() -> None:
    with pytest.raises(BadInput, match="no cell XOR"):
        cycle_pj(netlist(gate=("XOR", {"A": 3, "B": 4, "Y": 5})), LIBRARY, {})
