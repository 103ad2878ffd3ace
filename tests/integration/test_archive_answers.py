"""Does a daemon keep its promises if the bucket's answers arrive slowly or incomplete?"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_bed import EVERY, settings, settled, stored, write
from live_daemon import TENANT, WAIT_S, check_text, daemon, until
from tiny_s3 import TinyS3

BLOCKS = len(EVERY)


@pytest.fixture
def tiny() -> Iterator[TinyS3]:
    pytest.importorskip("botocore")
    with TinyS3() as server:
        yield server


def test_a_dripping_answer_does_not_hold_a_stop_up(tmp_path: Path, tiny: TinyS3) -> None:
    """If answers arrive byte by byte without end, SIGTERM still ends the daemon, and no block of
    the store is lost."""
    more = settings(tmp_path, tiny.endpoint, "a", "b", archive__timeout="1s")
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        tiny.drips = True
        write(tier, 1)
        until(lambda: any(one.startswith("PUT") for one in tiny.calls))
        tier.process.terminate()
        assert tier.process.wait(WAIT_S) == 0
    tiny.drips = False
    with daemon(tmp_path, **more) as tier:
        assert check_text(tier, 1, {(1, ordinal, layer) for ordinal, layer in EVERY}) == BLOCKS


@pytest.mark.parametrize("purge", [True, False], ids=["purge", "chunks"])
def test_a_delete_outlasts_a_listing_that_came_short(
    tmp_path: Path, tiny: TinyS3, purge: bool
) -> None:
    """A purge, or a delete of a text's chunks, removes all objects, although the bucket is away at
    the time and its first listing then omits most of them."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    with daemon(tmp_path, **more) as tier:
        write(tier, 1)
        settled(tier)
    objects = sorted(tiny.objects)
    assert len(objects) > 1
    tiny.fail = (503, "SlowDown")
    with daemon(tmp_path, **more) as tier:
        if purge:
            with tier.control("operator") as control:
                control.purge(TENANT)
        else:
            assert stored(tier, 1, keep=False) == BLOCKS
        tiny.hidden, tiny.fail = set(objects[1:]), None
        until(lambda: not tiny.objects)
        settled(tier)
