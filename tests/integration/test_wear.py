"""Does a real daemon tell what its drive was written, in status, ledger and metrics?"""

import json
import subprocess
from pathlib import Path

import pytest
from archive_bed import BLOCKS, status, write
from live_daemon import ENTRY, WAIT_S, check_text, daemon, scrape, until

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
