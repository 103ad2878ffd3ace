"""The page of a plan: the answer, the cost of each place, pictures, rules, and every input."""

from pathlib import Path

from offstage.bindings.durable import write_text
from offstage.testbeds.document import as_json
from offstage.testbeds.plan.curves import Curves
from offstage.testbeds.plan.pictures import bars, bought, over, reuse
from offstage.testbeds.plan.result import DOUBT, TIE, Plan
from offstage.testbeds.plan.table import (
    daemon_sets,
    dpu_lines,
    engine_table,
    inputs_table,
    label,
    places_table,
    rule_text,
    shown,
    split,
    trace_sentence,
)
from offstage.testbeds.report.compare.ranges import tornado
from offstage.testbeds.report.page.markup import figure, folded
from offstage.testbeds.report.page.page import Page, Tile
from offstage.testbeds.report.page.plot import Figure
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["JSON_NAME", "PAGE_NAME", "figures_of", "render", "write_plan"]

PAGE_NAME, JSON_NAME = "plan.html", "plan.json"


def write_plan(plan: Plan, out: Path) -> tuple[Path, ...]:
    """Writes page, figures and an engine's files into `out`; returns their paths."""
    page_path, json_path = out / PAGE_NAME, out / JSON_NAME
    write_text(json_path, as_json(plan))
    write_text(page_path, render(plan))
    files = [] if plan.engine is None else [plan.engine.daemon, plan.engine.connector]
    for one in files:
        write_text(out / one.name, one.text)
    return page_path, json_path, *(out / one.name for one in files)


def render(plan: Plan) -> str:
    """The page as text."""
    asked = plan.question
    page = Page(
        title="Offstage: plan of a tier",
        sentence=plan.sentence,
        setup=f"{asked.model}, KV in {asked.dtype}, weights in {asked.weights}, on {asked.gpu}; "
        f"{asked.turns} turns, of which each adds {100 / asked.turns:.3g} % of the context; "
        f"{100 * asked.shared:.3g} % of it shared by all. Modelled: no part of it was run.",
        tiles=_tiles(plan),
        sections=[
            _places(plan),
            *_engine(plan),
            *_dpu(plan),
            *figures_of(plan),
            *_notes(plan.curves),
            _rules(plan),
        ],
        command=plan.command,
        again=f"Offstage {escape(plan.version)}; {plan.draws} draws.",
        foot=[
            folded(
                "Every input: measured, modelled, cited or assumed",
                as_html(inputs_table(plan), "every input", "facts"),
            )
        ],
        version=plan.version,
        kind="plan",
        notes=dict.fromkeys(plan.notes, ""),
    )
    return str(page)


def _tiles(plan: Plan) -> list[Tile]:
    best = next(one for one in plan.places if one.name == plan.best)
    tied = sum(one.tied for one in plan.places)
    under = f"ties with {tied} other{'s' if tied > 1 else ''}" if tied else "no other ties with it"
    tiles = [Tile("cheapest place", label(best.name), f"for KV between two turns; {under}")]
    for name, key, unit, under in (
        ("GPUs", "gpus", "1", f"limited by {best.gpu_binds}"),
        ("$ per 1M tokens", "usd_per_mtok", "$", "tokens of prompts and answers"),
        ("Wh per 1M tokens", "kwh_per_mtok", "kWh as Wh", "not part of the dollars"),
    ):
        figure_of = best.figures[key]
        assert figure_of is not None, "the cheapest place has them"
        value, ends, unit_name = split(figure_of, unit)
        tiles.append(Tile(name, f"{value} {unit_name}".strip(), f"{ends or value}; {under}"))
    return tiles


def _places(plan: Plan) -> str:
    return figure(
        "places",
        "Resources of each place",
        as_html(places_table(plan), "resources of each place", "points"),
        "The range below a figure covers nine in ten draws, each of which varies all inputs. Cost "
        "over the cheapest compares both in the same draws, as they share most inputs. A place "
        f"ties if it costs less than {100 * TIE:.0f} % more than the cheapest, or is cheaper than "
        f"it in at least {100 * DOUBT:.0f} % of the draws. A place that is ruled out is never the "
        "cheapest.",
    )


def _engine(plan: Plan) -> list[str]:
    """What to set for an engine, where one was asked for."""
    if plan.engine is None:
        return []
    rows = as_html(engine_table(plan.engine), "what to set for an engine", "facts")
    names = f"{plan.engine.daemon.name} and {plan.engine.connector.name}"
    caption = f"{names} stand beside this page. Means of all users: no queues are in them."
    return [figure("engine", "What to set for an engine", rows, caption)]


def _dpu(plan: Plan) -> list[str]:
    """What a DPU adds, where one was asked for."""
    lines = dpu_lines(plan)
    told = "".join(tag("p", escape(line)) for line in lines)
    caption = "Both places have the same inputs in each draw, and the same flash behind them."
    return [figure("dpu", "What a DPU adds", told, caption)] if lines else []


def figures_of(plan: Plan) -> list[Figure]:
    """Every figure of the page: of the plan, and of the trace where it has one."""
    best, curves = label(plan.best), plan.curves
    inputs = tornado(
        plan.effects, best, plan.base, "dollars per million tokens", lambda value: f"${value:.3g}"
    )
    found = [
        Figure(
            "cost",
            "Cost per million tokens",
            [bars(plan)],
            "Prompts and answers; GPUs by the hour, purchases over their lifetime, rent by the "
            "month. Line: nine in ten draws. Faint: places that are ruled out; the table says "
            "why.",
        ),
        Figure(
            "users",
            "As users grow",
            [over(plan, "users")],
            "All inputs at their middle values. Steps are whole machines.",
        ),
        Figure(
            "gap",
            "As the next turn comes later",
            [over(plan, "gap")],
            "Band: the break-even of the five-minute rule between DRAM and flash, with its "
            "range. Idle GPUs cost the same, so all lines rise as turns become rare.",
        ),
    ]
    if inputs is not None:
        found.append(
            Figure(
                "tornado",
                "Which inputs matter",
                [inputs],
                "Each input at the ends of its range, the others at their middle, with KV in "
                f"{best}.",
            )
        )
    if curves is None or not curves.kept:
        return found
    return [
        *found,
        Figure(
            "trace",
            f"Hits and wear over capacity, on {curves.trace}",
            [bought(curves)],
            f"{trace_sentence(curves)} Grey line: LRU's capacity for nine tenths of the possible "
            "hits. Years are those of as much flash, written at the trace's pace. "
            f"{'; '.join(map(str, curves.notes))}",
        ),
        Figure(
            "reuse",
            "When KV is requested again",
            [reuse(curves)],
            "A TTL keeps the share to its left.",
        ),
    ]


def _notes(curves: Curves | None) -> list[str]:
    """The notes; a trace without prefixes has a note in place of curves."""
    if curves is None or curves.kept:
        return []
    told = escape("; ".join(map(str, curves.notes)))
    return [figure("trace", f"The trace {curves.trace}", tag("p", told), trace_sentence(curves))]


def _rules(plan: Plan) -> str:
    rows = "".join(
        tag("dt", f"{escape(one.label)} {escape(shown(one.figure, one.unit, 'never'))}")
        + tag("dd", escape(rule_text(one)))
        for one in plan.rules
    )
    return figure(
        "rules",
        "Break-even points",
        tag("dl", rows, class_="glossary"),
        "The formulas are in bindings/tradeoffs.py, each with its source. In brackets stands the "
        "input that moves a figure most, and what kind of knowledge it is. A daemon "
        f"decides by them with {daemon_sets(plan)}.",
    )
