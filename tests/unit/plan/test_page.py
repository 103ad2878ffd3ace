"""Does the page agree with the plan, in one self-contained file?"""

import re
from pathlib import Path

import msgspec

from offstage.bindings.notes import Note
from offstage.testbeds.plan.curves import CurvePoint, Curves
from offstage.testbeds.plan.inputs import gather
from offstage.testbeds.plan.page import write_plan
from offstage.testbeds.plan.question import read_spec
from offstage.testbeds.plan.result import Plan, make_plan
from offstage.testbeds.plan.table import sentence, trace_sentence
from offstage.testbeds.prices import catalog


def small_plan() -> Plan:
    spec = read_spec(None, {"tiers": ["hbm", "tlc"], "model": "llama-3-8b"})
    plan = make_plan(spec, gather(spec, catalog()), draws=4)
    return msgspec.structs.replace(plan, sentence=sentence(plan), command="offstage plan <script>")


def test_page_and_json_hold_the_plan(tmp_path: Path) -> None:
    """Pictures are in the page, nothing is fetched, and user input stays plain text."""
    plan = small_plan()
    point = CurvePoint(capacity_bytes=1e9, hit_rate=0.5, written_per_hit=1.0, life_years=2.0)
    curves = Curves(
        trace="t<b>",
        format="mooncake",
        requests=3,
        duration_s=60.0,
        input_p50=10,
        output_p50=2,
        notes=[],
        ideal_hit_rate=0.6,
        needed_bytes=1e9,
        reuse=[(1.0, 0.2), (10.0, 1.0)],
        kept={"lru": [point, msgspec.structs.replace(point, capacity_bytes=2e9)]},
    )
    page, figures = write_plan(msgspec.structs.replace(plan, curves=curves), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert plan.sentence.partition(";")[0].split("$")[0] in text
    # Six pictures, each with a second form for narrow pages.
    assert text.count('<svg class="picture"') == 12
    assert "<script>" in text and "offstage plan <script>" not in text and "t<b>" not in text
    assert not re.search(r'(src|href)="http', text)
    assert "Prices older than a year" not in text or "†" in text
    back = msgspec.json.decode(figures.read_bytes(), type=Plan)
    assert back.best == plan.best and back.curves is not None


def test_a_trace_without_prefixes_has_a_sentence() -> None:
    curves = Curves(
        trace="a",
        format="azure",
        requests=3,
        duration_s=60.0,
        input_p50=10,
        output_p50=2,
        notes=[Note("one", "arrivals only")],
    )
    assert trace_sentence(curves).startswith("3 requests in 60 s; prompts of 10 and answers of 2")
