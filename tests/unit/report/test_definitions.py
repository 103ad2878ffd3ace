"""Do the page, the file and the reference give each figure the same text?"""

from pathlib import Path

from offstage.bindings.layouts import ENDS
from offstage.testbeds.report import DEFINITIONS
from offstage.testbeds.report.lab.definitions import LAB_DEFINITIONS
from offstage.testbeds.report.run.definitions import END_TEXTS, FATE_TEXTS, PROVENANCE_TEXTS

ROOT = Path(__file__).resolve().parents[3]


def test_demo_and_lab_have_one_name_and_label_for_a_figure() -> None:
    """No key that ends in `_rate` has a twin without it in the other."""
    lab = {one.key: one.label for one in LAB_DEFINITIONS}
    demo = {one.key: one.label for one in DEFINITIONS}
    both = demo.keys() & lab.keys()
    assert {"hit", "nontrivial_hit", "selection_hit", "hit_without_cold", "late"} <= both
    assert [key for key in both if demo[key] != lab[key]] == []
    rates = {key.replace("_rate", "") for key in (demo | lab) if "_rate" in key}
    assert not rates & (demo | lab).keys()


def test_every_end_fate_and_provenance_is_explained() -> None:
    assert set(END_TEXTS) == {"hbm", *ENDS}
    assert set(FATE_TEXTS) == {"used", "late", "unused", "dropped", "cancelled"}
    assert set(PROVENANCE_TEXTS) == {"measured", "emulated", "modelled"}


def test_the_pages_table_of_ends_agrees() -> None:
    """docs/reference/figures.md explains the same ends and fates."""
    page = (ROOT / "docs/reference/figures.md").read_text(encoding="utf-8")
    missing = [name for name in (*ENDS, *FATE_TEXTS) if f"| `{name}` |" not in page]
    assert missing == []
