"""A real model answers a question about a document, once for each way to prefetch.

The model reads the prompt once; one daemon writes its blocks. Then every arm decodes the answer
with a fresh daemon, which recovers the store and starts with a cold arena. Prefetch changes when
blocks come and never which: every arm must write the same text, and a run where one does not
fails.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from offstage.bindings.errors import RunFailed
from offstage.testbeds.beds.daemon import serve
from offstage.testbeds.beds.local import DaemonSizes, LocalBed
from offstage.testbeds.capture.model import look, prompt_tokens
from offstage.testbeds.capture.rope import parse_rope
from offstage.testbeds.live.demo_options import MODEL_ARMS, Arm
from offstage.testbeds.live.host_run import machine_notes
from offstage.testbeds.live.model.options import ModelOptions
from offstage.testbeds.live.model.run import TextRun, load_known
from offstage.testbeds.live.model_results import ModelPass, ModelSummary
from offstage.testbeds.progress import Progress

__all__ = ["BLOCK_TOKENS", "run_arms"]

BLOCK_TOKENS = 16


def run_arms(
    options: ModelOptions,
    question: str,
    bed: LocalBed,
    storage: Mapping[str, Any],
    buffer_blocks: int,
    progress: Progress,
    arms: Sequence[Arm] = MODEL_ARMS,
) -> ModelSummary:
    """Decode the answer to a question about the text with each of `arms`. `storage`: keys of the
    daemons' `[storage]`; `buffer_blocks`: staging slots of a layer.

    Raises BadInput for options, model and text, RunFailed for a daemon that fails and for arms
    that wrote different texts."""
    options.check()
    loaded, weights = load_known(look(options.model, parse_rope(options.rope)), options, progress)
    one = TextRun(options, loaded, weights, BLOCK_TOKENS, progress)
    tokens = prompt_tokens(loaded, options.text, question, BLOCK_TOKENS, options.steps)
    sizes = DaemonSizes(
        payload_bytes=one.geometry.block_bytes(0),
        layers=one.geometry.layer_count,
        block_tokens=BLOCK_TOKENS,
        slots=buffer_blocks * one.geometry.layer_count,
        window_tokens=options.window_blocks * BLOCK_TOKENS,
        context_tokens=len(tokens) + options.steps,
        stored_bytes=one.geometry.session_bytes(len(tokens) + options.steps),
        sessions=1,
    )
    with (
        serve(bed.sections(sizes, storage, arms[0].policy), bed.work, name="model") as tier,
        (link := tier.at(name="demo-model")).attached() as (control, fabric),
    ):
        one.attach(link, control, fabric)
        one.prefill(tokens, keep=True)
    passes: list[ModelPass] = []
    notes = []
    for arm in arms:
        name = f"model-{arm.name.replace('+', '-')}"
        sections = bed.sections(sizes, storage, arm.policy)
        one.options = msgspec.structs.replace(
            options, predict=arm.predicts, ahead="hint" if arm.predicts else "none"
        )
        with (
            serve(sections, bed.work, name=name) as tier,
            (link := tier.at(name="demo-model")).attached() as (control, fabric),
        ):
            one.attach(link, control, fabric)
            passes.append(one.decode(options.selections[0], [], arm.name))
            notes += machine_notes(control.status())
    if len({found.text for found in passes}) > 1:
        raise RunFailed("the arms wrote different texts", "demo", "this is a fault of ours")
    found = one.summary(passes, notes)
    found.dense_text = one.dense_text()
    return found
