"""Do the parts of the QEMU testbed that need no QEMU keep their contracts?"""

import base64
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from against_schema import checked

from offstage.bindings.core import replay
from offstage.bindings.errors import BadInput, DeviceTimeout, RunFailed
from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.beds.qemu import images, pair, virtual
from offstage.testbeds.beds.qemu.agent import Agent
from offstage.testbeds.beds.qemu.guest import Process
from offstage.testbeds.beds.qemu.images import needs
from offstage.testbeds.beds.qemu.initrd import write_initrd

Answer = Callable[[dict[str, object]], dict[str, object] | None]


@contextmanager
def agent(folder: Path, answer: Answer, garbage: bytes = b"") -> Iterator[Agent]:
    """An agent whose guest gives these answers, or none for None. `garbage`: bytes left over from
    an earlier user."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "agent"))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(garbage)
            for line in lines:
                said = json.loads(line)
                result = (
                    {"return": said["arguments"]["id"]}
                    if said["execute"] == "guest-sync"
                    else answer(said)
                )
                if result is not None:
                    connection.sendall(json.dumps(result).encode() + b"\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    one = Agent("guest", folder / "agent", lambda: None)
    try:
        yield one
    finally:
        one.close()
        listener.close()
        thread.join(10)


def test_a_command_in_a_guest(tmp_path: Path) -> None:
    """Bytes left by an earlier user are skipped, and a command's output is decoded."""
    polls = iter([False, True])

    def answer(said: dict[str, object]) -> dict[str, object]:
        if said["execute"] == "guest-exec":
            return {"return": {"pid": 7}}
        if not next(polls):
            return {"return": {"exited": False}}
        out = base64.b64encode(b"hello").decode()
        return {"return": {"exited": True, "exitcode": 3, "out-data": out}}

    stale = b'{"return": {"pid": 1}}\n{"return": 12}\n'
    with agent(tmp_path, answer, stale) as one:
        one.connect(10)
        done = one.run(["/bin/true"], 10)
    assert (done.code, done.out, done.err) == (3, "hello", "")


def test_a_guest_that_refuses_or_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait ends with an error of one line."""
    monkeypatch.setattr("offstage.testbeds.beds.qemu.agent.CALL_TIMEOUT_S", 0.2)
    refusals = iter([{"error": {"desc": "no such\nprogram"}}, None])
    with agent(tmp_path, lambda _: next(refusals)) as one:
        one.connect(10)
        with pytest.raises(RunFailed, match="guest: guest-exec: no such program"):
            one.start(["/nothing"])
        with pytest.raises(DeviceTimeout, match="does not answer"):
            one.start(["/bin/true"])
    with pytest.raises(DeviceTimeout, match="within 0 s"):
        Agent("guest", tmp_path / "nobody", lambda: None).connect(0.1)


def test_only_the_process_that_was_started_is_ended() -> None:
    """A process whose id was reused is left alone."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        other = Process(child.pid, Process.of(child.pid).started + 1)
        other.end()
        assert not other.alive() and child.poll() is None
        Process.of(child.pid).end()
        assert not Process.of(child.pid).alive()


def test_the_initrd_unpacks(tmp_path: Path) -> None:
    """The archive is valid, with modules in the order of their dependencies."""
    modules = tmp_path / "tree/lib/modules/1"
    (tmp_path / "tree/bin").mkdir(parents=True)
    (tmp_path / "tree/bin/busybox").write_bytes(b"busybox")
    modules.mkdir(parents=True)
    for name in ("9p", "9pnet", "9pnet_virtio", "virtio_pci"):
        (modules / f"{name}.ko").write_bytes(name.encode())
    (modules / "modules.dep").write_text(
        "9p.ko: 9pnet.ko\n9pnet.ko:\n9pnet_virtio.ko: 9pnet.ko\nvirtio_pci.ko:\n"
    )
    init = tmp_path / "init"
    init.write_text("#!/bin/sh\n")
    write_initrd(tmp_path / "tree", "1", init, tmp_path / "initrd")
    files = unpacked((tmp_path / "initrd").read_bytes())
    assert files["modules/order"] == b"virtio_pci.ko\n9pnet.ko\n9pnet_virtio.ko\n9p.ko\n"
    assert files["modules/9p.ko"] == b"9p" and files["init"] == b"#!/bin/sh\n"
    assert files["bin/busybox"] == b"busybox" and "mnt/new" in files


def unpacked(data: bytes) -> dict[str, bytes]:
    """The files of a compressed `newc` archive, parsed from the format's description."""
    import gzip

    archive, files = io.BytesIO(gzip.decompress(data)), {}
    while True:
        header = archive.read(110)
        assert header[:6] == b"070701"
        size, name_size = (int(header[at : at + 8], 16) for at in (54, 94))
        name = archive.read(name_size)[:-1].decode()
        archive.read(-archive.tell() % 4)
        if name == "TRAILER!!!":
            return files
        files[name] = archive.read(size)
        archive.read(-archive.tell() % 4)


def test_a_later_kernel_comes_from_its_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest's own kernel needs the mirror alone, a later one its suite too."""
    asked: list[tuple[str, ...]] = []

    def run(*command: str, fix: str) -> None:
        asked.append(command)
        raise RunFailed(fix, "", "")

    monkeypatch.setattr(images, "_run", run)
    monkeypatch.setenv("OFFSTAGE_DEBIAN_MIRROR", "http://here/debian")
    for arch in (images.X86_64, replace(images.X86_64, linux="trixie-backports")):
        with pytest.raises(RunFailed):
            images._extract(arch, tmp_path)
    own, later = asked
    assert own[-1] == "http://here/debian" and own[-2] == str(tmp_path)
    assert own[-4].endswith(",linux-image-amd64")
    assert later[-2:] == (own[-1], "deb http://here/debian trixie-backports main")
    assert later[-5].endswith(",linux-image-amd64/trixie-backports")


def test_a_later_kernel_goes_where_the_suites_is(tmp_path: Path) -> None:
    """Are modules and kernel of a package that has them below /usr moved?"""
    later = tmp_path / "usr/lib/modules/7.3"
    later.mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (later / "vmlinuz").touch()
    (later / "modules.order").touch()
    for _ in range(2):
        images._place_kernel(tmp_path)
        assert [path.name for path in (tmp_path / "boot").iterdir()] == ["vmlinuz-7.3"]
        assert [path.name for path in (tmp_path / "lib/modules/7.3").iterdir()] == ["modules.order"]


def test_one_seed_in_virtual_time() -> None:
    """The run that both guests make is determined by its seed, and can be replayed."""
    log = virtual.log(1)
    assert log == virtual.log(1) != virtual.log(2)
    assert replay(log).agreed > 10_000 and replay(log).diverged_at is None


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tool, an invalid cache and a second command each give one line with its fix."""
    with pytest.raises(BadInput, match="apt-get install first second"):
        needs(("no-such-1", "first"), ("sh", "dash"), ("no-such-2", "second"))
    monkeypatch.setenv("OFFSTAGE_CACHE", str(tmp_path))
    assert pair.running() is None and not pair.down()
    with pair.alone(), pytest.raises(BadInput, match="another command"), pair.alone():
        pass
    (tmp_path / "qemu/pair.json").write_text("[]")
    with pytest.raises(BadInput, match="delete it"):
        pair.down()
    monkeypatch.setenv("OFFSTAGE_CACHE", os.devnull)
    with pytest.raises(BadInput, match="OFFSTAGE_CACHE"), pair.alone():
        pass


@pytest.mark.qemu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fabric", ["zmq", "verbs"])
def test_the_testbed_end_to_end(tmp_path: Path, fabric: str) -> None:
    """`testbed run qemu`, as a user types it: no corrupt block, and equal logs on both machines."""
    if not os.environ.get("OFFSTAGE_TEST_QEMU"):
        pytest.skip("takes a quarter of an hour for each: OFFSTAGE_TEST_QEMU=1 pytest -m qemu")
    for tool in ("qemu-system-x86_64", "qemu-system-aarch64", "mmdebstrap", "mksquashfs"):
        try:
            needs((tool, "qemu-system-x86 qemu-system-arm mmdebstrap squashfs-tools"))
        except BadInput as error:
            pytest.skip(error.fix)
    begun = time.time()
    done = subprocess.run(
        offstage_words(
            *("testbed", "run", "qemu", "--fabric", fabric),
            *("--out", str(tmp_path), "--format", "json"),
        ),
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert done.returncode == 0, done.stderr
    found = checked("testbed run", done.stdout)
    across = found["runs"]["across"]
    assert across["storage"] == "io_uring" and across["fabric"] == fabric
    for one in found["runs"].values():
        assert one["blocks_verified"] > 0 and one["blocks_corrupt"] == 0
    assert len(found["replays"]) == 2 and found["wall_s"] < time.time() - begun
    assert len(set(found["virtual"]["sha256"].values())) == 1
