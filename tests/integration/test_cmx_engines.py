"""Do engines that speak NIXL's DOCA_MEMOS store and load on `libdoca_kv` over a live daemon?

The plug-in is NIXL's, built against `host/doca` by whoever runs this, and loaded by NIXL's wheel.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from live_daemon import daemon

pytestmark = pytest.mark.engine

SCRIPTS = Path(__file__).resolve().parents[1] / "reference"
FIX = "set {}: docs/how-to/cmx.md"


def seen(folder: Path, script: str, *engine: str) -> dict[str, Any]:
    """What a script in the environment of SGLang observed; `engine`: variables it needs beside
    those of NIXL and the plug-in, folders for PYTHONPATH."""
    needed = ["OFFSTAGE_SGLANG", "OFFSTAGE_DOCA_MEMOS", "OFFSTAGE_NIXL_SITE", *engine]
    if missing := [name for name in needed if not os.environ.get(name)]:
        pytest.skip(FIX.format(", ".join(missing)))
    python, plugin, *paths = (os.environ[name] for name in needed)
    more = {"arena__payload": "64KiB", "arena__size": "32MiB", "store__segment": "4MiB"}
    with daemon(folder, limits__values="256", limits__sessions="128", **more) as tier:
        done = subprocess.run(
            [Path(python) / "bin/python", SCRIPTS / script, tier.runtime_dir / "host-0.sock"],
            env={**os.environ, "PYTHONPATH": ":".join(paths), "NIXL_PLUGIN_DIR": plugin},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_sglangs_nixl_backend_stores_and_loads_pages(tmp_path: Path) -> None:
    """Every page comes back equal. Of a page and an absent one none comes: the plug-in fails the
    batch as a whole."""
    assert seen(tmp_path, "sglang_nixl.py") == {
        "before": 0,
        "stored": [True] * 16,
        "there": 16,
        "loaded": [True] * 16,
        "equal": True,
        "beside_a_hole": [False, False],
    }


def test_llm_ds_memos_backend_stores_and_loads_files(tmp_path: Path) -> None:
    """Every file comes back equal. The tail of one does not, since the plug-in takes no offset, and
    an absent one is no success."""
    found = seen(tmp_path, "llmd_memos.py", "OFFSTAGE_LLMD")
    assert found.pop("absent") not in (True, "silent")
    assert found == {"stored": True, "loaded": True, "equal": True, "tail": False}
