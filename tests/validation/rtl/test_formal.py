"""Do the arbiter and the credit loop keep their promises in every state, not only in those drawn?

The promises stand in the Verilog, under `FORMAL`; yosys's own solver looks for a course that breaks
one. A break of each kind is tried as well: a proof that cannot fail proves nothing.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

RTL = Path(__file__).resolve().parents[3] / "asic_model/rtl"
DEPTH = 10  # cycles from reset
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
    input clk, rst, put, take, put_tenant, put_session,
    input [1:0] put_cost, put_tag, input [2:0] put_deadline
);
    qos_arbiter #(.TENANT_BITS(1), .DEPTH_BITS(1), .SESSION_BITS(1), .COST_BITS(2), .TAG_BITS(2),
        .TIME_BITS(3)) dut (
        .clk(clk), .rst(rst), .put(put), .take(take), .put_tenant(put_tenant),
        .put_session(put_session), .put_cost(put_cost), .put_tag(put_tag),
        .put_deadline(put_deadline), .turn_bytes({2{32'd3}}), .rate(128'd0), .burst(128'd0),
        .session_max(2'd2), .session_quantum(32'd0), .ahead_max(3'd7));
endmodule
"""
TOPS = {"channel_queue": CREDITS, "qos_arbiter": ARBITER}
BREAKS = {
    "a credit that returns as another is taken is lost": (
        "channel_queue",
        "{{(CREDIT_BITS-1){1'b0}}, credit_back}",
        "{{(CREDIT_BITS-1){1'b0}}, credit_back && !begins}",
    ),
    "a full queue accepts": ("channel_queue", "(count != QUEUE[QUEUE_BITS:0] || pop)", "1'b1"),
    "a turn has no end": (
        "qos_arbiter",
        "wire stays = ready[turn] &&",
        "wire stays = ready[turn] ||",
    ),
    "one without requests is ready": (
        "qos_arbiter",
        "assign ready[t] = count != 0 &&",
        "assign ready[t] =",
    ),
    "two leave at once": (
        "qos_arbiter",
        "wire out = taken && winner == t[TENANT_BITS-1:0]",
        "wire out = taken",
    ),
}


@pytest.fixture(autouse=True)
def yosys() -> None:
    if shutil.which("yosys") is None:
        pytest.skip("yosys missing; install Debian's package yosys")


def holds(block: str, source: Path, folder: Path, proof: str) -> bool:
    """Whether no course breaks a promise, as `proof` says to look."""
    (folder / "top.v").write_text(TOPS[block])
    script = folder / "prove.ys"
    script.write_text(
        f"read_verilog -formal -sv {folder / 'top.v'} {source}\nprep -top top -nordff -flatten\n"
        "memory_map\nopt -full\ntechmap\nopt -fast\ndffunmap\nopt_clean\n"
        f"sat -prove-asserts -set-assumes {proof} top\n"
    )
    done = subprocess.run(["yosys", str(script)], capture_output=True, text=True, check=True)
    said = [word for word in ("SUCCESS", "FAIL", "proof failed") if word in done.stdout]
    assert len(said) == 1, done.stdout[-2000:]
    return said == ["SUCCESS"]


BASE = f"-tempinduct-baseonly -tempinduct -maxsteps {DEPTH}"


def test_credits_are_conserved(tmp_path: Path) -> None:
    """For ever, by induction: no credit is negative, above the number, lost or made; nothing begins
    unasked, and no request is lost."""
    source = RTL / "channel_queue.v"
    assert holds("channel_queue", source, tmp_path, "-tempinduct -maxsteps 5")


def test_arbiter_grants(tmp_path: Path) -> None:
    """In every course of ten cycles: no grant without a request, at most one a cycle, no request
    lost, and one that waits is passed over by at most five grants."""
    assert holds("qos_arbiter", RTL / "qos_arbiter.v", tmp_path, BASE)


@pytest.mark.parametrize("what", list(BREAKS))
def test_breaks_are_found(what: str, tmp_path: Path) -> None:
    """The same promises refuse a block that is broken in one place."""
    block, right, wrong = BREAKS[what]
    text = (RTL / f"{block}.v").read_text()
    assert text.count(right) == 1
    broken = tmp_path / f"{block}.v"
    broken.write_text(text.replace(right, wrong))
    assert not holds(block, broken, tmp_path, BASE)
