"""A host at a daemon: control connection and driver, opened together and closed together."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offstage.bindings.driver import Driver
from offstage.dpu.protocol import OPERATOR
from offstage.host.control import Control
from offstage.host.fabrics.shm import connect

__all__ = ["TENANT", "attached", "device_status"]

TENANT = "demo"


def device_status(endpoint: str, runtime_dir: Path) -> dict[str, Any]:
    """The device's own counters, which a daemon shows to its operator."""
    operator = Control(
        endpoint, name="demo", tenant=OPERATOR, runtime_dir=runtime_dir, heartbeat=False
    )
    with operator:
        return dict(operator.status()["device"])


@contextlib.contextmanager
def attached(endpoint: str, runtime_dir: Path) -> Iterator[tuple[Control, Driver]]:
    """Log in as the demo's tenant and map its region and port. BadInput, RunFailed: see both."""
    with Control(endpoint, name="demo-host", tenant=TENANT, runtime_dir=runtime_dir) as control:
        driver = connect(control)
        try:
            yield control, driver
        finally:
            driver.close()
