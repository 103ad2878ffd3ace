"""Are values uploaded, restored from the bucket alone and deleted from it, and never other bytes?

The server is the small one in memory (tests/reference/tiny_s3.py), which fails on command.
"""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_bed import archived, logged, lose_store, settings, settled, status
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon, until
from tiny_s3 import TinyS3

import offstage
from offstage.host.values import Values

VALUES = {
    bytes([n]) * 8: random.Random(n).randbytes(size)
    for n, size in enumerate((1, 700, PAYLOAD, PAYLOAD + 1, LAYERS * PAYLOAD), 1)
}
KEYS = list(VALUES)
LENGTHS = [len(one) for one in VALUES.values()]
ABSENT = [-1] * len(KEYS)


@contextlib.contextmanager
def values(tier: Daemon) -> Iterator[Values]:
    with offstage.values(tier.endpoint, tenant=TENANT, runtime_dir=tier.runtime_dir) as found:
        yield found


def bed(folder: Path, tiny: TinyS3, **more: str) -> dict[str, str]:
    return settings(
        folder, tiny.endpoint, "a", "b", limits__values="256", limits__sessions="16", **more
    )


def store_all(tier: Daemon) -> None:
    with values(tier) as mine:
        for key, value in VALUES.items():
            assert mine.store(key, value)


def archive_and_lose(folder: Path, more: dict[str, str]) -> None:
    """Archive the values, kill the daemon, and delete its store."""
    with daemon(folder, **more) as tier:
        store_all(tier)
        settled(tier)
        tier.kill()
    lose_store(folder)


BACK = {"store__write": "back", "store__dirty_max": "64", "store__codec": "fp8_e4m3"}


@pytest.mark.parametrize("how", [{}, BACK])
def test_values_come_back_and_go(tmp_path: Path, tiny: TinyS3, how: dict[str, str]) -> None:
    """Values of any size are restored from the bucket alone, byte for byte, and stay after another
    kill; the bucket loses them when they are replaced or deleted."""
    more = bed(tmp_path, tiny, **how)
    archive_and_lose(tmp_path, more)
    assert len(tiny.objects) == len(KEYS)
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        with values(tier) as mine:
            assert mine.lengths([b"other"]) == [-1]
            assert mine.lengths(KEYS) == LENGTHS
            assert [mine.retrieve(key) for key in KEYS] == list(VALUES.values())
        down = archived(tier)
        assert down["chunks_down"] == len(KEYS) and down["chunks_up"] == 0
        tier.kill()
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        with values(tier) as mine:
            assert [mine.retrieve(key) for key in KEYS] == list(VALUES.values())
            assert archived(tier)["chunks_down"] == 0
            assert mine.store(KEYS[0], b"later")
            settled(tier)
            assert len(tiny.objects) == len(KEYS)  # the earlier one has left
            assert mine.delete(KEYS[1:]) == [True] * len(KEYS[1:])
        settled(tier)
        assert len(tiny.objects) == 1
        tier.kill()
    lose_store(tmp_path)
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        assert mine.lengths(KEYS) == [len(b"later"), *ABSENT[1:]]
        assert mine.retrieve(KEYS[0]) == b"later"
        until(lambda: logged(tier, "archive_listed")[-1]["whole"])  # then an unknown key has none
        assert mine.delete(KEYS) == [True, *[False] * len(KEYS[1:])]
        until(lambda: not tiny.objects)


def test_the_archive_knows_no_keys(tmp_path: Path, tiny: TinyS3) -> None:
    """What the drive has is listed, also after a kill; what the archive alone has is not, though it
    comes back, until it is stored anew."""
    more = bed(tmp_path, tiny)
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        store_all(tier)
        settled(tier)
        assert sorted(mine.keys()) == KEYS
        tier.kill()
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        assert sorted(mine.keys()) == KEYS
        tier.kill()
    lose_store(tmp_path)
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        assert [mine.retrieve(key) for key in KEYS] == list(VALUES.values())
        assert list(mine.keys()) == []
        assert mine.store(KEYS[0], b"anew") and list(mine.keys()) == KEYS[:1]


def test_values_that_waited_go_up_after_a_kill(tmp_path: Path, tiny: TinyS3) -> None:
    """While the server is away values wait in the daemon, more of them than its queue has room
    for, and after a kill on the drive."""
    more = bed(tmp_path, tiny, archive__queue="2")
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        tiny.fail_puts = (503, "SlowDown")
        store_all(tier)
        until(lambda: archived(tier)["errors"] > 0)
        assert status(tier)["device"]["archive"]["uploads_waiting"] == len(KEYS)
        tier.kill()
    tiny.fail_puts = None
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        assert archived(tier)["chunks"] == len(tiny.objects) == len(KEYS)


def test_a_damaged_object_is_no_value(tmp_path: Path, tiny: TinyS3) -> None:
    """Objects that were modified, truncated, or exchanged for an earlier store of the key are
    misses, counted; the rest is right, and what is stored anew is."""
    more = bed(tmp_path, tiny)
    archive_and_lose(tmp_path, more)
    by_size = sorted(tiny.objects, key=lambda name: len(tiny.objects[name]))
    changed = bytearray(tiny.objects[by_size[-1]])
    changed[len(changed) // 2] ^= 1
    tiny.objects[by_size[-1]] = bytes(changed)
    tiny.objects[by_size[-2]] = tiny.objects[by_size[-2]][:-100]
    tiny.objects[by_size[0]] = tiny.objects[by_size[1]]
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        found = [mine.retrieve(key) for key in KEYS]
        assert found[1:3] == list(VALUES.values())[1:3]
        assert found[0] is found[3] is found[4] is None
        assert archived(tier)["damaged"] >= 3
        assert mine.store(KEYS[4], b"anew") and mine.retrieve(KEYS[4]) == b"anew"


def test_deletes_while_the_server_is_away(tmp_path: Path, tiny: TinyS3) -> None:
    """What was deleted while the server did not answer, known to the daemon or not yet listed, has
    left the bucket when it answers, and does not come back with another drive."""
    more = bed(tmp_path, tiny)
    archive_and_lose(tmp_path, more)
    tiny.fail = (503, "SlowDown")
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        assert mine.lengths(KEYS) == ABSENT  # nobody waits for a server that does not answer
        assert mine.delete(KEYS[:2]) == [True, True]  # it may be there
        assert mine.store(KEYS[2], b"later")
        tier.kill()
    lose_store(tmp_path)
    tiny.fail = None
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        until(lambda: mine.lengths(KEYS)[3:] == LENGTHS[3:])
        assert mine.lengths(KEYS[:2]) == ABSENT[:2]
        until(lambda: len(tiny.objects) == 3)


def test_a_slow_server_is_not_waited_for(tmp_path: Path, tiny: TinyS3) -> None:
    """A value that is slow to arrive counts as absent after `archive.wait`, and is there later; a
    store of its key does not wait, and stays when the object arrives."""
    more = bed(tmp_path, tiny, archive__wait="10ms")
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        tiny.delay_s = 1.0
        assert mine.lengths(KEYS[:2]) == ABSENT[:2]
        assert mine.store(KEYS[0], b"later")
        until(lambda: mine.lengths(KEYS[:2]) == [len(b"later"), LENGTHS[1]])
        tiny.delay_s = 0.0
        settled(tier)
        assert mine.retrieve(KEYS[0]) == b"later"


def test_a_purge_takes_values_from_the_bucket(tmp_path: Path, tiny: TinyS3) -> None:
    """After a purge of a tenant neither drive nor bucket has one, and all may be stored anew."""
    more = bed(tmp_path, tiny)
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        assert mine.retrieve(KEYS[1]) == VALUES[KEYS[1]]
        assert mine.lengths([b"other"]) == [-1]  # the session that read the value has ended too
        with tier.control("operator") as control:
            control.purge(TENANT)
        until(lambda: not tiny.objects)
        assert mine.store(KEYS[0], b"anew", keep=True)
        assert mine.lengths(KEYS) == [len(b"anew"), *ABSENT[1:]]
        settled(tier)
        assert len(tiny.objects) == 1


def test_a_purge_that_keeps_some_takes_what_is_away(tmp_path: Path, tiny: TinyS3) -> None:
    """After `dpu purge --keep` the bucket has what the drive has, and all else may be stored."""
    more = bed(tmp_path, tiny)
    archive_and_lose(tmp_path, more)
    with daemon(tmp_path, **more) as tier, values(tier) as mine:
        settled(tier)
        assert mine.retrieve(KEYS[0]) == VALUES[KEYS[0]]
        with tier.control("operator") as control:
            control.purge(TENANT, keep_blocks=1000)
        assert mine.store(KEYS[1], b"anew", keep=True)
        settled(tier)
        assert len(tiny.objects) == 2
        assert mine.lengths(KEYS) == [LENGTHS[0], len(b"anew"), *ABSENT[2:]]
