"""Results of benches as their tables take them, some aims reached and some missed."""

from typing import Any

__all__ = ["CODEC", "CORE", "FABRIC", "LINKS", "QOS", "STORAGE"]

SAMPLE = {"bytes_per_s": 1.731e9, "latency_ns_p50": 1.073e6, "latency_ns_p99": 2e6}
FABRIC: dict[str, Any] = {
    "reads": [
        {
            "block_bytes": 65_536,
            "hit_ns": 8_607,
            "memcpy_ns": 6_830,
            "hit_unchecked_ns": 6_819,
            "ratio": 1.26,
            "ratio_unchecked": 1.0,
        }
    ],
    "ring": {
        "rtt_ns_p50": 448,
        "rtt_ns_p99": 689,
        "floor_ns_p50": 280,
        "floor_ns_p99": 304,
        "ratio_to_floor": 1.6,
        "python_rtt_ns_p50": 2_025,
    },
    "stage_timers": [
        {"blocks": 1, "block_bytes": 4_096, "on_ns": 2_312, "off_ns": 2_246, "ratio": 0.971}
    ],
    "layer": {
        "sessions": 8,
        "demands": 4,
        "block_bytes": 65_536,
        "one_by_one_ns": 3e6,
        "together_ns": 1e6,
        "ratio": 0.33,
    },
    "aims": {"hit / memcpy at 64 KiB <= 1.3": True, "round trip / floor <= 1.5": False},
    "rounds": 7,
    "seed": 1,
}
LINKS: dict[str, Any] = {
    "links": [
        {
            "link": "nixl",
            "block_bytes": size,
            "latency_ns": 18_700.0,
            "floor_latency_ns": 17_900.0,
            "latency_ratio": 1.04,
            "bytes_per_s": 3.5e9,
            "floor_bytes_per_s": 3.6e9,
            "bandwidth_ratio": 0.97,
            "fetch_ns": 2.1e6,
        }
        for size in (4_096, 65_536)
    ],
    "aims": {"nixl latency / floor <= 1.3": True, "nixl bandwidth / floor >= 0.86": False},
    "aim_bytes": 65_536,
    "batch": 32,
    "rounds": 5,
    "seed": 1,
}
STORAGE: dict[str, Any] = {
    "rows": [
        {
            "block_bytes": 65_536,
            "queue_depth": 32,
            "pages": "base pages",
            "ours": SAMPLE,
            "fio": SAMPLE,
            "bandwidth_ratio": 1.0,
            "latency_ratio": 1.0,
            "aims": {"bandwidth_ratio >= 0.95": True},
        },
        {
            "block_bytes": 65_536,
            "queue_depth": 1,
            "pages": "reserved huge pages",
            "ours": SAMPLE,
            "fio": SAMPLE,
            "bandwidth_ratio": 1.0,
            "latency_ratio": 1.2,
            "aims": {"latency_ratio <= 1.15": False},
        },
    ],
    "emulated": [
        {
            "preset": "gen5-tlc",
            "figures": {
                "read_iops": {"got": 1e6, "cited": 3.3e6, "ratio": 0.3, "late_share": 0.98}
            },
        }
    ],
    "notes": [],
    "reference": "fio",
    "path": "file",
    "rounds": 2,
    "seed": 1,
}
CORE: dict[str, Any] = {
    "rows": [
        {
            "name": "zipf",
            "eviction": "lru",
            "ours_per_s": 8.5e6,
            "reference_per_s": 9e6,
            "ratio": 0.94,
            "hits": 9,
            "reference_hits": 9,
        },
        {
            "name": "other",
            "eviction": "lru",
            "ours_per_s": 4e6,
            "reference_per_s": 9e6,
            "ratio": 0.44,
            "hits": 9,
            "reference_hits": 9,
        },
        {"name": "mooncake", "eviction": "random", "ours_per_s": 4e6, "hits": 9},
    ],
    "decode": {"prefetchers": "ema", "selected": 64, "blocks": 2_048, "accesses_per_s": 5.4e6},
    "replay": {"decisions_per_s": 5e6},
    "lab": {
        "policy": "ema",
        "layers": 80,
        "blocks": 2_048,
        "steps": 1_000,
        "seconds": 3.1,
        "accesses_per_s": 3.2e6,
        "memory_peak_bytes": 97 << 20,
    },
    "aims": {
        "flat LRU >= 0.5 of libCacheSim": False,
        "decode >= 5000000 accesses/s": True,
        "lab < 60 s": True,
    },
    "reference": "libCacheSim",
    "rounds": 7,
    "seed": 1,
}
QOS: dict[str, Any] = {
    "weights": [1, 3],
    "offered": [1.0, 2.0],
    "services": 2_000,
    "block_bytes": 65_536,
    "line_bytes_per_s": 1e10,
    "seed": 1,
    "aims": {"Jain >= 0.999": False},
    "disciplines": {
        name: {
            "shares": [0.25, 0.75],
            "jain": 0.99,
            "victim_served": 3,
            "victim_wait_ps_p50": 54_000_000,
            "victim_wait_ps_p99": 98_000_000,
        }
        for name in ("qos", "fifo")
    },
}
PLAIN = {
    "written_bytes_per_block": 36_864.0,
    "read_bytes_per_block": 36_864.0,
    "get_s": 1.23e-4,
    "gets_per_s": 12_345.0,
}
CODEC: dict[str, Any] = {
    "ratios": [
        {
            "source": "pycode-3m",
            "dtype": "bfloat16",
            "half": "K",
            "layer": layer,
            "ratio": 0.67 + layer / 100,
            "zlib_ratio": 0.8,
        }
        for layer in (0, 1)
    ],
    "rates": [
        {
            "source": "pycode-3m",
            "dtype": "bfloat16",
            "encode_bytes_per_s": 4.19e8,
            "decode_bytes_per_s": 6.37e8,
            "zlib_encode_bytes_per_s": 3.05e7,
            "zlib_decode_bytes_per_s": 1.07e8,
            "memcpy_bytes_per_s": 7.3e9,
        }
    ],
    "store": [
        {
            "dtype": "fp8_e4m3",
            "drive": "gen5-tlc",
            "block_bytes": 32_768,
            "plain": PLAIN,
            "coded": PLAIN,
        }
    ],
    "lossy": [
        {
            "source": "pycode-3m",
            "half": "K",
            "mode": "int4 per channel",
            "ratio": 0.28125,
            "relative_max": 12345.6,
            "relative_mean": 0.51,
            "norm": 0.06,
        }
    ],
    "rounds": 5,
    "seed": 1,
}
