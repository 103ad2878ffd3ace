"""SGLang's host memory and configuration for a daemon of the tests, and programs in the environment
that has SGLang."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_daemon import TENANT, Daemon

import offstage
from offstage.host.connectors.sglang import Storage

torch = pytest.importorskip("torch")
FIX = "an environment with SGLang: OFFSTAGE_SGLANG=its folder (docs/how-to/engines.md)"
PAGE, COUNT = 16, 1000  # tokens and values of a page


class Pool:
    """Stands in for SGLang's host memory."""

    layout, page_size = "page_first", PAGE

    def __init__(self, dtype: Any = torch.bfloat16) -> None:
        self.dtype = dtype
        self.pages = torch.randn(6, COUNT).to(dtype)

    def get_data_page(self, index: int) -> Any:
        return self.pages[index // PAGE]

    def get_dummy_flat_data_page(self) -> Any:
        return torch.zeros(COUNT, dtype=self.dtype)

    def set_from_flat_data_page(self, index: int, page: Any) -> None:
        self.pages[index // PAGE] = page


def config(tier: Daemon, **more: Any) -> Any:
    extra = {
        "backend_name": "offstage",
        "endpoint": tier.endpoint,
        "tenant": TENANT,
        "runtime_dir": str(tier.runtime_dir),
        "timeout_s": 30.0,
        "patience_s": 60.0,
        "weights_id": "w",
    }
    usual = {
        "tp_rank": 0,
        "tp_size": 2,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "model_name": "m",
    }
    extra |= more.pop("extra", {})
    return SimpleNamespace(extra_config=extra, **(usual | more))


def opened(tier: Daemon, pool: Pool, **more: Any) -> Storage:
    storage = Storage(config(tier, **more), {})
    storage.register_mem_pool_host(pool)
    return storage


def in_sglang(script: str, extra: dict[str, Any], **more: str) -> Any:
    """Return the last line of a script of this folder, from JSON. It is given the configuration of
    our backend; `more` is its environment."""
    program = Path(os.environ.get("OFFSTAGE_SGLANG", "")) / "bin/python"
    if not program.is_file():
        pytest.skip(f"needs {FIX}")
    extra |= {
        "module_path": "offstage.host.connectors.sglang",
        "class_name": "OffstageStorage",
    }
    run = subprocess.run(
        [program, Path(__file__).with_name(script), json.dumps(extra)],
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PYTHONPATH": str(Path(offstage.__file__).resolve().parents[1])} | more,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])
