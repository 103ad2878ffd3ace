"""A real model's answer, once for each way to prefetch: a table and the two texts."""

from offstage.testbeds.live.model_results import ModelPass, ModelSummary
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import milliseconds, percent, ratio
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.table import Column, Table

__all__ = ["best_arm", "model_section", "model_sentence", "model_table", "model_texts"]

CAPTION = (
    "One row for each way to prefetch, on a cold arena of the same size. Traffic is what was read "
    "from the drive over what demands alone read. Prefetch changes when blocks come, never which: "
    "every row wrote the same text."
)


def model_table(found: ModelSummary) -> Table:
    """A row for each arm, for terminal and page."""
    columns = [
        Column("prefetch", left=True),
        Column("hits", percent, tip="demands whose block was staged when the kernel asked"),
        Column("late", percent, tip="demands whose block was still on its way"),
        Column("traffic", ratio, tip="bytes read from the drive, over those without prefetch"),
        Column("stall p99", milliseconds, tip="what one token in a hundred waited, or longer"),
        Column("token p50", milliseconds, tip="what half of the tokens took, at most"),
    ]
    rows = [
        [one.arm, one.hit, one.late, _traffic(found, one), one.stall_ms_p99, one.token_ms_p50]
        for one in found.passes
    ]
    return Table.of(columns, rows, _title(found))


def best_arm(found: ModelSummary) -> ModelPass:
    """The arm with most hits."""
    return max(found.passes, key=lambda one: one.hit)


def model_sentence(found: ModelSummary) -> str:
    """What prefetch changed, and what selecting blocks did to the text."""
    best, without = best_arm(found), found.passes[0]
    return (
        f"{best.arm} staged {percent(best.hit)} of {best.demands:,} demands before the kernel "
        f"asked, for {ratio(_traffic(found, best))} the reads; without prefetch it was "
        f"{percent(without.hit)}. The model read {percent(best.share_read)} of its blocks in a "
        f"step and chose the token of dense attention in {percent(best.top1_agreement)} of the "
        f"steps (KL {best.kl_mean:.2g} nats)."
    )


def model_texts(found: ModelSummary) -> list[tuple[str, str]]:
    """Who wrote, and what: from the tier's blocks, and with dense attention."""
    share = percent(best_arm(found).share_read)
    return [
        (f"from the tier, reading {share} of the blocks", found.passes[0].text.strip()),
        ("with dense attention, reading all", found.dense_text.strip()),
    ]


def model_section(found: ModelSummary | None) -> str:
    """The section of the page; empty without a model."""
    if found is None:
        return ""
    said = [tag("p", escape(model_sentence(found)))]
    for who, text in model_texts(found):
        said.append(tag("p", f"{escape(found.model.name)} {escape(who)}:", class_="caption"))
        said.append(tag("blockquote", escape(text)))
    body = as_html(model_table(found), "table of a real model's arms") + "".join(said)
    return section("model", _title(found), body, CAPTION)


def _title(found: ModelSummary) -> str:
    work = found.workload
    return (
        f"{found.model.name} on {work.text}, {work.context_tokens:,} tokens, "
        f"{found.passes[0].select_blocks} blocks a layer, {found.tier.storage} (measured)"
    )


def _traffic(found: ModelSummary, one: ModelPass) -> float:
    without = found.passes[0].bytes_read
    return one.bytes_read / without if without else 0.0
