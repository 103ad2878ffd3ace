"""Is a delete acknowledged only when it is done, and what is the answer if the drive refuses it?"""

from typing import Any

import pytest

from offstage.bindings.figures import DeviceStatus, StoreStats
from offstage.dpu import protocol as p
from offstage.dpu.config.options import Storage
from offstage.dpu.config.values import Config
from offstage.dpu.control.deletes import LOOK_S, Deletes
from offstage.dpu.log import Log


@pytest.mark.parametrize("patience_ns", [10**12, 1_000_000])
def test_an_answer_waits_for_the_drive_and_no_longer_than_it_works(
    patience_ns: int, device: Any
) -> None:
    """A request that deleted is answered once its writes have ended, any other at once. If writes
    stop ending, the answer is an error."""
    sent: list[tuple[bytes, p.Reply]] = []
    config = Config(storage=Storage(io_timeout_ns=patience_ns))
    deletes = Deletes(config, device, lambda to, reply: sent.append((to, reply)), Log("error"))
    device.wiping = 7
    for tenant, reply in (
        (None, p.Ok(id=1)),
        (0, p.Error(id=2, code="io", what="")),
        (0, p.Ok(id=3)),
    ):
        deletes.answer(tenant, b"r", reply)
    assert [reply.id for _, reply in sent[:2]] == [1, 2]
    if patience_ns == 10**12:
        deletes.turn()
        assert len(sent) == 2 and deletes.pause_s(5.0) == LOOK_S
        device.wiping = 0
    while len(sent) < 3:
        deletes.turn()
    late = patience_ns != 10**12
    assert [type(reply) for _, reply in sent[2:]] == [p.Error if late else p.Ok]
    assert sent[2][1].id == 3
    if late:
        assert isinstance(said := sent[2][1], p.Error) and "is busy" in said.what
    assert deletes.pause_s(5.0) == 5.0


@pytest.mark.parametrize("errors", [0, 3])
def test_a_busy_drive_is_not_said_to_refuse(errors: int, device: Any) -> None:
    """A refusal is reported only for a drive that ended writes with errors."""
    sent: list[p.Reply] = []
    config = Config(storage=Storage(io_timeout_ns=1_000_000))
    deletes = Deletes(config, device, lambda to, reply: sent.append(reply), Log("error"))
    device.wiping = 7
    device.status = lambda: DeviceStatus(store=StoreStats(io_errors=5))
    deletes.answer(0, b"r", p.Ok(id=1))
    device.status = lambda: DeviceStatus(store=StoreStats(io_errors=5 + errors))
    while not sent:
        deletes.turn()
    assert isinstance(said := sent[0], p.Error)
    assert ("refuses" in said.what) == (errors > 0) and ("busy" in said.what) == (errors == 0)
