"""One selection of one or several sessions of a real model, decoded from the tier: its figures."""

from collections.abc import Sequence

import numpy as np

from offstage.bindings.layouts import CAUSES, FATES
from offstage.bindings.ledger import Ledger, quantile, share
from offstage.host.decode.record import AgentRecord
from offstage.testbeds.beds.status import counters_since, device_counters
from offstage.testbeds.live.host_run import overruns
from offstage.testbeds.live.model.fit import blocks_chosen
from offstage.testbeds.live.model.text_run import TextRun
from offstage.testbeds.live.model.together import beside_dense, decoded
from offstage.testbeds.live.model_results import GroupRead, ModelPass, perplexity, share_read
from offstage.testbeds.live.run_figures import ends_differ
from offstage.testbeds.live.vacuous import kl_beyond, pool_holds_all, told_in_vain, warm_start

__all__ = ["decode"]


def decode(
    runs: Sequence[TextRun], select_blocks: int, followings: Sequence[list[int]], arm: str = ""
) -> ModelPass:
    """One selection over the whole text of each, in one batch: figures are of all of them.
    `followings`: the tokens behind each context. `arm`: what the daemon prefetches by."""
    first = runs[0]
    options, geometry, own = first.options, first.geometry, first.loaded.shape.chooses_itself
    chosen = blocks_chosen(select_blocks, first.loaded.shape, geometry, first.length)
    before, guesses_before = Ledger.of(first.control.ledger()), _guesses(first)
    counted = device_counters(first.link)
    pool = first.pool(chosen, len(runs))
    attention, logits, grown = decoded(runs, chosen, followings, pool, arm)
    ledger = Ledger.of(first.control.ledger()).since(before)
    counted = counters_since(counted, device_counters(first.link))
    guesses = _guesses(first) - guesses_before
    guessed_at = guesses and options.predict
    guessed = dict(zip(FATES, ledger.fates[CAUSES.index("lookahead")], strict=True))
    foretold = attention.predicted.foretold
    blocks_read = ledger.bytes_read // first.control.geometry.payload_size_bytes
    positions = beside_dense(runs, logits, grown, followings)
    kl_mean = float(np.mean([one.kl for one in positions]))
    kind, whole = first.kv_type, chosen == first.room
    choice = first.choice if kind == "auto" and whole else None
    first.record = record = attention.record
    stall_ms, checks = record.stall_ms(), len(runs) == 1 and (whole or own)
    return ModelPass(
        arm=arm,
        context_tokens=len(first.tokens),
        kv_dtype=kind,
        selector="indexer" if own else first.selector,
        select_blocks=chosen,
        share_read=share_read(record, geometry, len(first.tokens)),
        perplexity=perplexity([one.nll for one in positions]),
        dense_perplexity=perplexity([one.dense_nll for one in positions]),
        top1_agreement=float(np.mean([one.top1 == one.dense_top1 for one in positions])),
        kl_mean=kl_mean,
        kl_max=max(one.kl for one in positions),
        logit_error_max=max(one.logit_error for one in positions),
        bit_equal=first.bit_equal(logits[0], grown[0]) if checks else None,
        demands=ledger.demands,
        bytes_read=ledger.bytes_read,
        hit=ledger.ended.hit_rate,
        late=ledger.ended.late_rate,
        stall_ms_p50=quantile(stall_ms, 0.5),
        stall_ms_p99=quantile(stall_ms, 0.99),
        token_ms_p50=quantile(record.token_ms(), 0.5),
        tokens_per_s=len(record.tokens) / record.wall_s,
        index_key_bytes=sum(one.nbytes for run in runs for one in run.kv.index_keys.values()),
        state_bytes=sum(run.kv.state_bytes for run in runs),
        groups=_groups(first, record),
        blocks_verified=record.blocks_verified,
        blocks_corrupt=record.blocks_corrupt,
        blocks_recomputed=record.blocks_recomputed,
        ends_differ=ends_differ(ledger.ends, record.ends(), record.untold),
        pace_overruns=overruns(str(first.control.status()["model"]), counted),
        positions=positions,
        predicted=attention.predicted.agreement(),
        guesses=guesses,
        **{f"guesses_{fate}": guessed[fate] for fate in ("used", "late", "unused")},
        traffic=float(share(blocks_read, foretold.reference_reads)) if guessed_at else None,
        worth=foretold.worth if guessed_at else None,
        curve=foretold.curve() if guessed_at else [],
        text="\n\n".join(map(first.loaded.tokenizer.decode, grown)) if options.generate else "",
        notes=[
            *warm_start(before),
            *pool_holds_all(len(runs) * first.blocks_read, pool.pool_blocks, "the text"),
            *(kl_beyond(kl_mean, options.max_kl, choice.tail_tokens) if choice else []),
            *(told_in_vain(guesses, guessed) if options.ahead == "hint" else []),
        ],
    )


def _groups(run: TextRun, record: AgentRecord) -> list[GroupRead]:
    """What the entries and the index keys in the tier took; nothing where keys are resident."""
    if run.options.index_keys == "resident":
        return []
    size = run.control.geometry.payload_size_bytes
    keys = [(one.index_demands, one.index_stall_ns) for one in record.tokens]
    both = [(one.demands, one.stall_ns) for one in record.tokens]
    rest = [(n - k, t - s) for (n, t), (k, s) in zip(both, keys, strict=True)]
    return [GroupRead.of("latents", rest, size), GroupRead.of("index keys", keys, size)]


def _guesses(run: TextRun) -> int:
    """Blocks of the next layer announced to the tier ahead of their demand, so far."""
    return run.fabric.stats().get("guesses", 0)
