"""A real model decodes a text through the tier: each length, type of KV, selector and selection.

The model reads the context once; its blocks are written to the daemon, its KV stays as the
reference (`text_run`).
"""

from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.host.model.identity import Weights
from offstage.testbeds.capture.model import ARCHITECTURES, Loaded, look, text_tokens
from offstage.testbeds.capture.rope import parse_rope
from offstage.testbeds.live.host_run import check_alone, machine_notes
from offstage.testbeds.live.model.fit import (
    blocks_chosen,
    check_selects,
    context_lengths,
    load_known,
)
from offstage.testbeds.live.model.options import ModelOptions
from offstage.testbeds.live.model.passes import decode
from offstage.testbeds.live.model.states import check_checkpoints, kept_of
from offstage.testbeds.live.model.text_run import TextRun
from offstage.testbeds.live.model_results import (
    ModelSummary,
)
from offstage.testbeds.live.vacuous import (
    all_staged,
    selected_alike,
    text_unread,
)
from offstage.testbeds.progress import Progress

__all__ = ["decode_text", "run"]


def run(options: ModelOptions, link: Endpoint, progress: Progress) -> ModelSummary:
    """Prefill, decode each selection, compare. BadInput: options, model, text, login, or a
    daemon whose blocks are not the model's. RunFailed, StoreFull: the daemon went away or is
    full."""
    options.check()
    options.arrays()
    shape = look(options.model, parse_rope(options.rope), ARCHITECTURES)
    check_selects(shape, options)
    check_checkpoints(shape, options)
    with link.attached() as (control, fabric):
        check_alone(control, link.tenant)
        loaded, weights = load_known(shape, options, progress)
        tokens, _ = text_tokens(loaded, options.text)
        return decode_text(options, loaded, weights, tokens, link, control, fabric, progress)


def decode_text(
    options: ModelOptions,
    loaded: Loaded,
    weights: Weights,
    tokens: list[int],
    link: Endpoint,
    control: Control,
    fabric: Fabric,
    progress: Progress,
) -> ModelSummary:
    """`run` with a loaded model of these weights, and the tokens of the text."""
    size = control.geometry.block_tokens
    runs = [TextRun(options, loaded, weights, size, progress) for _ in range(options.sessions)]
    one = runs[0]
    for run in runs:
        run.attach(link, control, fabric)
    each = len(tokens) // options.sessions
    lengths = context_lengths(options, loaded, one.geometry, each, control)
    longest = max(lengths)
    end, most = longest + options.steps, max(options.selections)
    most = blocks_chosen(most, loaded.shape, one.geometry, end)
    control.session_close(control.session_open(select_blocks=most))  # refused before a prefill
    read = longest + (0 if options.generate else options.steps + 1)
    texts = parts_of(tokens, options.sessions, read, loaded.tokenizer.bos_token_id)
    keep = options.sessions == 1 and len(lengths) * len(options.kv_dtypes) > 1
    for run, text in zip(runs, texts, strict=True):
        run.prefill(text[:longest], keep=keep)
    passes = []
    for length in lengths:
        followings = [text[length:] for text in texts]
        for kind in options.kv_dtypes:
            for run in runs:
                run.hold(kind, length)
            for name in options.selectors:
                for run in runs:
                    run.select_by(name)
                passes += [decode(runs, k, followings) for k in options.selections]
    one.blocks_written = sum(run.blocks_written for run in runs)
    notes = [
        *machine_notes(control.status()),
        *text_unread(
            options.text.name, len(tokens), options.sessions * read, one.geometry.block_tokens
        ),
        *selected_alike(
            options.selections, [one.select_blocks for one in passes[: len(options.selections)]]
        ),
        *all_staged(options.sessions * one.blocks_read, control.geometry.slot_count),
    ]
    return one.summary(passes, notes, kept_of([run.states for run in runs]))


def parts_of(tokens: list[int], count: int, each: int, first: int | None) -> list[list[int]]:
    """The first parts of a text, of `each` tokens. `first`: the token that begins a text; the
    others begin with it if the text does."""
    parts = [tokens[at * each : (at + 1) * each] for at in range(count)]
    if first is not None and tokens[:1] == [first]:
        parts[1:] = [[first, *part[:-1]] for part in parts[1:]]
    return parts
