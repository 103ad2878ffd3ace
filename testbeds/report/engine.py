"""The page of `offstage bench engine`: times to the first token by arm, hits by tier, regret."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offstage.bindings.durable import write_text
from offstage.testbeds.report.page.markup import figure, page
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.pictures import Picture, plain_logs
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["below", "figures_of", "hits_of", "regret_of", "render", "write_page"]


def below(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies; of one value, itself."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def hits_of(arm: Mapping[str, Any]) -> dict[str, float]:
    """Objects read by how the tier had them, and those that vLLM had to compute after all."""
    counters = arm.get("counters", {})
    return {name: counters.get(f"objects_{name}", 0) for name in ("on_time", "late", "missing")} | {
        "failed": counters.get("load_failed_blocks", 0)
    }


def regret_of(arm: Mapping[str, Any]) -> dict[str, float]:
    """Of decisions that were made by measurement: how many fetched, and what was lost by them."""
    made = [one for one in arm.get("decisions", []) if one["took_s"] >= 0]
    return {
        "decisions": len(made),
        "fetched": sum(one["fetched"] for one in made),
        "took_s": sum(one["took_s"] for one in made),
        "regret_s": sum(one["regret_s"] for one in made),
    }


def write_page(found: Mapping[str, Any], path: Path, version: str) -> None:
    """Writes the page."""
    write_text(path, render(found, version))


def render(found: Mapping[str, Any], version: str) -> str:
    """The page as text."""
    arms = found["arms"]
    sections = [
        *map(str, figures_of(found)),
        figure(
            "arms",
            "What the tier had",
            _table(_arm_rows(arms)),
            "Objects are vLLM's blocks. On time: the tier's memory had all of one; late: it was "
            "on its way there; missing: only the store had it. What vLLM's own cache had was "
            "never asked for. Regret: by how much a decision to fetch or to compute took longer "
            "than the other would have, by what was measured until then.",
        ),
    ]
    return page(
        title="Offstage: an engine on the tier",
        sentence=_sentence(found),
        setup=_scale(found),
        tiles="",
        sections=sections,
        foot="",
        version=version,
        kind="engine report",
        notes=dict.fromkeys(found.get("notes", ()), ""),
    )


def figures_of(found: Mapping[str, Any]) -> list[Figure]:
    """Every figure of the page."""
    caption = f"Time from a request's arrival to its first token. {_apart(found)}"
    return [Figure("together", "Requests as they came", [_curves(found["arms"])], caption)]


def _sentence(found: Mapping[str, Any]) -> str:
    medians = {name: below(one["first_s"], 0.5) for name, one in found["arms"].items()}
    told = ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in medians.items())
    return f"Median time to the first token: {told}."


def _apart(found: Mapping[str, Any]) -> str:
    if not found.get("apart"):
        return ""
    return (
        "One engine prefills and another decodes, on half of the cores each; the first token is "
        'the decoding one\'s, which in the arm "recompute" computes the prompt itself. '
        "File system, and tier in turn: it is asked when the prefilling one has ended; streamed: "
        "both are asked at once. "
    )


def _scale(found: Mapping[str, Any]) -> str:
    tokens = found["tokens"]
    return (
        f"{found['requests']} requests of {found['trace']}, {found['rounds']} rounds; a token here "
        f"is {1 / found['scale']:.1f} of the trace's, so that the longest prompt fits into the "
        f"model's context ({statistics.median(tokens):.0f} tokens at the median, {max(tokens)} at "
        f"most), and a second {found['hurry']:.0f} of the trace's. {percent(found['reuse'])} of "
        f"the tokens were a prefix before. Storage: {found['storage']}, {found['provenance']}."
    )


def _times(arm: Mapping[str, Any]) -> list[str]:
    return [f"{below(arm['first_s'], share) * 1e3:.0f} ms" for share in (0.5, 0.9)]


def _arm_rows(arms: Mapping[str, Any]) -> list[list[str]]:
    rows = [["arm", "median", "p90", "on time", "late", "missing", "failed", "fetched", "regret"]]
    for name, arm in arms.items():
        hits, regret = hits_of(arm), regret_of(arm)
        chosen = f"{regret['fetched']:.0f} of {regret['decisions']:.0f}"
        lost = f"{regret['regret_s'] * 1e3:.0f} of {regret['took_s'] * 1e3:.0f} ms"
        rows.append([name, *_times(arm), *(f"{one:.0f}" for one in hits.values()), chosen, lost])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = tag("tr", "".join(tag("th", escape(one)) for one in rows[0]))
    body = "".join(tag("tr", "".join(tag("td", escape(one)) for one in row)) for row in rows[1:])
    return tag("table", tag("thead", head) + tag("tbody", body))


def _curves(arms: Mapping[str, Any]) -> Plot:
    """Share of requests whose first token took longer than a time."""

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for name, arm in arms.items():
            times = sorted(one * 1e3 for one in arm["first_s"])
            shares = [1.0 - at / len(times) for at in range(1, len(times) + 1)]
            axes.step(times, shares, where="post", label=name)
        plain_logs(axes, x="number")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
        axes.set(xlabel="time to the first token, ms", ylabel="share of requests that took longer")
        drawn.legend(axes)

    said = "; ".join(f"{name}: {', '.join(_times(arm))}" for name, arm in arms.items())
    return Plot(
        "first-token",
        f"Requests by the time to their first token. {said}",
        draw,
        legend_rows=len(arms),
        paper_height=2.8,
    )
