"""The page of a pod: what binds it, which member, and how evenly its members are used."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from offstage.asic_model.twice import PARTS
from offstage.bindings.durable import write_text
from offstage.testbeds.report.bottleneck.section import bottleneck_section, members_section
from offstage.testbeds.report.bottleneck.tree import Bottleneck, MemberBinds
from offstage.testbeds.report.page.numbers import percent, ratio
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot

__all__ = ["write_pod_report"]

CAPTION = (
    "Demands over weight, in those of the mean member: 1 is an even spread. Link, DPU, flash and "
    "control: how much of the time each is used, in virtual time; the longest bar of a kind is "
    "the figure of its step."
)
SHADES = ("set-pattern", "set-shared", "set-window", "set-none")
BAR = 0.8


def write_pod_report(found: Bottleneck, path: Path, version: str, judged: str = "") -> None:
    """Writes the page. `judged`: the section of an acceptance, if there is one."""
    page = Page(
        title=f"Offstage: {found.subject}",
        sentence=found.sentence,
        setup=f"{found.subject}; pod.json of {found.run}.",
        sections=[
            judged,
            members_section(found),
            _figure(found.members),
            bottleneck_section(found),
        ],
        version=version,
        kind="pod report",
        notes=dict.fromkeys(found.notes, ""),
    )
    write_text(path, str(page))


def _figure(members: Sequence[MemberBinds]) -> Figure:
    """How evenly members are loaded, and what each uses of its parts where that is known."""
    plots = [_bars("load", {"load": {one.name: one.load for one in members}})]
    if all(one.used for one in members):
        shares = {part: {one.name: one.used[part] for one in members} for part in PARTS}
        plots.append(_bars("used", shares))
    return Figure("spread", "How evenly members are used", plots, CAPTION)


def _bars(name: str, rows: Mapping[str, Mapping[str, float]]) -> Plot:
    """A group of bars for each member, a bar for each of `rows`."""
    form = ratio if name == "load" else percent
    members = list(next(iter(rows.values())))
    height = BAR / len(rows)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for number, (kind, values) in enumerate(rows.items()):
            for place, member in enumerate(members):
                at = place - BAR / 2 + (number + 0.5) * height
                (bar,) = axes.barh(
                    at,
                    values[member],
                    height=0.9 * height,
                    color=colour(SHADES[number]),
                    label=kind if place == 0 else None,
                )
                drawn.tip(bar, f"{member}: {kind} {form(values[member])}")
        axes.set_yticks(range(len(members)), members)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda value, _: form(value))
        if name == "load":
            axes.axvline(1.0, color=colour("muted"), linewidth=0.8, linestyle="--")
        axes.set(xlabel="demands over weight" if name == "load" else "used")
        if len(rows) > 1:
            drawn.legend(axes)

    said = "; ".join(
        f"{member}: " + ", ".join(f"{kind} {form(values[member])}" for kind, values in rows.items())
        for member in members
    )
    return Plot(name, said, draw, legend_rows=len(rows) if len(rows) > 1 else 0)
