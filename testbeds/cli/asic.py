"""`offstage asic`: the model of the KV ASIC, and of the DPUs for comparison."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from offstage.bindings.durable import write_text
from offstage.bindings.errors import BadInput, Interrupted
from offstage.testbeds.cli.asic_size import size
from offstage.testbeds.cli.asic_validate import validate
from offstage.testbeds.cli.common import (
    ClusterOption,
    Format,
    FormatOption,
    JobsOption,
    emit,
    parse_settings,
    seed_option,
)
from offstage.testbeds.cli.names import presets as presets_of
from offstage.testbeds.document import as_json
from offstage.testbeds.table import Column, Table

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import (
        ChipCommands,
        ChipsSwept,
        PresetListed,
        PresetShown,
        PresetsListed,
    )

__all__ = ["register"]

ABOUT = "The KV ASIC in virtual time: its presets, and traces that run through them."

RUN_NAME = "chip-run.json"
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="BLOCK.KEY=NUMBER",
        help="change a number of the preset, in its unit, such as codec.lanes=8; may be repeated",
    ),
]

LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="BLOCK.KEY=N,...",
        help="what a table of so many entries costs, in closed loop: scheduler.candidates or "
        "dedup.entries; may be repeated",
    ),
]

asic = typer.Typer(no_args_is_help=True, help=ABOUT)


def register(app: typer.Typer) -> None:
    """Add `offstage asic`."""
    app.add_typer(asic, name="asic")


@asic.callback()
def about() -> None:
    """The KV ASIC in virtual time: its presets, and traces that run through them."""


@asic.command()
def presets(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=presets_of, help="a preset, or a TOML file of one"
        ),
    ] = "",
    form: FormatOption = Format.text,
) -> None:
    """List the presets; or every number of one, with its range, source and kind of knowledge."""
    from offstage.asic_model.blocks import TAGS
    from offstage.asic_model.parameters import names, read_preset, rows

    if name:
        preset = read_preset(name)
        found = rows(preset)
        names_of = ("parameter", "value", "low", "high", "tag", "source")
        rows_of = [
            [
                row.parameter,
                f"{row.value:g} {row.unit}".removesuffix(" 1"),
                f"{row.low:g}",
                f"{row.high:g}",
                row.tag,
                row.source,
            ]
            for row in found
        ]
        table = Table.named(names_of, rows_of, left=6, wrap=("source",))
        one_shown: PresetShown = {
            "name": preset.name,
            "title": preset.title,
            "kind": preset.kind,
            "about": preset.about,
            "staging": preset.staging,
            "spill": preset.spill,
            "calibrated": preset.calibrated,
            "drive": preset.nvme.drive,
            "numbers": found,
        }
        emit(one_shown, form, table)
        return
    listed: list[PresetListed] = []
    lines = []
    for one in map(read_preset, names()):
        tags: list[str] = [number.tag for _, number in one.numbers()]
        counts = {tag: tags.count(tag) for tag in TAGS}
        listed.append(
            {
                "name": one.name,
                "title": one.title,
                "kind": one.kind,
                "calibrated": one.calibrated,
                "tags": counts,
            }
        )
        yes = "yes" if one.calibrated else "uncalibrated"
        lines.append([one.name, yes, *counts.values(), one.title])
    columns = [Column("preset", left=True), Column("calibrated", left=True), *map(Column, TAGS)]
    table = Table.of([*columns, Column("meaning", left=True, wrap=True)], lines)
    all_shown: PresetsListed = {"presets": listed, "tags": TAGS}
    emit(all_shown, form, table)


@asic.command()
def commands(form: FormatOption = Format.text) -> None:
    """List the chip's commands, what each replaces of today's rings, and what hardware adds."""
    from offstage.asic_model.commands import FIELDS, rows

    found = rows()
    names = list(found[0])
    table = Table.named(names, [[*row.values()] for row in found], left=len(names), wrap=names[1:])
    document: ChipCommands = {"commands": found, "fields": FIELDS}
    emit(document, form, table)


@asic.command()
def synth(
    libraries: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LIB", help="liberty files of standard cells; none: the table"),
    ] = None,
    blocks: Annotated[
        list[str] | None, typer.Option("--block", help="only this block; may be repeated")
    ] = None,
    node_nm: Annotated[
        int | None, typer.Option("--node-nm", help="the process of the cells; default: 7")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="keep the rows in the table that presets are held to")
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Show what synthesis made of the chip's Verilog; with a cell library, run it: area, flops,
    clock."""
    import sys

    from offstage.asic_model.hardware import BLOCKS, synthesis
    from offstage.asic_model.synth import synthesize, write_table
    from offstage.bindings.settings import check_known

    for block in blocks or ():
        check_known(block, BLOCKS, "offstage asic synth", "block")
    found = synthesis()
    if not libraries and (write or node_nm is not None):
        raise BadInput(
            "no cells to synthesize with", "--write, --node-nm", "give LIB, or leave them out"
        )
    if libraries:
        found = synthesize(
            libraries,
            7 if node_nm is None else node_nm,
            blocks or BLOCKS,
            lambda text: print(text, file=sys.stderr),
        )
        if write:
            write_table(found)
    rows = [
        {**msgspec.to_builtins(row), "clock_ghz": round(row.clock_ghz, 2)}
        for row in found.rows
        if not blocks or row.block in blocks
    ]
    names = ("block", "size", "area_um2", "flops", "path_ps", "clock_ghz", "cycle_pj")
    cells = [["" if row[name] is None else row[name] for name in names] for row in rows]
    table = Table.named(names, cells, left=2, wrap=("size",))
    head = {"library": found.library, "node_nm": found.node_nm, "program": found.program}
    emit({**head, "rows": rows}, form, table)


@asic.command()
def run(
    log: Annotated[
        Path, typer.Argument(metavar="RUN", help="a recorded run's folder, or its decisions.log")
    ],
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            autocompletion=presets_of,
            help="chip preset, or a TOML file of one",
        ),
    ] = "asic_7nm",
    closed: Annotated[
        bool, typer.Option("--closed-loop", help="let the core decide again, in the chip's time")
    ] = False,
    storage: Annotated[
        str, typer.Option("--storage", metavar="DRIVE", help="replace the preset's drives")
    ] = "",
    changes: SetOption = None,
    limits: LimitOption = None,
    seed: Annotated[int, seed_option("seed of random draws, such as read retries")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="folder for chip-run.json")] = None,
    form: FormatOption = Format.text,
) -> None:
    """Run a recorded run's trace through a chip, with its decisions or deciding again."""
    from offstage.asic_model.limits import check, limit_rows
    from offstage.asic_model.parameters import read_preset
    from offstage.asic_model.replay import closed_loop, decision_replay
    from offstage.asic_model.trace import read_trace
    from offstage.testbeds.cli.asic_tables import run_table
    from offstage.testbeds.cli.progress import shown

    values = {name: _value(name, text) for name, text in parse_settings(changes or []).items()}
    chip = read_preset(preset)
    chip.with_(values)  # refuses bad values before the log is read
    chip.refuse_unused(values, "--set")
    asked = _sizes(limits or [], closed)
    check(chip, asked, "--limit")
    mode = "closed loop" if closed else "decision-replay"
    with shown(2 + bool(asked)) as progress:
        progress.start("decisions made again", 1, "")
        trace = read_trace(log)
        chip = chip.for_heads(trace.heads).with_(values)
        progress.start(f"{mode} on {chip.name}", len(trace.fetches), "fetches")
        replay = closed_loop if closed else decision_replay
        found = replay(trace, chip, drive=storage, seed=seed, advance=progress.advance)
        if asked:
            loops = sum(1 + len(sizes) for sizes in asked.values())
            progress.start("tables of other sizes", loops * len(trace.fetches), "fetches")
            rows = limit_rows(
                trace, chip, asked, drive=storage, seed=seed, advance=progress.advance
            )
            found.limits = list(rows)
    found.parameters = values
    if out is not None:
        write_text(out / RUN_NAME, as_json(found))
    emit(found, form, run_table(found))


def _sizes(given: list[str], closed: bool) -> dict[str, list[int]]:
    """The sizes of each table. BadInput for what is no list of sizes, or without a closed loop."""
    if given and not closed:
        raise BadInput(
            "a replay keeps the log's decisions", "--limit", "add --closed-loop, which decides"
        )
    found: dict[str, list[int]] = {}
    for name, text in parse_settings(given).items():
        sizes = text.split(",")
        if not all(one.isascii() and one.isdigit() for one in sizes):
            raise BadInput(
                f"{text!r} is not a list of sizes", f"--limit {name}", "give one such as 512,128"
            )
        found[name] = sorted({int(one) for one in sizes}, reverse=True)
    return found


def _value(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(
            f"{text!r} is not a number",
            f"--set {name}",
            "give a number in the unit that `offstage asic presets NAME` shows",
        ) from None


@asic.command()
def sweep(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="a sweep's TOML file")],
    out: Annotated[Path, typer.Option("--out", help="folder for the results")] = Path("asic-out"),
    jobs: JobsOption = 0,
    cluster: ClusterOption = "",
    form: FormatOption = Format.text,
) -> None:
    """Run one trace through many chips: a grid of parameters, draws within their ranges, or both.

    Writes sweep.parquet to --out. After an interruption, the same command continues.
    """
    from offstage.testbeds.asic.sweep import TABLE_NAME
    from offstage.testbeds.asic.sweep import sweep as compute
    from offstage.testbeds.cli.asic_tables import sweep_table
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.lab.run.execute import default_jobs

    if jobs < 0:
        raise BadInput(f"--jobs = {jobs}", "asic", "give 1 or more, or 0 for one per core")
    try:
        with shown(1) as progress:
            rows = compute(spec, out, progress, jobs=jobs or default_jobs(), address=cluster)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", str(out), "run the same command to continue") from None
    path = str(out / TABLE_NAME)
    swept: ChipsSwept = {"points": len(rows), "rows": rows, "table": path}
    emit(swept, form, sweep_table(rows, path))


asic.command()(size)
asic.command()(validate)
