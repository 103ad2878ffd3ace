"""What the tables of runs share: a column from its definition, and the cell that names a run."""

from offstage.testbeds.report.run.definitions import definition
from offstage.testbeds.report.run.plots import Colours
from offstage.testbeds.report.run.runs import Group, labels
from offstage.testbeds.table import Cell, Column

__all__ = ["column_of", "run_cell"]


def column_of(key: str, brief: bool, *, better: bool = False) -> Column:
    """A figure's column; `better` says in its tip which way is."""
    entry = definition(key)
    tip = entry.sentence
    if better and entry.better:
        tip += f"\n{entry.better} is better"
    return Column(entry.label, tip=tip, brief=brief)


def run_cell(group: Group, at: int, colours: Colours) -> Cell:
    """The name of a group's run in its colour."""
    run, name = group.runs[at], labels(group)[at]
    mark = colours[tuple(sorted(run.prefetchers))], group.provenance
    return Cell(name, terse=name.replace(" + ", "+"), swatch=mark)
