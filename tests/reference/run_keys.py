"""Keys that every run of a `summary.json` has: programs read them, so they stay."""

RUN_KEYS = {
    "name",
    "storage",
    "provenance",
    "prefetchers",
    "selected",
    "demands",
    "hit",
    "nontrivial_hit",
    "late",
    "miss",
    "coverage",
    "accuracy",
    "traffic_ratio",
    "stall_ms_p50",
    "stall_ms_p99",
    "bytes_read",
    "blocks_verified",
    "blocks_corrupt",
}
