"""What does a bounded table of candidates cost on what a real model selected?

The laboratory decides again, in the chip's time and within its table, and the page's row of one
text is held to what comes out.
"""

import re
from pathlib import Path

import pytest

import offstage

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "docs/examples/offstage-selections/chip.toml"
PAGE = ROOT / "docs/reference/asic.md"
TEXT = "judge-prose"
SIZES = {"asic_7nm": 0, "asic_7nm,scheduler.candidates=128": 2}
"""Devices, and their columns in the page's table."""


@pytest.mark.slow
def test_the_page_says_what_a_smaller_table_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hits in per cent, to a digit: of a policy that fills the table, fewer with a smaller one; of
    one that names its guesses, as many."""
    monkeypatch.chdir(SPEC.parent)
    rows = {
        policy: [float(one) for one in re.findall(r"\| (\d+\.\d)", cells)]
        for text, policy, cells in re.findall(
            r"^\| (judge-\w+) \| `([^`]+)` (.+)$", PAGE.read_text(encoding="utf-8"), re.M
        )
        if text == TEXT
    }
    changes = {"workload.file": f"offstage_selections/data/{TEXT}.parquet"}
    found = offstage.run(
        SPEC, out=tmp_path, changes={**changes, "sweep": {"tier.device": list(SIZES)}}
    )
    for point in found.points:
        if point.info.buffer_over_k == 4 and point.info.policy in rows:
            assert point.nontrivial_hit is not None
            hit = round(100 * point.nontrivial_hit.value, 1)
            assert hit == rows[point.info.policy][SIZES[point.info.device]], point.info
    fills, names = (rows[name] for name in sorted(rows, key=lambda one: "lookahead" in one))
    assert fills[0] - fills[2] > 1 > abs(names[0] - names[2])
