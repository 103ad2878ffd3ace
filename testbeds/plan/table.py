"""A plan in words and as tables: for the terminal, and the same rows for the page."""

import re
from collections.abc import Callable

from rich.console import Group
from rich.text import Text

from offstage.bindings.notes import note_lines
from offstage.bindings.units import format_seconds, format_share, format_size
from offstage.testbeds.plan.curves import Curves
from offstage.testbeds.plan.engine import EnginePlan, Setting
from offstage.testbeds.plan.result import TIE, PlaceRow, Plan, RuleRow
from offstage.testbeds.plan.sizing import RECOMPUTE
from offstage.testbeds.report.compare.columns import Range
from offstage.testbeds.report.page.numbers import count
from offstage.testbeds.table import Cell, Column, Table

__all__ = [
    "COLUMNS",
    "console",
    "daemon_sets",
    "dpu_lines",
    "engine_console",
    "engine_table",
    "inputs_table",
    "label",
    "of_unit",
    "places_table",
    "rule_text",
    "sentence",
    "shown",
    "split",
    "trace_sentence",
]

LABELS = {
    RECOMPUTE: "not kept: prefilled again",
    "hbm": "HBM (G1)",
    "ddr5": "host DRAM (G2)",
    "cxl": "CXL memory",
    "tlc": "NVMe, TLC (G3)",
    "qlc": "NVMe, QLC (G3)",
    "xl-flash": "NVMe, XL-FLASH (G3)",
    "dpu": "flash behind a DPU (G3.5)",
    "object": "object storage (G4)",
}
SCALES = {
    "s": (
        (86_400 * 365.25, "years"),
        (86_400, "days"),
        (3_600, "h"),
        (60, "min"),
        (1, "s"),
        (1e-3, "ms"),
        (1e-6, "µs"),
    ),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")),
    "1/s": ((1e6, "million/s"), (1e3, "thousand/s"), (1, "/s")),
    "drives": ((1, "drives"),),
    "tokens": ((1e9, "billion tokens"), (1e6, "million tokens"), (1, "tokens")),
    "tokens/month": ((1e9, "billion a month"), (1e6, "million a month"), (1, "a month")),
    "years": ((1, "years"),),
    "$": ((1, ""),),
    "$/Mtok": ((1, ""),),
    "kWh as Wh": ((1e-3, ""),),
    "share": ((0.01, "%"),),
    "1": ((1, ""),),
}
SAME_S = 1e-3
"""First tokens nearer to each other than this come as soon as each other."""
MINUTES_FROM = 120.0
"""Shorter times are given in seconds."""


def label(name: str) -> str:
    """The name of a place."""
    return LABELS.get(name, name)


def of_unit(value: float, unit: str) -> tuple[float, str]:
    """The scale and the name of the unit in which a value is written."""
    if not value:
        return next((one for one in SCALES[unit] if one[0] == 1), SCALES[unit][-1])
    for scale, name in SCALES[unit]:
        short = unit == "s" and name == "min" and value < MINUTES_FROM
        if abs(value) >= scale and not short:
            return scale, name
    return SCALES[unit][-1]


def shown(value: Range | None, unit: str, none: str = "–") -> str:
    """A value and its range in one unit."""
    if value is None:
        return none
    text, ends, name = split(value, unit)
    return f"{text} ({ends}) {name}".rstrip() if ends else f"{text} {name}".rstrip()


def split(value: Range, unit: str) -> tuple[str, str, str]:
    """A value, its range, empty if there is none, and the unit's name."""
    scale, name = of_unit(value.value or value.high, unit)
    money = "$" if unit.startswith("$") else ""
    form = count if unit == "1" else _digits
    mid, low, high = (form(one / scale) for one in (value.value, value.low, value.high))
    return f"{money}{mid}", f"{low} to {high}" if (low, high) != (mid, mid) else "", name


def _digits(value: float) -> str:
    return count(value) if value >= 99.5 else f"{value:.2g}" if value < 10 else f"{value:.3g}"


def _devices(place: PlaceRow) -> str:
    found = place.figures["devices"]
    if found is None or not found.value:
        return "–"
    return shown(found, "1") + (f" + {place.dpus} DPU" if place.dpus else "")


COLUMNS: tuple[tuple[str, str, Callable[[PlaceRow], str]], ...] = (
    ("cost over the cheapest", "both in the same draws", lambda one: _over(one)),
    ("GPUs", "of all replicas", lambda one: f"{shown(one.figures['gpus'], '1')}"),
    ("GPUs limited by", "the need that takes the most GPUs", lambda one: one.gpu_binds or "–"),
    ("devices", "modules or drives", _devices),
    ("devices limited by", "the need that takes the most devices", lambda one: _need(one)),
    ("KV", "waiting bytes", lambda one: _zero(one.figures["capacity_bytes"], "B")),
    ("read rate", "mean of all users", lambda one: _zero(one.figures["read_bytes_per_s"], "B/s")),
    (
        "first token",
        "of a turn, without queues",
        lambda one: shown(one.figures["first_token_s"], "s"),
    ),
    (
        "$ per 1M tokens",
        "tokens of prompts and answers",
        lambda one: shown(one.figures["usd_per_mtok"], "$/Mtok"),
    ),
    (
        "$ per 1M decoded tokens",
        "the same dollars, prefill included, over the tokens of answers alone, as offstage compare "
        "counts tokens; it compares decoding, without prefill",
        lambda one: shown(one.figures["usd_per_mtok_decoded"], "$/Mtok"),
    ),
    (
        "Wh per 1M tokens",
        "tokens of prompts and answers; the price of this energy is not in the dollars",
        lambda one: shown(one.figures["kwh_per_mtok"], "kWh as Wh"),
    ),
    (
        "drive life",
        "at this rate of writes, of drives whose store leaves room (store and flash as offstage "
        "drive wear has them)",
        lambda one: shown(one.figures["life_years"], "years"),
    ),
    (
        "the same, store full",
        "of as many drives, whose store is full; and how many would be needed",
        lambda one: _full(one),
    ),
)


COLD_START = (
    "cold start",
    "one replica's weights from the drives, beside KV's reads",
    lambda one: shown(one.figures["cold_start_s"], "s"),
)
"""A line of a plan whose drives hold the weights too."""


def _need(place: PlaceRow) -> str:
    rates = {"read": "read rate", "write": "write rate"}
    return rates.get(place.device_binds, place.device_binds) or "–"


def _full(place: PlaceRow) -> str:
    """Life with a full store, and devices if there must be more of them."""
    years, devices = place.figures["life_years_full"], place.figures["devices_full"]
    had = place.figures["devices"]
    if years is None or devices is None or had is None:
        return "–"
    more = f"; {shown(devices, '1')} drives" if devices.value > had.value else ""
    return shown(years, "years") + more


def _over(place: PlaceRow) -> str:
    """What a place costs over the cheapest."""
    if place.over_best is None or place.over_best == Range(0.0, 0.0, 0.0):
        return "–" if place.over_best is None else "the cheapest"
    return ("a tie: " if place.tied else "") + more(place.over_best)


def more(value: Range) -> str:
    """A share by which something is more, or less, in per cent."""
    middle, low, high = (_percent(one) for one in (value.value, value.low, value.high))
    return f"{middle} %" + (f" ({low} to {high})" if (low, high) != (middle, middle) else "")


def _percent(share: float) -> str:
    text = f"{100 * share:+.2g}" if abs(share) < 0.1 else f"{100 * share:+,.0f}"
    return "0" if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def _zero(value: Range | None, unit: str) -> str:
    return shown(value, unit) if value is not None and value.value else "–"


def daemon_sets(plan: Plan) -> str:
    """Options of `offstage dpu serve`."""
    return " ".join(f"--set {key}={value}" for key, value in plan.daemon.items())


def _value(text: str) -> str:
    """A figure without its range."""
    return re.sub(r" \([^)]*\)", "", text)


def sentence(plan: Plan) -> str:
    """The answer: the size of the KV, the cheapest place, when flash pays. The ranges of its
    first part are below it, in tiles and table."""
    asked = plan.question
    best = next(one for one in plan.places if one.name == plan.best)
    tiers = [
        one
        for one in plan.places
        if one.figures["capacity_bytes"] and one.figures["capacity_bytes"].value
    ]
    held = tiers[0].figures["capacity_bytes"] if tiers else None
    users = f"{count(asked.users)} user{'s' if asked.users > 1 else ''}"
    text = f"{users} of {count(asked.tokens)} tokens on {asked.model}"
    text += f" hold {shown(held, 'B')} of KV" if held is not None else ""
    text += f": cheapest is {_spoken(best.name)}, {_listed(_bought(best, asked.gpu))}"
    dollars = _value(shown(best.figures["usd_per_mtok"], "$"))
    text += f", {dollars} per million tokens of prompt and answer"
    tied = [_spoken(one.name) for one in plan.places if one.tied]
    rules = {one.name: one.figure for one in plan.rules}
    again = next(one for one in plan.places if one.name == RECOMPUTE).figures["usd_per_mtok"]
    if best.name != RECOMPUTE and again is not None:
        text += f", against {_value(shown(again, '$'))} for prefilling every turn again"
    text += f"; {_listed(tied)} {'ties' if len(tied) == 1 else 'tie'} with it" if tied else ""
    keep = rules["keep_flash"]
    if keep is None or keep.value <= 0:
        return f"{text}; keeping KV in flash costs more than it saves."
    pays = f"flash pays off if KV is requested again within {shown(keep, 's')}, and "
    pays += f"beats DRAM if that takes longer than {shown(rules['dram_over_flash'], 's')}"
    return f"{text}; {pays}."


def _bought(best: PlaceRow, gpu: str) -> list[str]:
    """What a place takes, each with its number."""
    found = [f"{_value(shown(best.figures['gpus'], '1'))} {gpu}"]
    if best.figures["devices"] is not None and best.figures["devices"].value:
        number = _value(shown(best.figures["devices"], "1"))
        what = "module" if best.name in ("ddr5", "cxl") else "drive"
        found.append(f"{number} {what}{'s' if number != '1' else ''}")
    if best.dpus:
        found.append(f"{best.dpus} DPU{'s' if best.dpus > 1 else ''}")
    return found


def _spoken(name: str) -> str:
    """A place in a sentence."""
    return "prefilling every turn again" if name == RECOMPUTE else label(name)


def _listed(names: list[str]) -> str:
    """`a, b and c`."""
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def dpu_lines(plan: Plan) -> list[str]:
    """What a DPU adds to this plan, a line against each place that it could replace."""
    found = []
    for one in plan.dpu:
        if one.usd is None or one.first_token_s is None:
            continue
        wait = one.first_token_s
        same = wait.low <= 0 <= wait.high or abs(wait.value) < SAME_S
        sooner = "sooner" if wait.value < 0 else "later"
        time = "at the same time" if same else f"{shown(_positive(wait), 's')} {sooner}"
        found.append(
            f"Flash behind a DPU against {label(one.base)}: cost {more(one.usd)}, "
            f"first token {time}" + _verdict(one.usd, wait, same)
        )
    if found:
        found.append(
            "A plan puts no price on what else a DPU does: it stages blocks before they are needed "
            "(offstage demo), spares host cores, and holds one copy for all hosts"
        )
    return found


def _verdict(usd: Range, wait: Range, same: bool) -> str:
    """Whether a DPU pays by what the plan counts."""
    cheaper, dearer = usd.high < -TIE, usd.low > TIE
    sooner = not same and wait.value < 0
    if cheaper or (sooner and not dearer):
        return ": it pays"
    if same and not cheaper:
        return ": no gain that the plan counts" + (", at a higher price" if dearer else "")
    return ""


def _positive(value: Range) -> Range:
    """The same, of a time by which something is sooner."""
    return value if value.value >= 0 else Range(-value.value, -value.high, -value.low)


def places_table(plan: Plan) -> Table:
    """A line for each figure, a column for each place: for terminal and page, since two lines of
    columns fit no terminal."""
    columns = [Column("where KV waits", left=True)]
    columns += [Column(label(one.name)) for one in plan.places]
    lines: list[list[object]] = [
        [Cell(name, tip=text), *(_two_lines(show(one)) for one in plan.places)]
        for name, text, show in (*COLUMNS, *([COLD_START] if plan.question.cold_start else []))
    ]
    if any(one.note for one in plan.places):
        notes = (
            Cell("", small=one.note, terse="see note" if one.note else " ") for one in plan.places
        )
        lines.append([Cell("ruled out"), *notes])
    return Table.of(columns, lines)


def _two_lines(text: str) -> Cell:
    """A figure, and its range below it on a page."""
    value, open_, rest = text.partition(" (")
    ends, _, unit = rest.partition(")")
    return Cell(f"{value}{unit}", small=ends if open_ else "", terse=text)


def console(plan: Plan) -> Group:
    """Sentence, places, rules and the inputs that matter most."""
    noted = [f"{label(one.name)}: {one.note}" for one in plan.places if one.note]
    noted += [
        f"for a daemon that decides by these prices: offstage dpu serve {daemon_sets(plan)}",
        "$ per 1M tokens counts tokens of prompts and answers. $ per 1M decoded tokens are the "
        "same dollars over the answers alone, prefill paid; those of offstage compare have the "
        "same prices and pay for decoding only",
        f"each range covers 90 % of {plan.draws} draws, each of which varies all inputs",
    ]
    trace = [] if plan.curves is None else _trace(plan.curves)
    return Group(
        Text(plan.sentence),
        *map(Text, note_lines(plan.notes)),
        "",
        places_table(plan),
        "",
        _rules(plan),
        "",
        _matters(plan),
        "",
        *(Text(line) for line in dpu_lines(plan)),
        "",
        *trace,
        *(Text(f"note: {text}") for text in noted),
    )


def _rules(plan: Plan) -> Table:
    rows = [
        [one.label, shown(one.figure, one.unit, "never"), Cell(rule_text(one), "dim")]
        for one in plan.rules
    ]
    words = Column("", left=True, wrap=True)
    return Table.of([words, Column("", left=True), words], rows, heads=False)


def rule_text(rule: RuleRow) -> str:
    """What a rule says, the input that moves it most, and what kind of knowledge that is."""
    rests = f"{rule.kind}: {rule.rests_on}" if rule.rests_on else rule.kind
    return f"{rule.text} ({rests})"


def _matters(plan: Plan) -> Table:
    columns = [Column("most important inputs", left=True)]
    columns += map(Column, ("range", "$ per 1M tokens at its ends", "kind"))
    kinds = {one.name: one for one in plan.inputs}
    rows = []
    for one in plan.effects[:8]:
        of = kinds[one.parameter]
        rows.append(
            [
                one.parameter,
                f"{one.low:g} to {one.high:g} {one.unit}".removesuffix(" 1"),
                f"${one.at_low:.3g} to ${one.at_high:.3g}",
                of.kind + (" †" if of.stale else ""),
            ]
        )
    return Table.of(columns, rows)


def trace_sentence(curves: Curves) -> str:
    """The trace, and the capacity that LRU needs."""
    text = f"{count(curves.requests)} requests in {shown(_only(curves.duration_s), 's')}"
    if curves.ideal_hit_rate is None:
        return (
            f"{text}; prompts of {count(curves.input_p50)} and answers of "
            f"{count(curves.output_p50)} tokens at the median."
        )
    text += f"; an infinite cache hits {shown(_only(curves.ideal_hit_rate), 'share')} of the blocks"
    if curves.needed_bytes is None:
        return f"{text}."
    return f"{text}, LRU nine tenths of that with {shown(_only(curves.needed_bytes), 'B')}."


def _only(value: float) -> Range:
    return Range(value, value, value)


def _trace(curves: Curves) -> list[Text | Table | str]:
    """The trace's sentence, and a line for a few capacities of LRU and the others."""
    found: list[Text | Table | str] = [Text(f"{curves.trace}: {trace_sentence(curves)}"), ""]
    if not curves.kept:
        return found
    columns = [
        Column("capacity", lambda value: shown(_only(value), "B"), left=True),
        *(
            Column(f"hits, {name}", lambda rate: shown(_only(rate), "share"))
            for name in curves.kept
        ),
        Column("blocks written for a hit, lru", _digits),
        Column("years of drive life, lru", _digits),
    ]
    lines: list[list[object]] = []
    for at in (one.capacity_bytes for one in curves.kept.get("opt") or curves.kept["lru"][::4]):
        row = {
            name: next(one for one in points if one.capacity_bytes == at)
            for name, points in curves.kept.items()
        }
        of_lru = row["lru"].written_per_hit, row["lru"].life_years
        lines.append([at, *(one.hit_rate for one in row.values()), *of_lru])
    return [*found, Table.of(columns, lines), ""]


def engine_table(engine: EnginePlan) -> Table:
    """What to set for an engine, with the kind and the source of each figure."""
    columns = [
        Column(f"to set for {engine.engine}", left=True),
        Column("value", left=True),
        Column("kind", left=True),
        Column("from", left=True, wrap=True),
    ]
    rows = [[one.name, _setting(one), one.kind, one.source] for one in engine.settings]
    return Table.of(columns, rows)


def _setting(one: Setting) -> str:
    if one.unit == "B":
        return format_size(int(one.value))
    if one.unit == "s":
        return format_seconds(one.value)
    if one.unit == "share":
        return format_share(one.value)
    return f"{one.value:,.0f}" + (f" {one.unit}" if one.unit != "1" else "")


def engine_console(engine: EnginePlan) -> Group:
    """The table, and the files to paste."""
    files = (Text(f"# {one.name}\n\n{one.text}") for one in (engine.daemon, engine.connector))
    return Group(engine_table(engine), "", *files, Text(f"# start\n\n{engine.start}"))


def inputs_table(plan: Plan) -> Table:
    """Every input with its range, its kind, its date and its source; † is older than a year."""
    names = ("input", "value", "low", "high", "kind", "date", "source")
    rows = [
        [
            one.name,
            f"{one.value:g} {one.unit}".removesuffix(" 1"),
            f"{one.low:g}",
            f"{one.high:g}",
            one.kind,
            one.date + (" †" if one.stale else ""),
            one.source,
        ]
        for one in plan.inputs
    ]
    columns = [Column(name, left=True, wrap=name == "source") for name in names]
    return Table.of(columns, rows)
