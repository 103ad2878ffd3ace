"""A device without firmware, for unit tests of the daemon's control plane."""

import os
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from service_world import World, world_of

from offstage.bindings.attachment import Attachment
from offstage.bindings.core import RECORD
from offstage.bindings.device import Chunk
from offstage.bindings.errors import BadInput, RunFailed, StoreFull
from offstage.bindings.figures import (
    DmaTotals,
    MoveStatus,
    StorageStats,
    StoreStats,
    TenantStatus,
)
from offstage.bindings.ledger import Ledger
from offstage.bindings.moments import MOMENT
from offstage.bindings.stages import StageTimes, StepTimes
from offstage.dpu.config.options import PolicyOptions
from offstage.dpu.config.values import Config
from offstage.dpu.protocol.status import DeviceReport
from offstage.dpu.storage.device import Device


class FakeDevice(Device):
    """Records its calls and refuses what the firmware would refuse. A call that is not defined here
    fails, since there is no firmware below."""

    boot_id = 77

    def __init__(self) -> None:
        self.tenants: list[bytes] = []
        self.ports: dict[int, int] = {}
        self.sessions: dict[int, list[bytes]] = {}
        self.owner: dict[int, int] = {}
        self.policies: list[PolicyOptions] = []
        self.pending = [np.zeros(3, RECORD), np.zeros(2, RECORD)]
        self.log_bytes = [b"abc", b"defg"]
        self.noted = [np.ones(4, MOMENT)]
        self.dirty = 0
        self.resets = 0
        self.wiping = 0  # writes of deletes that are in flight
        self.purge_left = {"writing": 0, "named": 0}  # what a purge reports
        self.port_max = 2
        self.moved: list[Config] = []
        self.resolving = threading.Event()  # a connect has begun
        self.resolves = threading.Event()  # until it is set, connects wait for an address
        self.resolves.set()
        self.connected: list[tuple[int, bytes]] = []
        self.shares: dict[int, tuple[int, int, int, int]] = {}
        self.quotas: dict[int, tuple[int, int, int, int]] = {}
        self.has: dict[int, dict[str, int]] = {}  # overrides a tenant's figures

    def tenant_add(self, secret: bytes, slot_count: int, weight: int) -> int:
        self.tenants.append(secret)
        return len(self.tenants) - 1

    def values_unserved(self) -> dict[str, int]:
        return {}

    def tenant_share(
        self,
        tenant: int,
        weight: int,
        bandwidth_bytes_per_s: int,
        in_flight_bytes: int,
        floor_bytes_per_s: int = 0,
    ) -> None:
        self.shares[tenant] = (weight, bandwidth_bytes_per_s, in_flight_bytes, floor_bytes_per_s)

    def tenant_quota(
        self,
        tenant: int,
        chunks_max: int,
        stored_bytes_max: int,
        dirty_blocks_max: int,
        sessions_max: int,
    ) -> None:
        self.quotas[tenant] = (chunks_max, stored_bytes_max, dirty_blocks_max, sessions_max)

    def tenant_status(self, tenant: int) -> TenantStatus:
        chunks, stored, dirty, sessions = self.quotas.get(tenant, (0, 0, 0, 0))
        figures = {
            "weight": 1,
            "waiting": 5,
            "chunks_max": chunks,
            "stored_bytes_max": stored,
            "dirty_blocks_max": dirty,
            "sessions": sum(self.ports[port] == tenant for port in self.owner.values()),
            "sessions_max": sessions,
        }
        return TenantStatus(**figures | self.has.get(tenant, {}))

    def tenant_purge(self, tenant: int, keep_blocks: int, again: bool = False) -> dict[str, int]:
        return {
            "chunks": 1,
            "blocks": 2,
            "bytes": 8192 * tenant + keep_blocks,
            "more": 0,
            "marking": 0,
            **self.purge_left,
        }

    def drop_idle(self) -> int:
        return 0

    def wiped(self, tenant: int, ticket: int) -> tuple[bool, int, int]:
        return not self.wiping, ticket or 1, self.wiping

    def attach(self, tenant: int, fabric: str) -> tuple[int, Attachment]:
        if len(self.ports) >= self.port_max:
            raise StoreFull("no space left", "", "raise limits.ports", errno=28)
        port = next(i for i in range(self.port_max) if i not in self.ports)
        self.ports[port] = tenant
        return port, Attachment(b"blob", (os.open("/dev/null", os.O_RDONLY),))

    def reattach(self, port: int) -> Attachment:
        return Attachment(b"again")

    def connect(self, port: int, answer: bytes) -> None:
        self.resolving.set()
        assert self.resolves.wait(100)
        assert port in self.ports, "a port is connected that was detached"
        if answer == b"nowhere":
            raise RunFailed("no way there", errno=113)
        self.connected.append((port, answer))

    def detach(self, port: int) -> None:
        del self.ports[port]
        for session in [one for one, owner in self.owner.items() if owner == port]:
            del self.sessions[session], self.owner[session]

    def session_open(
        self, port: int, sink_blocks: int, window_blocks: int, select_blocks: int, step_ns: int
    ) -> int:
        session = max(self.sessions, default=-1) + 1
        self.sessions[session], self.owner[session] = [], port
        return session

    def session_append(self, session: int, contents: list[bytes]) -> list[Chunk]:
        self.sessions[session].extend(contents)
        return [Chunk(one[::-1], one, 0, 1) for one in contents]

    def session_set_generating(self, session: int, generating: bool) -> None:
        if session not in self.sessions:
            raise BadInput("no session", errno=22)

    def session_close(self, session: int, keep: bool) -> None:
        del self.sessions[session], self.owner[session]

    def set_policy(self, policy: PolicyOptions) -> None:
        self.policies.append(policy)

    def reset(self) -> None:
        self.resets += 1

    def drain(self, timeout_ns: int) -> bool:
        return self.dirty == 0

    def undrain(self) -> None:
        pass

    def ledger(self, tenant: int | None = None) -> Ledger:
        return Ledger(
            ends=[5, 0, 0, 0, 2, 1, 0, 0, 0],
            nontrivial_ends=[3] + [0] * 8,
            lead_ns_log2=[0] * 20 + [4] + [0] * 43,
        )

    def records(self) -> Any:
        return self.pending.pop(0) if self.pending else np.zeros(0, RECORD)

    def moments(self) -> NDArray[np.void]:
        return self.noted.pop(0) if self.noted else np.zeros(0, MOMENT)

    def log(self) -> bytes:
        return self.log_bytes.pop(0) if self.log_bytes else b""

    def status(self) -> DeviceReport:
        return DeviceReport(
            boot_id=self.boot_id,
            dirty_blocks=self.dirty,
            commands=9,
            busy_ns=10**9,
            idle_ns=3 * 10**9,
            ports=len(self.ports),
            storage=StorageStats(bytes_read=1, bytes_written=2),
            store=StoreStats(bytes_live=4096, segments_total=3),
        )

    def stages(self) -> dict[str, StageTimes]:
        return {
            "decide": StageTimes(
                count=3,
                ns_mean=400.0,
                ns_p50=127,
                ns_p90=1000,
                ns_p99=1000,
                ns_max=1000,
                buckets=[[127, 2], [1023, 1]],
            )
        }

    def step_times(self, tenant: int) -> StepTimes:
        return StepTimes(count=0)

    def storage_name(self) -> str:
        return "fake"

    def warning(self) -> str:
        return ""

    def memory(self) -> DmaTotals:
        return DmaTotals(bytes=4096, locked_bytes=4096)

    def move(self, config: Config) -> None:
        self.moved.append(config)

    def move_status(self) -> MoveStatus:
        return MoveStatus()

    def close(self, drain: bool) -> None:
        pass


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def world(device: FakeDevice) -> World:
    return world_of(device)
