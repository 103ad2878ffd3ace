"""Do hand-out, tenancy, recorder and telemetry each work on their own?"""

import errno
import io
import json
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from msgspec.structs import asdict, replace
from on_disk import snapshot
from prometheus_client.parser import text_string_to_metric_families

from offstage.bindings.attachment import Attachment
from offstage.bindings.core import RECORD
from offstage.bindings.errors import BadInput, printable
from offstage.bindings.ledger import Ledger
from offstage.bindings.moments import MOMENT
from offstage.dpu import protocol as p
from offstage.dpu.config.derive import derive
from offstage.dpu.config.options import Tenant
from offstage.dpu.config.values import Config
from offstage.dpu.log import Log
from offstage.dpu.protocol import zmq_messages
from offstage.dpu.protocol.status import TenantFigures
from offstage.dpu.sockets.door import Peer
from offstage.dpu.sockets.fd_passing import FdPassing, Volume
from offstage.dpu.tenants.tenancy import hold_runtime_dir, index_key, tenant_secret
from offstage.dpu.watch.recorder import Lost, Recorder, read_lost, read_records
from offstage.dpu.watch.telemetry import Snapshot, Telemetry


def quiet() -> Log:
    return Log("error", io.StringIO(), text=False)


def pipes() -> Attachment:
    return Attachment(b"blob", (*os.pipe(), *os.pipe()))


def ask(fd_passing: FdPassing, words: bytes) -> tuple[bytes, list[int], list[Any]]:
    """Connect, send a request, and let the hand-out serve readable sockets."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(fd_passing.path))
        client.send(words)
        client.settimeout(0.2)
        handed = []
        for _ in range(3):
            handed += fd_passing.serve(set(fd_passing.filenos()))
        try:
            data, fds, _, _ = socket.recv_fds(client, 100, 8)
        except (TimeoutError, ConnectionResetError):
            data, fds = b"", []
        return data, fds, handed


def test_a_token_hands_out_its_descriptors_once_and_only_its_own(tmp_path: Path) -> None:
    """Each token gives its own descriptors, once; any other gets none."""
    fd_passing = FdPassing(tmp_path / "s", quiet())
    assert fd_passing.path.stat().st_mode & 0o777 == 0o600
    first, second = pipes(), pipes()
    inodes = [os.fstat(fd).st_ino for fd in second.fds]
    tokens = fd_passing.promise(b"one", first), fd_passing.promise(b"two", second)
    for wrong in (b"", b"\n", b"0" * 32 + b"\n", tokens[0][:-1].encode() + b"\n", b"x" * 4096):
        data, fds, handed = ask(fd_passing, wrong)
        assert not fds and not handed and not data.startswith(b"ok")
    data, fds, handed = ask(fd_passing, tokens[1].encode() + b"\n")
    assert data == b"ok\n" and [os.fstat(fd).st_ino for fd in fds] == inodes
    assert [(one.ticket, one.pid) for one in handed] == [(b"two", os.getpid())]
    for fd in [*fds, handed[0].pidfd]:
        os.close(fd)
    assert ask(fd_passing, tokens[1].encode() + b"\n")[0].startswith(b"refused")
    fd_passing.forget(b"one")
    with pytest.raises(OSError):  # forgotten promises are closed, not leaked
        os.fstat(first.fds[0])
    fd_passing.close()
    assert not fd_passing.path.exists()


def test_a_host_of_a_volume_stays_while_its_connection_is_open(tmp_path: Path) -> None:
    """`look` says what the volume is; `volume` hands out, keeps the connection, and reports its
    end once; a daemon that lets the host go closes it."""
    fd_passing = FdPassing(tmp_path / "s", quiet())
    assert ask(fd_passing, b"look 00\n")[0].startswith(b"refused")

    def opened(nguid: str, peer: Peer, attach: bool) -> Volume:
        if nguid != "ab":
            raise BadInput("no such volume", nguid, "name another", errno=errno.ENOENT)
        return Volume(8, 9, True, fd_passing.promise(b"one", pipes()) if attach else "")

    fd_passing.open_volume = opened
    assert ask(fd_passing, b"look ab\n")[0] == b"ok 8 9 durable\n"
    said = ask(fd_passing, b"volume cd\n")[0]
    assert said == b"refused %d: cd: no such volume; name another\n" % errno.ENOENT
    data, fds, handed = ask(fd_passing, b"volume ab\n")
    assert data == b"ok 8 9 durable\nblob" and len(fds) == 4
    assert [(one.ticket, one.pid, one.pidfd) for one in handed] == [(b"one", os.getpid(), -1)]
    fd_passing.serve(set(fd_passing.filenos()))  # `ask` has closed its end
    assert fd_passing.left() == [b"one"] and fd_passing.left() == []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(fd_passing.path))
        client.send(b"volume ab\n")
        for _ in range(2):
            fd_passing.serve(set(fd_passing.filenos()))
        assert fd_passing.left() == [] and client.recv(100).startswith(b"ok")
        fd_passing.forget(b"one")
        assert client.recv(1) == b"" and fd_passing.left() == []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(fd_passing.path))
        client.send(b"volume ab\n")
        for _ in range(2):
            fd_passing.serve(set(fd_passing.filenos()))
        client.send(b"noise")
        fd_passing.serve(set(fd_passing.filenos()))
        assert fd_passing.left()[-1] == b"one"
    fd_passing.close()


def test_a_runtime_dir_is_held_by_one_daemon(tmp_path: Path) -> None:
    """A second daemon is refused with the first one's pid, and admitted once that is gone."""
    lock = hold_runtime_dir(tmp_path / "run")
    with pytest.raises(BadInput, match=f"pid {os.getpid()}"):
        hold_runtime_dir(tmp_path / "run")
    os.close(lock)
    os.close(hold_runtime_dir(tmp_path / "run"))


def test_a_runtime_dir_that_is_no_daemons_keeps_its_mode_and_files(tmp_path: Path) -> None:
    """A folder that is world-writable, has another's file, link or pipe at the lock's path, or
    belongs to another daemon is refused before its mode and its files are changed."""
    for name in ("everybodys", "text", "link", "pipe", "held"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o1777 if name == "everybodys" else 0o755)
    (tmp_path / "text/lock").write_text("of something else")
    (tmp_path / "link/lock").symlink_to(tmp_path / "text/lock")
    os.mkfifo(tmp_path / "pipe/lock")
    held = hold_runtime_dir(tmp_path / "held")
    (tmp_path / "held").chmod(0o755)
    before = snapshot(tmp_path)
    for folder in tmp_path.iterdir():
        with pytest.raises(BadInput, match=r"runtime_dir|choose another"):
            hold_runtime_dir(folder)
    os.close(held)
    assert snapshot(tmp_path) == before


def test_a_generated_secret_outlives_the_daemon_and_bad_ones_are_refused(tmp_path: Path) -> None:
    """A store's keys are the same after a restart, and a secret that others can read is refused."""
    store = str(tmp_path / "store.ofs")
    secret, generated = tenant_secret(Tenant(), store, tmp_path)
    assert generated and tenant_secret(Tenant(), store, tmp_path) == (secret, True)
    other, _ = tenant_secret(Tenant(name="other"), store, tmp_path)
    assert index_key(other) != index_key(secret) != secret[:16]
    assert index_key(secret, "user") != index_key(secret) == index_key(secret, "tenant")
    kept = tmp_path / "store.ofs.default.secret"
    kept.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        tenant_secret(Tenant(), store, tmp_path)
    for text, words in (("zz", "not hex"), ("00ff", "fewer than 16")):
        with pytest.raises(BadInput, match=words):
            tenant_secret(Tenant(secret=text), store, tmp_path)
    with pytest.raises(BadInput) as raised:
        tenant_secret(Tenant(secret="not-hex-but-dear"), store, tmp_path)
    assert "dear" not in str(raised.value)


def test_a_recording_holds_every_record_in_order(tmp_path: Path, device: Any) -> None:
    """The rings' records are in the files, complete, and a second run in the same files is
    refused."""
    wanted = np.zeros(5, RECORD)
    wanted["step"] = np.arange(5)
    device.pending = [wanted[:3], wanted[3:]]
    recorder = Recorder(tmp_path / "run", device, quiet(), {"device": "asic_7nm"})
    assert recorder.drain()
    device.ledger = lambda tenant=None: Ledger(records_lost=7)
    recorder.close()
    assert np.array_equal(read_records(tmp_path / "run"), wanted)
    assert (tmp_path / "run/decisions.log").read_bytes() == b"abcdefg"
    manifest = json.loads((tmp_path / "run/record.json").read_text())
    assert (tmp_path / "run/moments.bin").read_bytes() == np.ones(4, MOMENT).tobytes()
    assert manifest["machine"]["seconds"] > 0
    assert manifest["stages"]["decide"]["buckets"] == [[127, 2], [1023, 1]]
    assert manifest["records"] == 5 and manifest["records_lost"] == 7 and manifest["closed"]
    assert manifest["memory"]["bytes"] == 4096 and manifest["device"] == "asic_7nm"
    with pytest.raises(BadInput, match="holds a recorded run"):
        Recorder(tmp_path / "run", device, quiet())


def test_a_recording_that_the_disk_refused_ends_there(tmp_path: Path, device: Any) -> None:
    """Nothing is written after the gap, and the manifest reports it."""
    wanted = np.zeros(4, RECORD)
    device.pending = [wanted[:1], wanted[1:2], wanted[2:]]
    recorder = Recorder(tmp_path / "run", device, quiet())
    write = recorder._decisions.write

    def refused(data: bytes) -> int:
        recorder._decisions.write = write  # type: ignore[method-assign]
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder._decisions.write = refused  # type: ignore[method-assign]
    assert not recorder.drain() and not recorder.drain()
    recorder.close()
    assert len(read_records(tmp_path / "run")) == 1
    assert read_lost(tmp_path / "run") == recorder.lost == Lost(write_errors=1)


@pytest.mark.parametrize("kept", ["ledger.bin", "decisions.log", "record.json"])
def test_a_folder_with_a_part_of_a_recording_is_refused_as_it_was(
    device: Any, tmp_path: Path, kept: str
) -> None:
    """Nothing is created or written next to the rest of another recording."""
    (tmp_path / kept).write_bytes(b"kept")
    with pytest.raises(BadInput, match="holds a recorded run"):
        Recorder(tmp_path, device, quiet())
    assert [path.name for path in tmp_path.iterdir()] == [kept]
    assert (tmp_path / kept).read_bytes() == b"kept"


def figures(device: Any) -> TenantFigures:
    others = ("arena_bytes", "ports", "logins")
    bounds = [f"{name}_max" for name in others]
    rest = dict.fromkeys((*others, *bounds), 0)
    return TenantFigures(**asdict(device.tenant_status(0)), **rest, pod={})


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", 'a\nb{tenant="c"} 1', "a\x1b[31m", "a\u202e", "a\\"]
)
def test_a_name_in_a_label_ends_no_label_and_acts_on_no_terminal(device: Any, name: str) -> None:
    """A tenant with any such name is refused at the start."""
    with pytest.raises(BadInput, match=r"is not a name for a tenant|not printable"):
        derive(Config(tenants=(Tenant(name=name),)))
    told = Snapshot(
        tenants={name: device.ledger()},
        shares={name: figures(device)},
        status=device.status(),
        stages=device.stages(),
        daemon={},
    )
    for who in (p.OPERATOR, name):
        telemetry = Telemetry()
        telemetry.set(told)
        telemetry.show({"token": who})
        page = telemetry._render("token")[1].decode()
        assert all(one.isprintable() or one == "\n" for one in page)
        labels = {
            one.labels["tenant"]
            for family in text_string_to_metric_families(page)
            for one in family.samples
            if "tenant" in one.labels
        }
        assert labels == {printable(name)}


def test_a_token_that_is_nobodys_is_refused() -> None:
    """A scraper whose token is of yesterday must not look healthy; without one it is answered."""
    telemetry = Telemetry()
    telemetry.start("127.0.0.1", 0)
    telemetry.show({"all": p.OPERATOR})
    page = f"http://127.0.0.1:{telemetry.port}/metrics"
    try:
        with urllib.request.urlopen(page, timeout=5) as reply:
            assert reply.status == 200
        stale = urllib.request.Request(page, headers={"Authorization": "Bearer old"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(stale, timeout=5)
        assert refused.value.code == 401
        refused.value.close()
    finally:
        telemetry.stop()


def test_a_scrape_shows_the_ledger_with_its_labels(device: Any) -> None:
    """The ledger's counts arrive at a Prometheus parser, split into trivial and non-trivial."""
    telemetry = Telemetry()
    telemetry.start("127.0.0.1", 0)
    try:
        with pytest.raises(BadInput, match="metrics"):
            Telemetry().start("127.0.0.1", telemetry.port)
        share = replace(figures(device), wait_ns_sum=2_500_000_000)
        telemetry.set(
            Snapshot(
                tenants={"red": device.ledger()},
                shares={"red": share},
                status=device.status(),
                stages=device.stages(),
                daemon={"messages": 4},
            )
        )
        telemetry.show({"all": p.OPERATOR})
        request = urllib.request.Request(
            f"http://127.0.0.1:{telemetry.port}/metrics", headers={"Authorization": "Bearer all"}
        )
        with urllib.request.urlopen(request, timeout=5) as reply:
            text = reply.read().decode()
    finally:
        telemetry.stop()
    samples = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    red = ("tenant", "red")
    assert samples[("offstage_demands_total", ("end", "window"), red, ("trivial", "no"))] == 3
    assert samples[("offstage_demands_total", ("end", "window"), red, ("trivial", "yes"))] == 2
    assert samples[("offstage_demands_total", ("end", "late"), red, ("trivial", "yes"))] == 1
    assert samples[("offstage_prefetch_lead_seconds_count", red)] == 4
    assert samples[("offstage_reactor_busy_seconds_total",)] == 1.0
    assert samples[("offstage_messages_total",)] == 4
    assert samples[("offstage_tenant_ios_waiting", red)] == 5
    assert samples[("offstage_tenant_io_wait_seconds_total", red)] == 2.5
    decide, below = ("stage", "decide"), "offstage_stage_seconds_bucket"
    assert samples[(below, ("le", "1.28e-07"), decide)] == 2
    assert samples[(below, ("le", "5.12e-07"), decide)] == 2
    assert samples[(below, ("le", "1.024e-06"), decide)] == 3
    assert samples[("offstage_stage_seconds_sum", decide)] == pytest.approx(1.2e-6)


def test_the_reference_page_names_every_message(pytestconfig: pytest.Config) -> None:
    """Every message is in docs/reference."""
    reference = Path(str(pytestconfig.rootpath)) / "docs/reference"
    messages = (reference / "protocol.md").read_text()
    for kind in (*p.CALLS, *p.Reply.__subclasses__(), *get_args(zmq_messages.FabricRequest)):
        assert f"`{kind.__name__}" in messages or f"[{kind.__name__}]" in messages, kind
    for code in get_args(p.ErrorCode):
        assert f"`{code}`" in messages


def test_a_runtime_folder_that_others_had_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent folder that others can change, or a link of theirs, is refused and left alone."""
    base = tmp_path / "offstage-1"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(BadInput, match="others can change it"):
        hold_runtime_dir(base / "c")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    lstat = Path.lstat

    def another(self: Path) -> os.stat_result:
        found = lstat(self)
        if self.name != "link":
            return found
        return os.stat_result([*found[:4], os.getuid() + 1, *found[5:10]])

    monkeypatch.setattr(Path, "lstat", another)
    with pytest.raises(BadInput, match="belongs to another user"):
        hold_runtime_dir(tmp_path / "link/c")
    assert not list(base.iterdir()) and not list((tmp_path / "theirs").iterdir())
