"""Are purged, deleted or expired blocks gone for good, and only for their tenant?"""

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from against_schema import checked
from live_daemon import (
    CHUNKS,
    LAYERS,
    PAYLOAD,
    TENANT,
    WAIT_S,
    Daemon,
    block,
    check_text,
    daemon,
    open_text,
    put,
    until,
)

from offstage.bindings.errors import BadInput
from offstage.dpu import protocol as p
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.shm import open_driver
from offstage.testbeds.beds.daemon import offstage_words

BLOCKS = CHUNKS * LAYERS  # of one text


def write_text(tier: Daemon, tenant: str, number: int, *, keep: bool = True) -> None:
    """Write a whole text, acknowledged; then archive or delete it."""
    with tier.control(tenant) as control, open_driver(control.attach("shm")) as driver:
        text = open_text(control, number)
        for layer in range(LAYERS):
            for first in range(0, CHUNKS, 16):
                ordinals = list(range(first, first + 16))
                assert put(driver, text, layer, ordinals) == ordinals
        control.session_close(text.session, keep=keep)


def delete_text(tier: Daemon, tenant: str, number: int) -> None:
    """Open the text again, and close it without keeping it."""
    with tier.control(tenant) as control:
        control.attach("shm")
        control.session_close(open_text(control, number).session, keep=False)


def stored(tier: Daemon, tenant: str, number: int) -> int:
    """Return how many blocks of the text the store has."""
    with tier.control(tenant) as control:
        control.attach("shm")
        return sum(open_text(control, number).stored)


def purge(tier: Daemon, *words: str) -> "subprocess.CompletedProcess[str]":
    where = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
    command = offstage_words("dpu", "purge", *words, *where, "--format", "json")
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)


def test_a_bound_beyond_what_a_message_can_name_is_no_traceback(tmp_path: Path) -> None:
    """More than any store has: a number is refused, and of a size nothing is purged. Two bounds
    are not called none."""
    with daemon(tmp_path, ("red",)) as tier:
        write_text(tier, "red", 1)
        done = purge(tier, "red", "--blocks", str(10**23))
        assert done.returncode == 2 and "--blocks" in done.stderr
        done = purge(tier, "red", "--keep", "9" * 30 + "TiB")
        assert done.returncode == 0 and json.loads(done.stdout)["blocks"] == 0
        done = purge(tier, "red", "--all", "--keep", "1GiB")
        assert done.returncode == 2 and "2 bounds are given" in done.stderr


def test_what_was_purged_is_gone_for_its_tenant_alone_also_after_a_kill(tmp_path: Path) -> None:
    """The operator reduces a tenant to fewer blocks, coldest first, then to none. The reported
    counts are true, the other tenant keeps its blocks, and a kill right after restores nothing."""
    with daemon(tmp_path, ("red", "blue")) as tier:
        for number in (1, 2):
            write_text(tier, "red", number)
        write_text(tier, "blue", 3)
        assert stored(tier, "red", 1) == BLOCKS  # named again, so this is the warmer text
        done = purge(tier, "red", "--blocks", str(BLOCKS))
        assert done.returncode == 0, done.stderr
        told = checked("dpu purge", done.stdout)
        assert (told["chunks"], told["blocks"]) == (CHUNKS, BLOCKS) and told["bytes"] > 0
        assert stored(tier, "red", 2) == 0 and stored(tier, "red", 1) == BLOCKS
        assert json.loads(purge(tier, "red", "--keep", "1GiB").stdout)["blocks"] == 0
        told = json.loads(purge(tier, "red", "--all").stdout)
        assert (told["blocks"], told["marking"]) == (BLOCKS, 0)
        tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(WAIT_S)
    with daemon(tmp_path, ("red", "blue")) as tier:
        assert stored(tier, "red", 1) == stored(tier, "red", 2) == 0
        assert stored(tier, "blue", 3) == BLOCKS


def object_client(tier: Daemon, fabric: str = "shm") -> ObjectClient:
    return ObjectClient(
        Endpoint.of_engine(
            {
                "fabric": fabric,
                "endpoint": tier.endpoint,
                "tenant": TENANT,
                "runtime_dir": str(tier.runtime_dir),
                "timeout_s": WAIT_S,
                "patience_s": WAIT_S,
            }
        )
    )


def test_an_acknowledged_delete_never_comes_back(tmp_path: Path) -> None:
    """Every other one of texts and objects that share segments is deleted: by a session that does
    not keep it, by key, or by a purge to a number of blocks. The daemon is killed after each
    answer; the next one has everything kept and nothing deleted."""
    data = np.random.default_rng(5).integers(0, 256, 3 * PAYLOAD, np.uint8)
    with daemon(tmp_path) as tier:
        for number in (1, 2, 3):
            write_text(tier, TENANT, number)
        with object_client(tier) as client:
            for key in (b"kept", b"gone"):
                assert client.wait(client.put, [key], [data]).states == (State.DONE,)
        write_text(tier, TENANT, 4)
        delete_text(tier, TENANT, 2)
        tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(WAIT_S)
    with daemon(tmp_path) as tier:
        assert [stored(tier, TENANT, number) for number in (1, 2, 3, 4)] == [
            BLOCKS,
            0,
            BLOCKS,
            BLOCKS,
        ]
        with object_client(tier) as client:
            assert client.wait(client.delete, [b"gone"]).states == (State.DONE,)
        tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(WAIT_S)
    with daemon(tmp_path) as tier:
        with object_client(tier) as client:
            assert client.wait(client.exists, [b"gone", b"kept"]).done == [False, True]
        for number in (1, 4):
            assert stored(tier, TENANT, number) == BLOCKS  # named again, so text 3 is the coldest
        assert purge(tier, TENANT, "--blocks", str(2 * BLOCKS + 3)).returncode == 0
        tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(WAIT_S)
    with daemon(tmp_path) as tier:
        assert [stored(tier, TENANT, number) for number in (1, 3, 4)] == [BLOCKS, 0, BLOCKS]


@pytest.mark.parametrize("fabric", ["shm", "zmq"])
def test_objects_are_deleted_when_the_drive_has_ended_its_part(tmp_path: Path, fabric: str) -> None:
    """Many objects of many blocks are deleted at once, among others that are kept and some that
    were replaced, and the daemon is killed with the answer: does one come back?"""
    keys = [b"gone/%d" % i for i in range(48)]
    kept = [b"kept/%d" % i for i in range(48)]
    data = np.random.default_rng(6).integers(0, 256, (48, 20 * PAYLOAD), np.uint8)
    with daemon(tmp_path, limits__sessions="32") as tier:
        with object_client(tier, fabric) as client:
            for one, other in zip(keys, kept, strict=True):
                client.put([one, other], [data[0], data[1]])
            assert set(client.wait(client.put, keys[:8], list(data[:8])).states) == {State.DONE}
            absent = client.wait(client.delete, [b"never", b"there"])
            assert absent.states == (State.ABSENT,) * 2
            assert set(client.wait(client.delete, keys).states) == {State.DONE}
            tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(WAIT_S)
    with daemon(tmp_path, limits__sessions="32") as tier, object_client(tier) as client:
        assert not any(client.wait(client.exists, keys).done)
        assert all(client.wait(client.exists, kept).done)


def in_file(store: Path, number: int) -> int:
    """Count a text's blocks whose bytes are in the store's file, in any logical block."""
    raw = store.read_bytes()
    found = {raw[at : at + PAYLOAD] for at in range(0, len(raw), PAYLOAD)}
    return sum(
        block(number, ordinal, layer).tobytes() in found
        for ordinal in range(CHUNKS)
        for layer in range(LAYERS)
    )


def test_erased_bytes_stand_nowhere_in_the_store(tmp_path: Path) -> None:
    """With store.erase no byte of a deleted or expired block is in the file once that is reported,
    in any copy or next to a kept block. Without it they are found there."""
    size = {"storage__size": "16MiB"}
    with daemon(tmp_path, **size) as tier:
        write_text(tier, TENANT, 1, keep=False)
    store = tmp_path / "store.ofs"
    assert in_file(store, 1) == BLOCKS
    store.unlink()
    with daemon(tmp_path, store__erase="true", store__ttl="1h", **size) as tier:
        for number in (1, 2):
            write_text(tier, TENANT, number)
        assert in_file(store, 1) == BLOCKS
        delete_text(tier, TENANT, 1)
        assert (in_file(store, 1), in_file(store, 2)) == (0, BLOCKS)
        assert purge(tier, TENANT, "--all").returncode == 0
        assert in_file(store, 2) == 0
    with daemon(tmp_path, store__erase="true", store__ttl="1s", **size) as tier:
        write_text(tier, TENANT, 3)
        until(lambda: in_file(store, 3) == 0)


def test_a_tenant_purges_its_own_and_an_unknown_one_is_one_line(tmp_path: Path) -> None:
    """A tenant may delete only its own blocks, including those in use. Bad input gets one line that
    names the fix."""
    with daemon(tmp_path, ("red", "blue")) as tier:
        write_text(tier, "red", 1)
        write_text(tier, "blue", 3)
        with tier.control("blue") as control:
            with pytest.raises(BadInput, match="its own only"):
                control.purge("red")
            control.attach("shm")
            open_text(control, 3)
            assert control.purge("blue")["blocks"] == 0
        with tier.control("blue") as control:
            assert control.purge("blue") == {
                "chunks": CHUNKS,
                "blocks": BLOCKS,
                "bytes": BLOCKS * 8192,
                "more": 0,
                "marking": 0,
            }
        assert stored(tier, "blue", 3) == 0
        for words, says in (
            (("green", "--all"), "no such tenant"),
            (("red",), "--blocks N"),
            (("red", "--all", "--blocks", "3"), "--blocks N"),
        ):
            done = purge(tier, *words)
            assert done.returncode == 2 and says in done.stderr, done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert "red" in purge(tier, "green", "--all").stderr
        with tier.control(p.OPERATOR) as operator:
            purged = [one for one in operator.status()["tenants"] if one["purged"]]
        assert not purged  # no tenant lost blocks for lack of room
        assert check_text(tier, 1, {(1, o, at) for o in range(CHUNKS) for at in range(LAYERS)})
