"""Do a real daemon and a real host read only the selected granules, with the right bytes?"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from offstage.testbeds.beds.daemon import Daemon, serve
from offstage.testbeds.cli import run

WORDS = [
    *"--tenant lab --geometry tiny --sessions 2".split(),
    *"--context-tokens 4096 --time-per-token 1ms --steps 20".split(),
]
GRANULES = ["--granule-tokens", "4"]


@contextlib.contextmanager
def daemon(folder: Path, granule_tokens: int, **storage: Any) -> Iterator[Daemon]:
    """A daemon with the tiny geometry and little room, so that most demands are read."""
    folder.mkdir(exist_ok=True)
    sections = {
        "arena": {
            "size": "1MiB",
            "payload": "4KiB",
            "layers": 2,
            "block_tokens": 16,
            "granule_tokens": granule_tokens,
        },
        "storage": {"lba": "512", "size": "64MiB", **storage},
        "store": {"segment": "256KiB"},
        "policy": {"prefetchers": []},
        "limits": {"sessions": 4, "context_tokens": 8192},
        "tenant": [{"name": "lab"}],
    }
    with serve(sections, folder) as tier:
        yield tier


def drive(tier: Daemon, out: Path, *more: str) -> dict[str, Any]:
    where = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
    assert run(["host", "run", *where, *WORDS, "--out", str(out), *more]) == 0
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return {**summary["runs"][0], "ledger": ledger(tier)}


def ledger(tier: Daemon) -> dict[str, Any]:
    with tier.control() as control:
        return dict(msgspec.to_builtins(control.ledger()))


@pytest.mark.parametrize("backend", ["posix", pytest.param("io_uring", marks=pytest.mark.slow)])
def test_only_what_was_selected_is_read(tmp_path: Path, backend: str) -> None:
    """A quarter of a block costs a quarter of its bytes, and each granule has prefill's bytes."""
    storage = {"backend": backend, "path": str(tmp_path / "s")}
    with daemon(tmp_path / "d", 4, **storage) as tier:
        one = drive(tier, tmp_path / "out", *GRANULES)
    counted = one["ledger"]
    assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
    assert one["blocks_verified"] > one["demands"] > 0, "several granules of a block, one demand"
    assert 0 < counted["demand_bytes_wanted"] <= counted["demand_bytes_read"]
    assert counted["demand_bytes_spared"] > counted["demand_bytes_read"] // 2


@pytest.mark.slow  # the contract suite tests the device, this the daemon
def test_a_store_is_read_by_either_setting(tmp_path: Path) -> None:
    """A daemon with granules reads a store written in whole blocks, each block as a whole; one
    without granules reads a store written in granules."""
    storage = {"backend": "posix", "path": str(tmp_path / "s")}
    for folder, granule_tokens, more in (
        ("plain", 0, []),
        ("cut", 4, GRANULES),
        ("again", 0, []),
        ("whole", 4, []),
    ):
        with daemon(tmp_path / folder, granule_tokens, **storage) as tier:
            one = drive(tier, tmp_path / f"out-{folder}", *more)
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0 and one["demands"] > 0
