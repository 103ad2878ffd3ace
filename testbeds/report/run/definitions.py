"""The definition of every figure of a run: for report, summary.json and pages alike.

`DEFINITIONS` has one entry per field of `RunResult`, in reading order. D is the number of
demands of a run. The ends of demands and the fates of prefetched blocks are explained here too,
because the figures are computed from these counts.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DEFINITIONS",
    "END_TEXTS",
    "FATE_TEXTS",
    "PROVENANCE_TEXTS",
    "Definition",
    "as_text",
    "definition",
]


@dataclass(frozen=True)
class Definition:
    """One figure: its key in `RunResult`, its short name, its description, and its formula."""

    key: str
    label: str
    text: str
    formula: str = ""
    better: Literal["higher", "lower", ""] = ""
    """Whether more or less is better, if either is."""

    @property
    def sentence(self) -> str:
        """The text, with the formula if there is one."""
        return f"{self.text} {self.label} = {self.formula}." if self.formula else self.text


DEFINITIONS = (
    Definition("name", "name", "Name of the run."),
    Definition("storage", "storage", "Storage that the blocks were read from."),
    Definition(
        "provenance",
        "provenance",
        "Source of the run's times: measured, emulated or modelled.",
    ),
    Definition(
        "prefetchers", "prefetch", "The prefetchers that were on, all at the same staging buffer."
    ),
    Definition(
        "selected",
        "selected",
        "Blocks that the attention kernels read, over all sessions, steps and layers.",
    ),
    Definition(
        "demands",
        "demands",
        "Selected blocks that were not in the HBM pool and were requested from the DPU; D below.",
    ),
    Definition(
        "hit",
        "hit rate",
        "Share of the demands that were staged in the DPU's DRAM before they were needed. "
        "A block still in flight is late, and late is not a hit.",
        "(window + pattern + lookahead + shared + retained) / D",
        "higher",
    ),
    Definition(
        "nontrivial_hit",
        "non-trivial",
        "The hit rate over demands outside the sinks, the sliding window and just-written blocks, "
        "which every selection contains.",
        "non-trivial hits / non-trivial demands",
        "higher",
    ),
    Definition(
        "hit_without_cold",
        "without cold",
        "The hit rate without blocks that a session had never had staged before.",
        "hits / (D - cold)",
        "higher",
    ),
    Definition(
        "hbm_share",
        "HBM share",
        "Share of the selections that the HBM pool served. A larger pool removes easy hits from "
        "the hit rate, so read the two together.",
        "(selected - D) / selected",
    ),
    Definition(
        "selection_hit",
        "selection hit",
        "Share of the selected blocks that were in the HBM pool or staged in time. A larger pool "
        "removes easy hits from the hit rate, but not from this.",
        "(selected - D + hits) / selected",
        "higher",
    ),
    Definition(
        "late",
        "late",
        "Share of the demands whose block was in flight when it was needed.",
        "late / D",
        "lower",
    ),
    Definition(
        "miss",
        "miss",
        "Share of the demands whose block was neither staged nor in flight; late demands are "
        "counted separately.",
        "(cold + capacity + policy) / D",
        "lower",
    ),
    Definition(
        "coverage",
        "coverage",
        "Share of the late and missed demands of the run without prefetch, at the same buffer, "
        "that prefetch removed. Below 0: prefetch added some.",
        "1 - (D - hits) / (D - hits of the run without prefetch)",
        "higher",
    ),
    Definition(
        "accuracy",
        "accuracy",
        "Share of the prefetched blocks that were demanded after they had arrived. Candidates "
        "that were dropped before they were read cost nothing and do not count.",
        "used / (used + late + unused + cancelled)",
        "higher",
    ),
    Definition(
        "traffic_ratio",
        "traffic",
        "Bytes read from the store, over those of a demand-only LRU at the same buffer: the cost "
        "of the hits.",
        "bytes read / bytes read without prefetch",
        "lower",
    ),
    Definition(
        "stall_ms_p50",
        "stall p50",
        "Time that a token and its batch waited for missing blocks, summed over layers: half of "
        "the tokens waited no longer.",
        "median over tokens, in ms",
        "lower",
    ),
    Definition(
        "stall_ms_p99",
        "stall p99",
        "The same for the slowest: 99 % of the tokens waited no longer.",
        "99th percentile over tokens, in ms",
        "lower",
    ),
    Definition(
        "token_ms_p50",
        "token p50",
        "Time of one token from start to end, including pacing.",
        "median over tokens, in ms",
        "lower",
    ),
    Definition(
        "token_ms_p99",
        "token p99",
        "The same for the slowest tokens.",
        "99th percentile over tokens, in ms",
        "lower",
    ),
    Definition(
        "token_ms_mean",
        "token, mean",
        "The same on average.",
        "mean over tokens, in ms",
        "lower",
    ),
    Definition(
        "fetch_ms_p50",
        "fetch p50",
        "Time of one fetch (the missing blocks of one layer of one session) until all its blocks "
        "arrived: half of the fetches took no longer.",
        "median over fetches, in ms",
        "lower",
    ),
    Definition(
        "fetch_ms_p99",
        "fetch p99",
        "The same for the slowest fetches.",
        "99th percentile over fetches, in ms",
        "lower",
    ),
    Definition(
        "tokens_per_s",
        "tokens/s",
        "Tokens per second of decoding, over all sessions, including the pace of the GPU.",
        "tokens / duration of decoding",
        "higher",
    ),
    Definition(
        "staging_bytes",
        "staging",
        "Memory between HBM and the drive: the DPU's arena, or the host memory of a baseline; 0: "
        "unknown to the host.",
    ),
    Definition("bytes_read", "read", "Bytes read from the store, demanded and prefetched."),
    Definition(
        "read_amplification",
        "amplification",
        "Bytes read on demand over those of the granules that the demands named; 0 if whole "
        "blocks were demanded.",
        "demand reads / granules named",
        "lower",
    ),
    Definition(
        "bytes_spared",
        "spared",
        "Bytes not read of blocks of which only a part was read on demand.",
    ),
    Definition(
        "blocks_verified",
        "verified",
        "Fetched blocks with the bytes that prefill wrote.",
    ),
    Definition(
        "blocks_corrupt",
        "corrupt",
        "Fetched blocks whose bytes differ from what prefill wrote.",
        "",
        "lower",
    ),
    Definition(
        "blocks_recomputed",
        "recomputed",
        "Blocks that could not be read and that the host recomputed.",
        "",
        "lower",
    ),
    Definition(
        "attention_checked",
        "attention checked",
        "Sampled layer outputs compared with dense attention over the same selection.",
    ),
    Definition(
        "attention_error_max",
        "attention error",
        "The largest difference in that comparison, relative to the largest output of its layer.",
        "",
        "lower",
    ),
    Definition(
        "pollution",
        "pollution",
        "Missed demands whose block a prefetch had evicted.",
        "",
        "lower",
    ),
    Definition("evictions", "evictions", "Blocks evicted from the staging arena."),
    Definition(
        "shared_chunks",
        "shared chunks",
        "Chunks of a context that another session of the tenant had already brought.",
    ),
    Definition(
        "decisions_replayed",
        "replayed",
        "Decisions of the daemon's log that a fresh core repeated bit for bit; -1 without a "
        "complete log. A run with a decision that differs has failed.",
    ),
    Definition(
        "ends_differ",
        "ends that differ",
        "Lower bound of the demands that end differently in the host's counts and in the device's "
        "ledger; above 0 the run has failed.",
        "",
        "lower",
    ),
    Definition(
        "pace_overruns",
        "overruns",
        "Share of all requests that ended later than on the modelled device; above 1 % the run "
        "has failed. -1 without a modelled device, or if only its operator may read it.",
        "",
        "lower",
    ),
    Definition(
        "records_lost",
        "records lost",
        "Ledger records missing from the recording, if there is one; above 0 the run has failed.",
        "",
        "lower",
    ),
    Definition(
        "log_bytes_lost",
        "log lost",
        "Bytes missing from the decision log, if there is one; above 0 the run has failed.",
        "",
        "lower",
    ),
    Definition(
        "log_diverged_at",
        "log differs from",
        "Offset in the decision log at which its replay first decided differently, which fails "
        "the run; -1: none.",
    ),
    Definition(
        "busy_share",
        "busy",
        "Share of the time that the DPU's reactor was busy; -1 if only its operator may read it.",
    ),
    Definition("wall_s", "duration", "Duration of the run in seconds."),
    Definition("ends", "ends", "Demands by end; each demand has exactly one."),
    Definition("nontrivial_ends", "non-trivial ends", "The same for non-trivial demands."),
    Definition("fates", "fates", "Prefetched blocks by cause, then by fate; each has exactly one."),
    Definition(
        "hit_rate_by_step",
        "hit rate by step",
        "Hits over demands of all sessions in each decode step; -1 for a step without demands.",
    ),
    Definition("demands_by_step", "demands by step", "Demands in each decode step."),
    Definition(
        "lead_ns_log2",
        "lead time",
        "How long before need a prefetched and used block arrived: element i counts those of "
        "2^i to 2^(i+1) ns.",
    ),
    Definition(
        "late_ns_log2",
        "lateness",
        "How long after need a late block arrived: element i counts those of 2^i to 2^(i+1) ns.",
    ),
    Definition(
        "fabric_ms",
        "fetches in the fabric",
        "Time in ms that the fabric spent on each fetch by the host's clock, copies and waits, "
        "without the decode loop around it; sorted, at most 1,000 evenly spaced quantiles.",
    ),
    Definition("fetch_count", "fetches timed", "Number of fetches behind them."),
    Definition(
        "stall_ms_by_token",
        "stall by token",
        "Stall of the tokens in ms, sorted: at most 1,000 evenly spaced quantiles.",
    ),
    Definition(
        "notes",
        "notes",
        "Notes to read before quoting the figures, each with a code, a text and a fix.",
    ),
    Definition(
        "kernel_bytes_per_s",
        "attention",
        "K and V that the attention kernel read, over its run time.",
    ),
    Definition(
        "roof_bytes_per_s",
        "copy bandwidth",
        "Bytes per second that a copy within the memory of the HBM pool reads and writes, "
        "measured in the same run: the kernel's roof.",
    ),
    Definition(
        "timeline",
        "one token",
        "The spans of one token: lane, layer, begin and end in microseconds; the token's stall is "
        "the 90th percentile of the first 400.",
    ),
    Definition(
        "stages",
        "where time goes",
        "Time in ns of each stage that a block passes, by name (reference/metrics.md), since the "
        "daemon's last reset; one in 31 is timed, of a recorded run every command, read and write, "
        "and of copies and checks one in 31.",
    ),
    Definition(
        "wear",
        "wear",
        "Bytes written to the drive by prefill and by decode, and per demand on time; the store's "
        "write amplification; writes of the whole store per day and years of drive life, since "
        "the daemon's start. Empty if only its operator may read them.",
    ),
)

_BY_KEY = {entry.key: entry for entry in DEFINITIONS}

END_TEXTS = {
    "hbm": "served by the GPU's HBM pool: never requested from the DPU",
    "window": "first use of a block that the sliding window staged in time",
    "pattern": "first use of a block that the attention pattern staged in time",
    "lookahead": "first use of a block that known future selections staged in time",
    "shared": "staged, last used or predicted by another session on the same prefix",
    "retained": "still staged from an earlier use, as in any cache",
    "late": "in flight when it was needed",
    "cold": "miss: this session never had it staged before",
    "capacity": "miss that a demand-only LRU of the same size would have too",
    "policy": "miss that such an LRU would not have",
}

FATE_TEXTS = {
    "used": "arrived, and was demanded on time",
    "late": "demanded while it was in flight",
    "unused": "evicted, or left at the end, without a demand",
    "cancelled": "its read failed, or its session closed",
    "dropped": "never read: its deadline passed, or a better candidate replaced it",
}

PROVENANCE_TEXTS = {
    "measured": "timed on the real device or link",
    "emulated": "real software in real time, over a model of the device's timing",
    "modelled": "virtual time: nothing real was timed",
}


def definition(key: str) -> Definition:
    """The definition of one field of `RunResult`."""
    return _BY_KEY[key]


def as_text() -> dict[str, str]:
    """Key to text with formula: `definitions` of summary.json."""
    return {entry.key: entry.sentence for entry in DEFINITIONS}
