"""What every plot is made of: scales, axes, paths, hover bands; text is escaped here.

A plot is one SVG of a fixed view box that scales with the page. Colours are CSS variables, so that
light, dark and print need no second drawing. What hovering shows stands in `data-tip`, as text: the
page's script puts it into one tooltip with textContent, never as markup.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Frame", "Linear", "Log", "attributes", "bands", "chart", "path", "steps", "tag", "text"]


@dataclass(frozen=True)
class Linear:
    """A linear scale from values to the view box."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values inside the scale."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(span / count))
        step = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= count * 1.001)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass(frozen=True)
class Log:
    """A logarithmic scale; values at or below `low` stand at its start."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = math.log(self.high / self.low)
        share = math.log(min(max(value, self.low), self.high) / self.low) / span
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """The powers of ten inside the scale."""
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """The view box and the plot area inside it."""

    width: float = 440
    height: float = 264
    left: float = 46
    right: float = 10
    top: float = 12
    bottom: float = 40

    @property
    def x0(self) -> float:
        return self.left

    @property
    def x1(self) -> float:
        return self.width - self.right

    @property
    def y0(self) -> float:
        """The bottom of the plot area: SVG counts downwards."""
        return self.height - self.bottom

    @property
    def y1(self) -> float:
        return self.top


def attributes(**values: object) -> str:
    """` a="b" ...`, escaped; `_` in a name stands for `-`, a trailing one is dropped."""
    shown = []
    for name, value in values.items():
        if value is None or value == "":
            continue
        value = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
        name = name.rstrip("_").replace("_", "-")
        shown.append(f' {name}="{escape(str(value), quote=True)}"')
    return "".join(shown)


def tag(element: str, content: str | None = None, /, **values: object) -> str:
    """One element; `content` is markup already. Without it the element is empty."""
    start = f"<{element}{attributes(**values)}"
    return f"{start}/>" if content is None else f"{start}>{content}</{element}>"


def text(x: float, y: float, content: str, **values: object) -> str:
    """A text at a point; `content` is escaped."""
    return tag("text", escape(content), x=float(x), y=float(y), **values)


def path(points: Sequence[tuple[float, float]], **values: object) -> str:
    """A line through the points."""
    if not points:
        return ""
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=d, **values)


def steps(edges: Sequence[float], heights: Sequence[float], floor: float, **values: object) -> str:
    """The outline of bars: `heights[i]` between `edges[i]` and `edges[i + 1]`, down to `floor` at
    the first and the last that stand above it."""
    up = [at for at, height in enumerate(heights) if height < floor]
    if not up:
        return ""
    first, last = up[0], up[-1]
    d = [f"M{edges[first]:.1f} {floor:.1f}"]
    for at in range(first, last + 1):
        d.append(f"L{edges[at]:.1f} {heights[at]:.1f}L{edges[at + 1]:.1f} {heights[at]:.1f}")
    d.append(f"L{edges[last + 1]:.1f} {floor:.1f}")
    return tag("path", d="".join(d), **values)


def x_axis(frame: Frame, marks: Sequence[tuple[float, str]], title: str) -> str:
    """Ticks with labels at positions already scaled, and the axis' title."""
    pieces = [tag("line", x1=frame.x0, x2=frame.x1, y1=frame.y0, y2=frame.y0, class_="axis")]
    for x, label in marks:
        pieces.append(tag("line", x1=x, x2=x, y1=frame.y0, y2=frame.y0 + 4, class_="axis"))
        pieces.append(text(x, frame.y0 + 16, label, class_="tick mid"))
    middle = (frame.x0 + frame.x1) / 2
    pieces.append(text(middle, frame.height - 4, title, class_="title mid"))
    return "".join(pieces)


def y_axis(frame: Frame, marks: Sequence[tuple[float, str]]) -> str:
    """Horizontal grid lines with labels at positions already scaled."""
    pieces = []
    for y, label in marks:
        pieces.append(tag("line", x1=frame.x0, x2=frame.x1, y1=y, y2=y, class_="grid"))
        pieces.append(text(frame.x0 - 6, y + 4, label, class_="tick end"))
    return "".join(pieces)


def bands(frame: Frame, spans: Sequence[tuple[float, float, str]]) -> str:
    """Invisible columns that show a tip when hovered: `(from x, to x, tip)`."""
    return "".join(
        tag(
            "rect",
            x=x0,
            y=frame.y1,
            width=max(0.1, x1 - x0),
            height=frame.y0 - frame.y1,
            class_="band",
            data_tip=tip,
        )
        for x0, x1, tip in spans
    )


def chart(frame: Frame, body: str, summary: str) -> str:
    """The SVG; `summary` is for a reader who cannot see it."""
    box = f"0 0 {frame.width:g} {frame.height:g}"
    return tag("svg", body, viewBox=box, role="img", aria_label=summary)
