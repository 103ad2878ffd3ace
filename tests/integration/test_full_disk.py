"""If the disk is really full, does the host get an error, and does the daemon continue and lose
nothing?

The daemon runs in its own mount namespace with a disk of 24 MiB, and a store of 64 MiB in a sparse
file, as on a file system that cannot reserve space.
"""

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.dpu.protocol import OPERATOR
from offstage.host.fabrics import open_fabric
from offstage.testbeds.beds.daemon import Daemon, serve

PAYLOAD = 4096
BATCH = 16
WAIT_S = 120.0
SCRIPT = """mount -t tmpfs -o size=24m tmpfs "$1" && truncate -s 64M "$1/store" || exit 77
shift; exec "$@"
"""


def unshare(*words: str) -> list[str]:
    """Prefix for root of a mount namespace; other users get a user namespace with it."""
    return ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", *words]


def sections(tmp_path: Path) -> dict[str, Any]:
    return {
        "arena": {"size": "2MiB", "payload": PAYLOAD, "layers": 1},
        "storage": {"path": str(tmp_path / "disk/store"), "size": "64MiB", "backend": "posix"},
        "store": {"segment": "256KiB"},
        "limits": {
            "demands": 64,
            "put_slots": 64,
            "context_tokens": 1 << 20,
            "chunks": 1 << 14,
        },
        "tenant": [{"name": "red"}],
    }


def test_a_full_disk_is_told_and_what_was_acknowledged_is_served(tmp_path: Path) -> None:
    probe = unshare("mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
    try:
        refused = subprocess.run(probe, capture_output=True, check=False).returncode
    except FileNotFoundError:
        refused = 127
    if refused:
        pytest.skip("no mount namespace here; run as root, or allow user namespaces")
    (tmp_path / "disk").mkdir()
    within = unshare("sh", "-c", SCRIPT, "sh", str(tmp_path / "disk"))
    with serve(sections(tmp_path), tmp_path, within=within) as tier:
        fill_and_read(tier)


def fill_and_read(tier: Daemon) -> None:
    """Put until the disk refuses, then read every acknowledged block."""
    rng = np.random.default_rng(7)
    with tier.control() as control:
        fabric = open_fabric(control)
        session = control.session_open(select_blocks=BATCH)
        written: list[tuple[int, bytes, bytes]] = []
        codes: set[int] = set()
        first = 0
        while codes <= {0} and first < 10_000:
            names = [(first + i).to_bytes(16, "little") for i in range(BATCH)]
            keys = control.append(session, names).keys
            blocks = rng.integers(0, 256, (BATCH, PAYLOAD), np.uint8)
            rcs = fabric.put(
                PutRequest(session, 0, np.arange(first, first + BATCH, dtype=np.uint32), blocks)
            )
            codes |= {int(rc) for rc in rcs}
            written += [
                (first + i, keys[i], blocks[i].tobytes()) for i in range(BATCH) if rcs[i] == 0
            ]
            first += BATCH
        assert codes - {0} == {-errno.ENOSPC}, codes
        assert len(written) > 1_000, "the disk holds thousands"
        for ordinal, key, data in written:
            target = np.zeros((1, PAYLOAD), np.uint8)
            done = fabric.fetch(
                FetchRequest(
                    session,
                    0,
                    0,
                    np.array([ordinal], np.uint32),
                    np.ascontiguousarray(block_keys([key], 1)[0]),
                    target,
                )
            )
            assert done.rcs[0] == 0 and target.tobytes() == data, ordinal
        with tier.control(OPERATOR) as operator:
            assert operator.status()["device"]["store_full"] > 0
        fabric.close()
