"""The effect of load on a device: its units over time, latency against throughput, and one tenant's
load against another's latency."""

from collections.abc import Sequence

import numpy as np

from offstage.testbeds.report.compare.columns import Column, LoadPoint, NeighbourPoint
from offstage.testbeds.report.compare.style import colours, line_style
from offstage.testbeds.report.page.numbers import clock_ns, percent
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour, plain_logs, rgb
from offstage.testbeds.report.page.plot import Plot

__all__ = ["heat_map", "hockey_stick", "isolation", "throughput"]

CELLS_MAX = 64
"""Maximum number of stretches in a heat map; more are merged."""


def heat_map(column: Column) -> Plot | None:
    """Busy share of each unit over the run; None where the device has no such figures."""
    units = [unit for unit in column.units if any(unit.busy_by_bin)]
    if not units:
        return None
    rows = [_joined(unit.busy_by_bin, CELLS_MAX) for unit in units]
    count = max(len(row) for row in rows)
    ends_s = max(unit.bin_ms / 1e3 * len(unit.busy_by_bin) for unit in units)
    shares = np.zeros((len(rows), count))
    for at, row in enumerate(rows):
        shares[at, : len(row)] = np.clip(row, 0.0, 1.0)
    cells = np.zeros((*shares.shape, 4))
    cells[..., :3] = rgb("set-pattern")
    cells[..., 3] = shares / (shares.max() or 1.0)
    height = 1.1 + 0.26 * len(rows)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        edges = np.linspace(0.0, ends_s, count + 1), np.arange(len(rows) + 1) - 0.5
        drawn.crisp(axes.pcolormesh(*edges, cells))
        for at, unit in enumerate(units):
            mean = unit.busy_share if unit.busy_share is not None else float(shares[at].mean())
            axes.annotate(
                f"{percent(mean)} busy",
                (1.0, at),
                xycoords=("axes fraction", "data"),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                color=colour("muted"),
            )
            (whole,) = axes.barh(at, ends_s, height=1.0, color="none")
            drawn.tip(
                whole,
                f"{unit.name}\n{percent(mean)} busy over the run, "
                f"{percent(float(shares[at].max()))} in its busiest stretch",
            )
        axes.set_yticks(range(len(rows)), [unit.name for unit in units])
        axes.set(xlabel="time in the run, s", ylabel="unit", xlim=(0.0, ends_s))
        fullest = percent(float(shares.max()))
        axes.set_title(f"{column.label} ({column.provenance}); the busiest cell: {fullest} busy")
        axes.invert_yaxis()
        axes.grid(False)

    said = f"Busy share of each unit of {column.label} over the run"
    return Plot(
        f"utilisation {column.label}",
        said,
        draw,
        height=height,
        scroll=True,
    )


def _joined(bins: Sequence[float], most: int) -> list[float]:
    """The bins merged into at most `most` stretches: means of neighbours."""
    step = -(-len(bins) // most)
    return [float(np.mean(bins[at : at + step])) for at in range(0, len(bins), step)]


def throughput(columns: Sequence[Column]) -> Plot | None:
    """Tokens/s of all GPUs against their number, each device with its knee."""
    shown = [
        (column, shade, column.load)
        for column, shade in zip(columns, colours(columns), strict=True)
        if column.load is not None and column.load.curve
    ]
    if not shown:
        return None

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for column, shade, load in shown:
            gpus, tokens = zip(*load.curve, strict=True)
            (line,) = axes.plot(
                gpus, tokens, color=shade, linestyle=line_style(column), label=column.label
            )
            drawn.tip(line, f"{column.label}: {_knee_text(column)}")
            if load.knee_gpus is not None:
                height = float(np.interp(load.knee_gpus, gpus, tokens))
                axes.plot([load.knee_gpus], [height], "o", color=shade, markersize=5)
        axes.axvline(shown[0][2].gpus, color=colour("muted"), linewidth=0.8)
        axes.annotate(
            "the load above",
            (shown[0][2].gpus, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=7.5,
            color=colour("muted"),
        )
        plain_logs(axes, x="number", y="number")
        axes.set(xlabel="GPUs that share one device", ylabel="tokens/s of all of them")
        drawn.legend(axes)

    said = "; ".join(f"{column.label}: {_knee_text(column)}" for column, _, _ in shown)
    return Plot(
        "throughput",
        f"Tokens per second against the number of GPUs. {said}",
        draw,
        height=3.6,
        legend_rows=len(shown),
        paper_height=3.2,
    )


def _knee_text(column: Column) -> str:
    load = column.load
    if load is None or load.knee_gpus is None or load.tokens_per_s_max is None:
        return "no load reaches it"
    return (
        f"knee at {load.knee_gpus:,.0f} GPUs by {load.knee_unit}, "
        f"{load.tokens_per_s_max:,.0f} tokens/s at most"
    )


def hockey_stick(columns: Sequence[Column], points: Sequence[Sequence[LoadPoint]]) -> Plot:
    """Latency against bandwidth, as copies of the same sessions are added."""

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for column, row, shade in zip(columns, points, colours(columns), strict=True):
            if not row:
                continue
            served = [point.bytes_per_s / 1e9 for point in row]
            times = [point.ns_p99 / 1e3 for point in row]
            axes.plot(served, times, color=shade, linestyle=line_style(column), label=column.label)
            for point, x, y in zip(row, served, times, strict=True):
                (spot,) = axes.plot([x], [y], "o", color=shade, markersize=4)
                drawn.tip(
                    spot,
                    f"{column.label}, {point.copies} times the sessions\n"
                    f"{x:.3g} GB/s, median {clock_ns(point.ns_p50)}, "
                    f"p99 {clock_ns(point.ns_p99)}",
                )
        plain_logs(axes, x="number", y="number")
        axes.set(xlabel="served, GB/s", ylabel="fetch latency p99, µs")
        drawn.legend(axes)

    said = "99th percentile of fetch latency against the bandwidth served"
    return Plot("load", said, draw, height=3.4, legend_rows=len(columns), paper_height=3.2)


def isolation(points: Sequence[NeighbourPoint], device: str) -> Plot:
    """A victim's latency as an aggressor loads the device: a tenant or a session, with and without
    QoS. Where both aggressors have the same effect, the wider line shows behind the other."""
    kinds = {
        (False, False): ("in order of arrival", "set-2", 4, 1.5),
        (True, True): ("QoS, another session of its tenant", "set-1", 8, 5.0),
        (True, False): ("QoS, another tenant", "set-pattern", 4, 1.5),
    }

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for (qos, same_tenant), (name, shade, size, width) in kinds.items():
            row = [one for one in points if (one.qos, one.same_tenant) == (qos, same_tenant)]
            if not row:
                continue
            loads = [100 * point.aggressor_share for point in row]
            times = [point.victim_ns_p99 / 1e3 for point in row]
            axes.plot(
                loads,
                times,
                color=colour(shade),
                linestyle=LINE_STYLES["modelled"],
                linewidth=width,
                label=name,
            )
            for point, x, y in zip(row, loads, times, strict=True):
                (spot,) = axes.plot([x], [y], "o", color=colour(shade), markersize=size)
                drawn.tip(
                    spot,
                    f"{name}: aggressor at {x:.0f} % of the device\n"
                    f"victim's p99 {clock_ns(point.victim_ns_p99)}",
                )
        plain_logs(axes, y="number")
        axes.set(
            xlabel="aggressor's load, % of the device's capacity",
            ylabel="victim's fetch latency p99, µs",
            title=f"{device} (modelled)",
        )
        drawn.legend(axes)

    said = "A victim's 99th percentile against the load of another tenant or session"
    return Plot("isolation", said, draw, height=3.2, legend_rows=len(kinds), paper_height=3.0)
