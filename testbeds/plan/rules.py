"""The rules of `bindings/tradeoffs.py`, evaluated with a plan's numbers: when what pays.

Model: a rule is a figure with its unit and a sentence that explains it. All of them are pure
functions of the inputs, so that each has a range as the costs have.

What can fail: nothing; a rule that is true at no length is infinite, and is shown so.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from offstage.bindings import tradeoffs as at
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.plan.kv import DTYPES
from offstage.testbeds.plan.question import Question
from offstage.testbeds.plan.sizing import Place, fetch_rate, floor_bytes_per_s, places, wears

__all__ = ["RULES", "Rule", "daemon_keys", "figures"]

CLUSTER_GPUS = 1_000
BLOCK_TOKENS = 64
"""Tokens of one read: a block is one layer of this many tokens."""


class Rule(NamedTuple):
    """A figure's name, its unit, and its explanation."""

    label: str
    unit: str
    text: str


RULES: dict[str, Rule] = {
    "half_weights": Rule(
        "KV reaches half the weights at",
        "tokens",
        "above this many tokens of live context over all users, KV takes a third or more of memory",
    ),
    "dram_over_flash": Rule(
        "DRAM beats flash below",
        "s",
        "KV that is requested again sooner than this is cheaper in DRAM, later in flash (the "
        "five-minute rule)",
    ),
    "cxl_over_flash": Rule(
        "CXL beats flash below",
        "s",
        "the same for CXL memory of one host; multiply by the number of hosts that share a copy",
    ),
    "hbm_over_dram": Rule("HBM beats DRAM below", "s", "the same, one step up"),
    "keep_hbm": Rule(
        "worth keeping in HBM for",
        "s",
        "beyond this, the HBM costs more than prefilling again",
    ),
    "keep_dram": Rule("worth keeping in DRAM for", "s", "the same for DRAM"),
    "keep_flash": Rule(
        "worth keeping in flash for", "s", "the same for TLC flash, with its wear deducted"
    ),
    "keep_object": Rule("worth keeping in object storage for", "s", "the same for object storage"),
    "rate_to_fetch": Rule(
        "fetching beats prefilling above",
        "B/s",
        "with less bandwidth per replica, prefilling again is faster at any length",
    ),
    "crossover": Rule(
        "worth fetching from flash beyond",
        "tokens",
        "prefilling a shorter prefix again takes less time than the latency of a read",
    ),
    "write_cost": Rule(
        "flash wear per 1M tokens written", "$/Mtok", "price of the drive over its write endurance"
    ),
    "least_reuse": Rule(
        "worth writing if reuse is at least",
        "share",
        "admission by wear: below it, prefilling again is cheaper than wearing out the drive",
    ),
    "iops_per_gpu": Rule(
        "reads of flash a second for each GPU",
        "1/s",
        "of blocks of one layer and 64 tokens, as turns load their contexts; what a sparse model "
        "reads while it decodes is not among them",
    ),
    "sparse_drive": Rule(
        "sessions that decode from one drive",
        "1",
        "with sparse attention over blocks of 64 tokens, until tokens wait a fifth of their time "
        "for blocks; modelled by `offstage bench sparse`",
    ),
    "sparse_core": Rule(
        "sessions that one core of a DPU serves",
        "1",
        "the same, with the core used entirely; a DPU's memory may be full before",
    ),
    "drives_per_dpu": Rule(
        "drives that fill the link of a DPU",
        "drives",
        "more drives behind it add capacity, and no rate",
    ),
    "cluster": Rule(
        "1,000 GPUs serve a million tokens for",
        "$/Mtok",
        "prompts and answers, as many such users as take 1,000 GPUs in the cheapest place",
    ),
    "effective": Rule(
        "mean time to read a block",
        "s",
        "at the hit rate of the inputs; a miss reads the drive",
    ),
    "visible": Rule(
        "exposed time of a layer-by-layer fetch",
        "s",
        "the part that is not hidden by prefilling the turn's new tokens",
    ),
    "cold_flash": Rule("cold start from one drive", "s", "to read the weights of one replica"),
    "cold_floor": Rule(
        "floor of the weights",
        "B/s",
        "what their reads need to be there within the time asked for, however much KV is read",
    ),
    "cold_object": Rule("cold start from object storage", "s", "the same"),
    "own_tokens": Rule(
        "owning machines pays from",
        "tokens/month",
        "output tokens a month at which an API costs as much as the cheapest place",
    ),
}
"""Every rule, in the order in which they are shown."""


def figures(
    question: Question, shape: KvGeometry, v: Mapping[str, float], best: Place
) -> dict[str, float]:
    """The figure of every rule. `best`: the place whose machines are counted."""
    b = v["model.kv"]
    prefill, replica_rate = _prefill(question, v, best)
    weights = v["model.parameters"] * DTYPES[question.weights]
    life = v["serving.life"]
    block = b / shape.layer_count * BLOCK_TOKENS
    drive = (v["tlc.price"] * v["tlc.capacity"] / at.GB, v["tlc.read"], v["tlc.iops"])
    module = (v["ddr5.price"] * v["ddr5.capacity"] / at.GB, v["ddr5.read"], v["ddr5.iops"])
    write = at.write_usd(b * wears(v), drive[0], v["tlc.endurance"])
    rent = at.hold_usd(b, v["tlc.price"], v["workload.gap"], life)
    months = life / at.HOURS_PER_MONTH
    found = {
        "half_weights": at.tokens_of_share(weights, b),
        "dram_over_flash": at.break_even_s(block, *drive, v["ddr5.price"]),
        "cxl_over_flash": at.cxl_break_even_s(block, *drive, v["cxl.price"]),
        "hbm_over_dram": at.break_even_s(block, *module, v["hbm.price"]),
        "keep_hbm": at.hold_limit_s(b, v["hbm.price"], prefill, 0.0, life),
        "keep_dram": at.hold_limit_s(b, v["ddr5.price"], prefill, 0.0, life),
        "keep_flash": at.hold_limit_s(b, v["tlc.price"], prefill, write, life),
        "rate_to_fetch": at.rate_to_fetch(b, replica_rate),
        "crossover": at.crossover_tokens(
            b, fetch_rate("tlc", question, v, best.count), v["tlc.latency"], replica_rate
        ),
        "write_cost": write * 1e6,
        "least_reuse": at.least_reuse(write, rent, prefill),
        "iops_per_gpu": best.read_bytes_per_s / block / best.gpus if best.gpus else math.inf,
        "sparse_drive": at.users_fed(
            v["sparse.carried"], _decoded_per_s(v) * shape.layer_count * v["sparse.missed"] * block
        ),
        "sparse_core": at.users_fed(1.0 / v["sparse.core"], _decoded_per_s(v) * shape.layer_count),
        "drives_per_dpu": at.users_fed(v[f"{question.dpu}.link"], v["tlc.read"]),
        "cluster": _cluster(question, v, best),
        "effective": at.effective_s(
            v["serving.hit"],
            v["ddr5.latency"] + at.transfer_s(block, v[f"{question.gpu}.link"]),
            v["tlc.latency"] + at.transfer_s(block, v["tlc.read"]),
        ),
        "visible": _visible(question, shape, v, best, replica_rate),
        "cold_flash": at.transfer_s(weights, v["tlc.read"]),
        "own_tokens": at.break_even_tokens(best.usd_per_h * at.HOURS_PER_MONTH, v["api.mtok"]),
    }
    if question.cold_start:
        found["cold_floor"] = floor_bytes_per_s(question, v)
    if "object.rent" in v:
        found["keep_object"] = at.hold_limit_s(b, v["object.rent"] * months, prefill, 0.0, life)
        found["cold_object"] = at.transfer_s(weights, v["object.read"])
    return {name: found[name] for name in RULES if name in found}


def _decoded_per_s(v: Mapping[str, float]) -> float:
    """Tokens a second of one session that waits the stated share of its time."""
    return (1.0 - v["sparse.waits"]) / v["workload.pace"]


def _prefill(question: Question, v: Mapping[str, float], best: Place) -> tuple[float, float]:
    """Dollars of GPU time for one token, and tokens that a replica prefills in a second."""
    rate = v["serving.prefill"] * v[f"{question.gpu}.compute"] / (2.0 * v["model.active"])
    usd = at.prefill_usd(1.0, v[f"{question.gpu}.hour"], rate)
    return usd, rate * max(best.replica, 1)


def _cluster(question: Question, v: Mapping[str, float], best: Place) -> float:
    """Dollars a million tokens of as many such users as take `CLUSTER_GPUS`: the best place's."""
    users = max(1, round(question.users * CLUSTER_GPUS / max(best.gpus, 1)))
    asked = replace(question, users=users, tiers=tuple({best.name} & set(question.tiers)))
    return next(one for one in places(asked, v) if one.name == best.name).usd_per_mtok


def daemon_keys(question: Question, v: Mapping[str, float], best: Place) -> dict[str, str]:
    """The configuration of a daemon on one TLC drive that decides by the same functions: its
    keys and values, as written. Its endurance is what may be written with KV."""
    usd, rate = _prefill(question, v, best)
    drive = v["tlc.price"] * v["tlc.capacity"] / at.GB
    return {
        "policy.prefill_price": f"{usd * 1e6:.3f}USD",
        "policy.prefill_tokens_per_s": f"{rate:.0f}",
        "policy.drive_price": f"{drive:.0f}USD",
        "storage.endurance": f"{v['tlc.endurance'] / wears(v) / 1e12:.0f}TB",
    }


def _visible(
    question: Question, shape: KvGeometry, v: Mapping[str, float], best: Place, rate: float
) -> float:
    """The visible part of one turn's fetch from the drives of the best place, or from one drive."""
    new = question.tokens / question.turns
    link = max(best.replica, 1) * v[f"{question.gpu}.link"]
    fetch = min(link, fetch_rate("tlc", question, v, best.count))
    old = (question.tokens - new) * v["workload.prefix"]
    return at.visible_s(
        at.fetch_s(old, v["model.kv"], fetch, v["tlc.latency"]),
        at.prefill_s(new, rate),
        shape.layer_count,
    )
