"""Are kept chunks archived to a real S3 server and restored right, under kills and faults?

The server is OpenStack Swift with its S3 API (tests/reference/swift_server.py), where it is
installed; a small one in memory does on command what no real server does.
"""

import random
import signal
import subprocess
from pathlib import Path

import pytest
from archive_bed import (
    BLOCKS,
    archived,
    logged,
    lose_store,
    settings,
    settled,
    status,
    stored,
    whole,
    write,
)
from live_daemon import (
    CHUNKS,
    CONFIG,
    LAYERS,
    TENANT,
    WAIT_S,
    Daemon,
    check_text,
    daemon,
    scrape,
    until,
)
from swift_server import ACCESS, SECRET, Swift
from tiny_s3 import TinyS3

from offstage.host.connectors.objects import ObjectClient
from offstage.host.endpoint import Endpoint
from offstage.testbeds.beds.daemon import offstage_words

RECORD = 8192  # of the store
GROUP = 4  # chunks of 64 tokens in an object of 256


def archive_and_lose(folder: Path, more: dict[str, str]) -> None:
    """Archive a text, kill the daemon, and delete its store."""
    with daemon(folder, **more) as tier:
        write(tier, 1)
        settled(tier)
        tier.kill()
    lose_store(folder)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["off", "fp8_e4m3"])
def test_every_block_comes_back_through_swift_after_a_kill(
    tmp_path: Path, swift: Swift, codec: str
) -> None:
    """Two tenants archive, the daemon is killed, the drive is lost: another daemon with their
    secrets serves every block right from the bucket alone, and to each tenant only its own."""
    more = settings(
        tmp_path,
        swift.endpoint,
        ACCESS,
        SECRET,
        archive__prefix=f"trip-{codec}",
        store__codec=codec,
    )
    with daemon(tmp_path, ("red", "blue"), **more) as tier:
        write(tier, 1, "red")
        write(tier, 2, "red")
        write(tier, 3, "blue")
        settled(tier)
        up = archived(tier, "red")
        assert up["chunks"] == up["chunks_up"] == 2 * CHUNKS and up["errors"] == 0
        assert len(list(swift.bucket.names(f"trip-{codec}/red/"))) == 2 * CHUNKS // GROUP
        tier.kill()
    lose_store(tmp_path)
    with daemon(tmp_path, ("red", "blue"), **more) as tier:
        settled(tier)
        assert stored(tier, 1, "blue") == 0  # blue's keys do not find red's text
        for number, tenant in ((1, "red"), (2, "red"), (3, "blue")):
            assert stored(tier, number, tenant) == BLOCKS
        assert check_text(tier, 1, whole(1)) == BLOCKS  # as red; every byte is compared
        assert check_text(tier, 2, whole(2)) == BLOCKS
        down = archived(tier, "red")
        assert down["chunks_down"] == 2 * CHUNKS and down["bytes_down"] == up["bytes_up"]
        assert (up["bytes_up"] < 2 * BLOCKS * 4096) == (codec != "off")


@pytest.mark.slow
def test_kills_while_objects_go_up_leave_nothing_wrong(tmp_path: Path, swift: Swift) -> None:
    """After repeated kills during uploads every block in the store is right, and so is every
    uploaded block in the bucket when the store is lost."""
    more = settings(tmp_path, swift.endpoint, ACCESS, SECRET, archive__prefix="kills")
    for number in range(1, 4):
        with daemon(tmp_path, **more) as tier:
            write(tier, number)
            until(lambda: archived(tier)["chunks_up"] > 0)
            tier.kill()
    with daemon(tmp_path, **more) as tier:
        for number in range(1, 4):
            assert check_text(tier, number, whole(number)) == BLOCKS
        settled(tier)  # interrupted uploads were completed when these sessions ended
        assert archived(tier)["chunks"] == 3 * CHUNKS
        tier.kill()
    lose_store(tmp_path)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        for number in range(1, 4):
            assert stored(tier, number) == BLOCKS
            assert check_text(tier, number, whole(number)) == BLOCKS


@pytest.mark.slow
def test_what_was_deleted_never_comes_back_from_the_bucket(tmp_path: Path, swift: Swift) -> None:
    """A session deletes while the server is away, the daemon is killed, and both restart with
    another drive: the text is gone from the bucket too, and so is the other tenant's after its
    purge."""
    more = settings(tmp_path, swift.endpoint, ACCESS, SECRET, archive__prefix="deletes")
    with daemon(tmp_path, ("red", "blue"), **more) as tier:
        for number, tenant in ((1, "red"), (2, "red"), (3, "blue")):
            write(tier, number, tenant)
        settled(tier)
        swift.stop()
        assert stored(tier, 1, "red", keep=False) == BLOCKS  # named again, and deleted
        with tier.control("operator") as control:
            control.purge("blue")
        tier.kill()
    lose_store(tmp_path)
    swift.start()
    with daemon(tmp_path, ("red", "blue"), **more) as tier:
        settled(tier)
        assert stored(tier, 1, "red") == stored(tier, 3, "blue") == 0
        assert stored(tier, 2, "red") == BLOCKS
        until(lambda: not list(swift.bucket.names("deletes/blue/")))
        assert len(list(swift.bucket.names("deletes/red/"))) == CHUNKS // GROUP


@pytest.mark.slow
def test_a_hung_server_delays_no_host_for_good(tmp_path: Path, swift: Swift) -> None:
    """While all of Swift is suspended, hosts write, read and leave; waiting objects are uploaded
    when it resumes."""
    more = settings(
        tmp_path, swift.endpoint, ACCESS, SECRET, archive__prefix="hangs", archive__wait="200ms"
    )
    with daemon(tmp_path, **more) as tier:
        swift.freeze(signal.SIGSTOP)
        try:
            write(tier, 1)
            assert check_text(tier, 1, whole(1)) == BLOCKS
            until(lambda: bool(logged(tier, "archive_away")))
        finally:
            swift.freeze(signal.SIGCONT)
        settled(tier)
        assert archived(tier)["chunks"] == CHUNKS
        assert check_text(tier, 1, whole(1)) == BLOCKS


@pytest.mark.parametrize(
    "how",
    [
        (507, "InsufficientStorage"),
        (500, "InternalError"),
        (503, "SlowDown"),
        (403, "AccessDenied"),
    ],
)
def test_a_server_that_fails_costs_no_block(
    tmp_path: Path, tiny: TinyS3, how: tuple[int, str]
) -> None:
    """If the server is full, broken, busy, or denies access, all blocks are served from the store,
    errors are counted, and refused objects are uploaded once it accepts them."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        tiny.fail_puts = how
        write(tier, 1)
        until(lambda: archived(tier)["errors"] > 0)
        assert check_text(tier, 1, whole(1)) == BLOCKS
        assert not tiny.objects
        tiny.fail_puts = None
        settled(tier)
        check_text(tier, 1, whole(1))  # its end uploads what was given up meanwhile
        settled(tier)
        assert archived(tier)["chunks"] == CHUNKS and len(tiny.objects) == CHUNKS // GROUP


def test_other_bytes_are_no_blocks(tmp_path: Path, tiny: TinyS3) -> None:
    """Objects that were modified, truncated or exchanged for another's are misses, are counted, and
    are left in the bucket after one read."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    with daemon(tmp_path, **more) as tier:
        write(tier, 1)
        settled(tier)
        tier.kill()
    names = sorted(tiny.objects)
    changed = bytearray(tiny.objects[names[0]])
    changed[len(changed) // 2] ^= 1
    tiny.objects[names[0]] = bytes(changed)
    tiny.objects[names[1]] = tiny.objects[names[1]][:-100]
    tiny.objects[names[2]] = tiny.objects[names[3]]
    tiny.objects[names[4]] = b""
    lose_store(tmp_path)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        there = stored(tier, 1)
        assert there == BLOCKS - 4 * GROUP * 2
        assert archived(tier)["damaged"] == 4
        assert check_text(tier, 1, set()) == there  # what arrived is right, the rest is absent
        settled(tier)
        assert {*names[:3], names[4]} <= set(tiny.objects)


def test_a_connection_that_is_cut_costs_no_object(tmp_path: Path, tiny: TinyS3) -> None:
    """A server that disappears in the middle of an object is not counted as damage, and the object
    is requested again."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        tiny.cut = 1
        assert stored(tier, 1) < BLOCKS
        settled(tier)
        assert archived(tier)["damaged"] == 0 and len(tiny.objects) == CHUNKS // GROUP
        assert stored(tier, 1) == BLOCKS


def test_a_slow_server_is_not_waited_for(tmp_path: Path, tiny: TinyS3) -> None:
    """If objects are slow to arrive, the answer is sent after `archive.wait`, and the next session
    finds them."""
    more = settings(tmp_path, tiny.endpoint, "a", "b", archive__wait="1ms")
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        tiny.delay_s = 0.5
        assert stored(tier, 1) < BLOCKS
        until(lambda: archived(tier)["chunks_down"] == CHUNKS)
        assert stored(tier, 1) == BLOCKS
        assert check_text(tier, 1, whole(1)) == BLOCKS


def test_a_delete_in_the_middle_of_a_return(tmp_path: Path, tiny: TinyS3) -> None:
    """If a session deletes a text that is being restored, no part of it is left anywhere."""
    more = settings(tmp_path, tiny.endpoint, "a", "b", archive__wait="1ms")
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        tiny.delay_s = 0.1
        stored(tier, 1, keep=False)
        until(lambda: status(tier)["device"]["archive"]["deletes_waiting"] == 0)
        tiny.delay_s = 0.0
        until(lambda: not tiny.objects)
        assert stored(tier, 1) == 0


def test_few_tokens_are_left_in_the_bucket(tmp_path: Path, tiny: TinyS3) -> None:
    """With `return_tokens_min` above the text's length nothing is restored, at the length all is;
    then the daemon knows the rate of restores."""
    tokens = CHUNKS * int(CONFIG["arena.block_tokens"])
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more, policy__return_tokens_min=str(tokens + 1)) as tier:
        settled(tier)
        assert stored(tier, 1) == 0 and archived(tier)["chunks_left"] == CHUNKS
        assert status(tier)["device"]["archive"]["pace"]["seconds"] == 0
        with tier.control("operator") as control:
            control.policy_set({"return_tokens_min": str(tokens)})
        assert stored(tier, 1) == BLOCKS and archived(tier)["chunks_left"] == CHUNKS
        assert status(tier)["device"]["archive"]["pace"]["seconds"] > 0
        with tier.control("operator") as control:
            control.policy_set({"return_tokens_min": "0", "prefill_tokens_per_s": "1000000000"})
        assert status(tier)["device"]["thresholds"]["return_tokens_min"] == 65535


def test_a_purge_that_keeps_some_leaves_the_same_in_the_bucket(
    tmp_path: Path, tiny: TinyS3
) -> None:
    """After `dpu purge --keep` of one of two texts the bucket keeps what the store keeps, also with
    a new drive, and the rest never comes back."""
    more = settings(tmp_path, tiny.endpoint, "a", "b", archive__chunk_tokens="1")
    with daemon(tmp_path, **more) as tier:
        write(tier, 1)
        write(tier, 2)
        settled(tier)
        where = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
        kept = f"{(BLOCKS + 1) * RECORD}B"
        done = subprocess.run(
            offstage_words("dpu", "purge", TENANT, "--keep", kept, *where),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        settled(tier)
        there = [stored(tier, 1), stored(tier, 2)]
        assert 0 < sum(there) <= BLOCKS + 1
        settled(tier)
        assert archived(tier)["chunks"] == len(tiny.objects) == sum(there) // LAYERS
        tier.kill()
    lose_store(tmp_path)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        assert [stored(tier, 1), stored(tier, 2)] == there


def test_an_engines_objects_come_back_and_go(tmp_path: Path, tiny: TinyS3) -> None:
    """An engine's objects of any size are restored from the bucket alone, byte for byte, and
    deleted from it once the engine deletes them."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    made = {bytes([n]) * 8: random.Random(n).randbytes(1000 + 7001 * n) for n in range(1, 6)}
    keys, shapes = list(made), [len(one) for one in made.values()]

    def client(tier: Daemon) -> ObjectClient:
        return ObjectClient(
            Endpoint(
                tier.endpoint,
                TENANT,
                timeout_s=90.0,
                patience_s=90.0,
                runtime_dir=tier.runtime_dir,
            )
        )

    with daemon(tmp_path, **more) as tier:
        with client(tier) as engine:
            assert all(engine.wait(engine.put, keys, list(made.values())).done)
        settled(tier)
        tier.kill()
    lose_store(tmp_path)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        with client(tier) as engine:
            found = engine.wait(engine.exists, keys, shapes)
            assert all(found.done), found.reasons
            buffers = [bytearray(size) for size in shapes]
            assert all(engine.wait(engine.get, keys, buffers).done)
            assert [bytes(one) for one in buffers] == list(made.values())
            assert all(engine.wait(engine.delete, keys).done)
        settled(tier)
        assert not tiny.objects


def test_the_archive_does_not_touch_ledger_or_decisions(tmp_path: Path, tiny: TinyS3) -> None:
    """Uploads read the store, but count as no demands and stage nothing."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    with daemon(tmp_path, daemon__metrics_endpoint="127.0.0.1:0", **more) as tier:
        write(tier, 1)
        settled(tier)
        with tier.control(TENANT) as control:
            ledger = control.ledger()
        assert sum(ledger.ends) == 0 and ledger.demand_bytes_read == 0
        assert ledger.archive_bytes_up == archived(tier)["bytes_up"] > 0
        token = (tier.runtime_dir / "metrics.token").read_text().strip()
        until(lambda: 'offstage_archive_chunks{tenant="red"} 48.0' in scrape(tier, token))
        shown = scrape(tier, token)
        assert f'archive_up_chunks_total{{tenant="red"}} {float(CHUNKS)}' in shown
        assert "offstage_archive_away 0.0" in shown
        assert "archive_away" not in scrape(tier, "")
