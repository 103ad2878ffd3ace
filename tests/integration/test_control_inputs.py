"""Does the control socket accept each message whole or refuse it in one line, whatever is in it?"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from control_messages import NO_PATHS, TEXTS, wrong_ones
from live_daemon import TENANT, WAIT_S, Daemon, daemon, open_text, put
from on_disk import snapshot

from offstage.bindings import settings
from offstage.bindings.errors import printable
from offstage.dpu import protocol as p
from offstage.dpu.config import options
from offstage.dpu.pod.map import Member, added
from offstage.dpu.pod.membership.static import StaticMembership
from offstage.host.fabrics import shm
from offstage.host.link.control import Control


@pytest.fixture(scope="module", params=["alone", "member"])
def tier(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Daemon]:
    """A standalone daemon, and a member of a pod."""
    folder = tmp_path_factory.mktemp("inputs")
    more = {"daemon__metrics_endpoint": "127.0.0.1:0", "storage__size": "8MiB"}
    if request.param == "member":
        place, endpoint = folder / "pod.toml", f"ipc://{folder}/control"
        StaticMembership(place).change(lambda pod: added(pod, Member(name="a", endpoint=endpoint)))
        more |= {"daemon__endpoint": endpoint, "pod__map": str(place), "pod__name": "a"}
    with daemon(folder, **more) as tier:
        with tier.control() as control, shm.open_driver(control.attach("shm"), WAIT_S) as driver:
            text = open_text(control, 1)
            assert put(driver, text, 0, list(range(8))) == list(range(8))
        yield tier


@pytest.fixture
def others(tier: Daemon) -> Path:
    """Files of every kind next to the store."""
    folder = tier.log.parent / "others"
    with contextlib.suppress(FileExistsError):
        (folder / "folder").mkdir(parents=True)
        (folder / "text").write_text("# Notes\n- milk\n")
        (folder / "text").chmod(0o644)
        (folder / "link").symlink_to(folder / "text")
        (folder / "nowhere").symlink_to(folder / "absent")
        os.mkfifo(folder / "pipe", 0o644)
    return folder


def held(tier: Daemon) -> dict[str, tuple[object, ...]]:
    """Return everything on the disk except the log."""
    found = snapshot(tier.log.parent)
    del found[tier.log.name]
    return found


def ask(control: Control, fields: dict[Any, Any], ticket: bytes | None = None) -> p.Reply:
    """Return the raw answer to a message."""
    socket = control._line.socket
    raw = msgspec.msgpack.encode(fields)
    socket.send_multipart([control._ticket if ticket is None else ticket, raw], zmq.NOBLOCK)
    assert socket.poll(int(WAIT_S * 1000)), f"no answer to {fields}"
    reply = p.decode_reply(socket.recv_multipart()[-1])
    if isinstance(reply, p.Error):
        assert reply.code != "internal", (fields, reply)
        assert reply.what and printable(f"{reply.what}{reply.where}{reply.fix}").isprintable()
        for part in (reply.what, reply.where, reply.fix):
            assert part == printable(part), (fields, reply)
    return reply


@pytest.mark.parametrize("who", ["operator", "tenant", "nobody"])
def test_no_field_of_any_message_ends_the_daemon_or_changes_a_file(
    tier: Daemon, others: Path, who: str
) -> None:
    """Each invalid value in each field of each message gets one answer. An error is one line and
    never an internal error, and every file is unchanged."""
    before = held(tier)
    tenant, ticket = (p.OPERATOR if who == "operator" else TENANT), b"" if who == "nobody" else None
    for kind in p.CALLS:
        with tier.control(tenant, heartbeat=False) as control:
            for fields in wrong_ones(kind):
                reply = ask(control, fields, ticket)
                if who == "nobody":
                    assert isinstance(reply, p.Error | p.Challenge), fields
                elif kind is p.Detach and isinstance(reply, p.Ok):
                    control._line, challenge = control._connection.reach(WAIT_S)
                    control._login(challenge, 0, 0)
                elif who == "operator" and kind in (p.Drain, p.FabricOpen, p.FabricShut):
                    undo(control)
    with tier.control(p.OPERATOR) as operator:
        assert operator.status()["daemon"]["requests_failed"] == 0
    assert held(tier) == before


def undo(control: Control) -> None:
    """Revert a message that turned out to be valid."""
    control.undrain()
    control.fabric_shut("zmq")
    control.fabric_open("shm")


def test_no_setting_of_policy_or_storage_changes_a_file(tier: Daemon, others: Path) -> None:
    """This covers each key of PolicySet, StorageMove and a tenant, with each text."""
    before = held(tier)
    new = str(tier.log.parent / "new.ofs")
    moves = [
        {"path": new, key: text}
        for key in settings.declared(options.Storage)
        for text in TEXTS
        if key != "path" and text
    ]
    moves += [{"path": text} for text in NO_PATHS]
    moves += [{"path": str(one)} for one in others.iterdir()]
    moves += [
        {"path": one}
        for one in (
            "/dev/null",
            "/dev/zero",
            "/dev/full",
            "/dev/tty",
            "/proc/self/mem",
            "/proc/self/environ",
            f"{new}/x",
            str(tier.runtime_dir / "operator.sock"),
        )
    ]
    policies = [{key: text} for key in settings.declared(options.PolicyOptions) for text in TEXTS]
    policies += [
        {f"tenant.{TENANT}.{key}": text}
        for key in settings.declared(options.Tenant)
        for text in TEXTS
    ]
    with tier.control(p.OPERATOR, heartbeat=False) as operator:
        for changes in moves:
            reply = ask(operator, {"type": "StorageMove", "id": 1, "changes": changes})
            assert isinstance(reply, p.Error), changes
        for changes in policies:
            ask(operator, {"type": "PolicySet", "id": 1, "changes": changes})
        assert operator.status()["daemon"]["requests_failed"] == 0
    assert held(tier) == before


def test_no_endpoint_of_a_fabric_changes_a_file(tier: Daemon, others: Path) -> None:
    """Each is refused: a file, link, pipe, folder or daemon's socket as path; no path; no port."""
    before = held(tier)
    paths = [*others.iterdir(), *tier.runtime_dir.iterdir(), others / "no/folder", Path("x" * 5000)]
    endpoints = [f"ipc://{one}" for one in paths] + [f"ipc://{one}" for one in NO_PATHS]
    endpoints += [f"tcp://127.0.0.1:{one}" for one in TEXTS] + [f"tcp://{one}:1" for one in TEXTS]
    with tier.control(p.OPERATOR, heartbeat=False) as operator:
        for endpoint in endpoints:
            reply = ask(operator, {"type": "FabricOpen", "fabric": "zmq", "endpoint": endpoint})
            assert isinstance(reply, p.Error), endpoint
        assert operator.status()["daemon"]["requests_failed"] == 0
    assert held(tier) == before
