"""Is a lab's page complete, self-contained and correct?"""

import io
import itertools
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from offstage.bindings.notes import Note
from offstage.testbeds.cli.folded import folded
from offstage.testbeds.lab.results.summary import (
    Interval,
    LabSummary,
    Manifest,
    PointInfo,
    PointSummary,
)
from offstage.testbeds.lab.results.vacuous import notes_of, why_vacuous
from offstage.testbeds.report.lab.definitions import LAB_DEFINITIONS
from offstage.testbeds.report.lab.hit_axis import hit_scale
from offstage.testbeds.report.lab.page import render_lab
from offstage.testbeds.report.lab.sentence import lab_sentence
from offstage.testbeds.report.lab.series import view_of
from offstage.testbeds.report.lab.table import lab_table
from offstage.testbeds.report.page.numbers import milliseconds, percent, ratio

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = [
    "notes",
    "pareto",
    "points",
    "buffer",
    "hints",
    "misses",
    "layers",
    "parts",
    "lead",
    "fates",
    "requests",
    "bottleneck",
    "workloads",
    "reproduce",
]
TWO_LINES = 210
"""Characters of the heading in a window of 1280 pixels."""
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Checks nesting and collects sections, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sections: list[str] = []
        self.names: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.names += values
        self.ids += [values["id"] or ""] if "id" in values else []
        self.sections += [values.get("id") or ""] if tag == "section" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> after {self.open[-3:]}"
        self.open.pop()


@pytest.fixture(scope="module")
def shown(whole: LabSummary) -> str:
    return render_lab(whole)


def test_every_section_stands_in_order_and_asks_nothing_of_a_network(shown: str) -> None:
    text = shown
    found = Outline(text)
    assert found.sections == SECTIONS and len(found.ids) == len(set(found.ids))
    assert "default-src 'none'" in text and found.tags.count("script") == 1
    assert not {"link", "img", "iframe", "object", "base"} & set(found.tags)
    assert not {"src", "href", "srcset", "action", "poster"} & set(found.names)
    assert not re.search(r"url\((?!#)|@import|fetch\(|https?://", text)
    assert "nan" not in re.sub(r"<style>.*?</script>", "", text, flags=re.DOTALL).lower()


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_the_sentence_says_what_and_against_what(whole: LabSummary, shown: str) -> None:
    """It names the best policy within 1.3 times the reference's traffic, its baseline, and the
    better one that costs more, recomputed from the points of the lower middle buffer."""
    sentence = plain(lab_sentence(whole))
    rows = {p.info.policy: p for p in whole.points if p.info.buffer_over_k == 2.0}
    spent = {name: p.traffic_vs_reference for name, p in rows.items()}
    near = [rows[name] for name, traffic in spent.items() if traffic and traffic.value <= 1.3]
    best, top = (
        max(some, key=lambda p: p.nontrivial_hit.value if p.nontrivial_hit else 0)
        for some in (near, rows.values())
    )
    none = rows["none"]
    assert best.nontrivial_hit and none.nontrivial_hit and best.nontrivial_gap_closed
    assert best.traffic_vs_reference
    assert top.nontrivial_hit and best is not top
    for words in (
        f"With {best.info.policy}, {best.nontrivial_hit.value * 100:.1f} % of the non-trivial",
        f"for {ratio(best.traffic_vs_reference.value)} the bytes that the reference read",
        f"the highest of {len(near)} policies (of {len(rows)}) that read at most 1.3×",
        f"against {none.nontrivial_hit.value * 100:.1f} % without prefetch",
        f"{best.nontrivial_gap_closed.value * 100:.1f} % of the gap to the clairvoyant bound",
        f"; {top.info.policy} had {top.nontrivial_hit.value * 100:.1f} % for ",
    ):
        assert words in sentence
    finding, _, rest = sentence.partition("; ")
    assert len(finding) <= TWO_LINES and len(rest) <= TWO_LINES, "what two lines hold at 1280"
    text = plain(unescape(shown))
    assert f"bytes read</dt><dd>{ratio(best.traffic_vs_reference.value)}<" in text, "as above"
    assert "Selections synthetic, times modelled." in text
    assert "buffer 2 k (64 blocks of 64 KiB a layer)" in text


def test_the_subject_is_of_a_buffer_at_which_most_policies_ran(lab: SimpleNamespace) -> None:
    """The reference's own buffer, with no other policy, is not the one that the sentence is of."""
    points = [*lab.points(policies=("none",), buffers=(1.0, 2.0)), *lab.points(buffers=(4.0,))]
    (facet,) = view_of(points).facets
    assert facet.buffers == [1.0, 2.0, 4.0] and facet.middle == 4.0


def test_what_says_nothing_is_said_first(lab: SimpleNamespace) -> None:
    """A buffer, pool or k of the whole context, or only two requests: the sentence says so before
    any figure, the notes with the number of points it holds for."""
    (point,) = lab.points(policies=("none",), buffers=(2.0,))
    assert why_vacuous(point) == [] and notes_of([point]) == []
    for context, pool, why in (
        (64, 0.0, "a buffer of 64 blocks holds the whole context of 64"),
        (32, 0.0, "k selects the whole context of 32 blocks"),
        (90, 3.0, "the HBM pool holds the whole context of 90 blocks"),
    ):
        info = replace(point.info, context_blocks=context, hbm_pool_over_k=pool)
        found = msgspec.structs.replace(point, info=info)
        sentence = plain(lab_sentence(lab.summary(points=[found])))
        assert sentence.startswith(f"This says little about a policy: {why}; ")
        said = f"says little about a policy: {why} (1 of 2 points)"
        assert notes_of([point, found]) == [Note("says-little", said)]
    drawn = replace(point.info, workload="generated, k=8")
    few = msgspec.structs.replace(point, requests=2, info=drawn)
    sentence = plain(lab_sentence(lab.summary(points=[few])))
    assert sentence.startswith("This says little about a policy: 2 requests only; with")
    assert view_of([few]).facets[0].title == "generated sessions, k=8", "a kind is no name"


def test_the_sentence_omits_a_gap_that_was_not_closed(lab: SimpleNamespace) -> None:
    """If no prefetch is the best within the traffic, the bound is named, and no share of a gap."""
    found = lab.points(policies=("none", "prev_step"), buffers=(2.0,))
    none, other = found
    worse = msgspec.structs.replace(
        other, nontrivial_hit=Interval(value=0.4), traffic_vs_reference=Interval(value=1.1)
    )
    sentence = plain(lab_sentence(lab.summary(points=[none, worse])))
    assert sentence.startswith("Without prefetch, ") and "and none of the" in sentence
    assert "of the gap" not in sentence and "; the clairvoyant bound is " in sentence
    dear = msgspec.structs.replace(worse, traffic_vs_reference=Interval(value=9.0))
    sentence = plain(lab_sentence(lab.summary(points=[none, dear])))
    assert "and no other of the 2 policies is within 1.3× the bytes read" in sentence
    without = [msgspec.structs.replace(one, traffic_vs_reference=None) for one in found]
    sentence = plain(lab_sentence(lab.summary(points=without)))
    assert sentence.partition("; ")[0].endswith("the highest of 2 policies")
    assert "reference" not in sentence


def test_the_sentence_of_a_sweep_is_of_all_its_settings(lab: SimpleNamespace) -> None:
    """Sentence and tiles span the facets: least and most of the best, and of the gain."""
    few: dict[str, Any] = {"policies": ("none", "window", "ema"), "buffers": (2.0,)}
    points = [
        msgspec.structs.replace(
            point,
            nontrivial_hit=Interval(value=hit),
            traffic_vs_reference=Interval(value=1.0 + cap / 1e10),
        )
        for cap, hits in ((10**9, (0.8, 0.9, 0.85)), (2 * 10**9, (0.82, 0.84, 0.95)))
        for point, hit in zip(lab.points(**few, bandwidth_bytes_per_s=cap), hits, strict=True)
    ]
    summary = lab.summary(points=points)
    sentence = plain(lab_sentence(summary))
    assert sentence.startswith(
        "Over 2 settings, the best policy of each within 1.3× staged 90.0 to 95.0 % of the "
        "non-trivial demands in time, 10.0 to 13.0 points more than no prefetch, for 1.10× to "
        "1.20× the bytes that the reference read; "
    )
    assert "; the best in 1 of 2 was " in sentence and "gained the most in" in sentence
    assert len(sentence.partition("; ")[0]) <= TWO_LINES
    text = plain(unescape(render_lab(summary)))
    assert "<dd>90.0–95.0 %<" in text and "<dd>1.10–1.20×<" in text
    assert "the best policy of each of 2 settings" in text


def test_the_sentence_of_a_request_trace_names_the_best_at_each_capacity(
    lab: SimpleNamespace,
) -> None:
    """At the largest capacity every setting is good, so it is not named."""
    rows = [row for row in lab.request_rows() if row.trace == "invented chat"]
    small = min(row.capacity_share for row in rows)
    rows = [
        msgspec.structs.replace(row, block_hit_rate=0.09)
        if (row.eviction, row.admission, row.capacity_share) == ("lru", "second-touch", small)
        else row
        for row in rows
    ]
    sentence = plain(lab_sentence(lab.summary(points=[], requests=rows)))
    best = max(row.block_hit_rate for row in rows if row.capacity_share == 0.1)
    found = "found 9.0 % of the requested blocks with room for 1 % of all distinct blocks"
    assert found in sentence
    assert "(lru, admission second-touch), " in sentence
    assert f"{best * 100:.1f} % with 10 % (sieve, admission all)" in sentence
    assert "the best of 3 settings" in sentence and "more trace" not in sentence


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_the_scale_of_hits_halves_the_misses_with_equal_distances(values: list[float]) -> None:
    """All values lie on it in order, and only those of exactly 100 % are on its line."""
    y = hit_scale(values)
    found = [y(value) for value in sorted(values)]
    assert found == sorted(found) and found[0] >= 0.0
    assert all(
        (at == 1.0) == (value == 1.0) for at, value in zip(found, sorted(values), strict=True)
    )
    ticks = y.ticks()
    assert len(ticks) >= 3 and ticks[-1] == 1.0
    assert all(y(b) - y(a) >= y.gap for a, b in itertools.pairwise(ticks))
    inner = [1 - (1 - y.low) * share for share in (1.0, 0.8, 0.64)]
    if inner[2] <= y.high:
        assert y(inner[1]) - y(inner[0]) == pytest.approx(y(inner[2]) - y(inner[1]))


@pytest.mark.parametrize("width", [64, 80, 88, 120])
def test_a_narrow_terminal_leaves_out_no_column(whole: LabSummary, width: int) -> None:
    """Columns that do not fit continue below, with the names again; nothing wraps or is cut."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(folded(lab_table(whole)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [line for line in lines if line.startswith("  ")]
    first = [line for line in rows if re.match(r"  (?!bound|predictor)\S", line)]
    assert not any("…" in line for line in lines) and max(map(len, lines)) <= width
    parts = sum(line.startswith("policy") for line in lines)
    assert len(first) == parts * len(whole.points) and (parts > 1) == (width < 120)
    assert not any("limit under the cap" in line for line in lines)
    for point in whole.points:
        assert point.stall_ms_p99 and point.coverage
        for shown in (milliseconds(point.stall_ms_p99.value), percent(point.coverage.value)):
            assert any(shown in line for line in first)


def test_the_limit_under_the_cap_says_why_it_is_all_hits(whole: LabSummary, shown: str) -> None:
    text = unescape(shown)
    tip = re.search(r'data-tip="([^"]*)">bound: limit under the cap', text)
    assert tip and "non-trivial demands" in tip.group(1)


def test_a_table_of_points_fits_a_screen_and_holds_every_column(
    whole: LabSummary, shown: str
) -> None:
    """Ten columns are in the visible table, the others in a folded one below it."""
    text = unescape(shown)
    section = text[text.index('id="points"') : text.index('id="buffer"')]
    seen, folded = section.split("<summary>More columns", 1)
    assert len(re.findall(r'<th scope="col" class="number">', seen)) == 10
    assert len(re.findall(r'<th scope="col" class="number">', folded)) >= 3
    assert "bound:" in seen and "bound:" not in folded.partition("</details>")[0]


def test_every_point_and_bound_is_in_the_table(whole: LabSummary, shown: str) -> None:
    text = unescape(shown)
    section = text[text.index('id="points"') : text.index('id="buffer"')]
    for point in whole.points:
        assert point.nontrivial_hit and point.stall_ms_p99
        assert f"{point.nontrivial_hit.value * 100:.1f} %" in section
        for bound in point.bounds:
            assert bound.hit and f"{bound.hit.value * 100:.1f} %" in section
    assert section.count("bound: clairvoyant") == 4


def test_the_front_is_what_no_point_beats(whole: LabSummary, shown: str) -> None:
    """Exactly the marks that another beats are faint, by comparison of all pairs."""
    text = shown
    section = text[text.index('id="pareto"') : text.index('id="points"')]
    wide = section[: section.index('class="narrow"')]
    marks = re.findall(r'class="(spot[^"]*)"[^>]*data-tip="([^&"\n]*), buffer ([\d.]+)', wide)
    drawn = {(name, float(buffer)): "faint" in kind for kind, name, buffer in marks}
    costs = {
        (p.info.policy, p.info.buffer_over_k): (
            p.traffic_vs_reference.value,
            p.nontrivial_hit.value,
        )
        for p in whole.points
        if p.traffic_vs_reference and p.nontrivial_hit
    }
    beaten = {
        key: any(
            other[0] <= own[0] and other[1] >= own[1] and other != own for other in costs.values()
        )
        for key, own in costs.items()
    }
    assert drawn == beaten and True in beaten.values() and False in beaten.values()


def test_settings_that_differ_are_panels_of_their_own(lab: SimpleNamespace) -> None:
    """Points with different pools or caps are never joined by a line."""
    few: dict[str, Any] = {"policies": ("none", "ema"), "buffers": (1.0, 2.0), "seeds": (1,)}
    made = lab.points(**few) + lab.points(**few, hbm_pool_over_k=2.0)
    view = view_of(made)
    titles = [facet.title.replace("\u00a0", " ") for facet in view.facets]
    assert titles == ["invented, HBM pool 1 k", "invented, HBM pool 2 k"]
    assert [len(facet.points) for facet in view.facets] == [4, 4]
    varied = lab.points(**few) + lab.points(**few, parameters={"m": 2})
    looks = view_of(varied).looks
    assert [look.name for look in looks] == ["ema", "ema, m 2", "none", "none, m 2"], "by hits"
    assert len({(look.colour, look.mark) for look in looks}) == len(looks)
    swept = [
        msgspec.structs.replace(one, info=replace(one.info, workload=name, hbm_pool_over_k=pool))
        for one in lab.points(**few)
        for pool, name in (
            (1.0, "profile=mixed, hbm_pool_over_k=1"),
            (2.0, "profile=mixed, hbm_pool_over_k=2"),
        )
    ]
    titles = [plain(facet.title) for facet in view_of(swept).facets]
    assert titles == ["profile=mixed, HBM pool 1 k", "profile=mixed, HBM pool 2 k"]


def test_what_reads_nothing_ahead_stands_beside_each_cap(lab: SimpleNamespace) -> None:
    """A policy without prefetch has no cap, and each cap's policies are compared with it."""
    few: dict[str, Any] = {"buffers": (2.0,), "seeds": (1,)}
    none = lab.points(policies=("none",), bandwidth_bytes_per_s=0, **few)
    capped = [
        point
        for cap in (10**9, 2 * 10**9)
        for point in lab.points(policies=("none", "ema"), bandwidth_bytes_per_s=cap, **few)
        if point.info.policy == "ema"
    ]
    found = view_of([*none, *capped]).facets
    assert [plain(one.title) for one in found] == ["invented, cap 1 GB/s", "invented, cap 2 GB/s"]
    assert [sorted(p.info.policy for p in one.points) for one in found] == [["ema", "none"]] * 2
    assert [plain(one.title) for one in view_of(none).facets] == ["invented"]


HOSTILE = (
    '<script>alert(1)</script>"><img src=x onerror=alert(1)>${sentence}$policy</style></svg><b>'
    "a\u2028b\x00c"
)


def test_hostile_text_stays_text(lab: SimpleNamespace) -> None:
    """Tags and attributes are the same whatever the names of policies, workloads and notes."""
    points = lab.points(policies=("none",), buffers=(2.0,), seeds=(1,))

    def page(word: str) -> Outline:
        info = msgspec.structs.asdict(points[0])["info"]
        named = PointInfo(
            **{
                **vars(info),
                "workload": word,
                "policy": word,
                "storage": word,
                "parameters": {word: 1},
            }
        )
        point = PointSummary(**{**msgspec.structs.asdict(points[0]), "info": named})
        rows = [
            msgspec.structs.replace(row, trace=word, eviction=word)
            for row in lab.request_rows()[:2]
        ]
        manifest = Manifest(version=word, command=word, workloads={word: {"kind": word}})
        return Outline(
            render_lab(
                lab.summary(
                    name=word,
                    points=[point],
                    requests=rows,
                    notes=[Note("one", word)],
                    manifest=manifest,
                    spec={word: [word]},
                )
            )
        )

    plain, attacked = page("word"), page(HOSTILE)
    # A longer name moves in a picture or is left out; the kinds of tags are the same.
    assert set(attacked.tags) == set(plain.tags) and attacked.tags.count("script") == 1
    assert set(attacked.names) == set(plain.names)


@pytest.mark.parametrize("changes", [{"points": []}, {"points": [], "requests": []}])
def test_a_summary_without_points_is_a_page_too(
    lab: SimpleNamespace, changes: dict[str, Any]
) -> None:
    summary = lab.summary(**changes)
    assert Outline(render_lab(summary)).sections[-1:] == ["reproduce"]
    assert lab_sentence(summary).endswith(".")


def test_a_point_of_which_nothing_is_known_is_a_page_too(lab: SimpleNamespace) -> None:
    """One request, no bounds, no reference: intervals and figures are missing, nothing breaks."""
    none = [lab.run("none", 2.0, 1, sessions=1)]
    point = lab.measure(lab.info(), none, [], none=none)
    empty = msgspec.structs.replace(
        point,
        hit=None,
        nontrivial_hit=None,
        traffic_ratio=None,
        worst_layer=None,
        nontrivial_hit_by_layer=[None] * 6,
        hit_by_layer=[None] * 6,
        stall_ms_p99=None,
    )
    for made in (point, empty):
        summary = lab.summary(points=[made], requests=[], manifest=Manifest())
        text = render_lab(summary)
        assert Outline(text).sections[:2] == ["notes", "pareto"] and "intervals are weak" in text
        Console(width=80, quiet=True).print(lab_table(summary))


def test_the_reference_page_defines_every_figure() -> None:
    """The page names each figure, key and column of a result."""
    from offstage.testbeds.lab.results.ledger_file import ledger_columns

    assert [entry.key for entry in LAB_DEFINITIONS] == list(PointSummary.__struct_fields__)
    page = (ROOT / "docs/reference/lab-results.md").read_text(encoding="utf-8")
    keys = [*LabSummary.__struct_fields__, *PointInfo.__dataclass_fields__]
    keys += [name for name, _ in ledger_columns() if not re.match(r"(nontrivial_)?end_", name)]
    assert [key for key in keys if f"`{key}`" not in page] == []
