"""Is the report drawn in a real browser without errors, within the screen, with tooltips?"""

import json
import re
import runpy
import shutil
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.testbeds.report import write_report
from offstage.testbeds.report.lab.page import write_lab_report

ROOT = Path(__file__).resolve().parents[2]
BACKGROUNDS = {"light": (0xFA, 0xF9, 0xF7), "dark": (0x14, 0x17, 0x1B)}
HEIGHT = 4_000
PROBE = """
<script>
const bands = [...document.querySelectorAll("#steps .band")];
const tip = document.getElementById("tip");
const box = bands[3].getBoundingClientRect();
const at = {bubbles: true, clientX: box.x, clientY: box.y};
bands[3].dispatchEvent(new PointerEvent("pointermove", at));
const shown = tip.hidden ? "" : tip.textContent;
document.body.dispatchEvent(new PointerEvent("pointermove", at));
const wide = [...document.querySelectorAll("section, h1, svg, .note, .tiles dd")].filter(
  (element) => element.getBoundingClientRect().right > window.innerWidth + 1).length;
const runs = document.querySelector("#runs .scroll");
console.log("PROBE" + JSON.stringify({width: document.documentElement.scrollWidth,
  window: window.innerWidth, tip: shown, gone: tip.hidden, wide: wide,
  hidden: runs.scrollWidth - runs.clientWidth}) + "END");
</script>
"""

PROBE_LABELS = """
<script>
const tip = document.getElementById("tip");
const spot = [...document.querySelectorAll("#pareto .spot")].find(
  (one) => one.getBoundingClientRect().width);
const at = spot.getBoundingClientRect();
spot.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: at.x, clientY: at.y}));
let count = 0;
const meeting = [];
for (const plot of document.querySelectorAll("#pareto svg, #buffer svg, #requests svg")) {
  const labels = [...plot.querySelectorAll("text")].map(
    (one) => [one.textContent, one.getBoundingClientRect()]).filter((one) => one[1].width);
  count += labels.length;
  labels.forEach(([name, a], first) => labels.slice(first + 1).forEach(([other, b]) => {
    // Boxes are as high as the line; letters are lower.
    const above = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > a.height * 0.3;
    if (above && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1)
      meeting.push(name + " and " + other);
  }));
}
const scroll = document.querySelector("#points .scroll");
const first = scroll.querySelector("tr:not(.group) th[scope=row]");
const left = first.getBoundingClientRect().left;
scroll.scrollLeft = 120;
const kept = first.getBoundingClientRect().left;
const wide = [...document.querySelectorAll("section, h1, svg, .note, .tiles dd")].filter(
  (element) => element.getBoundingClientRect().right > window.innerWidth + 1).length;
console.log("PROBE" + JSON.stringify({width: document.documentElement.scrollWidth,
  left: left, kept: kept, scrolled: scroll.scrollLeft,
  hidden: scroll.scrollWidth - scroll.clientWidth,
  window: window.innerWidth, tip: tip.textContent, wide: wide, labels: count,
  meeting: meeting}) + "END");
</script>
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="no chromium: apt-get install chromium"
    ),
]


@pytest.fixture(scope="module")
def browser() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs/images/screenshot.py")))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = runpy.run_path(str(ROOT / "tests/unit/report/synthetic.py"))
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(made["summary"](), path)
    return path


@pytest.fixture(scope="module")
def lab_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = runpy.run_path(str(ROOT / "tests/unit/report/lab_synthetic.py"))
    path = tmp_path_factory.mktemp("lab") / "report.html"
    write_lab_report(made["summary"](), path)
    return path


@pytest.fixture(scope="module")
def crowded_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen policies at three buffers, one so bad that it crowds the others together."""
    made = runpy.run_path(str(ROOT / "tests/unit/report/lab_synthetic.py"))
    names = [f"a-rather-long-name+{at} (degree_max={at})" for at in range(14)]
    for at, name in enumerate([*names, "bad"]):
        made["GAINS"][name] = -3.0 if name == "bad" else 0.5 + 0.012 * at
        made["PRICES"][name] = 0.2 + 0.05 * at
    points = made["points"](("none", *names, "bad"), (1.0, 2.0, 4.0), (1, 2))
    path = tmp_path_factory.mktemp("crowded") / "report.html"
    write_lab_report(made["summary"](points=points), path)
    return path


def first_pixel(png: Path) -> tuple[int, ...]:
    """Return red, green, blue of the corner: every filter leaves a PNG's first pixel unchanged."""
    data = png.read_bytes()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompress(packed)[1:4])


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_and_says_nothing_on_the_console(
    browser: SimpleNamespace, page: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    png, blank = tmp_path / "page.png", tmp_path / "blank.html"
    assert browser.screenshot(page, png, width, HEIGHT, scheme) == []
    assert first_pixel(png) == BACKGROUNDS[scheme]
    blank.write_text("<!doctype html><title>blank</title>")
    browser.screenshot(blank, tmp_path / "blank.png", width, HEIGHT, scheme)
    assert png.stat().st_size > 10 * (tmp_path / "blank.png").stat().st_size


def probe(
    browser: SimpleNamespace, page: Path, tmp_path: Path, width: int, script: str
) -> dict[str, Any]:
    """Return the script's output for the page at that width. The page's own policy forbids the
    probe, so the probed copy has no policy. It is in a frame, because a window is at least 500
    pixels wide."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(text.replace("</body>", script + "</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="probed.html" width="{width}" height="900" frameborder="0"></iframe>'
    )
    dom = browser.chromium(frame, 1400, 1000, "light", "--dump-dom")
    match = re.search(r"PROBE(.*?)END", dom)
    assert match, dom
    # Chromium does not escape the quotes of JSON.
    found: dict[str, Any] = json.loads(match.group(1))
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen_and_shows_tips(
    browser: SimpleNamespace, page: Path, tmp_path: Path, width: int
) -> None:
    found = probe(browser, page, tmp_path, width, PROBE)
    assert found["window"] == width and found["width"] <= width and found["wide"] == 0
    assert found["hidden"] == 0 or width < 1280, "the last column says how many are corrupt"
    assert found["tip"].startswith("step ") and "no prefetch" in found["tip"]
    assert found["gone"] is True


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("which", ["lab_page", "crowded_page"])
def test_a_labs_page_fits_and_its_labels_do_not_meet(
    browser: SimpleNamespace, request: pytest.FixtureRequest, tmp_path: Path, width: int, which: str
) -> None:
    """Labels are placed by an estimate of their width; the browser measures what they really cover.
    A table wider than the page scrolls in its card and keeps its first column."""
    shown: Path = request.getfixturevalue(which)
    assert browser.screenshot(shown, tmp_path / "page.png", width, HEIGHT, "dark") == []
    found = probe(browser, shown, tmp_path, width, PROBE_LABELS)
    assert found["kept"] == found["left"] and found["scrolled"] == min(120, found["hidden"])
    assert found["hidden"] > 0 or width == 1280
    assert found["window"] == width and found["width"] <= width and found["wide"] == 0
    assert found["labels"] > 10 and found["meeting"] == []
    assert ", buffer" in found["tip"] and "traffic" in found["tip"]


def test_the_policy_stops_what_is_not_the_pages_own(
    browser: SimpleNamespace, page: Path, tmp_path: Path
) -> None:
    """A script that got into the page by mistake would not run."""
    foreign = tmp_path / "foreign.html"
    script = "<script>document.title = 'ran'</script>"
    foreign.write_text(page.read_text().replace("</body>", script + "</body>"))
    assert "<title>ran</title>" not in browser.chromium(foreign, 390, 400, "light", "--dump-dom")
    assert browser.screenshot(foreign, tmp_path / "foreign.png", 390, 400, "light") != []
