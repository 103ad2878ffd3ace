"""Do the other ways to reach the daemon work: the ZMQ fabric, CURVE, ipc, and the command line?"""

import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.auth
from against_schema import checked
from live_daemon import started

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.firmware import ffi, lib
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol as p
from offstage.dpu.protocol import zmq_messages
from offstage.testbeds.beds.daemon import Daemon, offstage_words

WAIT_S = 120.0
PAYLOAD, COUNT = 4096, 6
BASE = {
    "daemon.metrics_endpoint": "",
    "arena.size": "2MiB",
    "arena.payload": "4KiB",
    "arena.layers": "2",
    "storage.backend": "emulated",
    "storage.size": "32MiB",
    "store.segment": "256KiB",
    "limits.ports": "2",
    "limits.sessions": "4",
    "limits.context_tokens": "4096",
    "limits.chunks": "256",
    "limits.put_slots": "8",
}


def daemon(
    tmp_path: Path, within: Sequence[str] = (), **changed: str
) -> AbstractContextManager[Daemon]:
    own = {name.replace("__", "."): value for name, value in changed.items()}
    return started(tmp_path, BASE | own, ("default",), within)


class Link:
    """A bare client of the ZMQ fabric."""

    def __init__(self, attached: p.Attached, key: bytes) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        self.socket.curve_serverkey = key
        self.socket.connect(attached.endpoint)
        self.ticket = bytes.fromhex(attached.token)

    def ask(
        self, request: zmq_messages.FabricRequest, *payload: bytes, ticket: bytes | None = None
    ) -> Any:
        ticket = self.ticket if ticket is None else ticket
        self.socket.send_multipart([ticket, p.encode(request), *payload])
        head, *rest = self.socket.recv_multipart()
        return zmq_messages.decode_fabric_reply(head), rest

    def put(self, session: int, rows: Any, damage: int = -1) -> Any:
        sums = b"".join(
            int(lib.ofs_checksum(ffi.from_buffer(row), len(row))).to_bytes(8, "little")
            for row in (one.tobytes() for one in rows)
        )
        payload = bytearray(rows.tobytes())
        if damage >= 0:
            payload[damage] ^= 1
        ordinals = np.arange(len(rows), dtype="<u4").tobytes()
        request = zmq_messages.FabricPut(
            session=session,
            layer=0,
            length_bytes=PAYLOAD,
            ordinals=ordinals,
            checksums=sums,
            timeout_ns=10**10,
        )
        reply, _ = self.ask(request, bytes(payload))
        return np.frombuffer(reply.rcs, "<i4")

    def close(self) -> None:
        self.context.destroy(linger=0)


def test_the_zmq_fabric_moves_whole_blocks_and_no_damaged_ones(tmp_path: Path) -> None:
    """Put and fetch by messages return the same bytes, damage is refused, misuse is a typed error,
    and nothing is left over."""
    rows = np.random.default_rng(1).integers(0, 256, (COUNT, PAYLOAD), np.uint8)
    with daemon(tmp_path, daemon__endpoint="tcp://127.0.0.1:*") as tier:
        with tier.control() as control:
            assert control._connection.proved is not None
            link = Link(control.attach("zmq"), control._connection.proved.fabric_key)
            session = control.session_open(select_blocks=COUNT)
            keys = control.append(session, [n.to_bytes(16, "little") for n in range(COUNT)]).keys
            assert link.put(session, rows, damage=PAYLOAD + 5).tolist() == [0, -74, 0, 0, 0, 0]
            fetch = zmq_messages.FabricFetch(
                id=9,
                session=session,
                step=0,
                layer=0,
                selected_count=COUNT,
                ordinals=np.arange(COUNT, dtype="<u4").tobytes(),
                keys=block_keys(keys, 2)[0].astype("<u8").tobytes(),
                timeout_ns=2 * 10**9,
            )
            reply, (payload,) = link.ask(fetch)
            rcs = np.frombuffer(reply.rcs, "<i4")
            got = np.frombuffer(payload, np.uint8).reshape(COUNT, PAYLOAD)
            stored = [0, 2, 3, 4, 5]
            assert reply.id == 9 and rcs[1] < 0 and not rcs[stored].any()
            assert np.array_equal(got[stored], rows[stored]) and not got[1].any()
            sums = np.frombuffer(reply.checksums, "<u8")
            assert sums[0] == lib.ofs_checksum(ffi.from_buffer(rows[0].tobytes()), PAYLOAD)
            assert not link.put(session, rows).any()  # the damaged block again, now intact

            def code(request: zmq_messages.FabricRequest, *more: bytes, **ticket: bytes) -> str:
                answer = link.ask(request, *more, **ticket)[0]
                assert isinstance(answer, p.Error)
                return str(answer.code)

            assert code(fetch, ticket=b"\0" * 16) == "unauthenticated"
            fetch.keys = fetch.keys[:-16]
            assert code(fetch) == "invalid"
            short = zmq_messages.FabricPut(
                session=session,
                layer=0,
                length_bytes=PAYLOAD,
                timeout_ns=1,
                ordinals=bytes(4),
                checksums=bytes(8),
            )
            assert code(short, b"short") == "invalid"
            ticket = link.ticket
        assert code(zmq_messages.FabricRelease(session=session), ticket=ticket) == "unauthenticated"
        link.close()


def test_with_curve_only_known_keys_get_in(tmp_path: Path) -> None:
    """A client with a listed key can log in; one with another key or none cannot."""
    keys, known = tmp_path / "keys", tmp_path / "known"
    stranger = tmp_path / "stranger"
    for directory in (keys / "clients", known, stranger):
        directory.mkdir(parents=True)
    zmq.auth.create_certificates(keys, "server")
    for owner in (known, stranger):
        zmq.auth.create_certificates(owner, "client")
        (owner / "server.key").write_bytes((keys / "server.key").read_bytes())
    (keys / "clients/known.key").write_bytes((known / "client.key").read_bytes())
    for secret in tmp_path.glob("*/*.key_secret"):
        secret.chmod(0o600)
    endpoint = {"daemon__endpoint": "tcp://127.0.0.1:*", "daemon__curve_dir": str(keys)}
    with daemon(tmp_path, **endpoint) as tier:
        with tier.control(curve_dir=known) as control:
            assert control.status()["storage"]
        for curve_dir, words in ((None, "without a key"), (stranger, "not know this client's key")):
            with pytest.raises(BadInput, match=words):
                tier.control(curve_dir=curve_dir, timeout_s=4.0)


def test_an_ipc_endpoint_is_this_users_alone_and_outlives_a_kill(tmp_path: Path) -> None:
    """The socket has mode 0600, and a daemon starts although a killed one left its socket."""
    path = tmp_path / "control"
    for _ in range(2):
        with daemon(tmp_path, daemon__endpoint=f"ipc://{path}") as tier:
            assert path.stat().st_mode & 0o077 == 0
            with tier.control() as control:
                assert control.attach("zmq").endpoint == f"ipc://{path}.fabric"


def test_the_ready_line_goes_to_a_descriptor(tmp_path: Path) -> None:
    """The launcher needs only descriptor 3: standard output is discarded."""
    script = ["sh", "-c", 'exec "$@" --ready-fd 3 3>&1 >/dev/null', "sh"]
    with daemon(tmp_path, script) as tier:
        assert tier.ready.event == "ready"


def cli(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        offstage_words(*words), capture_output=True, text=True, timeout=300, check=False
    )


def test_the_command_line_asks_changes_and_drains(tmp_path: Path) -> None:
    """Status, ledger, policy, dismiss and drain print JSON; an error is one line with code 2."""
    options = {
        "daemon__endpoint": "tcp://127.0.0.1:*",
        "memory__huge": "off",
        "arena__payload": "16KiB",
    }
    with daemon(tmp_path, **options) as tier:
        at = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
        at += ["--format", "json"]
        status = checked("dpu status", cli("dpu", "status", *at).stdout)
        assert status["storage"] == "emulated" and status["tenants"][0]["name"] == "default"
        memory = status["memory"]
        assert memory["bytes"] > 1 << 20  # what lies in huge pages if allowed
        assert memory["reserved_bytes"] == memory["transparent_bytes"] == 0
        changed = cli("dpu", "policy", "set", "degree_max=3", "prefetchers=none", *at)
        assert checked("dpu policy set", changed.stdout)["degree_max"] == 3
        wrong = cli("dpu", "policy", "set", "degre_max=3", *at)
        assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
        assert "did you mean 'degree_max'" in wrong.stderr and "Traceback" not in wrong.stderr
        assert checked("dpu ledger", cli("dpu", "ledger", "default", *at).stdout)["demands"] == 0
        with tier.control(name="h") as host:
            done = checked("dpu dismiss", cli("dpu", "dismiss", "h", *at).stdout)
            assert done["hosts"] == 1
            with pytest.raises(OffstageError, match="log in again"):
                host.status()
        again = cli("dpu", "dismiss", "h", *at)
        assert again.returncode == 2 and "has no host of this name" in again.stderr
        done = checked("dpu drain", cli("dpu", "drain", *at).stdout)
        assert (done["drained"], done["dirty_blocks"]) == (True, 0)
    gone = cli("dpu", "status", "--endpoint", "ipc:///nowhere/at/all")
    assert gone.returncode == 3 and "offstage dpu serve" in gone.stderr


def test_commands_on_files_refuse_what_is_no_such_file(tmp_path: Path) -> None:
    """A torn log, a foreign store and an unknown command give one line and code 2 or 1, without a
    traceback."""
    (tmp_path / "torn").write_bytes(b"\x01" * 1000)
    for words in (
        ["dpu", "replay", str(tmp_path / "torn")],
        ["dpu", "replay", str(tmp_path / "none")],
        ["dpu", "store", str(tmp_path / "torn")],
        ["dpu", "sevre"],
        ["dpu", "serve", "--set", "arena=1"],
        ["config", "show", "--config", str(tmp_path / "torn")],
    ):
        done = cli(*words)
        assert done.returncode in (1, 2), words
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    shown = cli("config", "show", "--set", "storage.path=x.ofs", "--format", "json")
    options = checked("config show", shown.stdout)["options"]
    assert options["storage.path"] == {"value": "x.ofs", "source": "command line"}
