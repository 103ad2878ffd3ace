"""Is the page complete, self-contained, and unaffected by the content of names and notes?"""

import re
from html import escape
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from offstage.bindings.notes import Note
from offstage.bindings.stages import StageTimes
from offstage.bindings.units import format_rate
from offstage.testbeds.live.results import ShownTick
from offstage.testbeds.report.page.numbers import show
from offstage.testbeds.report.run.page import render

SECTIONS = [
    "runs",
    "bottleneck",
    "steps",
    "served",
    "lead",
    "stall",
    "curve",
    "fates",
    "wear",
    "reproduce",
]
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Checks nesting and collects sections, tags, texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sections: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        if tag == "section":
            self.sections.append(values.get("id") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> after {self.open[-3:]}"
        self.open.pop()


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def shown(made: SimpleNamespace) -> str:
    return render(made.summary())


def test_every_section_stands_in_order(made: SimpleNamespace, shown: str) -> None:
    text = shown
    found = outline(text)
    assert found.sections == ["notes", *SECTIONS]
    assert len(found.ids) == len(set(found.ids))
    # A panel per storage is drawn once; a single picture is drawn wide and narrow.
    assert found.tags.count("svg") == 8 and text.count("<figcaption>") == 6
    assert escape(made.summary().sentence.split(";")[0]) in text


def test_nothing_is_asked_of_a_network(shown: str) -> None:
    text = shown
    found = outline(text)
    assert "default-src 'none'" in text
    assert not {"link", "img", "iframe", "object", "base"} & set(found.tags)
    assert found.tags.count("script") == 1
    loading = {"src", "href", "srcset", "action", "poster"}
    assert [name for name, _ in found.attributes if name in loading] == []
    assert not re.search(r"url\((?!#)|@import|fetch\(|https?://", text)


HOSTILE = (
    "<script>alert(1)</script>\"><img src=x onerror=alert(1)>' onmouseover='alert(1)"
    "</style></svg><b>${sentence}$policy a\u2028b\x00c"
)


def test_hostile_text_stays_text(made: SimpleNamespace) -> None:
    """Tags and attributes are the same whatever the names, notes and commands."""

    def page(word: str) -> Outline:
        runs = [
            made.run((), word, hit=0.8, name=word, notes=[Note("one", word, word)]),
            made.run((word,), word, hit=0.9, name=word, notes=[Note("one", word + "2")]),
        ]
        curve = made.summary().curve[:3]
        for point in curve:
            point.label = point.policy = word
        held = {"sentence": word, "processes": [word], "policy": {word: word}}
        return outline(
            render(
                made.summary(
                    runs=runs,
                    curve=curve,
                    sentence=word,
                    command=word,
                    version=word,
                    workload=replace(made.WORKLOAD, geometry=word, **held),
                    machine=replace(made.MACHINE, processor=word, kernel=word, real={word: word}),
                )
            )
        )

    plain, attacked = page("word"), page(HOSTILE)
    # A longer name moves in a picture or is left out; the kinds of tags are the same.
    assert set(attacked.tags) == set(plain.tags) and attacked.tags.count("script") == 1
    assert {name for name, _ in attacked.attributes} == {name for name, _ in plain.attributes}


@pytest.mark.parametrize(
    "changes",
    [
        {"demands": 0, "selected": 0, "ends": {}, "fates": {}, "hit": 0.0},
        {"hit_rate_by_step": [], "demands_by_step": [], "stall_ms_by_token": []},
        {"hit_rate_by_step": [-1.0], "demands_by_step": [0], "stall_ms_by_token": [0.0]},
        {"lead_ns_log2": [], "late_ns_log2": [0] * 64, "traffic_ratio": 0.0},
        {"hit": 1.0, "traffic_ratio": 40.0, "stall_ms_by_token": [1e6]},
        {"stall_ms_p99": 0.0, "stall_ms_by_token": [0.0] * 10, "prefetchers": []},
    ],
)
def test_runs_at_the_edge_still_make_a_page(made: SimpleNamespace, changes: object) -> None:
    run = made.run(**changes)  # type: ignore[arg-type]
    text = render(made.summary(runs=[run], curve=[]))
    assert outline(text).sections == SECTIONS
    assert "nan" not in re.sub(r"<style>.*?</script>", "", text, flags=re.DOTALL).lower()


def test_a_number_below_a_key_with_a_unit_has_that_unit(shown: str) -> None:
    """The peak of each process is in bytes by the key above it."""
    assert '<th scope="row">memory_peak_bytes.host</th><td>1 GiB</td>' in shown


def test_no_run_is_a_page_too(made: SimpleNamespace) -> None:
    assert outline(render(made.summary(runs=[]))).sections == ["reproduce"]


def test_a_set_has_one_colour_everywhere(made: SimpleNamespace) -> None:
    """The line of window + ema in each plot, its point and its swatches use the same variable."""
    runs = [made.run(("window", "ema")), made.run((), hit=0.8)]
    text = render(made.summary(runs=runs, curve=[]))
    plots = re.findall(r"(?:stroke|fill): (var\(--set-[^)]*\))", text)
    assert set(plots) == {"var(--set-pattern)", "var(--set-none)"}
    assert set(re.findall(r"--c:(var\(--set-[^)]*\))", text)) == set(plots)


def test_a_point_of_a_run_stands_beside_it(made: SimpleNamespace, shown: str) -> None:
    """Each storage of the run has its point; a page without points does not mention them."""
    summary = made.summary()
    assert "in virtual time:" not in shown
    run = summary.runs[1]
    summary.curve[0].run, summary.curve[0].hit = run.name, 0.4321
    text = render(summary)
    assert text.count("live, 43.2 % again") == sum(one.name == run.name for one in summary.runs)


def test_a_curve_named_after_a_set_has_its_colour(made: SimpleNamespace) -> None:
    curve = made.summary().curve[:2]
    curve[0].policy, curve[1].policy = "window+ema, higher degree", "elsewhere"
    text = render(made.summary(curve=curve))
    marks = {
        (re.findall(r"stroke: (var\([^)]*\))", mark)[-1], name)
        for name, mark in re.findall(r'<g data-tip="(\w+)[^:"]*: (.*?)</g>', text, re.DOTALL)
    }
    assert marks == {("var(--set-pattern)", "window"), ("var(--set-2)", "elsewhere")}


def test_where_time_goes_is_shown_of_the_leading_run(made: SimpleNamespace, shown: str) -> None:
    """The fullest set's stages are drawn and listed; without stages there is no section."""
    stage = StageTimes(
        count=70, ns_mean=5e4, ns_p50=1023, ns_p90=90_000, ns_p99=120_000, ns_max=130_000
    )
    summary = made.summary()
    assert "Where time goes" not in shown
    summary.runs[3].stages = {"read_service": stage, "copy": stage}
    text = render(summary)
    section = text[text.index('id="stages"') :]
    assert section.index("storage reads") < section.index("host copies")
    assert section.count('aria-label="storage reads, p50') == 2, "wide, and again for phones"
    assert ">120 µs<" in section
    assert "of a recorded run every command, read and write" in " ".join(section.split())


def test_baselines_have_a_table_beside_the_dpu(made: SimpleNamespace, shown: str) -> None:
    """Each provenance has its own table; a page without baselines has none."""
    assert 'id="baselines"' not in shown
    beside = [made.run((), "a drive", "measured", name="g3", fetch_ms_p99=8.0)]
    text = render(made.summary(baselines=beside))
    section = text[text.index('id="baselines"') :].partition("</section>")[0]
    assert section.count("G3: the drive alone (a drive)") == 1
    assert section.count("DPU, no prefetch") == 1, "there is no baseline on the other storage"
    assert show("fetch_ms_p99", 8.0) in section


def test_a_timeline_shows_every_span_and_the_run_a_layer_ahead(
    made: SimpleNamespace, shown: str
) -> None:
    """Each span is a bar with a tooltip, in the fullest run and in its counterpart a layer
    ahead."""
    spans = [
        ("fetch", 0, 0.0, 900.0),
        ("fetch", 0, 100.0, 400.0),
        ("stall", 0, 50.0, 900.0),
        ("compute", 0, 900.0, 1_400.0),
        ("pace", 0, 1_400.0, 2_000.0),
        ("copy", 1, 900.0, 950.0),
    ]
    line = ShownTick(7, "the host's clock", tuple(spans))
    runs = [made.run((), hit=0.8), made.run(("window",), timeline=line)]
    rates = {"kernel_bytes_per_s": 1e12, "roof_bytes_per_s": 4e12}
    ahead = [made.run(("window",), timeline=msgspec.structs.replace(line, tick=9), **rates)]
    text = render(made.summary(runs=runs, ahead=ahead, curve=[]))
    section = text[text.index('id="timeline"') :].partition("</section>")[0]
    assert section.count('data-tip="layer ') == 2 * len(spans)
    assert "Token 7, by the host&#x27;s clock: compute 0.50 ms, fetch 0.90 ms, stall 0" in section
    assert "Token 9" in section and "a layer ahead" in section
    said = f"attention read {format_rate(1e12)}, 25% of the {format_rate(4e12)} that a copy"
    assert section.count(said) == 2, "on the picture and below it"
    assert 'id="timeline"' not in shown


def test_the_page_says_what_writing_cost(made: SimpleNamespace) -> None:
    """It shows the bytes of prefill and decode, those for a hit, amplification, DWPD, and a dash
    for an unknown drive life; without wear data there is no table."""
    told = made.summary()
    section = render(told).partition('id="wear"')[2]
    for shown in ("2.89 GiB", "19.1 MiB", "1.07×", "0.412", '<td class="number">–'):
        assert shown in section, shown
    runs = [msgspec.structs.replace(one, wear={}) for one in told.runs]
    assert 'id="wear"' not in render(made.summary(runs=runs))
