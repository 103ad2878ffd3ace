"""The page of `offstage bench engine`: times to the first token by arm, hits by tier, regret."""

import statistics
from collections.abc import Mapping
from pathlib import Path

from offstage.bindings.durable import write_text
from offstage.testbeds.bench.engines.result import Arm, EngineResult, below
from offstage.testbeds.report.page.markup import figure
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.pictures import Picture, plain_logs
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html

__all__ = ["figures_of", "render", "write_page"]


def write_page(found: EngineResult, path: Path, version: str) -> None:
    """Writes the page."""
    write_text(path, render(found, version))


def render(found: EngineResult, version: str) -> str:
    """The page as text."""
    sections = [
        *figures_of(found),
        figure(
            "arms",
            "Hits in the tier",
            as_html(found.arms_table(), "hits in the tier"),
            "Objects are vLLM's blocks. On time: the tier's memory had the whole object; late: it "
            "was in flight; missing: only the store had it. Objects in vLLM's cache were never "
            "requested. Regret: by how much a decision to fetch or to compute took longer than "
            "the alternative would have, by the measurements until then.",
        ),
    ]
    page = Page(
        title="Offstage: an engine on the tier",
        sentence=_sentence(found),
        setup=_scale(found),
        sections=sections,
        version=version,
        kind="engine report",
        notes=dict.fromkeys(found.notes, ""),
    )
    return str(page)


def figures_of(found: EngineResult) -> list[Figure]:
    """Every figure of the page."""
    caption = f"Time from a request's arrival to its first token. {_apart(found)}"
    alone = found.load_before is not None
    title = "Stored prompts, one after another" if alone else "Requests at recorded times"
    return [Figure("together", title, [_curves(found.arms)], caption)]


def _sentence(found: EngineResult) -> str:
    medians = {name: below(one.first_s, 0.5) for name, one in found.arms.items()}
    told = ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in medians.items())
    return f"Median time to the first token: {told}."


def _apart(found: EngineResult) -> str:
    if not found.apart:
        return ""
    return (
        "One engine prefills and another decodes, on half of the cores each; the first token is "
        'the decoding engine\'s, which in the arm "recompute" computes the prompt itself. '
        "File system, and tier in turn: it gets the request when prefill has ended; streamed: "
        "both engines get it at once. "
    )


def _scale(found: EngineResult) -> str:
    if found.load_before is not None:
        return found.about()[0] + "."
    tokens = found.tokens
    return (
        f"{found.requests} requests of {found.trace}, {found.rounds} rounds; a token here "
        f"is {1 / found.scale:.1f} of the trace's, so that the longest prompt fits into the "
        f"model's context ({statistics.median(tokens):.0f} tokens at the median, {max(tokens)} at "
        f"most), and a second {found.hurry:.0f} of the trace's. {percent(found.reuse)} of "
        f"the tokens repeat an earlier prefix. Storage: {found.storage}, {found.provenance}."
    )


def _curves(arms: Mapping[str, Arm]) -> Plot:
    """Share of requests whose first token took longer than a time."""

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for name, arm in arms.items():
            times = sorted(one * 1e3 for one in arm.first_s)
            shares = [1.0 - at / len(times) for at in range(1, len(times) + 1)]
            axes.step(times, shares, where="post", label=name)
        plain_logs(axes, x="number")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
        axes.set(xlabel="time to the first token, ms", ylabel="share of requests that took longer")
        drawn.legend(axes)

    said = "; ".join(f"{name}: {', '.join(arm.times)}" for name, arm in arms.items())
    return Plot(
        "first-token",
        f"Requests by the time to their first token. {said}",
        draw,
        legend_rows=len(arms),
        paper_height=2.8,
    )
