"""An initiator of NVMe over TCP, written from the specifications, with nothing of the product.

Connections are sockets, and every PDU can be sent wrong on purpose. NVM Express Base 2.0, NVMe/TCP
Transport 1.0, Key Value Command Set 1.0.
"""

import base64
import hashlib
import hmac
import os
import socket
import struct
import zlib
from dataclasses import dataclass, field

DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
WAIT_S = 30.0
FABRICS, STORE, RETRIEVE, LIST, DELETE, EXIST = 0x7F, 0x01, 0x02, 0x06, 0x10, 0x14
ICREQ, ICRESP, H2C_TERM, C2H_TERM, COMMAND, RESPONSE, H2C, C2H, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
IN_CAPSULE_BYTES = 8192


class Ended(Exception):
    """The controller has closed the connection; `fes`: the fatal error that it named, or None."""

    def __init__(self, fes: int | None) -> None:
        super().__init__(fes)
        self.fes = fes


def crc32c(data: bytes) -> int:
    """Bit by bit, by the polynomial of RFC 3720 (a table of its own for speed)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _entry(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    return number


_TABLE = [_entry(number) for number in range(256)]


@dataclass
class Answer:
    """A completion: status (type << 8 | code, without Do Not Retry), result, and data."""

    command: int
    status: int
    result: int
    data: bytes = b""


def sqe(
    opcode: int,
    command: int,
    *,
    nsid: int = 0,
    kind: int = 0,
    length: int = 0,
    in_capsule: bool = False,
    low: bytes = b"",
    key: bytes = b"",
) -> bytes:
    """A submission queue entry; `low`: its bytes from 40 (CDW10) on, `kind`: of a fabrics
    command."""
    entry = bytearray(64)
    struct.pack_into("<BBH", entry, 0, opcode, 0x40, command)
    entry[4:8] = struct.pack("<I", nsid if opcode != FABRICS else kind)
    entry[8:16] = key[:8].ljust(8, b"\0")
    struct.pack_into("<QIxxxB", entry, 24, 0, length, 0x01 if in_capsule else 0x5A)
    entry[40 : 40 + len(low)] = low
    if key:
        entry[56:64] = key[8:16].ljust(8, b"\0")
    return bytes(entry)


@dataclass
class Connection:
    """One TCP connection, one queue."""

    where: tuple[str, int]
    head_digest: bool = False
    data_digest: bool = False
    align: int = 0
    spoil: str = ""
    """Of the next PDU: `head` or `data`, whose digest is sent wrong."""
    _next: int = 0
    _ended: dict[int, Answer] = field(default_factory=dict)
    _came: dict[int, bytearray] = field(default_factory=dict)
    _sends: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(self.where, WAIT_S)
        self.socket.settimeout(WAIT_S)
        digests = self.head_digest | self.data_digest << 1
        request = struct.pack("<BBBBIHBBI", ICREQ, 0, 128, 0, 128, 0, self.align, digests, 0)
        self.socket.sendall(request.ljust(128, b"\0"))
        answer = self._exactly(128)
        assert answer[:8] == struct.pack("<BBBBI", ICRESP, 0, 128, 0, 128), answer[:8]
        assert answer[11] == digests
        (self.h2c_max,) = struct.unpack_from("<I", answer, 12)
        assert self.h2c_max >= 4096

    def close(self) -> None:
        self.socket.close()

    # ---- PDUs ----

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            try:
                part = self.socket.recv(count - len(got))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Ended(None)
            got += part
        return got

    def send_pdu(self, kind: int, head: bytes, data: bytes = b"", flags: int = 0) -> None:
        """`head` without the 8 common bytes."""
        size = 8 + len(head)
        offset = size + 4 * self.head_digest
        flags |= self.head_digest | (2 if self.data_digest and data else 0)
        total = offset + len(data) + (4 if self.data_digest and data else 0)
        pdu = struct.pack("<BBBBI", kind, flags, size, offset if data else 0, total) + head
        if self.head_digest:
            pdu += struct.pack("<I", crc32c(pdu) ^ (self.spoil == "head"))
        pdu += data
        if self.data_digest and data:
            pdu += struct.pack("<I", crc32c(data) ^ (self.spoil == "data"))
        if self.spoil == "head" or data:
            self.spoil = ""
        try:
            self.socket.sendall(pdu)
        except (BrokenPipeError, ConnectionResetError):
            raise Ended(None) from None

    def receive(self) -> None:
        """One PDU of the controller; what it asks for is sent."""
        common = self._exactly(8)
        kind, flags, size, offset, total = struct.unpack("<BBBBI", common)
        rest = self._exactly(total - 8)
        pdu = common + rest
        if kind == C2H_TERM:
            raise Ended(struct.unpack_from("<H", pdu, 8)[0])
        assert bool(flags & 1) == self.head_digest
        if self.head_digest:
            assert struct.unpack_from("<I", pdu, size)[0] == crc32c(pdu[:size]), "head digest"
        if kind == RESPONSE:
            result, _, _, command, status = struct.unpack_from("<QHHHH", pdu, 8)
            data = bytes(self._came.pop(command, b""))
            self._ended[command] = Answer(command, status >> 1 & 0x7FF, result, data)
        elif kind == R2T:
            command, tag, start, length = struct.unpack_from("<HHII", pdu, 8)
            self._send_data(command, tag, start, length)
        else:
            assert kind == C2H, kind
            command, _, start, length = struct.unpack_from("<HHII", pdu, 8)
            assert offset % (4 * (self.align + 1)) == 0
            data = pdu[offset : offset + length]
            if self.data_digest:
                (said,) = struct.unpack_from("<I", pdu, offset + length)
                assert said == crc32c(data), "data digest"
            came = self._came.setdefault(command, bytearray())
            assert start == len(came)
            came += data

    def _send_data(self, command: int, tag: int, start: int, length: int) -> None:
        data = self._sends[command][start : start + length]
        for at in range(0, length, self.h2c_max):
            part = data[at : at + self.h2c_max]
            last = 4 if at + len(part) == length else 0
            head = struct.pack("<HHIII", command, tag, start + at, len(part), 0)
            self.send_pdu(H2C, head, part, last)

    # ---- commands ----

    def begin(self, opcode: int, data: bytes = b"", room: int = 0, **fields: object) -> int:
        """Send a command; its number."""
        command = self._next
        self._next = (self._next + 1) % 65536
        inside = 0 < len(data) <= IN_CAPSULE_BYTES
        entry = sqe(
            opcode,
            command,
            length=len(data) or room,
            in_capsule=inside,
            **fields,  # type: ignore[arg-type]
        )
        self._sends[command] = data
        self.send_pdu(COMMAND, entry, data if inside else b"")
        return command

    def end(self, command: int) -> Answer:
        """Its completion."""
        while command not in self._ended:
            self.receive()
        self._sends.pop(command, None)
        return self._ended.pop(command)

    def call(self, opcode: int, data: bytes = b"", room: int = 0, **fields: object) -> Answer:
        """Send a command and wait."""
        return self.end(self.begin(opcode, data, room, **fields))

    def connect(
        self,
        subsystem: str,
        *,
        queue: int = 0,
        cntlid: int = 0xFFFF,
        host: str = HOST,
        keep_alive_ms: int = 0,
        depth: int = 32,
    ) -> Answer:
        """The Connect of this queue."""
        data = bytearray(1024)
        data[:16] = hashlib.sha256(host.encode()).digest()[:16]
        data[16:18] = struct.pack("<H", cntlid)
        data[256 : 256 + len(subsystem)] = subsystem.encode()
        data[512 : 512 + len(host)] = host.encode()
        low = struct.pack("<HHHBBI", 0, queue, depth - 1, 0, 0, keep_alive_ms)
        return self.call(FABRICS, bytes(data), kind=0x01, low=low)

    def authenticate(
        self, secret: str, subsystem: str, *, host: str = HOST, mutual: bool = False
    ) -> bool:
        """DH-HMAC-CHAP with SHA-256 and the null group: whether the controller took the proof.
        Where `mutual`, it must prove itself too."""
        key = base64.b64decode(secret.split(":")[2])
        key, check = key[:-4], key[-4:]
        assert zlib.crc32(key).to_bytes(4, "little") == check
        lists = bytes([1]).ljust(30, b"\0") + bytes([0]).ljust(30, b"\0")
        offer = struct.pack("<BBHHBB", 0, 0, 0, 7, 0, 1) + bytes([1, 0, 1, 1]) + lists
        assert self.auth_send(offer).status == 0
        challenge = self.auth_receive().data
        kind, number, _, transaction, size, _, hashed, group, public, sequence = struct.unpack_from(
            "<BBHHBBBBHI", challenge
        )
        assert (kind, number, transaction, size, hashed, group, public) == (1, 1, 7, 32, 1, 0, 0)
        value = challenge[16:48]

        def proof(value: bytes, sequence: int, role: bytes, one: str, other: str) -> bytes:
            turned = hmac.new(key, one.encode() + b"NVMe-over-Fabrics", hashlib.sha256).digest()
            said = value + struct.pack("<IHB", sequence, transaction, 0) + role
            said += one.encode() + b"\0" + other.encode()
            return hmac.new(turned, said, hashlib.sha256).digest()

        own = os.urandom(32)
        reply = struct.pack("<BBHHBBBBHI", 1, 2, 0, 7, 32, 0, mutual, 0, 0, 99)
        reply += proof(value, sequence, b"HostHost", host, subsystem) + own
        assert self.auth_send(reply).status == 0
        success = self.auth_receive().data
        if success[:2] != bytes([1, 3]):
            assert success[:2] == bytes([0, 0xF1]), success[:8]
            return False
        if mutual:
            assert success[8] == 1
            assert success[16:48] == proof(own, 99, b"Controller", subsystem, host)
            assert self.auth_send(struct.pack("<BBHH10x", 1, 4, 0, 7)).status == 0
        return True

    def auth_send(self, message: bytes) -> Answer:
        low = struct.pack("<BBBBI", 0, 1, 1, 0xE9, len(message))
        return self.call(FABRICS, message, kind=0x05, low=low)

    def auth_receive(self, room: int = 4096) -> Answer:
        low = struct.pack("<BBBBI", 0, 1, 1, 0xE9, room)
        return self.call(FABRICS, room=room, kind=0x06, low=low)

    def property(self, offset: int, wide: bool = False) -> int:
        answer = self.call(FABRICS, kind=0x04, low=struct.pack("<BxxxI", wide, offset))
        assert answer.status == 0
        return answer.result

    def set_property(self, offset: int, value: int) -> int:
        low = struct.pack("<BxxxIQ", 0, offset, value)
        return self.call(FABRICS, kind=0x00, low=low).status

    def identify(self, what: int, nsid: int = 0, command_set: int = 0) -> Answer:
        low = struct.pack("<BxHxxxB", what, 0, command_set)
        return self.call(0x06, room=4096, nsid=nsid, low=low)

    def log(self, page: int, length: int, offset: int = 0, command_set: int = 0) -> Answer:
        low = struct.pack("<BBHHHQIBBBB", page, 0, length // 4 - 1, 0, 0, offset, 0, 0, 0, 0, 0)
        low = low[:19] + bytes([command_set])
        return self.call(0x02, room=length, low=low)


def kv(size: int, key: bytes, options: int = 0) -> dict[str, object]:
    """The fields of a command on a value, of namespace 1."""
    return {"nsid": 1, "key": key, "low": struct.pack("<IBB", size, len(key), options)}


@dataclass
class Host:
    """A host of a subsystem: an admin queue and queues for I/O, authenticated and enabled."""

    where: tuple[str, int]
    subsystem: str
    secret: str
    host: str = HOST
    keep_alive_ms: int = 0
    options: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admin = Connection(self.where, **self.options)  # type: ignore[arg-type]
        answer = self.admin.connect(
            self.subsystem, host=self.host, keep_alive_ms=self.keep_alive_ms
        )
        assert answer.status == 0 and answer.result >> 17 & 1, answer
        self.cntlid = answer.result & 0xFFFF
        assert self.admin.authenticate(self.secret, self.subsystem, host=self.host)
        assert self.admin.set_property(0x14, 1 | 6 << 4 | 6 << 16 | 4 << 20) == 0
        assert self.admin.property(0x1C) == 1
        self.queues: list[Connection] = []

    def queue(self) -> Connection:
        """One more queue for I/O."""
        made = Connection(self.where, **self.options)  # type: ignore[arg-type]
        number = len(self.queues) + 1
        answer = made.connect(self.subsystem, queue=number, cntlid=self.cntlid, host=self.host)
        assert answer.status == 0, answer
        assert made.authenticate(self.secret, self.subsystem, host=self.host)
        self.queues.append(made)
        return made

    def queue_again(self) -> Connection:
        """Another, after the last was closed."""
        self.queues.pop().close()
        return self.queue()

    def close(self) -> None:
        for one in (*self.queues, self.admin):
            one.close()


def store(queue: Connection, key: bytes, value: bytes, options: int = 0) -> int:
    """Its status."""
    return queue.call(STORE, value, **kv(len(value), key, options)).status


def retrieve(queue: Connection, key: bytes, room: int) -> Answer:
    """At most `room` bytes of the value; the result is its whole length."""
    return queue.call(RETRIEVE, room=room, **kv(room, key))


def exist(queue: Connection, key: bytes) -> int:
    """Its status."""
    return queue.call(EXIST, **kv(0, key)).status


def listed(queue: Connection, start: bytes = b"", room: int = 4096) -> list[bytes]:
    """The keys of one List from `start` on, of those that fit in `room` bytes."""
    answer = queue.call(LIST, room=room, **kv(room, start))
    assert answer.status == 0 and len(answer.data) <= room, answer
    keys, rest = keys_of(answer.data)
    assert rest == b""
    return keys


def keys_of(answer: bytes) -> tuple[list[bytes], bytes]:
    """The keys of List's answer, and what lies behind them."""
    (count,) = struct.unpack_from("<I", answer)
    keys, at = [], 4
    for _ in range(count):
        (size,) = struct.unpack_from("<H", answer, at)
        assert 0 < size <= 16
        keys.append(answer[at + 2 : at + 2 + size])
        at += (2 + size + 3) // 4 * 4
    assert at <= len(answer)
    return keys, answer[at:]


def list_all(queue: Connection, room: int = 4096) -> list[bytes]:
    """All keys, list by list."""
    keys = listed(queue, room=room)
    while keys:
        more = listed(queue, keys[-1], room)
        if more[:1] == keys[-1:]:
            more = more[1:]
        if not more:
            break
        keys += more
    return keys


def delete(queue: Connection, key: bytes) -> int:
    """Its status."""
    return queue.call(DELETE, **kv(0, key)).status
