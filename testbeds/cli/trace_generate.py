"""`offstage trace generate`: a generated workload, compared with published figures or written."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit, seed_option, table
from offstage.testbeds.cli.names import profiles
from offstage.testbeds.cli.progress import shown

__all__ = ["generate"]

TOKENS_MAX = 1 << 31  # as in a lab's spec
LayersOption = Annotated[
    int, typer.Option("--layers", min=1, max=65536, help="layers that store KV")
]
ContextOption = Annotated[
    int,
    typer.Option(
        "--context-tokens",
        min=1,
        max=TOKENS_MAX,
        help="context of each session, a multiple of a block",
    ),
]
StepsOption = Annotated[
    int, typer.Option("--steps", min=1, max=1 << 24, help="decode steps of each session")
]
SessionsOption = Annotated[
    int, typer.Option("--sessions", min=1, max=65536, help="sessions that decode")
]
BlockOption = Annotated[
    int, typer.Option("--block-tokens", min=1, max=1 << 20, help="tokens of one block")
]
TurnOption = Annotated[
    int | None, typer.Option("--turn-steps", min=1, help="begin a new turn every N steps")
]
PrefixOption = Annotated[
    int,
    typer.Option(
        "--shared-prefix-tokens",
        min=0,
        max=TOKENS_MAX,
        help="tokens of the prefix that all sessions share",
    ),
]


def generate(
    profile: Annotated[
        str,
        typer.Option("--profile", autocompletion=profiles, help="profile of the layers' behaviour"),
    ] = "published-mix",
    explain: Annotated[
        bool, typer.Option("--explain", help="measure the profile against published figures")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="write a workload in the capture format")
    ] = None,
    layers: LayersOption = 8,
    context_tokens: ContextOption = 32768,
    steps: StepsOption = 128,
    sessions: SessionsOption = 1,
    block_tokens: BlockOption = 64,
    turn_steps: TurnOption = None,
    shared_prefix_tokens: PrefixOption = 0,
    seed: Annotated[int, seed_option("seed of the draws")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """Draw a workload from fitted score processes, or measure how well a profile fits.

    --explain prints each published figure with what the profile gives, the miss, and whether it was
    fitted. --out writes at most 2 GiB before compression; a lab run draws a workload of any size.
    """
    if explain == (out is not None):
        raise BadInput(
            "nothing to do" if out is None else "two things to do",
            "trace generate",
            "give --explain or --out FILE",
        )
    if out is None:
        _explain(profile, seed, form)
        return
    from offstage.testbeds.capture.export import check, export
    from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload

    # A file has scores, and its replay selects: one block represents any selection here.
    options = GeneratedOptions(
        profile,
        layers,
        context_tokens,
        steps,
        sessions,
        block_tokens,
        select_blocks=1,
        sink_blocks=0,
        window_blocks=0,
        turn_steps=turn_steps,
        shared_prefix_tokens=shared_prefix_tokens,
        seed=seed,
    )
    check(options, out)
    workload = GeneratedWorkload(options)
    with shown(1) as progress:
        export(workload, out, progress)
    result = {"file": str(out), "size_bytes": out.stat().st_size, **workload.describe()}
    emit(result, form, table(result))


def _explain(profile: str, seed: int, form: Format) -> None:
    from offstage.testbeds.workloads.selections import explain as figures

    with shown(len(figures.processes_of(profile)) + 3) as progress:
        rows = figures.explain(profile, seed, progress=progress)
    emit(figures.explained(profile, rows, seed), form, figures.render(profile, rows))
