"""A daemon that serves volumes over NVMe/TCP to two of its three tenants, and the way to them."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from live_daemon import Daemon, daemon
from nvme_initiator import Host

VOLUME, OTHER_VOLUME = "0123456789abcdef0123456789abcdef", "f" * 32
TENANTS = {
    "red": {"volumes": [VOLUME + " durable"]},
    "blue": {"volumes": [OTHER_VOLUME, VOLUME]},
    "grey": {},
}


def events(tier: Daemon, name: str) -> list[dict[str, object]]:
    lines = [json.loads(one) for one in tier.log.read_text().splitlines() if one[:1] == "{"]
    return [one for one in lines if one["event"] == name]


class Bed:
    """A daemon that listens, and the way to its tenants."""

    def __init__(self, tier: Daemon) -> None:
        self.tier = tier
        self.where = "127.0.0.1", int(str(events(tier, "nvme_tcp")[-1]["port"]))
        self.names = {str(one["tenant"]): str(one["nqn"]) for one in events(tier, "nvme_subsystem")}

    def secret(self, tenant: str = "red") -> str:
        return (self.tier.runtime_dir / f"{tenant}.dhchap").read_text().strip()

    @contextlib.contextmanager
    def host(self, tenant: str = "red", **more: object) -> Iterator[Host]:
        made = Host(self.where, self.names[tenant], self.secret(tenant), **more)  # type: ignore[arg-type]
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Bed]:
    with daemon(folder, TENANTS, nvme__listen="127.0.0.1:0", limits__values="1024") as tier:
        yield Bed(tier)
