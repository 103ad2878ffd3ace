"""Rivals in words, as a table and as a map, for the terminal."""

from rich.console import Group

from offstage.testbeds.plan.result import TIE
from offstage.testbeds.plan.rivals.design import DPU, RIVALS
from offstage.testbeds.plan.rivals.result import MapCell, RivalRow, Rivals
from offstage.testbeds.plan.table import more, shown
from offstage.testbeds.report.compare.columns import Range
from offstage.testbeds.table import Cell, Column, Table

__all__ = ["console", "maps", "sentence"]

USES = {
    "tokens": "top-k tokens, read row by row",
    "blocks": "selected blocks",
    "prefix": "prefixes that are used again",
}
MILLION = 1e6
NAMED_MAX = 3
"""A cell of the map names so many rivals; of more than that nobody can tell."""


def sentence(found: Rivals) -> str:
    """Whether the DPU earns its place, by the map; then who is best at the question."""
    what, parts = USES[found.asked.use], []
    if DPU in found.asked.rivals:
        alone, tied, behind = _verdict(found.map)
        cells = alone + tied + behind
        counted = f"{alone} of {cells} cells of the map"
        if alone:
            earns = f"A DPU with flash earns its place for {what}: it is the sole winner in"
            earns += f" {counted}"
        else:
            earns = f"A DPU with flash does not earn its place for {what} by these figures: it is"
            earns += f" nowhere the sole winner ({counted})"
        text = f"{earns}, cannot be told from the best in {tied}, and is behind in {behind}."
        parts.append(text)
    if changed := [one for one in found.map if one.drawn and one.drawn.names != one.names]:
        firsts = sum(one.drawn is not None and one.drawn.best != one.best for one in changed)
        text = f"With the capture's selections in place of drawn ones {len(changed)} of"
        parts.append(f"{text} {len(found.map)} cells have other names, {firsts} another best one.")
    best = next(one for one in found.rows if one.name == found.best)
    most = f"{_plain(best, 'tokens_per_usd', MILLION)} million"
    where = f"{found.asked.users:,} users per GPU and {found.asked.context}"
    tied_with = [_short(one) for one in found.rows if one.tied]
    text = f"At {where}, {_short(best)} gives the most tokens per dollar, {most}"
    if tied_with:
        text += f"; it cannot be told from {_listed(tied_with)}"
    return " ".join([*parts, f"{text}."])


def _short(row: RivalRow) -> str:
    """A label without what follows its comma, for a sentence."""
    return row.label.partition(",")[0]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _verdict(cells: list[MapCell]) -> tuple[int, int, int]:
    """Cells in which the DPU is alone the best, among those that are, and behind."""
    alone = sum(one.best == DPU and not one.tied for one in cells)
    among = sum(DPU in (one.best, *one.tied) for one in cells)
    return alone, among - alone, sum(bool(one.best) for one in cells) - among


def _against(row: RivalRow) -> str:
    if row.over_best is None:
        return "–"
    if row.over_best == Range(0.0, 0.0, 0.0):
        return "the best"
    return ("a tie: " if row.tied else "") + more(row.over_best)


def _figure(row: RivalRow, name: str, unit: str) -> str:
    return shown(row.figures[name], unit)


def _plain(row: RivalRow, name: str, scale: float = 1.0) -> str:
    """A figure and its range without a unit, in two digits: its inputs are guesses."""
    value = row.figures[name]
    if value is None:
        return "–"
    mid, low, high = (f"{one / scale:.2g}" for one in (value.value, value.low, value.high))
    return f"{mid} ({low} to {high})"


def _wait(row: RivalRow) -> str:
    """A time that is hidden as a whole is none."""
    value = row.figures["stall_p99_s"]
    return "none" if value is not None and value.high == 0 else shown(value, "s")


def _table(found: Rivals) -> Table:
    prefix = found.asked.use == "prefix"
    columns = [
        Column("rival", left=True),
        Column(
            "million tokens per $", tip="of GPU and tier, in nine of ten draws between the ends"
        ),
        Column("against the best", tip="tokens per $, both of the same draw"),
        Column("tokens per J"),
        Column("p99 wait of a turn" if prefix else "p99 stall of a token"),
        Column("capacity per $"),
        Column("sessions a GPU"),
        Column("bound by", left=True, wrap=True),
    ]
    rows = []
    for one in found.rows:
        mark = "best" if one.name == found.best else ""
        rows.append(
            [
                Cell(one.name, mark=mark, tip=one.label),
                _plain(one, "tokens_per_usd", MILLION),
                _against(one),
                _plain(one, "tokens_per_joule"),
                _wait(one),
                _figure(one, "bytes_per_usd", "B"),
                _figure(one, "sessions", "1"),
                one.note or one.bound,
            ]
        )
    return Table.of(columns, rows)


def _cell(one: MapCell) -> Cell:
    """Who is best, with a sign where drawn selections name others."""
    sign = " ≠" if one.drawn is not None and one.drawn.names != one.names else ""
    if not one.best:
        return Cell(f"none works{sign}", mark="void")
    names = [one.best, *one.tied]
    if len(names) > NAMED_MAX:
        return Cell(f"? {len(names)} of them{sign}", mark="dim", tip=", ".join(names))
    return Cell(" = ".join(names) + sign, mark="" if one.tied else "best")


def maps(found: Rivals) -> list[Table]:
    """A map for each k or reuse: a line for each number of users, a column for each context. Behind
    those of a capture come those of drawn selections."""
    drawn = [one.drawn for one in found.map if one.drawn is not None]
    return [*_maps(found.map, ""), *_maps(drawn, ", drawn")]


def _maps(cells: list[MapCell], about: str) -> list[Table]:
    tables = []
    thirds = dict.fromkeys((one.k, one.reuse) for one in cells)
    for third in thirds:
        own = [one for one in cells if (one.k, one.reuse) == third]
        name = "the trace's reuse" if third[0] is None else f"k = {third[0]:,}"
        name = f"reuse {third[1]:g}" if third[1] is not None else name
        contexts = list(dict.fromkeys(one.context for one in own))
        columns = [Column(f"{name}{about}, users")]
        columns += [Column(f"{one} tokens", left=True) for one in contexts]
        rows: list[list[object]] = []
        for users in dict.fromkeys(one.users for one in own):
            line = [_cell(one) for one in own if one.users == users]
            rows.append([f"{users:,}", *line])
        tables.append(Table.of(columns, rows))
    return tables


def console(found: Rivals) -> Group:
    """Sentence, rivals and maps."""
    asked = found.asked
    about = f"{asked.model} in {asked.dtype} on {asked.gpu}, ${asked.budget:,.0f} a GPU for the "
    about += f"tier; modelled, {found.draws} draws, {found.map_draws} in a cell of the map."
    if found.selections:
        about += f" Selections: {found.selections}."
    key = f"a = b: cannot be told apart (within {TIE:.0%}, or the other is better in one of ten "
    key += "draws or more); ?: that many cannot. "
    key += ", ".join(f"{name}: {RIVALS[name].label}" for name in asked.rivals) + "."
    if any(one.drawn for one in found.map):
        key += " ≠: drawn selections of as many blocks have others there."
    parts = [table.drawn() for table in maps(found)]
    return Group(found.sentence, "", _table(found).drawn(), "", *parts, "", key, about)
