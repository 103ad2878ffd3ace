"""The benches' figures as tables: figure, reference, ratio, aim, and whether it was reached."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from offstage.bindings.units import format_rate, format_size, format_time

__all__ = ["TABLES"]

HEADINGS = ("", "ours", "reference", "ratio", "aim", "")

Drawn = tuple[Table, list[str]]
Show = Callable[[float], str]
Row = tuple[str, str, str, float | None, str, bool | None]
"""What, ours, reference, ratio, aim, whether it was reached."""


def drawn(rows: list[Row]) -> Table:
    """One row per figure; the last column says whether the aim was reached, where there is one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if number in (0, 4, 5) else "right", no_wrap=True)
    for name, ours, reference, ratio, aim, met in rows:
        word = {None: "", True: "reached", False: "missed"}[met]
        shown = f"{ratio:.3f}" if ratio is not None else ""
        style = "green" if met else "yellow"
        table.add_row(name, ours, reference, shown, aim, Text(word, style=style))
    return table


def storage_table(result: Mapping[str, Any]) -> Drawn:
    """Reads beside fio; the emulated drives beside what was published of them."""
    rows: list[Row] = []
    for row in result["rows"]:
        name = f"{format_size(row['block_bytes'])} reads, depth {row['queue_depth']}"
        shown: tuple[tuple[str, str, Show], ...] = (
            ("bytes_per_s", "bandwidth", format_rate),
            ("latency_ns_p50", "latency p50", format_time),
        )
        for key, label, form in shown:
            ratio_key = "bandwidth_ratio" if key == "bytes_per_s" else "latency_ratio"
            aim, met = _aim(row["aims"], ratio_key)
            rows.append((f"{name}, {label}", form(row["ours"][key]), form(row["fio"][key]),
                         row[ratio_key], aim, met))  # fmt: skip
    for drive in result["emulated"]:
        for key, figure in drive["figures"].items():
            form = FORMS.get(key, _plain)
            rows.append((f"emulated {drive['preset']}, {key}", form(figure["got"]),
                         form(figure["cited"]), figure["ratio"], "", None))  # fmt: skip
    notes = [
        f"measured beside {result['reference']} on {result['path']}, seed {result['seed']}: the "
        f"ratio is the median of {result['rounds']} rounds",
        "emulated rows stand beside the figures published for the drive",
    ]
    return drawn(rows), notes


def _aim(aims: Mapping[str, bool], key: str) -> tuple[str, bool | None]:
    for text, met in aims.items():
        if text.startswith(key):
            return text.removeprefix(key).strip(), met
    return "", None


def _plain(value: float) -> str:
    return f"{value:,.0f}"


FORMS: dict[str, Show] = {
    "read_bytes_per_s": format_rate,
    "read_latency_ns_p50": format_time,
}

TABLES: dict[str, Callable[[Mapping[str, Any]], Drawn]] = {"storage": storage_table}
