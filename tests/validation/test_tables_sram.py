"""Does the chip's SRAM have CACTI's figures, with wider bounds between and beyond them?"""

from itertools import pairwise

import pytest

from offstage.asic_model.tables.sram import sram
from offstage.bindings.errors import BadInput

KIB, MIB = 1 << 10, 1 << 20


def test_at_22_nm_a_run_is_what_cacti_printed() -> None:
    """16 MiB in 8 banks: 3.342 ns, 1.341 ns, 0.227 nJ, neither scaled nor interpolated."""
    one = sram(16 * MIB, banks=8)
    assert one.access_ps.value == pytest.approx(3342)
    assert one.cycle_ps.value == pytest.approx(1341)
    assert one.read_pj.value == pytest.approx(227.38)
    assert one.area_22nm_mm2 == pytest.approx(13.421)
    assert one.access_ps.low == one.access_ps.high == one.access_ps.value


def test_four_times_the_size_is_about_twice_the_wire() -> None:
    """Wires set access time and energy: they grow with the square root of size, within a third."""
    sizes = [256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
    for banks in (1, 4, 8, 16):
        for small, large in pairwise(sram(size, banks=banks) for size in sizes):
            assert large.access_ps.value / small.access_ps.value == pytest.approx(2, rel=1 / 3)
            assert large.read_pj.value / small.read_pj.value == pytest.approx(2, rel=1 / 3)


def test_between_two_sizes_it_lies_between_them() -> None:
    one = sram(6 * MIB, banks=10)  # 8 is the nearest number of banks that was run
    assert one.banks == 8
    assert sram(4 * MIB).access_ps < one.access_ps < sram(16 * MIB).access_ps


@pytest.mark.parametrize("node_nm", [7, 5])
def test_a_scaled_figure_is_a_range_that_ends_at_22_nm(node_nm: int) -> None:
    there, here = sram(16 * MIB), sram(16 * MIB, node_nm=node_nm)
    assert here.access_ps.low < here.access_ps.value < here.access_ps.high
    assert here.access_ps.high == there.access_ps.value
    assert here.read_pj.high < there.read_pj.value


def test_what_was_not_run_is_refused() -> None:
    with pytest.raises(BadInput, match="10 nm"):
        sram(MIB, node_nm=10)
    with pytest.raises(BadInput, match="512 MiB; give 256 KiB to 256 MiB"):
        sram(512 * MIB)
