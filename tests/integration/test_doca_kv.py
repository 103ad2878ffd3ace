"""Does libdoca_kv do over a live daemon what its headers say: for two processes and two volumes,
through a kill, and where a caller errs?"""

import hashlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from doca_kv import SUCCESS, Client, Refused, built, content, load
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon

import offstage
from offstage.host.link.control import Control

LARGEST = 3 * LAYERS * PAYLOAD  # of three chunks
MOST = 8192 // 64 * LAYERS * PAYLOAD  # a session's tokens, in blocks of all layers
SIZES = (1, 700, PAYLOAD, PAYLOAD + 1, LARGEST - 9, LARGEST)
VOLUMES = bytes(16), bytes(range(16))
OPTIONS = {"limits__values": "256", "limits__sessions": "16"}
BACK = {"store__write": "back", "store__dirty_max": "32"}
Model = dict[tuple[int, bytes], bytes]


@pytest.fixture(scope="module")
def library() -> tuple[Any, Any]:
    return load()


def socket_of(tier: Daemon) -> str:
    return str(Path(tier.runtime_dir) / "host-0.sock")


def key(number: int) -> bytes:
    """Of 1 to 16 bytes, and some are the beginning of others."""
    return hashlib.blake2b(bytes([number // 3]), digest_size=16).digest()[: 1 + 5 * (number % 4)]


def cut(data: bytes, choice: random.Random) -> list[bytes]:
    """In one to four parts, of which some are empty."""
    at = sorted(choice.choices(range(len(data) + 1), k=choice.randrange(4)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


def turn(clients: list[Client], model: Model, choice: random.Random, step: int) -> None:
    """One random task, and what the model says of it."""
    volume, name = choice.randrange(2), key(choice.randrange(12))
    client, held = clients[volume], model.get((volume, name))
    there = "DOCA_ERROR_ALREADY_EXIST" if held is not None else "DOCA_ERROR_NOT_FOUND"
    kind = choice.randrange(4)
    if kind == 0:
        data = content(step, choice.choice(SIZES))
        flags = choice.choice([{}, {"keep": True}, {"over": True}])
        said = client.wait(client.store(name, cut(data, choice), **flags))[0]
        stored = held is None if flags.get("keep") else held is not None or not flags.get("over")
        assert said == (SUCCESS if stored else there)
        if stored:
            model[volume, name] = data
    elif kind == 1:
        assert client.wait(client.exist(name)) == [there]
    else:
        size = choice.choice(SIZES)
        targets = [bytearray(len(one)) for one in cut(bytes(size), choice)]
        number = client.retrieve(name, targets)
        said = client.wait(number)[0]
        assert said == (there if held is None else SUCCESS)
        if held is not None:
            assert b"".join(targets)[: len(held)] == held[:size]
            assert client.lengths[number] == len(held)


def test_values_are_what_a_dict_would_hold(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """Of two volumes, in iovecs of all shapes, and after kills, through which the contexts live:
    what is asked of a dead daemon ends with an error, and of the next one is answered."""
    model: Model = {}
    choice = random.Random(3)
    clients: list[Client] = []
    for life in range(3):
        with daemon(tmp_path, **OPTIONS) as tier:
            clients = clients or [Client(library, socket_of(tier), one) for one in VOLUMES]
            for step in range(80):
                turn(clients, model, choice, 1000 * life + step)
            for number_of, volume in enumerate(VOLUMES):
                with offstage.values(
                    tier.endpoint,
                    tenant=TENANT,
                    volume=volume,
                    runtime_dir=tier.runtime_dir,
                ) as same:
                    names = [key(number) for number in range(12)]
                    lengths = [len(model.get((number_of, name), b"")) or -1 for name in names]
                    assert same.lengths(names) == lengths
            tier.process.kill()
            tier.process.wait()
            flying = [client.store(key(1), [b"lost"]) for client in clients]
            for client, number in zip(clients, flying, strict=True):
                assert client.wait(number) == ["DOCA_ERROR_IO_FAILED"]
    for client in clients:
        client.close()


def test_many_tasks_are_in_flight_together(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """More tasks than the daemon has sessions and the port has entries; none is lost or mixed."""
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier), tasks=100)
        data = {number: content(number, SIZES[number % len(SIZES)]) for number in range(100)}
        names = {number: bytes([number, 7]) for number in data}
        stores = [client.store(names[number], [data[number]]) for number in data]
        with pytest.raises(Refused, match="DOCA_ERROR_FULL"):
            client.exist(b"one too many")
        assert client.ended == {}  # nothing is done before the flush
        assert set(client.wait(*stores)) == {SUCCESS}
        targets = {number: bytearray(len(data[number])) for number in data}
        reads = [client.retrieve(names[number], [targets[number]]) for number in data]
        with pytest.raises(Refused, match="IN_USE"):
            client.close()
        assert set(client.wait(*reads)) == {SUCCESS}
        assert all(bytes(targets[number]) == data[number] for number in data)
        client.close()


def test_contexts_share_the_sessions_of_a_daemon(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """Fewer sessions than tasks, and one context that has them all: the other waits. A store that
    is full refuses for good, and the context goes on."""
    with daemon(tmp_path, limits__values="256", limits__sessions="4") as tier:
        first, second = (Client(library, socket_of(tier)) for _ in range(2))
        stores = [first.store(bytes([number]), [b"v" * 500]) for number in range(9)]
        assert set(first.wait(*stores)) == {SUCCESS}
        held = first.prefetch([bytes([number]) for number in range(9)])
        assert held.count(SUCCESS) == 4
        waiting = second.retrieve(b"\x01", [bytearray(500)])
        second.lib.doca_ctx_flush_tasks(second.ctx)
        for _ in range(100):
            second.lib.doca_pe_progress(second.pe)
        assert waiting not in second.ended
        reads = [first.retrieve(bytes([number]), [bytearray(500)]) for number in range(9)]
        assert set(first.wait(*reads)) == {SUCCESS}
        assert second.wait(waiting) == [SUCCESS]
        first.close()
        second.close()
    few = {"limits__values": "8", "limits__sessions": "16"}
    with daemon(tmp_path / "few", **few) as tier:
        client = Client(library, socket_of(tier))
        stores = [client.store(bytes([number]), [b"v"]) for number in range(40)]
        said = client.wait(*stores)
        assert said.count(SUCCESS) == 8 and said.count("DOCA_ERROR_FULL") == 32
        assert client.value(bytes([said.index(SUCCESS)]), 10) == b"v"
        client.close()


def test_a_frozen_daemon_costs_one_patience(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """Whatever was in flight: all of it ends when the first has waited, and what follows is served
    once the daemon goes on."""
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier), tasks=64)
        data = [content(number, LARGEST) for number in range(32)]
        stores = [client.store(bytes([i]), [one]) for i, one in enumerate(data)]
        assert set(client.wait(*stores)) == {SUCCESS}
        reads = [client.retrieve(bytes([i]), [bytearray(LARGEST)]) for i in range(32)]
        client.lib.doca_ctx_flush_tasks(client.ctx)
        client.lib.doca_pe_progress(client.pe)
        os.kill(tier.process.pid, signal.SIGSTOP)
        try:
            said = client.wait(*reads)
        finally:
            os.kill(tier.process.pid, signal.SIGCONT)
        assert set(said) <= {SUCCESS, "DOCA_ERROR_IO_FAILED"} and "DOCA_ERROR_IO_FAILED" in said
        assert client.value(b"\x03", LARGEST) == data[3]
        client.close()


def test_the_daemon_sees_who_has_left(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """A context takes a port while a device is bound, and gives it back."""
    with daemon(tmp_path, **OPTIONS) as tier, tier.control("operator") as seen:
        clients = [Client(library, socket_of(tier)) for _ in range(4)]
        assert attached(seen) == 4
        with pytest.raises(Refused):  # limits.ports
            Client(library, socket_of(tier))
        for client in clients:
            client.close()
        until_s = time.monotonic() + 30
        while attached(seen) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert attached(seen) == 0


def attached(seen: Control) -> int:
    return int(seen.status()["fabrics"]["shm"]["hosts"])


WRITER = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from doca_kv import Client, content, load
client = Client(load(), sys.argv[2])
for seed in range(100):
    assert client.wait(client.store(b"shared", [content(seed, 4000 + seed)])) == ["DOCA_SUCCESS"]
client.close()
"""


def test_a_reader_beside_a_second_process_gets_one_store_whole(
    tmp_path: Path, library: tuple[Any, Any]
) -> None:
    stores = {content(seed, 4000 + seed) for seed in range(100)}
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier))
        place = ":".join([str(Path(__file__).parents[1] / "reference"), *filter(None, sys.path)])
        words = [sys.executable, "-c", WRITER, place, socket_of(tier)]
        seen = set()
        with subprocess.Popen(words, env=os.environ) as writer:
            while writer.poll() is None:
                found = client.value(b"shared", LARGEST)
                assert found is None or found in stores
                seen.add(found)
        assert writer.returncode == 0 and len(seen) > 3
        assert client.value(b"shared", LARGEST) == content(99, 4099)
        client.close()


def test_values_are_staged_ahead(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """More values than the arena holds are not staged when they are asked for; those that were
    asked for ahead are. Each key says whether it is there, and a value that was replaced is
    the new one."""
    with daemon(tmp_path, **OPTIONS, arena__size="256KiB") as tier:
        client = Client(library, socket_of(tier))
        data = {bytes([number]): content(number, LARGEST) for number in range(40)}
        assert set(client.wait(*[client.store(one, [data[one]]) for one in data])) == {SUCCESS}
        asked = [bytes([number]) for number in (1, 2, 3)]
        client.wait(*[client.exist(one) for one in data])
        for number in range(20, 40):
            assert client.value(bytes([number]), LARGEST) == data[bytes([number])]
        said = client.prefetch([*asked, b"absent"])
        assert said == [SUCCESS] * 3 + ["DOCA_ERROR_NOT_FOUND"]
        assert client.wait(client.store(asked[2], [b"new"])) == [SUCCESS]
        settle(tier)
        staged = {}
        for one in (*asked[:2], b"\x05"):
            target = bytearray(LARGEST)
            number = client.retrieve(one, [target])
            assert client.wait(number) == [SUCCESS] and bytes(target) == data[one]
            staged[one] = client.blocks(number)
        assert staged[asked[0]] == staged[asked[1]] == (LARGEST // PAYLOAD, 0)
        assert staged[b"\x05"][1] > 0
        assert client.value(asked[2], LARGEST) == b"new"
        there = client.listed()
        assert sorted(there) == sorted(data)
        assert client.listed(there[7]) == there[7:] and client.listed(there[7], 12) == there[7:9]
        many = client.prefetch([bytes([number]) for number in range(40)])
        assert many.count("DOCA_ERROR_FULL") > 0  # of the daemon's 16 sessions
        client.close()


def settle(tier: Daemon) -> None:
    """Wait until nothing is read ahead any more."""
    with tier.control("operator") as seen:
        read_bytes = -1
        while (now := seen.ledger().prefetch_bytes_read) != read_bytes:
            read_bytes = now
            time.sleep(0.2)


def test_a_notification_comes_while_tasks_are_in_flight(
    tmp_path: Path, library: tuple[Any, Any]
) -> None:
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier))
        ffi, lib = library
        handle: Any = ffi.new("int *")
        assert lib.doca_pe_request_notification(client.pe) != 0  # no handle was taken
        assert lib.doca_pe_get_notification_handle(client.pe, handle) == 0
        lib.doca_pe_request_notification(client.pe)
        assert select.select([handle[0]], [], [], 0)[0] == []  # nothing is in flight
        number = client.store(b"k", [b"v"])
        lib.doca_ctx_flush_tasks(client.ctx)
        while number not in client.ended:
            lib.doca_pe_request_notification(client.pe)
            assert select.select([handle[0]], [], [], 60)[0] == [handle[0]]
            lib.doca_pe_clear_notification(client.pe, handle[0])
            lib.doca_pe_progress(client.pe)
        client.close()


def test_what_a_caller_gets_wrong_is_refused(
    tmp_path: Path, library: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """By the error that the header names, and nothing is lost by it."""
    ffi, lib = library
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier))
        assert client.number("max_key_len", "uint16_t") == 16
        assert client.number("max_value_len") == MOST
        for wrong, says in (
            (lambda: client.store(b"", [b"x"]), "INVALID_VALUE"),
            (lambda: client.store(bytes(17), [b"x"]), "INVALID_VALUE"),
            (lambda: client.exist(bytes(17)), "INVALID_VALUE"),
            (lambda: client.store(b"k", [b""]), "INVALID_VALUE"),
            (lambda: client.store(b"k", [bytes(MOST + 1)]), "TOO_BIG"),
            (lambda: client._check(lib.doca_ctx_start(client.ctx)), "BAD_STATE"),
            (lambda: client._check(lib.doca_kv_io_set_num_tasks(client.io, 9)), "BAD_STATE"),
            (lambda: client._check(lib.doca_kv_io_bind_dev(client.io, client.dev)), "IN_USE"),
            (lambda: client._check(lib.doca_ctx_stop(client.ctx)), "IN_USE"),
            (lambda: client._check(lib.doca_pe_destroy(client.pe)), "IN_USE"),
        ):
            with pytest.raises(Refused, match=says):
                wrong()
        short = ffi.new("struct iovec[1]", [[ffi.NULL, 8]])
        task = client.allocate("store")
        general = lib.doca_kv_io_task_store_as_task(task)
        for iovecs in (short, ffi.NULL):
            lib.doca_kv_io_task_store_set_key_value_conf(task, b"k", 1, iovecs, 1, 8)
            assert lib.doca_task_submit(general) == lib.DOCA_ERROR_INVALID_VALUE
        lib.doca_task_free(general)
        lib.doca_task_free(general)
        assert "freed twice" in capfd.readouterr().err
        number = client.store(b"k", [b"kept"])
        assert client.wait(number) == [SUCCESS] and client.value(b"k", 9) == b"kept"
        assert client.value(b"k", 2) == b"ke"
        data, room = content(5, LARGEST), bytearray(b"\xee" * LARGEST)
        assert client.wait(client.store(b"k", [data])) == [SUCCESS]
        assert client.wait(client.retrieve(b"k", [room], PAYLOAD + 700)) == [SUCCESS]
        assert room == data[: PAYLOAD + 700] + b"\xee" * (LARGEST - PAYLOAD - 700)
        client.close()


def test_a_volume_that_is_not_the_callers_is_refused(
    tmp_path: Path, library: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Each with one line that names the socket and the reason."""
    named = {TENANT: {"volumes": [VOLUMES[1].hex()]}}
    with daemon(tmp_path / "a", named, **OPTIONS) as tier:
        Client(library, socket_of(tier), VOLUMES[1]).close()
        here = "on this machine; to reach one on another machine, use NVMe over TCP"
        for path, volume, why in (
            (socket_of(tier), VOLUMES[0], "volumes"),
            (str(tmp_path), VOLUMES[1], here),
            ("offstage:tcp://dpu:7411?fabric=verbs", VOLUMES[1], here),
        ):
            capfd.readouterr()
            with pytest.raises(Refused, match="NOT_FOUND"):
                Client(library, path, volume)
            said = capfd.readouterr().err
            assert said.count("\n") == 1 and path.removeprefix("offstage:") in said and why in said
    without = daemon(tmp_path / "b", limits__values="0")
    with without as tier, pytest.raises(Refused, match="NOT_SUPPORTED"):
        Client(library, socket_of(tier))
    assert "limits.values" in capfd.readouterr().err


def test_a_durable_volume_is_there_after_a_kill(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """Where the daemon writes back: what a store into the durable volume ended with is on the
    drive. (The other volume's may be lost, and is then absent.)"""
    named = {TENANT: {"volumes": [VOLUMES[0].hex(), f"{VOLUMES[1].hex()} durable"]}}
    keys = [bytes([number]) * 4 for number in range(24)]
    with daemon(tmp_path, named, **BACK, **OPTIONS) as tier:
        clients = [Client(library, socket_of(tier), volume) for volume in VOLUMES]
        for key in keys:
            for client in clients:
                assert client.wait(client.store(key, [content(key[0], LARGEST)])) == [SUCCESS]
        tier.process.kill()
        for client in clients:
            client.close()
    with daemon(tmp_path, named, **BACK, **OPTIONS) as tier:
        for volume in VOLUMES:
            client = Client(library, socket_of(tier), volume)
            room = bytearray(LARGEST)
            for key in keys:
                (ended,) = client.wait(client.retrieve(key, [room], LARGEST))
                assert ended == SUCCESS or (volume == VOLUMES[0] and ended.endswith("NOT_FOUND"))
                assert ended != SUCCESS or room == content(key[0], LARGEST)
            client.close()


def test_the_program_of_the_page(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """It builds by pkg-config as the page says, stores, and frees all that it creates."""
    root = Path(__file__).parents[2]
    page = (root / "docs/how-to/cmx.md").read_text()
    (tmp_path / "client.c").write_text(page.partition("```c client.c\n")[2].partition("```")[0])
    place = built()
    flags = "$(pkg-config --cflags --libs doca-kv)"
    words = f"cc -Wall -Werror -fsanitize=leak client.c {flags} -Wl,-rpath,{place} -o client"
    env = {**os.environ, "LD_PRELOAD": "", "PKG_CONFIG_PATH": str(place), "LSAN_OPTIONS": ""}
    subprocess.run(["sh", "-c", words], check=True, cwd=tmp_path, env=env)
    with daemon(tmp_path, **OPTIONS) as tier:
        done = subprocess.run(
            ["./client", socket_of(tier)],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "store: success\n" and done.stderr == ""
        client = Client(library, f"offstage:{tier.runtime_dir}")
        assert client.value(b"key", 100) == b"a value\0"
        client.close()
