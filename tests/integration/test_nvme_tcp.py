"""Is a tenant's volume a Key Value namespace to an initiator of NVMe/TCP that knows only the
specifications: for hosts that prove themselves, whatever the others send?
"""

import base64
import contextlib
import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import nvme_initiator as nvme
import pytest
from live_daemon import until
from nvme_bed import OTHER_VOLUME, VOLUME, Bed, events, started
from nvme_initiator import Connection, Ended, delete, exist, kv, retrieve, store

import offstage
from offstage.dpu import protocol as p
from offstage.host.endpoint import Endpoint
from offstage.host.values import Values

MAX = 1 << 20  # limits.context_tokens of the bed, in blocks
OK, NO_KEY, KEY_SIZE, VALUE_SIZE, EXISTS = 0, 0x87, 0x86, 0x85, 0x89
OPCODE, FIELD, NAMESPACE, SGL_LENGTH, TRANSPORT = 0x01, 0x02, 0x0B, 0x0F, 0x22
AUTHENTICATION_REQUIRED, PARAMETERS, INTERNAL = 0x191, 0x182, 0x06


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with started(tmp_path_factory.mktemp("nvme")) as found:
        yield found


def test_the_initiators_checksum_is_that_of_the_specification() -> None:
    """The check value of CRC32C; both ends agreeing on a wrong one would show nowhere."""
    assert nvme.crc32c(b"123456789") == 0xE3069283


def test_discovery_names_the_tenants_with_volumes_and_nothing_else(bed: Bed) -> None:
    """Does a stranger learn where to connect, and no more?"""
    host = Connection(bed.where)
    assert host.connect(nvme.DISCOVERY).result >> 16 == 0  # without a proof
    host.set_property(0x14, 1)
    head = host.log(0x70, 1024)
    (count,) = struct.unpack_from("<Q", head.data, 8)
    page = host.log(0x70, 1024 * count, offset=1024).data
    entries = [page[at : at + 1024] for at in range(0, len(page), 1024)]
    assert {one[256:512].rstrip(b"\0").decode() for one in entries} == set(bed.names.values())
    assert set(bed.names) == {"red", "blue"} and count == 2
    for one in entries:
        assert (one[0], one[1], one[2]) == (3, 1, 2)
        assert one[512:768].strip() == b"127.0.0.1" and int(one[32:64]) == bed.where[1]
    assert host.identify(0x02).status == FIELD
    host.close()


def test_a_namespace_is_a_volume_of_the_tenant(bed: Bed) -> None:
    """Is what Identify says what the configuration lists, and another tenant's not there?"""
    with bed.host() as red, bed.host("blue") as blue:
        assert red.admin.identify(0x02).data[:8] == struct.pack("<II", 1, 0)
        assert blue.admin.identify(0x07, command_set=1).data[:12] == struct.pack("<III", 1, 2, 0)
        assert red.admin.identify(0x03, 1).data[4:20].hex() == VOLUME
        assert blue.admin.identify(0x03, 2).data[4:20].hex() == VOLUME
        space = red.admin.identify(0x05, 1, command_set=1).data
        assert space[48:64].hex() == VOLUME
        assert struct.unpack_from("<HxxI", space, 72) == (16, MAX)
        assert red.admin.identify(0x05, 2, command_set=1).status == NAMESPACE
        assert red.admin.identify(0x05, 1, command_set=0).status == 0x12C
        about = red.admin.identify(0x01).data
        assert struct.unpack_from("<I", about, 516)[0] == 1
        assert about[768:1024].rstrip(b"\0").decode() == bed.names["red"]
        effects = red.admin.log(0x05, 4096, command_set=1).data
        said = [number for number in range(256) if effects[1024 + 4 * number] & 1]
        assert said == [0x01, 0x02, 0x06, 0x10, 0x14]


def test_one_who_does_not_prove_himself_is_served_nothing(bed: Bed) -> None:
    """Wrong key, another tenant's key, none: is there any way to a value, or to its name?"""
    name = bed.names["red"]
    for secret in (nvme_text(os.urandom(32)), bed.secret("blue")):
        host = Connection(bed.where)
        answer = host.connect(name)
        assert answer.status == OK and answer.result >> 17 & 1
        assert host.identify(0x02).status == AUTHENTICATION_REQUIRED
        assert not host.authenticate(secret, name)
        assert host.identify(0x02).status == AUTHENTICATION_REQUIRED
        assert host.set_property(0x14, 1) == AUTHENTICATION_REQUIRED
        host.close()
    with bed.host() as red:
        queue = Connection(bed.where)  # of the right controller, and without a proof of its own
        assert queue.connect(name, queue=1, cntlid=red.cntlid).status == OK
        assert store(queue, b"k", b"v") == AUTHENTICATION_REQUIRED
        assert not queue.authenticate(nvme_text(os.urandom(32)), name)
        assert exist(queue, b"k") == AUTHENTICATION_REQUIRED
        queue.close()
        stranger = Connection(bed.where)
        assert stranger.connect(name, queue=1, cntlid=red.cntlid, host=nvme.HOST + "0").status == (
            PARAMETERS
        )
        stranger.close()


def nvme_text(key: bytes) -> str:
    """A key as hosts are given it."""
    return f"DHHC-1:01:{base64.b64encode(key + zlib.crc32(key).to_bytes(4, 'little')).decode()}:"


def test_the_controller_proves_itself_where_it_is_asked(bed: Bed) -> None:
    """Does a host that wants to know whom it talks to find out?"""
    host = Connection(bed.where)
    host.connect(bed.names["red"])
    assert host.authenticate(bed.secret(), bed.names["red"], mutual=True)
    assert host.property(0x1C) == 0
    host.close()


@pytest.mark.parametrize("digests", [False, True], ids=["plain", "digests"])
def test_values_are_what_a_dict_holds(bed: Bed, digests: bool) -> None:
    """Of any length from 1 to the greatest, in the capsule and by R2T, at any alignment?"""
    options = {"head_digest": digests, "data_digest": digests, "align": 3 * digests}
    table: dict[bytes, bytes] = {}
    rng = random.Random(digests)
    sizes = (1, 3, 4096, 8192, 8193, 70_001, 512 << 10, MAX)
    with bed.host(options=options) as host:
        queue = host.queue()
        for turn in range(60):
            key = b"of a dict %d" % rng.randrange(6)
            do = rng.choice(("store", "retrieve", "exist", "delete"))
            if do == "store" or turn < len(sizes):
                size = sizes[turn] if turn < len(sizes) else rng.randrange(1, 100_000)
                table[key] = rng.randbytes(size)
                assert store(queue, key, table[key]) == OK
            elif do == "retrieve":
                got = retrieve(queue, key, MAX)
                assert got.status == (OK if key in table else NO_KEY)
                assert got.data == table.get(key, b"")
                assert got.result == len(got.data)
            elif do == "exist":
                assert exist(queue, key) == (OK if key in table else NO_KEY)
            else:
                assert delete(queue, key) == (OK if table.pop(key, None) else NO_KEY)
        for key, value in table.items():
            assert retrieve(queue, key, MAX).data == value
            assert delete(queue, key) == OK


def test_a_list_is_what_a_dict_holds(tmp_path: Path) -> None:
    """Does List walk just the keys of its namespace, page by page, from any start, and after the
    daemon was killed; and does every other way to the daemon see the same keys?"""
    rng = random.Random(30)
    held: dict[tuple[int, bytes], None] = {}
    with started(tmp_path) as bed:
        with bed.host("blue") as host:
            queue = host.queue()
            for _ in range(300):
                nsid, size = rng.choice((1, 2)), rng.randint(1, 16)
                key = bytes(rng.choice(b"\0ab") for _ in range(size))
                fields = {**kv(4 if rng.random() < 0.7 else 0, key), "nsid": nsid}
                if fields["low"][:1] == b"\4":  # type: ignore[index]
                    assert queue.call(nvme.STORE, b"data", **fields).status == OK
                    held[nsid, key] = None
                else:
                    status = queue.call(nvme.DELETE, **fields).status
                    assert status == (OK if (nsid, key) in held else NO_KEY)
                    held.pop((nsid, key), None)
            own = sorted(key for nsid, key in held if nsid == 1)
            assert len(own) > 50
            for room in (44, 100, 4096, 1 << 17):  # at least two keys
                assert sorted(nvme.list_all(queue, room)) == own
            order = nvme.list_all(queue)
            assert nvme.listed(queue, order[20]) == order[20:]
            assert delete(queue, order[20]) == OK
            assert nvme.listed(queue, order[20]) == order[21:]
            assert store(queue, order[20], b"data") == OK
            assert nvme.listed(queue, room=4) == []
        with bed.host("red") as host:
            assert nvme.list_all(host.queue()) == []
        for fabric in ("shm", "zmq"):
            control, opened = Endpoint(
                bed.tier.endpoint, "blue", fabric, runtime_dir=bed.tier.runtime_dir, timeout_s=30.0
            ).connect()
            assert list(Values(opened, bytes.fromhex(OTHER_VOLUME)).keys()) == order
            opened.close()
            control.close()
    with started(tmp_path) as bed:  # it was killed
        with bed.host("blue") as host:
            assert nvme.list_all(host.queue()) == order
        assert not events(bed.tier, "values_unnamed")


def test_a_short_buffer_gets_what_it_holds_and_the_whole_length(bed: Bed) -> None:
    """So that a host that did not know can ask again."""
    with bed.host() as host:
        queue = host.queue()
        assert store(queue, b"long", bytes(range(200))) == OK
        got = retrieve(queue, b"long", 10)
        assert (got.status, got.result, got.data) == (OK, 200, bytes(range(10)))
        assert retrieve(queue, b"long", 0).result == 200
        assert delete(queue, b"long") == OK


def test_what_is_no_key_or_value_is_refused(bed: Bed) -> None:
    """Keys of 1 to 16 bytes are keys, all different; and every other number is refused by name."""
    with bed.host() as host:
        queue = host.queue()
        for length in range(1, 17):
            assert store(queue, bytes(length), bytes([length])) == OK
        for length in range(1, 17):
            assert retrieve(queue, bytes(length), 4).data == bytes([length])
            assert delete(queue, bytes(length)) == OK
        for length in (0, 17, 255):
            low = struct.pack("<IBB", 4, length, 0)
            for code, data in ((nvme.STORE, b"data"), (nvme.RETRIEVE, b""), (nvme.EXIST, b"")):
                room = 4 if code == nvme.RETRIEVE else 0
                assert queue.call(code, data, room, nsid=1, low=low).status == KEY_SIZE
        assert store(queue, b"k", b"") == VALUE_SIZE
        assert queue.call(nvme.STORE, bytes(MAX + 1), **kv(MAX + 1, b"k")).status == VALUE_SIZE
        assert queue.call(nvme.STORE, b"four", **kv(5, b"k")).status == SGL_LENGTH
        assert queue.call(nvme.LIST, room=64, **kv(64, b"k" * 17)).status == KEY_SIZE
        assert queue.call(nvme.LIST, room=3, **kv(3, b"k")).status == FIELD
        assert queue.call(nvme.LIST, room=64, **kv(128, b"k")).status == SGL_LENGTH
        fields = kv(1, b"k") | {"nsid": 2}
        assert queue.call(nvme.EXIST, **fields).status == NAMESPACE
        assert exist(queue, b"k") == NO_KEY
        assert store(queue, b"k", b"1", options=1) == NO_KEY
        assert store(queue, b"k", b"1", options=2) == OK
        assert store(queue, b"k", b"2", options=2) == EXISTS
        assert store(queue, b"k", b"3", options=1) == OK
        assert retrieve(queue, b"k", 1).data == b"3"
        assert delete(queue, b"k") == OK


def test_queues_and_hosts_share_a_volume_and_tenants_do_not(bed: Bed) -> None:
    """The same NGUID of two tenants is two volumes; all hosts of one tenant have the same."""
    with bed.host() as one, bed.host(host=nvme.HOST + "2") as two, bed.host("blue") as blue:
        queues = [one.queue(), one.queue(), two.queue()]
        for number, queue in enumerate(queues):
            assert store(queue, b"from %d" % number, b"of %d" % number) == OK
        for queue in queues:
            for number in range(len(queues)):
                assert retrieve(queue, b"from %d" % number, 9).data == b"of %d" % number
        other = blue.queue()
        assert other.call(nvme.EXIST, **(kv(0, b"from 0") | {"nsid": 2})).status == NO_KEY
        for number in range(len(queues)):
            assert delete(queues[0], b"from %d" % number) == OK


def test_a_value_is_that_of_every_other_way_to_the_daemon(bed: Bed) -> None:
    """What `libdoca_kv` names by NGUID and key, a host of the namespace finds, and the reverse."""
    volume = bytes.fromhex(VOLUME)
    with (
        bed.host() as host,
        offstage.values(
            bed.tier.endpoint, tenant="red", runtime_dir=bed.tier.runtime_dir, volume=volume
        ) as here,
    ):
        queue = host.queue()
        assert store(queue, b"shared", b"over the wire") == OK
        assert here.retrieve(b"shared") == b"over the wire"
        assert here.store(b"shared", b"from here")
        assert retrieve(queue, b"shared", 64).data == b"from here"
        assert here.delete([b"shared"]) == [True]
        assert exist(queue, b"shared") == NO_KEY


def test_many_commands_are_in_flight_and_each_gets_its_own_answer(bed: Bed) -> None:
    """As many as the queue has entries, with data in capsules and by R2T, in any order."""
    with bed.host() as host:
        queue = host.queue()
        values = {b"flying %d" % i: os.urandom(5000 * (1 + i % 3)) for i in range(31)}
        begun = [queue.begin(nvme.STORE, v, **kv(len(v), k)) for k, v in values.items()]
        assert [queue.end(one).status for one in begun] == [OK] * len(begun)
        asked = {key: queue.begin(nvme.RETRIEVE, room=15_000, **kv(15_000, key)) for key in values}
        for key in reversed(asked):
            assert queue.end(asked[key]).data == values[key]
        begun = [queue.begin(nvme.DELETE, **kv(0, key)) for key in values]
        assert [queue.end(one).status for one in begun] == [OK] * len(begun)


def test_wrong_digests_are_seen(bed: Bed) -> None:
    """A head that is not what was sent ends the connection; data fails its command alone."""
    with bed.host(options={"head_digest": True, "data_digest": True}) as host:
        queue = host.queue()
        for size in (100, 20_000):
            assert store(queue, b"digest", b"old") == OK
            begun = queue.begin(nvme.EXIST, **kv(0, b"digest"))
            assert queue.end(begun).status == OK
            queue.spoil = "data"
            assert store(queue, b"digest", bytes(size)) == TRANSPORT
            assert retrieve(queue, b"digest", 9).data == b"old"
        queue.spoil = "head"
        with pytest.raises(Ended) as ended:
            exist(queue, b"digest")
        assert ended.value.fes == 3
        assert host.admin.property(0x1C) == 1
        assert delete(host.queue_again(), b"digest") == OK


def common(kind: int, size: int, total: int, flags: int = 0, offset: int = 0) -> bytes:
    return struct.pack("<BBBBI", kind, flags, size, offset, total)


WRONG: dict[str, tuple[int, Callable[[], bytes]]] = {
    "type": (1, lambda: common(8, 24, 24)),
    "from the controller": (1, lambda: common(nvme.RESPONSE, 24, 24)),
    "second init": (2, lambda: common(nvme.ICREQ, 128, 128)),
    "short head": (1, lambda: common(nvme.COMMAND, 24, 72)),
    "head beyond the PDU": (1, lambda: common(nvme.COMMAND, 72, 8)),
    "digest not asked for": (1, lambda: common(nvme.COMMAND, 72, 72, 1)),
    "endless capsule": (5, lambda: common(nvme.COMMAND, 72, 0xFFFFFFFF, 0, 72)),
    "data of no command": (
        1,
        lambda: common(nvme.H2C, 24, 28, 4, 24) + struct.pack("<HHIII", 0, 9, 0, 4, 0) + b"data",
    ),
    "data of any tag": (
        1,
        lambda: common(nvme.H2C, 24, 28, 4, 24) + struct.pack("<HHIII", 0, 65535, 0, 4, 0),
    ),
    "data without length": (1, lambda: common(nvme.H2C, 24, 24)),
    "capsule with data of another length": (
        1,
        lambda: (
            common(nvme.COMMAND, 72, 76, 0, 72)
            + nvme.sqe(nvme.STORE, 1, length=5, in_capsule=True)
            + b"data"
        ),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_protocol_ends_its_connection_alone(bed: Bed, name: str) -> None:
    """Is the host told which error it was, while another goes on?"""
    fes, pdu = WRONG[name]
    with bed.host() as host, bed.host() as bystander:
        queue, other = host.queue(), bystander.queue()
        queue.socket.sendall(pdu())
        with pytest.raises(Ended) as ended:
            queue.receive()
        assert ended.value.fes == fes
        assert exist(other, b"none") == NO_KEY
        assert host.admin.property(0x1C) == 1


def test_data_out_of_place_ends_its_connection(bed: Bed) -> None:
    """Data that an R2T asked for comes in order, and no more of it than was asked for."""
    for start, length in ((4, 4), (0, 20_001)):
        with bed.host() as host:
            queue = host.queue()
            entry = nvme.sqe(nvme.STORE, 77, length=20_000, **kv(20_000, b"k"))  # type: ignore[arg-type]
            queue.send_pdu(nvme.COMMAND, entry)
            head = queue.socket.recv(24)
            command, tag = struct.unpack_from("<HH", head, 8)
            assert (head[0], command) == (nvme.R2T, 77)
            queue.send_pdu(
                nvme.H2C, struct.pack("<HHIII", 77, tag, start, length, 0), bytes(length)
            )
            with pytest.raises(Ended) as ended:
                queue.receive()
            assert ended.value.fes == 4


def test_a_host_that_falls_silent_is_out(bed: Bed) -> None:
    """With its timer the controller ends, and all its queues; one that says it lives stays."""
    with bed.host(keep_alive_ms=400) as silent, bed.host(keep_alive_ms=400) as alive:
        queue = silent.queue()
        with pytest.raises(Ended):
            while True:
                assert alive.admin.call(0x18).status == OK
                queue.socket.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    queue.receive()
        with pytest.raises(Ended):
            silent.admin.call(0x18)
        assert alive.admin.property(0x1C) == 1


def test_an_admin_queue_answers_what_initiators_ask(bed: Bed) -> None:
    """Features, events that are held, an abort of none, an I/O queue's number that is taken."""
    with bed.host() as host:
        admin = host.admin
        assert admin.call(0x09, low=struct.pack("<II", 7, 0x00630063)).result == 7 << 16 | 7
        held = [admin.begin(0x0C) for _ in range(4)]
        assert admin.call(0x0C).status == 0x105
        assert admin.call(0x08, low=struct.pack("<HH", 0, held[0])).result == 1
        assert admin.call(0x18).status == OK
        assert admin.call(0x0A, low=struct.pack("<I", 0x0F)).status == OK
        assert admin.call(0xC0).status == OPCODE
        assert admin.log(0x02, 512).status == OK
        assert admin.log(0x99, 512).status == 0x109
        host.queue()
        again = Connection(bed.where)
        assert again.connect(bed.names["red"], queue=1, cntlid=host.cntlid).status == PARAMETERS
        again.close()


def test_what_was_stored_outlives_the_daemon(tmp_path: Path) -> None:
    """Killed in the middle of stores: hosts find the connection closed, and after a start every
    store that was acknowledged is there, and each other whole or absent."""
    values = {b"killed %d" % i: os.urandom(30_000 + i) for i in range(40)}
    stored = []
    with started(tmp_path) as bed, bed.host() as host:
        queue = host.queue()
        with pytest.raises(Ended):
            for number, (key, value) in enumerate(values.items()):
                begun = queue.begin(nvme.STORE, value, **kv(len(value), key))
                if number == 25:
                    bed.tier.process.kill()
                assert queue.end(begun).status == OK
                stored.append(key)
            pytest.fail("the daemon outlived its kill")
        bed.tier.process.wait()
        assert len(stored) >= 25
    with started(tmp_path) as bed, bed.host() as host:
        queue = host.queue()
        for key, value in values.items():
            got = retrieve(queue, key, MAX)
            assert got.status == OK if key in stored else got.status in (OK, NO_KEY)
            assert got.data in (value, b"")
            assert got.status == NO_KEY or got.data == value


def test_a_port_that_was_taken_away_ends_commands_with_an_error(tmp_path: Path) -> None:
    """An operator dismisses the listener's host: are commands answered, and not left?"""
    with started(tmp_path) as bed, bed.host() as host:
        queue = host.queue()
        assert store(queue, b"k", b"v") == OK
        with bed.tier.control("operator") as control:
            gone = control.call(p.Dismiss(tenant="red", name=f"kv-{bed.tier.process.pid}"))
        assert isinstance(gone, p.Dismissed) and gone.hosts == 1
        for _ in range(40):
            assert exist(queue, b"k") == INTERNAL
            assert store(queue, b"k", bytes(20_000)) == INTERNAL
        with bed.host("blue") as other:
            assert exist(other.queue(), b"k") == NO_KEY


def test_a_stopped_daemon_closes_its_connections(tmp_path: Path) -> None:
    """Does a stop end, with hosts connected?"""
    with started(tmp_path) as bed, bed.host() as host:
        queue = host.queue()
        assert store(queue, b"k", b"v") == OK
        bed.tier.stop()
        with pytest.raises(Ended):
            exist(queue, b"k")
        until(lambda: bool(events(bed.tier, "stopped")))
