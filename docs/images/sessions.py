"""Draws docs/images/cmx-1m-sessions.png: what a token takes against sessions on one DPU and drive.

    python docs/images/sessions.py

It reads docs/results/cmx-1m-sessions.json.
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1]
RESULT = DOCS / "results/cmx-1m-sessions.json"
SEEDS = 3
PACE_MS = 40


def lines(points: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Sessions and milliseconds a token, by model and policy."""
    found: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        model = point["workload"].removeprefix("model=").partition(",")[0]
        token = PACE_MS / (1 - point["whole_model"]["stall_share"])
        found.setdefault(f"{model}, {point['policy']}", []).append(
            (point["requests"] // SEEDS, token)
        )
    return found


if __name__ == "__main__":
    figure = Figure(figsize=(7, 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for name, points in lines(json.loads(RESULT.read_text(encoding="utf-8"))["points"]).items():
        axes.plot(*zip(*points, strict=True), marker="o", linestyle="--", label=name)
    axes.axhline(PACE_MS, linewidth=0.8, color="0.5")
    axes.set(xlabel="sessions at 1M tokens", ylabel="ms a token", ylim=(0, None))
    axes.legend()
    figure.savefig(DOCS / "images/cmx-1m-sessions.png")
