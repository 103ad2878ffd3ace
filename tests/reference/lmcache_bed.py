"""LMCache's configuration for a daemon of the tests."""

from typing import Any

from live_daemon import TENANT, Daemon


def params(tier: Daemon) -> dict[str, Any]:
    return {
        "endpoint": tier.endpoint,
        "tenant": TENANT,
        "runtime_dir": str(tier.runtime_dir),
        "weights_id": "m",
        "layout": "bf16",
        "timeout_s": 30.0,
        "patience_s": 60.0,
    }
