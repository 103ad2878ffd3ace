"""Do blocks of the chip keep their promises in every state, not only in those drawn?

The promises stand in the Verilog, under `FORMAL`; yosys's own solver looks for a course that breaks
one. A break of each kind is tried as well: a proof that cannot fail proves nothing.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

RTL = Path(__file__).resolve().parents[3] / "asic_model/rtl"
DEPTHS = {"qos_arbiter": 28, "channel_queue": 10, "chunk_key": 10}  # cycles from reset
DEPTHS |= {"candidate_heap": 24, "dma_engines": 14}
CREDITS = """module top (
    input clk, rst, in_valid, in_urgent, credit_back, input [1:0] in_cycles, input [2:0] in_tag
);
    channel_queue #(.QUEUE_BITS(1), .CREDITS(3), .CREDIT_BITS(2), .CYCLES_BITS(2),
        .TAG_BITS(3)) dut (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_urgent(in_urgent), .in_cycles(in_cycles),
        .in_tag(in_tag), .credit_back(credit_back));
endmodule
"""
ARBITER = """module top (
    input clk, rst, put, take, put_tenant, put_session, input [1:0] put_cost,
    input [5:0] put_deadline
);
    qos_arbiter #(.TENANT_BITS(1), .DEPTH_BITS(1), .SESSION_BITS(1), .COST_BITS(2), .TAG_BITS(1),
        .TIME_BITS(6), .AGE_BITS(3), .ROUND_BITS(1)) dut (
        .clk(clk), .rst(rst), .put_valid(put), .take(take), .put_tenant(put_tenant),
        .put_session(put_session), .put_cost(put_cost), .put_tag(1'b0),
        .put_deadline(put_deadline), .turn_bytes({2{32'd3}}), .rate(128'd0), .burst(128'd0),
        .session_max(2'd2), .session_quantum(32'd0), .ahead_max(6'd31));
endmodule
"""
KEYS = """module top (
    input clk, rst, in_valid, in_short, credit_back, input [127:0] in_secret, in_parent, in_content
);
    chunk_key #(.ID_BITS(1), .CREDITS(3), .CREDIT_BITS(2)) dut (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_short(in_short), .in_secret(in_secret),
        .in_parent(in_parent), .in_content(in_content), .in_id(1'b0), .credit_back(credit_back));
endmodule
"""
HEAP = """module top (
    input clk, rst, in_valid, in_take, input [1:0] in_deadline, input in_chance
);
    candidate_heap #(.LEVELS(3), .QUEUE_BITS(1), .TIME_BITS(2), .CHANCE_BITS(1), .AGE_BITS(3),
        .TAG_BITS(1)) dut (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_take(in_take), .in_deadline(in_deadline),
        .in_chance(in_chance), .in_tag(1'b0));
endmodule
"""
DMA = """module top (
    input clk, rst, in_valid, in_urgent, input [3:0] in_address, in_bytes
);
    dma_engines #(.ENGINE_BITS(1), .SLOT_BITS(1), .QUEUE_BITS(1), .PIECE_BITS(2), .WIDTH_BITS(1),
        .SETUP(1), .ADDRESS_BITS(4), .BYTES_BITS(4)) dut (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_urgent(in_urgent), .in_address(in_address),
        .in_bytes(in_bytes));
endmodule
"""
TOPS = {
    "channel_queue": CREDITS,
    "qos_arbiter": ARBITER,
    "chunk_key": KEYS,
    "candidate_heap": HEAP,
    "dma_engines": DMA,
}
PARTS = {
    "candidate_heap": ("channel_queue", "heap_level"),
    "dma_engines": ("channel_queue",),
    "qos_arbiter": ("session_heap", "tournament"),
}
"""The other files that a block consists of."""
BREAKS = {
    "a credit that returns as another is taken is lost": (
        "channel_queue",
        "{{(CREDIT_BITS-1){1'b0}}, credit_back}",
        "{{(CREDIT_BITS-1){1'b0}}, credit_back && !begins}",
    ),
    "a full queue accepts": ("channel_queue", "(count != QUEUE[QUEUE_BITS:0] || pop)", "1'b1"),
    "the later of two entries is the session's first": (
        "qos_arbiter",
        "alone || put_entry[ENTRY-1:TAIL_BITS] < entry[ENTRY-1:TAIL_BITS];",
        "alone || put_entry[ENTRY-1:TAIL_BITS] > entry[ENTRY-1:TAIL_BITS];",
    ),
    "one without requests is ready": (
        "qos_arbiter",
        "assign ready[t] = roots[t*NODE+NODE-1] &&",
        "assign ready[t] =",
    ),
    "the later of two sessions is the tenant's first": (
        "qos_arbiter",
        "is_sooner(parity, first_sibling, node) ? first_sibling : node",
        "is_sooner(parity, first_sibling, node) ? node : first_sibling",
    ),
    "a key begins without a credit": (
        "chunk_key",
        "assign in_ready = !rst && (credits != 0 || credit_back);",
        "assign in_ready = !rst;",
    ),
    "the later of two siblings goes up": (
        "candidate_heap",
        "&& right[ENTRY-1:TAG_BITS] < left[ENTRY-1:TAG_BITS]);",
        "&& right[ENTRY-1:TAG_BITS] > left[ENTRY-1:TAG_BITS]);",
    ),
    "a row that is being written is read as it was": (
        "candidate_heap",
        "read_1   <= write && write_at == read_at ? written : found;",
        "read_1   <= found;",
    ),
    "an engine that is busy gets a piece": (
        "dma_engines",
        "assign begins = fetched && !rst && idle != 0;",
        "assign begins = fetched && !rst;",
    ),
    "a piece crosses a boundary": (
        "dma_engines",
        "room = PIECE[PIECE_BITS:0] - {1'b0, address[PIECE_BITS-1:0]};",
        "room = PIECE[PIECE_BITS:0];",
    ),
    "a descriptor ends between two pieces": (
        "dma_engines",
        "active[s] && !mine && open == gone",
        "active[s] && open == gone",
    ),
}


@pytest.fixture(autouse=True)
def yosys() -> None:
    if shutil.which("yosys") is None:
        pytest.skip("yosys missing; install Debian's package yosys")


def holds(block: str, rtl: Path, folder: Path, proof: str) -> bool:
    """Whether no course breaks a promise of the block in `rtl`, as `proof` says to look."""
    (folder / "top.v").write_text(TOPS[block])
    script = folder / "prove.ys"
    # What a part promises by itself is proved by itself.
    parts = [f"read_verilog -sv {rtl / part}.v\n" for part in PARTS.get(block, ())]
    script.write_text(
        "".join(parts) + f"read_verilog -formal -sv {folder / 'top.v'} {rtl / block}.v\n"
        "prep -top top -nordff -flatten\n"
        "memory_map\nopt -full\ntechmap\nopt -fast\ndffunmap\nopt_clean\n"
        f"sat -prove-asserts -set-assumes {proof} top\n"
    )
    done = subprocess.run(["yosys", str(script)], capture_output=True, text=True, check=True)
    said = [word for word in ("SUCCESS", "FAIL", "proof failed") if word in done.stdout]
    assert len(said) == 1, done.stdout[-2000:]
    return said == ["SUCCESS"]


def from_reset(block: str) -> str:
    """A look at every course of so many cycles."""
    return f"-tempinduct-baseonly -tempinduct -maxsteps {DEPTHS[block]}"


@pytest.mark.parametrize("block", ["channel_queue", "chunk_key"])
def test_credits_are_conserved(block: str, tmp_path: Path) -> None:
    """For ever, by induction: no credit is negative, above the number, lost or made; nothing begins
    unasked, and no request or key is lost."""
    assert holds(block, RTL, tmp_path, "-tempinduct -maxsteps 5")


def test_the_arbiter_serves_the_first(tmp_path: Path) -> None:
    """In every course of 28 cycles, which are three operations: nobody is served unasked, none is
    lost, and of all that wait of a tenant none is sooner than the one that is served."""
    assert holds("qos_arbiter", RTL, tmp_path, from_reset("qos_arbiter"))


def test_the_heap_gives_out_the_first(tmp_path: Path) -> None:
    """In every course of 24 cycles, which are five operations: of all that wait, none is sooner
    than the one that is taken, and that one was put."""
    assert holds("candidate_heap", RTL, tmp_path, from_reset("candidate_heap"))


def test_transfers_are_whole(tmp_path: Path) -> None:
    """In every course of 14 cycles: no more pieces in flight than engines, none across a boundary,
    and a descriptor ends when its last byte has been moved."""
    assert holds("dma_engines", RTL, tmp_path, from_reset("dma_engines"))


@pytest.mark.parametrize("what", list(BREAKS))
def test_breaks_are_found(what: str, tmp_path: Path) -> None:
    """The same promises refuse a block that is broken in one place."""
    block, right, wrong = BREAKS[what]
    found = 0
    for name in (block, *PARTS.get(block, ())):
        text = (RTL / f"{name}.v").read_text()
        found += text.count(right)
        (tmp_path / f"{name}.v").write_text(text.replace(right, wrong))
    assert found == 1
    assert not holds(block, tmp_path, tmp_path, from_reset(block))
