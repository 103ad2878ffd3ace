"""Marks of a lab plot: points of six shapes, error bars, and labels that do not meet.

A label stands where it fits and is left out where it does not: hovering still says it.
"""

import math

from offstage.testbeds.lab.results.summary import Interval
from offstage.testbeds.report.lab.series import Look
from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.numbers import percent, ratio

__all__ = [
    "ABOVE_LINE",
    "AROUND",
    "BEFORE",
    "BESIDE",
    "Labels",
    "error_bar",
    "interval_text",
    "mark",
    "powers_of_two",
]

CHARACTER_WIDTH = 6.6
LABEL_HEIGHT = 14.0
AROUND = (
    ("", 11.0, 4.0), ("end", -11.0, 4.0), ("mid", 0.0, -12.0), ("mid", 0.0, 21.0),
    ("", 9.0, -10.0), ("", 9.0, 19.0), ("end", -9.0, -10.0), ("end", -9.0, 19.0),
    ("", 14.0, -24.0), ("", 14.0, 34.0), ("end", -14.0, -24.0), ("end", -14.0, 34.0),
)  # fmt: skip
"""Where a label may stand: how it is anchored, and how far from its point."""
BEFORE = (AROUND[1], AROUND[0], *AROUND[2:])
"""The same, to the left first."""
BESIDE = AROUND[:8]
"""The same where there are many points: near enough to be nobody else's."""
ABOVE_LINE = tuple(
    ("end", dx, dy) for dx in (-4.0, -110.0, -220.0, -330.0, -500.0) for dy in (-5.0, 14.0)
)
"""The same for a line that ends at the point."""


class Labels:
    """The boxes taken so far in one plot."""

    def __init__(self, frame: svg.Frame) -> None:
        self.frame = frame
        self.boxes: list[tuple[float, float, float, float]] = []

    def block(self, x: float, y: float, half: float = 7.0) -> None:
        """Keeps labels off a mark."""
        self.keep_off((x - half, x + half), (y - half, y + half))

    def keep_off(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Keeps labels off what lies between the ends."""
        self.boxes.append((min(x), min(y), max(x), max(y)))

    def place(
        self,
        x: float,
        y: float,
        text: str,
        class_: str = "name",
        around: tuple[tuple[str, float, float], ...] = AROUND,
    ) -> str:
        """The text beside the point, where it is free; empty where it is not."""
        width = len(text) * CHARACTER_WIDTH
        for anchor, dx, dy in around:
            left = x + dx - {"": 0.0, "end": width, "mid": width / 2}[anchor]
            box = (left, y + dy - LABEL_HEIGHT + 3, left + width, y + dy + 3)
            if self._free(box):
                self.boxes.append(box)
                words = f"{class_} {anchor}".strip()
                return svg.text(x + dx, y + dy, text, class_=words)
        return ""

    def _free(self, box: tuple[float, float, float, float]) -> bool:
        left, top, right, bottom = box
        frame = self.frame
        if left < frame.x0 or right > frame.width - 2 or top < 0 or bottom > frame.y0:
            return False
        return not any(
            left < right_ and left_ < right and top < bottom_ and top_ < bottom
            for left_, top_, right_, bottom_ in self.boxes
        )


def mark(look: Look, x: float, y: float, radius: float, class_: str, tip: str) -> str:
    """The series' shape at a point; `tip` is shown on hover and read out."""
    shared = {
        "class_": class_, "style": f"--c:{look.colour}", "data_tip": tip, "tabindex": 0,
        "aria_label": tip.replace("\n", ", "),
    }  # fmt: skip
    if look.mark == "circle":
        return svg.tag("circle", cx=x, cy=y, r=radius, **shared)
    corners = {"square": 4, "triangle": 3, "star": 10, "diamond": 4, "wedge": 3}[look.mark]
    turn = {"square": math.pi / 4, "wedge": math.pi / 2}.get(look.mark, -math.pi / 2)
    points = []
    for corner in range(corners):
        reach = radius * (0.5 if look.mark == "star" and corner % 2 else 1.2)
        angle = turn + 2 * math.pi * corner / corners
        points.append(f"{x + reach * math.cos(angle):.1f} {y + reach * math.sin(angle):.1f}")
    return svg.tag("path", d=f"M{'L'.join(points)}Z", **shared)


def error_bar(
    x: tuple[float, float], y: tuple[float, float], colour: str, faint: bool = False
) -> str:
    """A line from one end of an interval to the other; nothing where both are one."""
    if abs(x[1] - x[0]) + abs(y[1] - y[0]) < 1.0:
        return ""
    class_ = "error faint" if faint else "error"
    return svg.tag("line", x1=x[0], x2=x[1], y1=y[0], y2=y[1], class_=class_, style=f"--c:{colour}")


def interval_text(interval: Interval | None, kind: str = "share") -> str:
    """`91.2 % (90.8 to 91.6)`; a dash where there is no value."""
    if interval is None:
        return "–"
    form = {"share": percent, "ratio": ratio}[kind]
    if interval.low is None or interval.high is None:
        return form(interval.value)
    low, high = (form(end).removesuffix(" %").removesuffix("×") for end in
                 (interval.low, interval.high))  # fmt: skip
    return f"{form(interval.value)} ({low} to {high})"


def powers_of_two(low: float, high: float) -> list[float]:
    """Those from `low` to `high`."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first, last + 1)]
