"""`offstage host run --model`: its options, and its results as tables."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from offstage.bindings.durable import write_text
from offstage.bindings.errors import BadInput
from offstage.bindings.notes import note_lines
from offstage.bindings.units import format_count, format_size
from offstage.testbeds.cli.common import Dtype, Format, emit
from offstage.testbeds.cli.models import model_folder
from offstage.testbeds.cli.names import models
from offstage.testbeds.document import as_json
from offstage.testbeds.table import Column, Table

if TYPE_CHECKING:
    from offstage.host.endpoint import Endpoint
    from offstage.testbeds.live.model_results import KvStored, ModelPass, ModelSummary, Position

__all__ = ["run_model"]

ROWS_MAX = 32


class AheadName(StrEnum):
    """How a query's prediction of the next layer is used."""

    none = "none"
    hint = "hint"
    fetch = "fetch"


class IndexHomeName(StrEnum):
    """Where the keys of a model's indexers are."""

    resident = "resident"
    tier = "tier"


ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", autocompletion=models, help="a model decodes: its name, folder or GGUF file"
    ),
]
TextOption = Annotated[
    Path | None, typer.Option("--text", help="text that the model reads and continues")
]
SelectOption = Annotated[
    str,
    typer.Option(
        "--select-blocks",
        help="blocks that a layer reads in a step; with --model several: 16,64,all",
    ),
]
SelectorOption = Annotated[
    str, typer.Option("--selector", help="scorer of blocks: quest, quest8, mean_key or mass")
]
PoolRatioOption = Annotated[
    float, typer.Option("--pool-ratio", help="size of the HBM pool, over the selection")
]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="type of the computation; auto: as stored")
]
KvDtypeOption = Annotated[
    str,
    typer.Option(
        "--kv-dtype",
        help="type of K and V in the tier: model, fp8 (rows with scales, latents too), fp8-e4m3, "
        "fp8-e5m2, int8, int4, or auto: each head what it bears; several: int8,int4",
    ),
]
MaxKlOption = Annotated[
    float | None,
    typer.Option("--max-kl", help="with --kv-dtype auto: KL that it may cost, in nats a token"),
]
IndexKeysOption = Annotated[
    IndexHomeName,
    typer.Option(
        "--index-keys",
        help="where keys of the model's indexers are: in memory, or in blocks of the tier",
    ),
]
CheckpointOption = Annotated[
    int,
    typer.Option(
        "--checkpoint-blocks",
        help="of a model with recurrent or, with --index-keys tier, compressed layers: keep their "
        "states in the tier after every so many blocks; 0: never",
    ),
]
GenerateOption = Annotated[
    bool, typer.Option("--generate", help="continue with the model's tokens, not the text's")
]
PredictOption = Annotated[
    bool, typer.Option("--predict", help="predict each layer's query from the previous layer")
]
AheadOption = Annotated[
    AheadName,
    typer.Option(
        "--ahead",
        help="with --predict, or where layers share a selection: send hints to the tier, or also "
        "fetch ahead",
    ),
]
TrafficOption = Annotated[
    float,
    typer.Option("--traffic", help="reads that hints may spend, over those of LRU at 2k"),
]


def run_model(
    link: "Endpoint",
    out: Path | None,
    form: Format,
    *,
    model: Path,
    text: Path | None,
    select_blocks: str,
    **given: Any,
) -> None:
    """Decode and print; writes model.json to `out` if it is given."""
    import msgspec

    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.live.checks import found as found_failed
    from offstage.testbeds.live.checks import refuse
    from offstage.testbeds.live.model.options import ModelOptions, parse_lengths, parse_selections
    from offstage.testbeds.live.model.run import run

    if text is None:
        raise BadInput("no text for the model", "host run --model", "name a file with --text")
    lengths = parse_lengths(given.pop("context_tokens")) if "context_tokens" in given else ()
    selectors, kinds = (_words(given.pop(name)) for name in ("selector", "kv_dtype"))
    options = ModelOptions(
        model=model_folder(model),
        text=text,
        selections=parse_selections(select_blocks),
        selectors=selectors,
        kv_dtypes=kinds,
        context_tokens=lengths,
        **given,
    )
    holds = len(kinds) * max(1, len(lengths))
    passes = holds * len(options.selections) * len(selectors)
    steps = 1 + (options.max_kl is not None) + options.sessions * (1 + holds) + 2 * passes
    with shown(steps) as progress:
        summary = run(options, link, progress)
    if out is not None:
        write_text(out / "model.json", as_json(summary))
    failures = [text for one in summary.passes for text in found_failed(one, summary.named(one))]
    document = msgspec.structs.asdict(summary) | {
        "notes": list(summary.noted()),
        "like_dense": summary.like_dense(),
        "failed": failures,
    }
    emit(document, form, _tables(summary))
    refuse(failures, str(out / "model.json") if out is not None else "host run --model")


def _words(text: str) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one.strip() for one in text.split(",")))


def _tables(summary: "ModelSummary") -> Group:
    from offstage.testbeds.live.model.quality import quality_table

    model, work = summary.model, summary.workload
    head = (
        f"{model.name} ({model.architecture}, {model.dtype}{', RoPE ' * bool(model.rope)}"
        f"{model.rope}) on "
        f"{work.text}: {f'{work.sessions} sessions of ' * (work.sessions > 1)}"
        f"{work.context_tokens:,} tokens of context, {work.steps:,} decoded, "
        f"blocks of {work.block_tokens} tokens, {work.kernel} on {work.device}; "
        f"{'own' if model.chooses_itself else 'dense'} perplexity {summary.dense_perplexity:.3f}"
    )
    weights = f"weights {model.weights[:16]}: {model.weights_read}"
    told = map(Text, note_lines(summary.noted()))
    parts: list[Any] = [
        head,
        weights,
        *_indexed(summary),
        *_kept_states(summary),
        *told,
        "",
        *(part for kv in summary.kv for part in _chosen(kv)),
        quality_table(summary),
        *_padded(summary),
        *_like_dense(summary),
        "",
        _fetches(summary.passes),
        *_by_group(summary.passes),
    ]
    for one in summary.passes:
        if one.guesses:
            parts += ["", _guessed(one), *(["", _curve(one)] if one.curve else [])]
        if one.predicted:
            parts += ["", _predicted(one)]
    if len(summary.passes) == 1:
        parts += ["", _positions(summary.passes[0].positions)]
    parts += [line for one in summary.passes if one.text for line in ("", one.text)]
    return Group(*parts)


def _indexed(summary: "ModelSummary") -> list[str]:
    """What a model with indexers reads, and what stays out of the tier."""
    model, passes = summary.model, summary.passes
    if not model.chooses_itself:
        return []
    keys, states = (
        format_size(max(getattr(one, name) for one in passes))
        for name in ("index_key_bytes", "state_bytes")
    )
    whose = "context's" if summary.workload.sessions == 1 else "contexts'"
    in_tier = summary.workload.index_keys == "tier"
    where = "are in the tier, and every step reads all of them" if in_tier else "stay resident"
    if model.compresses:
        share = f"at most {model.top_k:,} of" if model.top_k else "all"
        absent = "stay resident: the tier does not hold them"
        return [
            f"each layer reads its window and {share} its compressed entries; the {whose} index "
            f"keys, {keys}, {f'{where};' if in_tier else 'and'} compressor states, {states}, "
            f"{absent if summary.states is None else 'stay resident'}"
        ]
    return [
        f"each layer reads at most {model.top_k:,} tokens that an indexer selects; the {whose} "
        f"index keys, {keys}, {where}"
    ]


def _kept_states(summary: "ModelSummary") -> list[str]:
    """The states that no block holds, and from where the context was read."""
    kept, read = summary.states, summary.workload.context_tokens * summary.workload.sessions
    if kept is None:
        return []
    size = format_size(kept.state_bytes)
    what = f"{kept.layers} layers keep a state and no KV: {size}, resident; a checkpoint"
    if summary.model.compresses:
        what = f"a checkpoint of compressor states and windows, {size} behind the context,"
    if not kept.every_blocks:
        return ["no checkpoints of states: a session that comes back reads its context again"]
    return [
        f"{what} after every {kept.every_blocks:,} blocks: "
        f"{kept.checkpoints_written:,} written, {format_size(kept.bytes_written)}, as values",
        f"of {read:,} tokens of context the tier had the KV of {kept.kept_tokens:,}, and states "
        f"after {kept.returned_tokens:,}: {read - kept.returned_tokens:,} were read",
    ]


def _chosen(kv: "KvStored") -> list[Any]:
    """What `--kv-dtype auto` chose, and by which figures."""
    if kv.chosen is None:
        return []
    one, total = kv.chosen, sum(each.heads for each in kv.heads)
    rows = [
        (each.dtype, str(each.heads), f"{each.heads / total:.0%}", f"{each.bytes_per_token:,.0f}")
        for each in kv.heads
    ]
    if kv.padding_per_token:
        rows.append(("padding", "", "", f"{kv.padding_per_token:,.0f}"))
    told = (
        f"KL {one.checked:.2g} nats on the last {one.tail_tokens} tokens of the context, at most "
        f"{one.max_kl:g}; the heads one by one add up to {one.predicted:.2g}. They need blocks of "
        f"{one.block_bytes:,} B"
    )
    return [Table.named(("KV", "heads", "share", "B/token"), rows, "Chosen"), told, ""]


def _padded(summary: "ModelSummary") -> list[Any]:
    """Of which blocks the figures of several types are."""
    if len(summary.kv) == 1:
        return []
    return [
        "",
        "Blocks are the smallest that hold each type, for a daemon of that type alone; here all "
        f"were padded to this daemon's {summary.workload.block_bytes:,} B",
    ]


def _like_dense(summary: "ModelSummary") -> list[str]:
    """From which share of blocks on the model writes as with dense attention."""
    from offstage.testbeds.live.model_results import LIKE_DENSE_NATS

    if len({(one.selector, one.select_blocks) for one in summary.passes}) == 1:
        return []

    said = [
        f"{name} {'at no share tried' if share is None else f'from {share:.1%} of the blocks on'}"
        for name, share in summary.like_dense().items()
    ]
    return ["", f"KL at most {LIKE_DENSE_NATS} nats, as good as dense: {'; '.join(said)}"]


def _fetches(passes: Sequence["ModelPass"]) -> Table:
    from offstage.testbeds.live.model.quality import varying

    columns = [
        *(column for column, _ in varying(passes)),
        Column("blocks"),
        Column("demands", format_count),
        Column("hits", "{:.1%}".format),
        Column("late", "{:.1%}".format),
        Column("corrupt"),
        Column("stall ms p50", "{:.2f}".format),
        Column("p99", "{:.2f}".format),
        Column("token ms p50", "{:.1f}".format),
        Column("tokens/s", "{:.2f}".format),
    ]
    rows = [
        [
            *(value(one) for _, value in varying(passes)),
            one.select_blocks,
            one.demands,
            one.hit,
            one.late,
            one.blocks_corrupt,
            one.stall_ms_p50,
            one.stall_ms_p99,
            one.token_ms_p50,
            one.tokens_per_s,
        ]
        for one in passes
    ]
    return Table.of(columns, rows, "From the tier")


def _by_group(passes: Sequence["ModelPass"]) -> list[Any]:
    """What entries and index keys took of the tier, where both are in it."""
    from offstage.testbeds.live.model.quality import varying

    columns = [
        *(column for column, _ in varying(passes)),
        Column("group", left=True),
        Column("demands", format_count),
        Column("KiB/token", "{:,.1f}".format),
        Column("stall ms p50", "{:.2f}".format),
        Column("p99", "{:.2f}".format),
    ]
    rows = [
        [
            *(value(one) for _, value in varying(passes)),
            group.group,
            group.demands,
            group.bytes_per_token / 1024,
            group.stall_ms_p50,
            group.stall_ms_p99,
        ]
        for one in passes
        for group in one.groups
    ]
    return ["", Table.of(columns, rows, "What the HBM pool lacked, by group")] if rows else []


def _predicted(one: "ModelPass") -> Table:
    columns = [Column("layer"), Column("steps")]
    names = ("predicted", "step before", "layer before")
    columns += [Column(name, "{:.2f}".format) for name in names]
    rows = [
        [
            layer.layer,
            layer.steps,
            layer.predicted,
            layer.step_before,
            layer.layer_before if layer.layer else "",
        ]
        for layer in one.predicted
    ]
    return Table.of(columns, rows, f"Of {one.select_blocks} blocks selected, known ahead")


def _guessed(one: "ModelPass") -> str:
    read = one.guesses_used + one.guesses_late + one.guesses_unused
    return (
        f"{one.select_blocks} blocks: {one.guesses:,} blocks foretold to the tier, which read "
        f"{read:,} of them ahead: {one.guesses_used:,} staged before their demand, "
        f"{one.guesses_late:,} on their way, {one.guesses_unused:,} never demanded"
    )


def _curve(one: "ModelPass") -> Table:
    """The levels, as the host counts them; the last not below the one in force is marked."""
    assert one.traffic is not None and one.worth is not None, "something was guessed"
    columns = [
        Column("worth a read", "{:.1%}".format),
        Column("hits", "{:.1%}".format),
        Column("reads over LRU's", "{:.2f}x".format),
        Column(""),
    ]
    within = [row.level for row in one.curve if row.level >= one.worth]
    chosen = within[-1] if within else one.curve[0].level
    rows = [
        [row.level, row.hit, row.traffic, "within" if row.level == chosen else ""]
        for row in one.curve
    ]
    return Table.of(
        columns, rows, f"Hits for reads; this run {one.traffic:.2f}x, at last {one.worth:.1%}"
    )


def _positions(positions: Sequence["Position"]) -> Table:
    """One row for each position, or for groups of neighbours so that there are ROWS_MAX rows. Of
    several sessions at once, all are in it."""
    positions = sorted(positions, key=lambda one: one.position)
    each = -(-len(positions) // ROWS_MAX)
    rows = []
    for first in range(0, len(positions), each):
        some = positions[first : first + each]
        last = "" if each == 1 else f"-{some[-1].position}"
        agree = sum(one.top1 == one.dense_top1 for one in some)
        nll = [one.nll for one in some if one.nll is not None]
        dense = [one.dense_nll for one in some if one.dense_nll is not None]
        rows.append(
            (
                f"{some[0].position}{last}",
                f"{agree}/{len(some)}",
                f"{sum(one.kl for one in some) / len(some):.2g}",
                _mean(nll),
                _mean(dense),
            )
        )
    names = "position", "same top-1", "KL", "nats", "nats dense"
    return Table.named(names, rows, "By position", left=0)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}" if values else ""
