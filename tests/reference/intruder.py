"""Processes under other users: the attacks of an intruder on a daemon, and an honest host as its
victim.

They run as forks of the test (`testbeds.beds.child`).
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol as p
from offstage.host.link.control import Control

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


def tried(act: Callable[[], object]) -> str:
    """The result: "got" if it worked, otherwise the error's name."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "got"


def call(number: int) -> int:
    """A C call's result; OSError for -1."""
    if number == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return number


def trace(pid: int) -> None:
    call(LIBC.ptrace(PTRACE_SEIZE, pid, None, None))
    LIBC.ptrace(PTRACE_DETACH, pid, None, None)


def read_through(pid: int) -> None:
    """process_vm_readv(2) of an address that is not mapped: EFAULT means that access is
    permitted."""
    buffer = ctypes.create_string_buffer(1)

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    own, theirs = Piece(ctypes.addressof(buffer), 1), Piece(4096, 1)
    try:
        call(LIBC.process_vm_readv(pid, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0))
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def take_descriptor(pid: int) -> None:
    watched = os.pidfd_open(pid)
    try:
        os.close(call(LIBC.syscall(PIDFD_GETFD, watched, 0, 0)))
    finally:
        os.close(watched)


def attack(pid: int, files: list[str]) -> dict[str, str]:
    """Try every way that the kernel offers into another process, and its files."""
    ways: dict[str, Callable[[], object]] = {
        "fd": lambda: [one.readlink() for one in Path(f"/proc/{pid}/fd").iterdir()],
        "mem": lambda: Path(f"/proc/{pid}/mem").open("rb").close(),
        "maps": lambda: Path(f"/proc/{pid}/maps").read_text(),
        "environ": lambda: Path(f"/proc/{pid}/environ").read_bytes(),
        "ptrace": lambda: trace(pid),
        "process_vm_readv": lambda: read_through(pid),
        "pidfd_getfd": lambda: take_descriptor(pid),
    }
    found = {name: tried(way) for name, way in ways.items()}
    return found | {Path(file).name: tried(Path(file).read_bytes) for file in files}


def fetch(path: str, token: str) -> tuple[str, list[int]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(100)
        client.connect(path)
        with contextlib.suppress(BrokenPipeError):  # refused already: it says why
            client.sendall(token.encode() + b"\n")
        said, fds, _, _ = socket.recv_fds(client, 128, 4)
    return said.decode().strip(), fds


def take(path: str, token: str) -> dict[str, Any]:
    """Present another tenant's token."""
    try:
        said, fds = fetch(path, token)
    except OSError as error:
        return {"said": errno.errorcode[error.errno or 0], "fds": 0}
    return {"said": said, "fds": len(fds)}


def write_region(fd: int) -> None:
    """The descriptor is read-only; reopening it would make it writable unless something forbids
    that."""
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    mmap.mmap(again, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE).close()


def host(endpoint: str, tenant: str, secret: str) -> dict[str, Any]:
    """Attach, give others the chance to take the promised blocks, then fetch, write and read."""
    with Control(endpoint, tenant=tenant, secret=Path(secret)) as control:
        attached = control.attach()
        print(json.dumps({"socket": attached.socket_path, "token": attached.token}), flush=True)
        sys.stdin.readline()
        said, fds = fetch(attached.socket_path, attached.token)
        if said != "ok":
            return {"said": said}
        writable = tried(lambda: write_region(fds[0]))
        with Driver(Attachment(attached.blob, tuple(fds))) as driver:
            session = control.session_open(select_blocks=4)
            appended = control.append(session, [bytes([n]) * 16 for n in range(4)])
            ordinals = np.arange(4, dtype=np.uint32)
            written = np.random.default_rng(1).integers(0, 256, (4, 4096), np.uint8)
            put = driver.put(PutRequest(session, 0, ordinals, written))
            keys = np.ascontiguousarray(block_keys(appended.keys, 2)[0])
            target = np.zeros_like(written)
            done = driver.fetch(FetchRequest(session, 0, 0, ordinals, keys, target))
            right = not put.any() and not done.rcs.any() and bool((target == written).all())
    return {"said": said, "right": right, "region": writable}


def listen(secret_file: str) -> dict[str, Any]:
    """Impersonate the daemon at its address, under a secret of its own, until stopped."""
    secret, heard = Path(secret_file).read_bytes(), []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        print(json.dumps({"endpoint": f"tcp://127.0.0.1:{port}"}), flush=True)
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while sys.stdin.fileno() not in (ready := dict(poller.poll())):
            if router in ready:
                route, _, data = router.recv_multipart()
                said = p.decode_request(data)
                heard.append(type(said).__name__)
                reply: p.Reply = p.Ok(id=said.id)
                if isinstance(said, p.Hello):
                    user = os.getuid()
                    proof = p.prove_daemon(
                        secret,
                        said.nonce,
                        bytes(16),
                        said.tenant,
                        said.name,
                        p.VERSIONS[0],
                        user,
                        b"",
                    )
                    reply = p.Challenge(
                        id=said.id,
                        version=p.VERSIONS[0],
                        nonce=bytes(16),
                        user=user,
                        fabric_key=b"",
                        proof=proof,
                    )
                router.send_multipart([route, p.encode(reply)])
    return {"heard": heard}
