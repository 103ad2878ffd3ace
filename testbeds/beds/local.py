"""Where a demo keeps its files, and the daemon's configuration for one run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.testbeds.beds.daemon_process import write_config
from offstage.testbeds.live.connect import Link
from offstage.testbeds.live.demo_options import Arm, DemoOptions

__all__ = ["Place"]

TENANT = "demo"
LBA_BYTES = 4096
SEGMENT_BYTES = 4 << 20
STORE_SLACK = 1.25
"""Room in the store over what is written: partly filled segments, and what decoding adds."""


@dataclass(frozen=True)
class Place:
    """`out/work` holds store, configurations, logs and records; `out` what people read."""

    out: Path

    @property
    def work(self) -> Path:
        """Everything that may be deleted afterwards."""
        return self.out / "work"

    @property
    def store(self) -> Path:
        """The KV of all sessions: the largest file by far."""
        return self.work / "store.kv"

    @property
    def runtime(self) -> Path:
        """Sockets and secrets of the daemons. One daemon at a time."""
        return self.work / "run"

    def link(self, endpoint: str) -> Link:
        """How the demo's host reaches the daemon at `endpoint`."""
        return Link(endpoint, TENANT, name="demo-host", runtime_dir=self.runtime)

    def config(
        self,
        options: DemoOptions,
        name: str,
        arm: Arm,
        storage: Mapping[str, Any],
        stored_bytes: int,
        session_count: int,
    ) -> Path:
        """Write the daemon's configuration of run `name`; returns its path."""
        payload = options.geometry.block_bytes(0)
        chunk_tokens = options.context_tokens + options.steps + options.geometry.block_tokens
        store_bytes = int(stored_bytes * STORE_SLACK * (payload + LBA_BYTES) / payload)
        store_bytes += 64 * SEGMENT_BYTES
        path = self.work / f"{name}.toml"
        sections: dict[str, dict[str, Any]] = {
            "daemon": {
                "endpoint": f"ipc://{self.runtime / 'control'}",
                "runtime_dir": str(self.runtime),
                "metrics_endpoint": "",
            },
            "arena": {
                "size": options.slot_count * (payload + LBA_BYTES),
                "payload": payload,
                "layers": options.geometry.layer_count,
                "block_tokens": options.geometry.block_tokens,
            },
            "storage": {
                "path": str(self.store),
                "size": -(-store_bytes // SEGMENT_BYTES) * SEGMENT_BYTES,
                "lba": LBA_BYTES,
                **storage,
            },
            "store": {"segment": SEGMENT_BYTES, "write": "through", "durable": False},
            "policy": {
                "prefetchers": list(arm.prefetchers),
                "eviction": arm.eviction,
                "window_tokens": options.window_tokens,
            },
            "limits": {
                "sessions": max(16, 2 * session_count),
                "context_tokens": chunk_tokens,
                "records": 1 << 16,
                "log": 64 << 20,
            },
        }
        write_config(path, sections, TENANT)
        return path
