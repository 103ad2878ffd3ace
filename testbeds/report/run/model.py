"""What a real model wrote from the tier's blocks, and what reading a part of them cost the text."""

import msgspec

from offstage.testbeds.live.model.quality import quality_table
from offstage.testbeds.live.model_results import ModelSummary
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["model_section", "model_sentence", "model_texts"]


def model_sentence(found: ModelSummary) -> str:
    """What selecting blocks did to the text."""
    one = found.passes[0]
    return (
        f"The model read {percent(one.share_read)} of its blocks in a step and chose the token of "
        f"dense attention in {percent(one.top1_agreement)} of the steps (KL {one.kl_mean:.2g} "
        "nats). Prefetch changes when blocks arrive, never which: every run wrote the same text."
    )


def model_texts(found: ModelSummary) -> list[tuple[str, str]]:
    """Who wrote, and what: from the tier's blocks, and with dense attention."""
    one, name = found.passes[0], found.model.name
    return [
        (f"{name} from the tier, reading {percent(one.share_read)} of the blocks", one.text),
        (f"{name} with dense attention, reading all", found.dense_text),
    ]


def model_section(found: ModelSummary | None) -> str:
    """The section of the page; empty without a model."""
    if found is None:
        return ""
    said = []
    for who, text in model_texts(found):
        said.append(tag("p", f"{escape(who)}:", class_="caption"))
        said.append(tag("blockquote", escape(text.strip())))
    one = msgspec.structs.replace(found, passes=found.passes[:1])  # the arms' are the same
    said.append(as_html(quality_table(one), "beside dense attention"))
    return section("model", "What the model wrote", "".join(said), escape(model_sentence(found)))
