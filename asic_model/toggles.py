"""The energy of a cycle of a synthesized block, from the toggles of its gates.

Model: the mapped netlist runs in 64 courses at once, one in each bit of a number. Inputs are drawn
anew in each cycle but for those that are held, after a reset. What toggles between two cycles
charges or discharges the pins that it leads to (C V^2 / 2), and its gate takes what the library's
power tables have in their middle, which vary by a tenth over load and slope. Flops take the
energy of their clock pin in each cycle. Gates have no delay, so nothing toggles twice in a cycle;
wires, clock tree and leakage are not seen. So it is a lower bound of what is busy all the time.

What can fail: `BadInput` for a cell that the libraries do not describe.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from offstage.bindings.errors import BadInput

__all__ = ["cycle_pj"]

COURSES = 64
RESET, WARM, COUNTED = 4, 60, 64  # cycles: of reset, until the pipeline is full, of the count
MASK = (1 << COURSES) - 1
FEMTO_IN_PICO = 1000
CLOCK, RST = "clk", "rst"
BRACE = re.compile(r"[{}]")
CELL = re.compile(r"\bcell\s*\(\s*\"?(\w+)\"?\s*\)")


@dataclass
class Cell:
    """A cell of the library: capacitances in fF, energies in fJ. `pins`: of each input; `taken`: by
    a toggle of a pin, the output's included; `clock`: of a flop."""

    output: str
    function: str
    next_state: str = ""
    clock: str = ""
    pins: dict[str, float] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)


def cycle_pj(netlist: Mapping[str, Any], libraries: str, held: Mapping[str, int]) -> float:
    """Picojoules of a mean cycle. `netlist`: a module as yosys writes it in JSON; `libraries`: the
    text of all liberty files; `held`: inputs that keep a value."""
    used = list(netlist["cells"].values())
    places = {found[1]: found.end() for found in CELL.finditer(libraries)}
    kinds = {kind: _cell(libraries, places, kind) for kind in {one["type"] for one in used}}
    volts = float(_first(r"nom_voltage\s*:\s*([0-9.]+)", libraries, "nom_voltage"))
    nets = 1 + max(bit for one in used for pin in one["connections"].values() for bit in _bits(pin))
    nets = max(nets, 2)
    per_toggle, per_cycle = [0.0] * nets, 0.0
    for one in used:
        kind = kinds[one["type"]]
        for pin, (bit,) in one["connections"].items():
            energy = kind.pins.get(pin, 0.0) * volts**2 / 2 + kind.taken.get(pin, 0.0)
            if pin == kind.clock:
                per_cycle += 2 * energy
            elif isinstance(bit, int):
                per_toggle[bit] += energy
    toggles = _toggles(netlist, kinds, held, nets)
    per_cycle += sum(one * often for one, often in zip(per_toggle, toggles, strict=True))
    return per_cycle / FEMTO_IN_PICO


def _toggles(
    netlist: Mapping[str, Any], kinds: Mapping[str, Cell], held: Mapping[str, int], nets: int
) -> list[float]:
    """How often each net toggles in a cycle."""
    draw = random.Random(1)
    values = [0] * nets
    drawn = []
    for name, port in netlist["ports"].items():
        if port["direction"] == "input" and name != CLOCK:
            for place, bit in enumerate(port["bits"]):
                if name not in held and name != RST:
                    drawn.append(bit)
                values[bit] = MASK if held.get(name, 0) >> place & 1 else 0
    resets = netlist["ports"].get(RST, {"bits": []})["bits"]
    flops, settle, clock = _programs(netlist, kinds)
    for bit in flops:
        values[bit] = draw.getrandbits(COURSES)
    count = [0] * nets
    before = list(values)
    for cycle in range(RESET + WARM + COUNTED):
        for bit in resets:
            values[bit] = MASK if cycle < RESET else 0
        for bit in drawn:
            values[bit] = draw.getrandbits(COURSES)
        exec(settle, {"v": values, "M": MASK})  # noqa: S102 - made of the library's functions
        if cycle >= RESET + WARM:
            for net, (old, new) in enumerate(zip(before, values, strict=True)):
                count[net] += (old ^ new).bit_count()
        before = list(values)
        exec(clock, {"v": values, "M": MASK})  # noqa: S102
    return [toggles / (COURSES * COUNTED) for toggles in count]


def _programs(netlist: Mapping[str, Any], kinds: Mapping[str, Cell]) -> tuple[list[int], Any, Any]:
    """The flops' outputs, the program that settles all gates, and the one of a clock's edge."""
    flops, edges, gates = [], [], {}
    for one in netlist["cells"].values():
        kind, pins = kinds[one["type"]], one["connections"]
        if kind.output not in pins:
            continue
        target = pins[kind.output][0]
        if kind.next_state:
            flops.append(target)
            edges.append((target, _filled(kind.next_state, pins)))
        else:
            gates[target] = (
                _filled(kind.function, pins),
                {b for p in pins.values() for b in _bits(p)},
            )
    order = TopologicalSorter(
        {target: (bits - {target}) & gates.keys() for target, (_, bits) in gates.items()}
    ).static_order()
    settle = "\n".join(f"v[{bit}]={gates[bit][0]}&M" for bit in order)
    # All flops see what was before the edge.
    clock = "n=[" + ",".join(f"{text}&M" for _, text in edges) + "]\n"
    clock += "\n".join(f"v[{bit}]=n[{index}]" for index, (bit, _) in enumerate(edges))
    return flops, compile(settle or "0", "gates", "exec"), compile(clock, "flops", "exec")


def _filled(function: str, pins: Mapping[str, list[Any]]) -> str:
    """A function of the library as an expression over the nets at its pins."""

    def value(name: re.Match[str]) -> str:
        bit = pins[name[0]][0]
        return f"v[{bit}]" if isinstance(bit, int) else "M" if bit == "1" else "0"

    text = re.sub(r"[A-Za-z_]\w*", value, function)
    return "(" + text.replace("!", "~").replace("*", "&").replace("+", "|") + ")"


def _bits(pin: list[Any]) -> Iterator[int]:
    return (bit for bit in pin if isinstance(bit, int))


def _cell(libraries: str, places: Mapping[str, int], name: str) -> Cell:
    """What the libraries say of a cell, which begins at one of the places."""
    if name not in places:
        raise BadInput(f"no cell {name}", "liberty files", "give those that it was mapped with")
    text = _group(libraries, places[name])
    state = re.search(r"\bff\s*\(\s*\"?(\w+)\"?\s*,\s*\"?(\w+)\"?\s*\)", text)
    found = Cell("", "")
    for pin in re.finditer(r"(?<!pg_)\bpin\s*\(\s*\"?(\w+)\"?\s*\)", text):
        body = _group(text, pin.end())
        function = re.search(r"\bfunction\s*:\s*\"(.*?)\"", body)
        if function:
            found.output, found.function = pin[1], function[1]
        else:
            found.pins[pin[1]] = float(_first(r"\bcapacitance\s*:\s*([0-9.]+)", body, name))
        if function or state:
            found.taken[pin[1]] = _taken(body)
    if state:
        body = _group(text, state.end())
        found.clock = _first(r"clocked_on\s*:\s*\"(\w+)\"", body, name)
        next_state = _first(r"next_state\s*:\s*\"(.*?)\"", body, name)
        found.next_state = next_state if found.function == state[1] else f"!({next_state})"
    return found


def _taken(pin: str) -> float:
    """The mean energy of a toggle of a pin: over rise and fall and over the cases that the library
    has, each the sum of what comes out of the two supplies; from the middle of each table."""
    cases: dict[str, float] = {}
    for start in re.finditer(r"\binternal_power\s*\(\s*\)", pin):
        body = _group(pin, start.end())
        case = " ".join(re.findall(r"(?:related_pin|when)\s*:\s*\"(.*?)\"", body))
        for table in re.findall(r"(?:rise|fall)_power.*?values\s*\((.*?)\)", body, re.S):
            rows = re.findall(r"\"(.*?)\"", table)
            row = rows[len(rows) // 2].split(",")
            cases[case] = cases.get(case, 0.0) + float(row[len(row) // 2]) / 2
    return sum(cases.values()) / len(cases) if cases else 0.0


def _group(text: str, start: int) -> str:
    """What stands between the next brace and the one that closes it."""
    begin, depth = text.index("{", start), 0
    for brace in BRACE.finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.end()]
    raise BadInput("a group has no end", "liberty files", "give whole files")


def _first(pattern: str, text: str, where: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise BadInput(
            f"no {pattern.split(':')[0].strip()}", f"liberty files: {where}", "check them"
        )
    return found[1]
