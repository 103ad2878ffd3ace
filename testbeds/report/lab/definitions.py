"""The definition of every figure of a lab point: the one text for page, table and reference.

One entry per field of `PointSummary`, in its order. "No prefetch" is demand-only LRU at the same
buffer, pool, cap and seeds.
"""

from offstage.testbeds.report.run.definitions import Definition

__all__ = ["LAB_DEFINITIONS", "lab_definition"]

LAB_DEFINITIONS = (
    Definition("info", "setting", "The point's setting, see below."),
    Definition("seeds", "seeds", "The seeds that were run."),
    Definition(
        "requests",
        "requests",
        "Requests (seed and session) that intervals are drawn over. Where the same requests recur "
        "under every seed, as those of a captured workload, each counts once.",
    ),
    Definition("weak", "weak", "Fewer than 5 requests: the intervals are too narrow."),
    Definition("selected", "selected", "Blocks that the kernels read."),
    Definition("demands", "demands", "Selected blocks that were not in the HBM pool; D below."),
    Definition(
        "nontrivial",
        "non-trivial demands",
        "Demands outside sinks, sliding window and just-written blocks; N below.",
    ),
    Definition("reads", "reads", "Reads of the storage, demanded and prefetched."),
    Definition("reads_failed", "failed reads", "Reads that ended with an error."),
    Definition(
        "hit",
        "hit rate",
        "Share of the demands that were staged before they were needed. Late is not a hit.",
        "(window + pattern + lookahead + shared + retained) / D",
        "higher",
    ),
    Definition(
        "nontrivial_hit",
        "non-trivial",
        "The same over non-trivial demands.",
        "non-trivial hits / N",
        "higher",
    ),
    Definition(
        "hit_without_cold",
        "without cold",
        "The hit rate without first touches: blocks that a session never had staged before.",
        "hits / (D - cold)",
        "higher",
    ),
    Definition(
        "nontrivial_hit_without_cold",
        "non-trivial without cold",
        "The same over non-trivial demands.",
        "non-trivial hits / (N - non-trivial cold)",
        "higher",
    ),
    Definition(
        "selection_hit",
        "selection hit",
        "Share of the selected blocks that were in the HBM pool or staged in time. A larger pool "
        "removes easy hits from the hit rate, but not from this.",
        "(pool hits + hits) / selected",
        "higher",
    ),
    Definition(
        "nontrivial_selection_hit",
        "non-trivial selection hit",
        "The same over non-trivial selections, which the size of the pool does not distort.",
        "(non-trivial pool hits + non-trivial hits) / non-trivial selected",
        "higher",
    ),
    Definition(
        "hbm_share",
        "HBM share",
        "Share of the selections that the HBM pool served.",
        "pool hits / selected",
    ),
    Definition(
        "late", "late", "Demands whose block was in flight when it was needed.", "late / D", "lower"
    ),
    Definition(
        "cold", "cold", "Demands of blocks that the session never had staged.", "cold / D", "lower"
    ),
    Definition(
        "capacity",
        "capacity",
        "Misses that demand-only LRU of the same size would have had too.",
        "capacity / D",
        "lower",
    ),
    Definition(
        "policy",
        "policy",
        "Misses that demand-only LRU of the same size would not have had.",
        "policy / D",
        "lower",
    ),
    Definition(
        "pollution",
        "pollution",
        "Misses of blocks that a prefetch had evicted.",
        "polluted misses / D",
        "lower",
    ),
    Definition(
        "coverage",
        "coverage",
        "Share of the misses of no prefetch that the policy removed; late counts as a miss on both "
        "sides. Below 0: the policy added misses.",
        "1 - (D - hits) / (D - hits of no prefetch)",
        "higher",
    ),
    Definition(
        "accuracy",
        "accuracy",
        "Share of the prefetched blocks that were used on time. A fate belongs to a run, not a "
        "request, so its interval is drawn over seeds.",
        "used / (used + late + unused + cancelled)",
        "higher",
    ),
    Definition(
        "traffic_ratio",
        "traffic",
        "Bytes read, over those that no prefetch reads at the same buffer.",
        "bytes read / bytes read by no prefetch",
        "lower",
    ),
    Definition(
        "traffic_vs_reference",
        "traffic vs reference",
        "Bytes read, over those of the spec's reference point (usually demand-only LRU at 2 k): "
        "one scale for all buffers.",
        "bytes read / bytes read by the reference",
        "lower",
    ),
    Definition(
        "gap_closed",
        "gap closed",
        "Share of the gap between no prefetch and the clairvoyant bound, at the same buffer and "
        "cap, that the policy closed; none if the gap is less than 0.1 points of hit rate.",
        "(hit - hit of no prefetch) / (hit of clairvoyant - hit of no prefetch)",
        "higher",
    ),
    Definition(
        "nontrivial_gap_closed",
        "gap closed",
        "The same over non-trivial demands.",
        "as gap closed, of non-trivial hit rates",
        "higher",
    ),
    Definition(
        "stall_ms_p50",
        "stall p50",
        "Time that a token waited for blocks beyond its compute, summed over layers: half of the "
        "tokens waited no longer.",
        "median over tokens, in ms",
        "lower",
    ),
    Definition(
        "stall_ms_p99",
        "stall p99",
        "The same for the slowest: 99 % waited no longer.",
        "99th percentile over tokens, in ms",
        "lower",
    ),
    Definition(
        "tokens_per_s",
        "tokens/s",
        "Tokens of all sessions, over the time of the run on the modelled device; none if the "
        "experiment names no device. Its interval is drawn over seeds.",
        "tokens / modelled seconds",
        "higher",
    ),
    Definition(
        "token_ms_mean",
        "token, mean",
        "Time of a token of one session, on the modelled device, its compute included; none if the "
        "experiment names no device.",
        "time in which sessions decode, each by itself / tokens, in ms",
        "lower",
    ),
    Definition(
        "hint_bytes_per_token",
        "hints",
        "Scores and guesses that the host sends over the fabric for one token of one session, "
        "within the policy's limits; none in old results, which did not count them.",
        "hint bytes / tokens",
        "lower",
    ),
    Definition(
        "kv_bytes_per_token",
        "KV",
        "Bytes of blocks that the host reads over the fabric for one token of one session.",
        "D * bytes of a block / tokens",
        "lower",
    ),
    Definition(
        "worst_layer",
        "worst layer",
        "The layer with the lowest non-trivial hit rate, with its number. The layer is chosen "
        "once, and the interval is that of this layer.",
    ),
    Definition(
        "worst_requests",
        "worst tenth",
        "The tenth of the requests (at least one) with the lowest non-trivial hit rates, chosen "
        "in every draw.",
    ),
    Definition("first_steps", "first 64 steps", "The first 64 steps of each session."),
    Definition("turn_steps", "after turns", "The first 16 steps of each turn."),
    Definition(
        "bounds", "bounds", "The best possible at the same buffer, pool and cap; see below."
    ),
    Definition("hit_by_layer", "hit rate by layer", "The hit rate of each layer."),
    Definition(
        "nontrivial_hit_by_layer", "non-trivial by layer", "The non-trivial hit rate of each layer."
    ),
    Definition("ends", "ends", "Demands by end; each has exactly one."),
    Definition("nontrivial_ends", "non-trivial ends", "The same of non-trivial demands."),
    Definition("fates", "fates", "Prefetched blocks by cause, then by fate; each has exactly one."),
    Definition("issued", "issued", "Reads by cause."),
    Definition(
        "lead_ns_log2",
        "lead time",
        "How long before need a prefetched and used block arrived: element i counts those of 2^i "
        "to 2^(i+1) ns.",
    ),
    Definition(
        "late_ns_log2",
        "lateness",
        "How long after need a late block arrived: element i counts those of 2^i to 2^(i+1) ns.",
    ),
    Definition(
        "tiers",
        "tiers",
        "What each tier served, if the experiment has tiers below the arena; see below.",
    ),
    Definition(
        "weights",
        "cold start",
        "With `[weights]`: how long the stream took beside KV and alone, in means over seeds, "
        "which part of it was read while sessions decoded and which because its floor was owed "
        "it, tokens a second of all sessions, and `without`: the same point without the stream. "
        "Null otherwise.",
    ),
    Definition(
        "whole_model",
        "whole model",
        'With `staged = "selected"`, what the layers drawn say of the model, for one session: '
        "its cache, what must be resident, its share of the arena, reads and bytes a token, the "
        "share of a token's time that is waiting, and sessions that a drive and a BlueField-3's "
        "link serve at most. Null otherwise.",
    ),
    Definition(
        "used",
        "used",
        "The utilisation of each part of the device while sessions decoded, by the parts of "
        "`offstage bottleneck`; the mean over seeds. Empty where the experiment names no device.",
    ),
    Definition(
        "block_use",
        "block use",
        "Where more is staged together than is selected: blocks that left the arena (`gone`) by "
        "how many of their `units` (entries, or granules) were demanded since they were staged, "
        "element i those used for i; the same of those still `staged` at the end, which may be "
        "used for more; the mean of those gone, with its interval over seeds. `pays_from`: so many "
        "single units keep a drive of the preset busy at least as long as the block. Null "
        "otherwise.",
    ),
)

_BY_KEY = {entry.key: entry for entry in LAB_DEFINITIONS}


def lab_definition(key: str) -> Definition:
    """The entry of one field."""
    return _BY_KEY[key]
