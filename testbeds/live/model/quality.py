"""What a smaller selection and fewer bits cost the model, as one table for terminal, page and JSON.

A row is a pass; what is the same in all of them has no column.
"""

from collections.abc import Callable, Sequence

from offstage.bindings.units import format_count
from offstage.testbeds.live.model_results import ModelPass, ModelSummary
from offstage.testbeds.table import Column, Table

__all__ = ["quality_table", "varying"]

Value = Callable[[ModelPass], object]


def varying(passes: Sequence[ModelPass]) -> list[tuple[Column, Value]]:
    """Columns of what differs between passes, besides the selection."""
    every: list[tuple[Column, Value]] = [
        (Column("context", format_count), lambda one: one.context_tokens),
        (Column("KV", left=True), lambda one: one.kv_dtype),
        (Column("selector", left=True), lambda one: one.selector),
    ]
    return [(column, value) for column, value in every if len(set(map(value, passes))) > 1]


def quality_table(summary: ModelSummary) -> Table:
    """Says nothing of types where KV is in the model's own."""
    passes, stored = summary.passes, {one.dtype: one for one in summary.kv}
    shown = varying(passes)
    if [*stored] != ["model"]:
        at = next((n for n, (one, _) in enumerate(shown) if one.title == "selector"), len(shown))
        shown[at:at] = [
            *([(Column("KV", left=True), lambda one: one.kv_dtype)] if len(stored) == 1 else []),
            (Column("B/block", format_count), lambda one: stored[one.kv_dtype].block_bytes),
            (Column("saved", "{:.1%}".format), lambda one: stored[one.kv_dtype].saved),
        ]
    shown += [
        (Column("blocks"), lambda one: one.select_blocks),
        (Column("read", "{:.1%}".format), lambda one: one.share_read),
        (Column("perplexity", "{:.3f}".format), lambda one: one.perplexity),
    ]
    if len({one.context_tokens for one in passes}) > 1:
        shown.append((Column("dense", "{:.3f}".format), lambda one: one.dense_perplexity))
    shown += [
        (Column("same top-1", "{:.1%}".format), lambda one: one.top1_agreement),
        (Column("KL mean", "{:.2g}".format), lambda one: one.kl_mean),
        (Column("KL max", "{:.2g}".format), lambda one: one.kl_max),
        (Column("logit error", "{:.2g}".format), lambda one: one.logit_error_max),
        (Column("bit-equal"), lambda one: {None: "", True: "yes", False: "NO"}[one.bit_equal]),
    ]
    rows = [[value(one) for _, value in shown] for one in passes]
    beside = "the model's own" if summary.model.chooses_itself else "dense"
    return Table.of([column for column, _ in shown], rows, f"Beside {beside} attention")
