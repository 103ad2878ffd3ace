"""Does a real daemon tell what its drive was written, in status, ledger and metrics?"""

import json
import subprocess
from pathlib import Path

import pytest
from archive_bed import BLOCKS, status, stored, write
from live_daemon import (
    ENTRY,
    LAYERS,
    TENANT,
    WAIT_S,
    Tier,
    check_text,
    daemon,
    open_text,
    put,
    scrape,
    until,
)

from offstage.host.fabrics.shm import open_driver

RECORD = 8192


def test_wear_of_a_text(tmp_path: Path) -> None:
    """One text is written, and read twice: are the bytes those of its records, each hit counted,
    and do ledger and metrics say the same?"""
    whole = {(1, ordinal, layer) for ordinal in range(48) for layer in range(2)}
    with daemon(tmp_path, daemon__metrics_endpoint="127.0.0.1:0",
                storage__endurance="100TiB") as tier:  # fmt: skip
        until(lambda: status(tier)["device"]["wear"]["drive_bytes"] == 0)
        write(tier, 1)
        seen = status(tier)["device"]["wear"]
        assert seen["host_bytes"] == BLOCKS * RECORD
        assert seen["drive_bytes"] >= seen["host_bytes"] and seen["bytes_per_hit"] is None
        assert seen["amplification"] == seen["drive_bytes"] / seen["host_bytes"] < 3
        check_text(tier, 1, whole)
        check_text(tier, 1, whole)
        command = [*ENTRY, "dpu", "ledger", "--endpoint", tier.endpoint, "--runtime-dir",
                   str(tier.runtime_dir), "--format", "json"]  # fmt: skip
        told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        wear = json.loads(told.stdout)["wear"]
        assert wear["hits"] > 0
        assert wear["bytes_per_hit"] == pytest.approx(wear["drive_bytes"] / wear["hits"])
        assert wear["life_years"] > 0
        token = (tier.runtime_dir / "metrics.token").read_text().strip()
        until(lambda: "offstage_written_bytes_per_hit" in scrape(tier, token))
        assert "offstage_drive_life_years" in scrape(tier, token)
        assert "offstage_written_bytes_per_hit" not in scrape(tier, "")


def try_to_write(tier: Tier, number: int) -> int:
    """One session comes to put a text; how many blocks were admitted."""
    with tier.control(TENANT) as control, open_driver(control.attach("shm")) as driver:
        text = open_text(control, number)
        return sum(len(put(driver, text, layer, list(range(16)))) for layer in range(LAYERS))


def test_a_chunk_is_written_when_it_has_come_twice(tmp_path: Path) -> None:
    """With `admit_named_min` 1: nothing at the first session, all at the second, and what is there
    again at any later policy."""
    with daemon(tmp_path, policy__admit_named_min="1") as tier:
        assert try_to_write(tier, 1) == 0 and stored(tier, 1) == 0
        assert try_to_write(tier, 2) == 0
        assert try_to_write(tier, 1) == 16 * LAYERS == stored(tier, 1)
        with tier.control("operator") as control:
            control.policy_set({"admit_named_min": "255"})
        assert try_to_write(tier, 1) == 16 * LAYERS  # it is there
        assert try_to_write(tier, 2) == 0
        assert status(tier)["device"]["puts_unadmitted"] == 3 * 16 * LAYERS


def test_a_budget_that_is_used_up_is_in_the_log_and_replays(tmp_path: Path) -> None:
    """A day's budget of a text: is the next refused, the first still served, an operator's raise
    followed at once, and does the recorded log replay to the same decisions?"""
    record = tmp_path / "record"
    with daemon(tmp_path, daemon__record_dir=str(record), policy__write_budget="200KiB") as tier:
        until(lambda: status(tier)["device"]["wear"]["budget_bytes"] == 200 << 10)
        write(tier, 1)
        until(lambda: status(tier)["device"]["wear"]["admit_named_min"] == 255)
        assert try_to_write(tier, 2) == 0
        assert stored(tier, 1) == BLOCKS
        with tier.control("operator") as control:
            control.policy_set({"write_budget": "1GiB"})
        assert try_to_write(tier, 2) == 16 * LAYERS
        tier.process.terminate()
        tier.process.wait(WAIT_S)
    done = subprocess.run([*ENTRY, "dpu", "replay", str(record / "decisions.log")],
                          capture_output=True, text=True, timeout=WAIT_S)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "write_budget" in tier.log.read_text()
