"""Synthesis of the RTL: area, flops and longest path of each block, by yosys and its abc.

Model: the cells come from liberty files that the caller has; several are merged into one, without
their power tables, because yosys takes one. Each block of `hardware.BLOCKS` is mapped at its two
sizes. Memories marked `ram_style = "block"` stay outside, as SRAM macros would. abc maps, buffers
and sizes the gates; it sees no wires and no flop's own delay, so the clock is an upper bound. Where
random inputs keep a block busy, its gates' toggles give the energy of a cycle (`toggles.py`).

What can fail: `BadInput` where yosys is missing, a liberty file cannot be read or has no flop, or
yosys refuses a block.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from offstage.asic_model.hardware import BLOCKS, RTL, TABLE, Row, Synthesis, size_text
from offstage.asic_model.toggles import cycle_pj
from offstage.bindings.errors import BadInput

__all__ = ["synthesize", "write_table"]

CURE = "install Debian's packages yosys and berkeley-abc"
TOKENS = re.compile(r'"[^"]*"|/\*.*?\*/|[{};]', re.S)
UNUSED = ("internal_power", "leakage_power", "power_lut_template")
# Without dc2, which undoes the adders' prefix trees to save area.
ABC = "strash; dch; map -B 0.9; topo; buffer -c; upsize; dnsize; stime -p"
SCRIPT = """read_verilog {sources}
{sizes}
synth -top {top} -flatten -run begin:fine
memory_map -attr !ram_style
opt -fast -full
techmap
opt -fast
dfflibmap -liberty {library}
abc -liberty {library} -script {abc}
tee -o {area} stat -liberty {library}
write_json {netlist}
"""


def synthesize(
    libraries: Sequence[Path], node_nm: int, blocks: Iterable[str], told: Callable[[str], None]
) -> Synthesis:
    """The rows of these blocks, at the size of their tests and at the larger one."""
    program = shutil.which("yosys")
    if program is None or shutil.which("yosys-abc") is None:
        raise BadInput("yosys and its abc are missing", "synthesis", CURE)
    version = _run([program, "-V"]).split("(")[0].strip()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        merged = Path(folder) / "cells.lib"
        names = merge(libraries, merged)
        whole = "".join(path.read_text() for path in libraries)
        for block in blocks:
            both = {size_text(one): one for one in (BLOCKS[block].tested, BLOCKS[block].larger)}
            for sizes in both.values():
                told(f"{block} {size_text(sizes)}")
                row, netlist = _map(program, block, sizes, merged)
                busy = BLOCKS[block].busy
                if busy is not None:
                    energy = round(cycle_pj(netlist, whole, busy), 2)
                    row = msgspec.structs.replace(row, cycle_pj=energy)
                rows.append(row)
    return Synthesis(library=", ".join(names), node_nm=node_nm, program=version, rows=rows)


def write_table(found: Synthesis) -> None:
    """Write the table; rows of the same library that were not made anew are kept."""
    rows = {(row.block, row.size): row for row in found.rows}
    if TABLE.exists():
        old = msgspec.toml.decode(TABLE.read_bytes(), type=Synthesis)
        known = {
            (name, size_text(size))
            for name, one in BLOCKS.items()
            for size in (one.tested, one.larger)
        }
        if old.library == found.library and old.program == found.program:
            kept = {(row.block, row.size): row for row in old.rows}
            rows = {key: row for key, row in kept.items() if key in known} | rows
    order = list(BLOCKS)
    ordered = sorted(rows.values(), key=lambda row: (order.index(row.block), row.area_um2))
    table = msgspec.structs.replace(found, rows=ordered)
    plain = msgspec.to_builtins(table)
    for row in plain["rows"]:
        if row["cycle_pj"] is None:
            del row["cycle_pj"]
    TABLE.write_text(tomli_w.dumps(plain))


def merge(libraries: Sequence[Path], merged: Path) -> list[str]:
    """Write one liberty file with the cells of all, without power tables; gives their names."""
    names, parts, head = [], [], ""
    for path in libraries:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            fix = "unpack it, or check the path"
            raise BadInput(f"cannot be read: {error}", str(path), fix) from None
        found = re.search(r"library\s*\(\s*\"?([^\")]+?)\"?\s*\)", text)
        if found is None:
            raise BadInput("is not a liberty file", str(path), "give a .lib file of standard cells")
        names.append(found[1])
        head = head or "library (cells) {\n"
        for statement in _statements(text[found.start() :]):
            kind = statement.split("(")[0].strip()
            if len(names) == 1 or kind in ("cell", "lu_table_template"):
                parts.append(statement)
    whole = head + "".join(dict.fromkeys(parts)) + "\n}\n"
    if not re.search(r"\bff\s*\(", whole):
        where = ", ".join(map(str, libraries))
        raise BadInput("no flop among the cells", where, "give the library's sequential cells too")
    merged.write_text(whole)
    return names


def _statements(text: str) -> list[str]:
    """What stands directly in a library, each with its groups but those of power."""
    found: list[str] = []
    pieces: list[str] = []
    depth = dropped = last = 0
    for token in TOKENS.finditer(text):
        if token[0] not in "{};":
            continue
        before = text[last : token.end()]
        last = token.end()
        if token[0] == "{":
            depth += 1
            if dropped == 0 and before.split("(")[0].split()[-1] in UNUSED:
                dropped = depth
        if (dropped == 0 and depth > 1) or (dropped == 0 and token[0] == ";"):
            pieces.append(before)
        if token[0] == "}":
            depth -= 1
            if dropped > depth:
                dropped = 0
        if depth == 1 and token[0] in "};" and pieces:
            found.append("".join(pieces))
            pieces = []
        if depth == 0 and token[0] == "}":
            break
    return found


def _map(
    program: str, block: str, sizes: dict[str, int], library: Path
) -> tuple[Row, dict[str, Any]]:
    """One block at one size; and its netlist, as yosys writes it."""
    folder = library.parent
    files = ("script.ys", "abc.script", "area.txt", "netlist.json")
    script, abc, area, netlist = (folder / name for name in files)
    abc.write_text("\n".join(ABC.split("; ")) + "\n")
    sources = " ".join(str(path) for path in sorted(RTL.glob("*.v")))
    settings = "".join(f" -set {name} {value}" for name, value in sizes.items())
    script.write_text(
        SCRIPT.format(
            sources=sources,
            top=block,
            library=library,
            abc=abc,
            area=area,
            netlist=netlist,
            sizes=f"chparam{settings} {block}" if sizes else "",
        )
    )
    log = _run([program, str(script)])
    delays = re.findall(r"Delay =\s*([0-9.]+) ps", log)
    cells = area.read_text()
    total = re.search(r"Chip area for (?:top )?module .*: ([0-9.]+)", cells)
    if not delays or total is None:
        raise BadInput("no delay or area in what yosys printed", block, "see its log")
    flops = sum(int(count) for count in re.findall(r"\b[A-Z]*DFF\w*\s+(\d+)", cells))
    row = Row(
        block=block,
        size=size_text(sizes),
        area_um2=round(float(total[1]), 1),
        flops=flops,
        path_ps=float(delays[-1]),
    )
    modules = msgspec.json.decode(netlist.read_bytes())["modules"].values()
    return row, next(one for one in modules if one["attributes"].get("top"))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise BadInput(f"yosys failed: {' '.join(last)}", "synthesis", CURE)
    return done.stdout
