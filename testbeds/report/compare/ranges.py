"""The effect of the parameters' ranges: which matter most, and where two devices are equal."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from offstage.testbeds.report.compare.columns import Crossover, Effect
from offstage.testbeds.report.page.numbers import ratio
from offstage.testbeds.report.page.pictures import Picture, colour, plain_logs, rgb
from offstage.testbeds.report.page.plot import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["crossover", "tornado"]

ROWS_MAX = 15
LEVELS = 9
FLAT = 0.001
"""A plane that varies by less gets no lines: they would only show rounding."""


def tornado(
    effects: Sequence[Effect],
    device: str,
    base: float,
    what: str = "measured mean fetch latency over this device's, ×",
    form: Callable[[float], str] = ratio,
) -> Plot | None:
    """The parameters with the largest effect on a figure, varied one at a time."""
    shown = sorted(effects, key=lambda one: -abs(one.at_high - one.at_low))[:ROWS_MAX]
    if not shown:
        return None
    height = 1.1 + 0.27 * len(shown)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for row, one in enumerate(shown):
            for value, end, shade in (
                (one.at_low, one.low, "set-window"),
                (one.at_high, one.high, "set-pattern"),
            ):
                (bar,) = axes.barh(row, value - base, left=base, height=0.66, color=colour(shade))
                drawn.tip(bar, f"{one.parameter} = {end:g} {one.unit}: {form(value)}")
        axes.axvline(base, color=colour("ink"), linewidth=1.0)
        names = [f"{one.parameter}  {one.low:g}–{one.high:g} {one.unit}" for one in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set(
            xlabel=f"{what} (orange: parameter at its low end, blue: at its high end)",
            ylabel="parameter",
            title=f"{device} (modelled)",
        )

    said = f"The {len(shown)} parameters that change the figure of {device} most"
    return Plot(
        f"tornado {device}",
        said,
        draw,
        height=height,
        scroll=True,
    )


def crossover(found: Crossover) -> Plot:
    """The speed-up over a plane of two parameters, with the line of equal speed."""
    values = np.array(found.speed_up)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        low, high = float(values.min()), float(values.max())
        if high > (1.0 + FLAT) * low:
            levels = np.linspace(low, high, LEVELS)
            shades = [(*rgb("set-pattern"), 0.06 + 0.8 * at / LEVELS) for at in range(LEVELS)]
            drawn.crisp(axes.contourf(found.xs, found.ys, values, levels=levels, colors=shades))
            digits = 2 if high > 1.05 * low else 4
            _lines(axes, found, values, levels[1:-1:2], digits)
        else:
            axes.set(xlim=(found.xs[0], found.xs[-1]), ylim=(found.ys[0], found.ys[-1]))
            axes.text(
                0.5,
                0.7,
                f"the same within {FLAT:.1%} everywhere",
                transform=axes.transAxes,
                ha="center",
                color=colour("muted"),
            )
        (spot,) = axes.plot([found.x], [found.y], "o", color=colour("ink"), markersize=5)
        drawn.tip(spot, f"as in the preset: {found.x:g} {found.x_unit}, {found.y:g} {found.y_unit}")
        plain_logs(axes, x="number", y="number" if found.y_logarithmic else "")
        axes.set(
            xlabel=f"{found.x_name}, {found.x_unit}",
            ylabel=f"{found.y_name}, {found.y_unit}",
            title=f"{found.device} (modelled): {found.what}",
        )
        axes.grid(False)

    said = f"{found.what} of {found.device} over {found.x_name} and {found.y_name}"
    name = f"crossover {found.device} {found.x_name} {found.y_name}"
    return Plot(name, said, draw, height=3.6, paper_height=2.6)


def _lines(
    axes: "Axes",
    found: Crossover,
    values: "NDArray[np.float64]",
    levels: "NDArray[np.float64]",
    digits: int,
) -> None:
    """Lines of equal speed-up; a strong one at 1."""
    thin = axes.contour(
        found.xs, found.ys, values, levels=levels, colors=colour("soft"), linewidths=0.6
    )
    axes.clabel(thin, fmt=lambda level: f"{level:.{digits}f}×", fontsize=7)
    if values.min() < 1.0 < values.max():
        axes.contour(found.xs, found.ys, values, levels=[1.0], colors=colour("ink"), linewidths=1.8)
