"""Does a real daemon report what was written to its drive in status, ledger and metrics?"""

import subprocess
import time
from pathlib import Path

import pytest
from against_schema import checked
from archive_bed import BLOCKS, status, stored, write
from live_daemon import (
    CHUNKS,
    LAYERS,
    TENANT,
    WAIT_S,
    Daemon,
    check_text,
    daemon,
    open_text,
    put,
    scrape,
    until,
)

from offstage.bindings.errors import BadInput
from offstage.host.fabrics.shm import open_driver
from offstage.testbeds.beds.daemon import offstage_words

RECORD = 8192


def test_wear_of_a_text(tmp_path: Path) -> None:
    """A text that is written once and read twice counts the bytes of its records and each hit;
    ledger and metrics say the same."""
    whole = {(1, ordinal, layer) for ordinal in range(48) for layer in range(2)}
    with daemon(
        tmp_path, daemon__metrics_endpoint="127.0.0.1:0", storage__endurance="100TiB"
    ) as tier:
        until(lambda: status(tier)["device"]["wear"]["drive_bytes"] == 0)
        write(tier, 1)
        seen = status(tier)["device"]["wear"]
        assert seen["host_bytes"] == BLOCKS * RECORD
        assert seen["drive_bytes"] >= seen["host_bytes"] and seen["bytes_per_hit"] is None
        assert seen["amplification"] == seen["drive_bytes"] / seen["host_bytes"] < 3
        check_text(tier, 1, whole)
        check_text(tier, 1, whole)
        command = offstage_words(
            "dpu",
            "ledger",
            "--endpoint",
            tier.endpoint,
            "--runtime-dir",
            str(tier.runtime_dir),
            "--format",
            "json",
        )
        told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        wear = checked("dpu ledger", told.stdout)["wear"]
        assert wear["hits"] > 0
        assert wear["bytes_per_hit"] == pytest.approx(wear["drive_bytes"] / wear["hits"])
        assert wear["life_years"] > 0
        token = (tier.runtime_dir / "metrics.token").read_text().strip()
        until(lambda: "\noffstage_written_bytes_per_hit " in scrape(tier, token))
        assert "\noffstage_drive_life_years " in scrape(tier, token)
        assert "offstage_written_bytes_per_hit " not in scrape(tier, "")


def try_to_write(tier: Daemon, number: int) -> int:
    """Put a text in one session; returns how many blocks were admitted."""
    with tier.control(TENANT) as control, open_driver(control.attach("shm")) as driver:
        text = open_text(control, number)
        return sum(len(put(driver, text, layer, list(range(16)))) for layer in range(LAYERS))


def test_a_chunk_is_written_when_it_has_come_twice(tmp_path: Path) -> None:
    """With `admit_named_min` 1 nothing is written at the first session and everything at the
    second, and stored blocks are found under any later policy."""
    with daemon(tmp_path, policy__admit_named_min="1") as tier:
        assert try_to_write(tier, 1) == 0 and stored(tier, 1) == 0
        assert try_to_write(tier, 2) == 0
        assert try_to_write(tier, 1) == 16 * LAYERS == stored(tier, 1)
        with tier.control("operator") as control:
            control.policy_set({"admit_named_min": "255"})
        assert try_to_write(tier, 1) == 16 * LAYERS  # it is already there
        assert try_to_write(tier, 2) == 0
        assert status(tier)["device"]["puts_unadmitted"] == 3 * 16 * LAYERS


def replayed(record: Path) -> None:
    """Check that the recorded log replays to the same decisions."""
    done = subprocess.run(
        offstage_words("dpu", "replay", str(record / "decisions.log"), "--format", "json"),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert checked("dpu replay", done.stdout)["diverged_at_byte"] is None


def test_a_budget_that_is_used_up_is_in_the_log_and_replays(tmp_path: Path) -> None:
    """With a day's budget of one text, the next is refused, the first still served, an operator's
    raise takes effect at once, and the recorded log replays to the same decisions."""
    record = tmp_path / "record"
    with daemon(tmp_path, daemon__record_dir=str(record), policy__write_budget="200KiB") as tier:
        until(lambda: status(tier)["device"]["wear"]["budget_bytes"] == 200 << 10)
        write(tier, 1)
        until(lambda: status(tier)["device"]["thresholds"]["admit_named_min"] == 255)
        assert try_to_write(tier, 2) == 0
        assert stored(tier, 1) == BLOCKS
        with tier.control("operator") as control:
            control.policy_set({"write_budget": "1GiB"})
        assert try_to_write(tier, 2) == 16 * LAYERS
        tier.process.terminate()
        tier.process.wait(WAIT_S)
    replayed(record)
    assert "write_budget" in tier.log.read_text()


def test_thresholds_follow_prices_and_the_log_replays(tmp_path: Path) -> None:
    """Prices at the start, and another by `policy set`, give integers in status, metrics and log. A
    price without a unit is one line, and the decision log replays equally."""
    record = tmp_path / "record"
    with daemon(
        tmp_path,
        daemon__record_dir=str(record),
        daemon__metrics_endpoint="127.0.0.1:0",
        storage__endurance="1TiB",
        policy__drive_price="1USD",
        policy__prefill_price="0.001USD",
    ) as tier:
        first = status(tier)["device"]["thresholds"]
        assert first["keep_ns"] > 0 and first["written_per_hit_max"] > 0
        write(tier, 1)
        with tier.control("operator") as control:
            with pytest.raises(BadInput, match=r"'5' is not a price.*0\.22USD"):
                control.policy_set({"drive_price": "5"})
            control.policy_set({"drive_price": "2USD"})
        second = status(tier)["device"]["thresholds"]
        assert second["written_per_hit_max"] == pytest.approx(first["written_per_hit_max"] / 2)
        assert second["keep_ns"] < first["keep_ns"]
        write(tier, 2)
        token = (tier.runtime_dir / "metrics.token").read_text().strip()
        until(lambda: f"offstage_keep_seconds {second['keep_ns'] / 1e9}" in scrape(tier, token))
        tier.process.terminate()
        tier.process.wait(WAIT_S)
    replayed(record)
    assert tier.log.read_text().count('"thresholds"') == 2


@pytest.mark.slow
def test_chunks_that_are_not_named_again_expire(tmp_path: Path) -> None:
    """With `keep` of a minute, chunks that were named again are still there after it. The others
    are gone, are written and read again as usual, and the log replays."""
    record = tmp_path / "record"
    with daemon(tmp_path, daemon__record_dir=str(record), policy__keep="1min") as tier:
        write(tier, 1)
        write(tier, 2)
        for _ in range(9):
            time.sleep(8.0)
            assert stored(tier, 2) == BLOCKS
        until(lambda: status(tier)["device"]["chunks_idle"] == CHUNKS)
        assert stored(tier, 1) == 0 and stored(tier, 2) == BLOCKS
        write(tier, 1)
        assert stored(tier, 1) == BLOCKS
        tier.process.terminate()
        tier.process.wait(WAIT_S)
    replayed(record)
