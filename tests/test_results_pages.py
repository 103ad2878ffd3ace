"""Do pages that quote an experiment match its results, from the spec that is shipped?"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.storage import nvme_cost, preset
from offstage.testbeds.prices import catalog

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/cmx-128k.md"
DSA = ROOT / "docs/what-dsa-needs-of-flash.md"
OTHERS = dict.fromkeys(("cmx-1m", "cmx-1m-blocks", "cmx-1m-pool", "cmx-1m-sessions"), DSA)
"""Pages of results that the page above does not quote."""
DRIVES = ("gen5-tlc", "xl-flash", "xl-flash-10m")
RESULTS = sorted((ROOT / "docs/results").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def interval(figure: dict[str, Any] | None) -> str:
    """Return `98.4 (98.3–98.5)`, in per cent; the value alone of a single request."""
    if figure is None:
        return "–"
    if figure["low"] is None:
        return f"{100 * figure['value']:.1f}"
    return "{:.1f} ({:.1f}–{:.1f})".format(*(100 * figure[k] for k in ("value", "low", "high")))


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def point_rows(points: list[dict[str, Any]]) -> list[str]:
    """Return a line for each policy, with hits and traffic at each buffer, then the bounds."""
    rows = []
    buffers = sorted({point["buffer_over_k"] for point in points})
    for policy in dict.fromkeys(point["policy"] for point in points):
        own = {p["buffer_over_k"]: p for p in points if p["policy"] == policy}
        cells = []
        for buffer in buffers:
            traffic = own[buffer]["traffic_vs_reference"]["value"]
            cells += [interval(own[buffer]["nontrivial_hit"]), f"{traffic:.2f}×"]
        rows.append(row(f"`{policy}`", cells))
    for name in ("belady", "compulsory", "last_step", "two_averages", "clairvoyant"):
        cells = []
        for buffer in buffers:
            first = next(p for p in points if p["buffer_over_k"] == buffer)
            bound = next(one for one in first["bounds"] if one["name"] == name)
            traffic = bound["traffic_vs_reference"]
            cells += [
                interval(bound["nontrivial_hit"]),
                "–" if traffic is None else f"{traffic:.2f}×",
            ]
        rows.append(row(f"*{name.replace('_', ' ')}*", cells))
    return rows


def definition_rows(points: list[dict[str, Any]]) -> list[str]:
    """Return lines without prefetch: the same run under each definition."""
    kinds = ("hit", "nontrivial_hit", "nontrivial_hit_without_cold", "nontrivial_selection_hit")
    rows = []
    for pool in sorted({point["hbm_pool_over_k"] for point in points}):
        for buffer in sorted({point["buffer_over_k"] for point in points}):
            for point in points:
                key = (point["policy"], point["hbm_pool_over_k"], point["buffer_over_k"])
                if key == ("none", pool, buffer):
                    cells = [interval(point[kind]) for kind in kinds]
                    rows.append(row(f"pool {pool:g}k, B = {buffer:g}k", cells))
    return rows


def whole_rows(points: list[dict[str, Any]]) -> list[str]:
    """Return a line for each model's bytes, then one for each point of it."""
    rows = []
    for point in points:
        model = re.sub(r".*model=([^,]*).*", r"\1", point["workload"])
        whole = point["whole_model"]
        sizes = [whole[f"{name}_bytes"] / 2**30 for name in ("cache", "resident")]
        drawn = f"{whole['drawn_layers']} of {whole['layers']}"
        rows.append(row(f"`{model}`", [f"{size:.2f} GiB" for size in sizes] + [drawn]))
        cells = [
            f"`{point['policy']}`",
            f"{point['hbm_pool_over_k']:g}k",
            f"{point['buffer_over_k']:g}k, {whole['buffer_bytes'] / 2**30:.2f} GiB",
            interval(point["hit"]),
            f"{100 * point['nontrivial_hit_without_cold']['value']:.1f}",
            f"{whole['reads_per_token']:,.0f}",
            f"{whole['demanded_bytes_per_token'] / 1e6:.1f} MB",
            f"{100 * whole['stall_share']:.0f} %",
            f"{whole['sessions_per_drive']:.1f}",
            f"{whole['sessions_per_link']:.0f}",
        ]
        rows.append(row(f"`{model}`", cells))
    return list(dict.fromkeys(rows))


def pool_rows(points: list[dict[str, Any]]) -> list[str]:
    """Return a line for each model and pool, with the pool's bytes for one session."""
    rows = []
    for point in points:
        whole, pool = point["whole_model"], point["hbm_pool_over_k"]
        size = whole["buffer_bytes"] / point["buffer_over_k"] * pool / 2**20
        cells = [
            f"{pool:g}k, {size:,.0f} MiB",
            interval(point["hbm_share"]),
            f"{whole['reads_per_token']:,.0f}",
            f"{whole['demanded_bytes_per_token'] / 1e6:.1f} MB",
            f"{100 * whole['stall_share']:.0f} %",
        ]
        rows.append(row(f"`{label(point, 'model')}`", cells))
    return rows


def session_rows(points: list[dict[str, Any]]) -> list[str]:
    """Return a line for each model, policy and number of sessions on one DPU and one drive."""
    rows = []
    for point in points:
        sessions, whole = point["requests"] // 3, point["whole_model"]
        token_s = 0.04 / (1 - whole["stall_share"])
        cells = [
            f"`{point['policy']}`",
            f"{sessions}",
            interval(point["hit"]),
            f"{1e3 * token_s:.0f} ms",
            f"{sessions / token_s:.0f}",
            f"{100 * point['used']['DPU']:.0f} %",
            f"{100 * point['used']['flash']:.0f} %",
        ]
        rows.append(row(f"`{label(point, 'model')}`", cells))
    return rows


def label(point: dict[str, Any], axis: str) -> str:
    """Return the value of one axis of a point's label."""
    found = re.search(rf"\b{axis}=([^,]*)", point["workload"])
    assert found is not None
    return found[1]


def quantile(counts: list[int], share: float) -> int:
    """Return the least number of units of which at least `share` of the blocks have no more."""
    below = 0
    for units, count in enumerate(counts):
        below += count
        if below >= share * sum(counts):
            return units
    raise AssertionError


def used(point: dict[str, Any]) -> str:
    """Return `1.9, 1, 4`: the mean, median and 95th percentile of a block's entries used before it
    goes."""
    use = point["block_use"]
    if use is None:
        return "1"
    if not use["mean"]:
        return "none goes"
    return (
        f"{use['mean']['value']:.1f}, {quantile(use['gone'], 0.5)}, {quantile(use['gone'], 0.95)}"
    )


def block_rows(points: list[dict[str, Any]]) -> list[str]:
    """Return a line for each model, buffer and number of entries that are staged together."""
    rows = []
    for point in points:
        if label(point, "storage") != "gen5-tlc":
            continue
        own = {
            label(other, "storage"): other["whole_model"]
            for other in points
            if label(other, "model") == label(point, "model")
            and (other["policy"], other["buffer_over_k"])
            == (point["policy"], point["buffer_over_k"])
        }
        whole = own["gen5-tlc"]
        units = point["block_use"]["units"] if point["block_use"] else 1
        cells = [
            f"{point['buffer_over_k']:g}k, {whole['buffer_bytes'] / 2**30:.2f} GiB",
            f"{units}",
            interval(point["hit"]),
            f"{whole['reads_per_token']:,.0f}",
            f"{whole['read_bytes_per_token'] / 1e6:,.0f} MB",
            *(f"{100 * own[drive]['stall_share']:.0f} %" for drive in ("gen5-tlc", "xl-flash-10m")),
            used(point),
        ]
        rows.append((label(point, "model"), point["buffer_over_k"], units, cells))
    return [row(f"`{model}`", cells) for model, _, _, cells in rows]


def drive_rows() -> list[str]:
    """Return what drives read a second, by size, and how much of a block must be used to pay."""
    rows = []
    for size in (512, 656, 1024, 1152, 4096, 32 * 1024, 64 * 1152):
        rates = [1e9 / nvme_cost(preset(name).params, [(0, size)]).ns for name in DRIVES]
        rows.append(row(f"{size:,} B", [f"{rate / 1e6:.2f} M" for rate in rates]))
    return rows


def expected(path: Path) -> list[str]:
    points = read(path)["points"]
    if path.stem == "cmx-1m-blocks":
        return block_rows(points)
    if path.stem == "cmx-1m-pool":
        return pool_rows(points)
    if path.stem == "cmx-1m-sessions":
        return session_rows(points)
    if path.stem in OTHERS:
        return [*whole_rows(points), *drive_rows()]
    lines = []
    for workload in dict.fromkeys(point["workload"] for point in points):
        lines += point_rows([point for point in points if point["workload"] == workload])
    if path.stem == "cmx-128k":
        lines += definition_rows([p for p in points if "profile=published-mix" in p["workload"]])
    return lines


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_figure_of_the_tables_is_in_the_result(path: Path) -> None:
    """The page has every line of the tables made from the file."""
    page = OTHERS.get(path.stem, PAGE).read_text(encoding="utf-8")
    missing = [line for line in expected(path) if line not in page]
    assert missing == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_result_is_of_the_spec_that_is_shipped(path: Path) -> None:
    """The file's manifest has the hash of a spec in testbeds/specs, or of one that is kept with the
    results as it was run and that the page names."""
    shipped = {
        hashlib.sha256(spec.read_bytes()).hexdigest()
        for spec in (ROOT / "testbeds/specs").glob("*.toml")
    }
    for kept in RESULTS[0].parent.glob("*.toml"):
        assert f"results/{kept.name}" in PAGE.read_text(encoding="utf-8")
        shipped.add(hashlib.sha256(kept.read_bytes()).hexdigest())
    assert read(path)["manifest"]["spec_sha256"] in shipped


def test_a_plan_has_the_amplification_of_the_page() -> None:
    """`offstage plan` takes the rows of one stream without placement, and its range is all rows: of
    a store without room, and of one with 5 % and more, both of drives that collect."""
    text = (ROOT / "docs/reference/write-amplification.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    head = next(row for row in rows if "both" in row)
    both, streams, handles = (head.index(name) for name in ("both", "streams", "handles"))
    found: dict[str, list[tuple[float, bool]]] = {"full": [], "roomy": []}
    for row in rows:
        zoned = len(row) == len(head) and row[handles] == "zones"  # of another drive
        if len(row) == len(head) and row is not head and row[0].endswith("%") and not zoned:
            plain = row[streams] == "one" and row[handles] == "none"
            found["full" if row[0] == "0 %" else "roomy"].append((float(row[both]), plain))
    numbers = catalog().numbers("wear")
    for name, of in found.items():
        one, known = numbers[name], [value for value, _ in of]
        assert (one.low, one.high) == (min(known), max(known))
        assert one.value == max(value for value, plain in of if plain)
    assert f"by {numbers['rated'].value:.2f} on this drive" in text


def test_a_plan_has_the_sessions_of_the_page() -> None:
    """`offstage plan` takes the page's base; its range ends with the row of two drives."""
    text = (ROOT / "docs/reference/sparse-decode.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| 131,072 | 32 ")
    ]
    (one, two), numbers = rows[:2], catalog().numbers("sparse")
    for row, end in ((one, "low"), (two, "high")):
        sessions, reads, core = (
            float(row[3]),
            float(row[4][:-2].replace(",", "")),
            float(row[5][:-2]),
        )
        assert getattr(numbers["carried"], end) == pytest.approx(reads * 262_144 / 1e9, rel=0.001)
        waits = 0.2 if row is one else 0.155
        us = core / 100 / (sessions / 0.04 * (1 - waits) * 80) * 1e6
        assert getattr(numbers["core"], end) == pytest.approx(us, rel=0.005)
    assert numbers["carried"].value == numbers["carried"].low


def test_there_are_results() -> None:
    """The page quotes at least the experiment it is named for."""
    assert PAGE.stem in {path.stem for path in RESULTS}
