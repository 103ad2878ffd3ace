"""`offstage plan`: which tier, how much of it, and at what price."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `offstage plan`."""
    app.command()(plan)


def plan(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="the question as a TOML file")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="whose KV; llama-3-70b")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="of KV: fp16, fp8, fp4")] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="of the model: fp16, fp8 (default), fp4")
    ] = None,
    users: Annotated[int | None, typer.Option("--users", help="sessions at once; 100")] = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="TOKENS", help="of each, such as 128K")
    ] = None,
    turns: Annotated[
        int | None, typer.Option("--turns", help="in which a context grows; 10: a tenth is new")
    ] = None,
    shared: Annotated[
        float | None, typer.Option("--shared", help="share of a context that all begin with; 0")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="h100, h200, b200")] = None,
    tiers: Annotated[
        str | None, typer.Option("--tiers", metavar="NAME,...", help="where KV may wait")
    ] = None,
    prices: Annotated[
        list[Path] | None,
        typer.Option("--prices", metavar="FILE", help="numbers of your own; again for more"),
    ] = None,
    inputs: Annotated[bool, typer.Option("--inputs", help="show every input instead")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the draws behind ranges")] = 0,
    form: FormatOption = Format.text,
) -> None:
    """Which tier, how much of it, and at what price: with ranges, rules and what matters most."""
    import msgspec

    from offstage.testbeds.plan.inputs import gather
    from offstage.testbeds.plan.prices import catalog
    from offstage.testbeds.plan.question import read_spec
    from offstage.testbeds.plan.result import make_plan
    from offstage.testbeds.plan.table import console, inputs_table, sentence

    given: dict[str, Any] = {
        "model": model, "dtype": dtype, "weights": weights, "users": users, "context": context,
        "turns": turns, "shared": shared, "gpu": gpu,
        "tiers": None if tiers is None else [one.strip() for one in tiers.split(",")],
    }  # fmt: skip
    asked = read_spec(spec, {name: value for name, value in given.items() if value is not None})
    known = catalog()
    for file in prices or []:
        known = known.with_file(file)
    known = known.with_tables(asked.numbers, asked.where)
    asked.check(known)
    found = make_plan(asked, gather(asked, known), seed=seed)
    found.sentence = sentence(found)
    found.command = shlex.join(["offstage", *sys.argv[1:]])
    emit(msgspec.to_builtins(found), form, inputs_table(found) if inputs else console(found))
