"""A real model answers a question about a document, once for each way to prefetch.

The model reads the prompt once; one daemon writes its blocks. Then every arm decodes the answer
with a fresh daemon, which recovers the store and starts with a cold arena. Prefetch changes when
blocks come and never which: every arm must write the same text, and a run where one does not
fails.
"""

from collections.abc import Sequence

import msgspec

from offstage.bindings.errors import RunFailed
from offstage.host.decode.record import AgentRecord
from offstage.testbeds.beds.local import TENANT, DaemonSizes, LocalBed
from offstage.testbeds.capture.model import ARCHITECTURES, look, prompt_tokens
from offstage.testbeds.capture.rope import parse_rope
from offstage.testbeds.live.arm_bed import ArmBed, Attached, Storage
from offstage.testbeds.live.demo_options import MODEL_ARMS, Arm
from offstage.testbeds.live.model.fit import check_predicts, load_known
from offstage.testbeds.live.model.options import ModelOptions
from offstage.testbeds.live.model.passes import decode
from offstage.testbeds.live.model.states import kept_of
from offstage.testbeds.live.model.text_run import TextRun
from offstage.testbeds.live.model_results import ModelPass, ModelSummary
from offstage.testbeds.live.results import RunResult, RunWorkload
from offstage.testbeds.live.run_figures import against_reference
from offstage.testbeds.live.workload import run_workload
from offstage.testbeds.progress import Progress, note_hit
from offstage.testbeds.workloads.requests.sessions import ChunkShape, SessionPlan, WorkloadPlan

__all__ = ["BLOCK_TOKENS", "run_arms"]

BLOCK_TOKENS = 16


def run_arms(
    options: ModelOptions,
    question: str,
    bed: LocalBed,
    storage: Storage,
    buffer_blocks: int,
    progress: Progress,
    arms: Sequence[Arm] = MODEL_ARMS,
) -> tuple[ModelSummary, list[RunResult], RunWorkload]:
    """Decode the answer to a question about the text with each of `arms`, the first of which is
    the reference of the others. `buffer_blocks`: staging slots of a layer.

    Raises BadInput for options, model and text, RunFailed for a daemon that fails and for arms
    that wrote different texts."""
    options.check()
    shape = look(options.model, parse_rope(options.rope), ARCHITECTURES)
    if any(arm.predicts for arm in arms):
        check_predicts(shape, "--model")
    loaded, weights = load_known(shape, options, progress)
    one = TextRun(options, loaded, weights, BLOCK_TOKENS, progress)
    tokens = prompt_tokens(loaded, options.text, question, BLOCK_TOKENS, options.steps)
    sizes = DaemonSizes(
        payload_bytes=one.geometry.block_bytes(0),
        layers=one.geometry.layer_count,
        block_tokens=BLOCK_TOKENS,
        slots=buffer_blocks * one.geometry.layer_count,
        window_tokens=options.window_blocks * BLOCK_TOKENS,
        context_tokens=len(tokens) + options.steps,
        stored_bytes=one.geometry.layer_count
        * one.geometry.block_count(len(tokens) + options.steps)
        * one.geometry.block_bytes(0),
        sessions=1,
    )
    tiers = ArmBed(bed, sizes)

    def read(host: Attached) -> None:
        one.attach(host.link, host.control, host.fabric)
        one.prefill(tokens, keep=True)

    tiers.prefill(storage, read)
    passes: list[ModelPass] = []
    runs: list[RunResult] = []
    for arm in arms:

        def answer(host: Attached, arm: Arm = arm) -> AgentRecord:
            one.options = msgspec.structs.replace(
                one.options, predict=arm.predicts, ahead="hint" if arm.predicts else "none"
            )
            one.attach(host.link, host.control, host.fabric)
            passes.append(decode([one], options.selections[0], [[]], arm.name))
            return one.record

        name = f"{storage.provenance}-{arm.name.replace('+', '-')}"
        kept = bed.records if arm is arms[-1] else bed.work / "record"
        run = tiers.measure(storage, arm, name, kept / name, answer)
        note_hit(progress, run.hit)
        run.notes += passes[-1].notes
        runs.append(run)
    if len({found.text for found in passes}) > 1:
        raise RunFailed("the arms wrote different texts", "demo", "this is a fault of ours")
    found = one.summary(passes, [], kept_of([one.states]))
    found.dense_text = one.dense_text()
    runs = [against_reference(run, runs[0]) for run in runs]
    return found, runs, _workload(one, question, sizes)


def _workload(one: TextRun, question: str, sizes: DaemonSizes) -> RunWorkload:
    """The answer as a run's workload: one session, at the model's own pace."""
    options, geometry = one.options, one.geometry
    session = SessionPlan(
        name="answer",
        tenant=TENANT,
        arrival_s=0.0,
        shared_chunks=(),
        own_chunks=tuple(one.context.identities),
        retained_chunk_count=0,
        context_tokens=len(one.tokens),
        decode_steps=options.steps,
        block_tokens=BLOCK_TOKENS,
    )
    shape = ChunkShape(BLOCK_TOKENS, geometry.session_bytes(BLOCK_TOKENS))
    plan = WorkloadPlan("model", "", (session,), 1, shape, 0, None)
    account = msgspec.structs.replace(
        plan.account(),
        sentence=f"{one.loaded.shape.name} answers {question!r} about {options.text.name}: "
        f"{len(one.tokens):,} tokens of prompt, {options.steps} of answer",
    )
    chosen = options.selections[0]
    layers = geometry.layer_count
    return run_workload(
        account,
        geometry,
        context_tokens=len(one.tokens),
        decode_steps=options.steps,
        selector=options.selectors[0],
        kernel=options.kernel,
        device=options.device,
        select_blocks=chosen,
        sink_blocks=options.sink_blocks,
        window_blocks=options.window_blocks,
        pool_ratio=options.pool_ratio,
        pool_blocks=round(options.pool_ratio * chosen * layers),
        time_per_token_ms=options.time_per_token_s * 1e3,
        time_per_token_source="announced to the tier; the model computes at its own pace",
        processes=[],
        buffer_ratio=sizes.slots / (chosen * layers),
        slot_count=sizes.slots,
        window_tokens=sizes.window_tokens,
        prefill_blocks_written=one.blocks_written,
    )
