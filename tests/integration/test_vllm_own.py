"""Do vLLM's own tests of connectors pass with ours where a connector can be swapped?"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from live_daemon import TENANT, daemon
from vllm_bed import FIX, SIZES

import offstage

UNIT = Path("tests/v1/kv_connector/unit")
FILES = (
    "test_hma_auto_config.py",
    "test_invalid_blocks_correctness.py",
    "test_kv_load_failure_recovery.py",
    "test_remote_prefill_lifecycle.py",
)
REFUSED = (  # by the connector, in one line: a load's failure that ends its request, and Mamba
    "test_kv_load_failure_recovery.py::test_failed_receive_completion_honors_failure_policy[fail]",
    "test_invalid_blocks_correctness.py::test_sync_fail_invalid_blocks_evicted",
    "test_remote_prefill_lifecycle.py::test_p_side_chunked_prefill_mamba",
    "test_remote_prefill_lifecycle.py::test_async_load_does_not_double_reserve_mamba_spec_blocks",
)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_vllms_own_tests_of_connectors_pass(python: Path, model: Path, tmp_path: Path) -> None:
    """Of a copy of vLLM's files, each test that has a connector of ours passes, and so do the rest
    of these files. Which files do not apply, and why: docs/reference/engines.md."""
    source = Path(os.environ.get("OFFSTAGE_VLLM_SOURCE", ""))
    if not (source / UNIT).is_dir():
        pytest.skip(f"needs {FIX}, and OFFSTAGE_VLLM_SOURCE=its source distribution, unpacked")
    shutil.copytree(source / UNIT, tmp_path / UNIT)
    for folder in list((tmp_path / UNIT).parents)[:3]:
        (folder / "__init__.py").touch()
    ours = [Path(offstage.__file__).parents[1], Path(__file__).parents[1] / "reference"]
    path = [str(tmp_path), *map(str, ours), os.environ.get("PYTHONPATH", "")]
    words = [str(python), "-m", "pytest", "-q", "-p", "vllm_ours", "-p", "no:cacheprovider"]
    words += ["--rootdir", str(tmp_path), *(str(UNIT / one) for one in FILES)]
    words += [word for one in REFUSED for word in ("--deselect", str(UNIT / one))]
    with daemon(tmp_path, **SIZES | {"limits__ports": "64"}) as tier:
        where = {
            "endpoint": tier.endpoint,
            "tenant": TENANT,
            "runtime_dir": str(tier.runtime_dir),
            "choose": False,
        }
        more = {
            "PYTHONPATH": os.pathsep.join(path),
            "OFFSTAGE_VLLM_WHERE": json.dumps(where),
            "OFFSTAGE_VLLM_MODEL": str(model),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        done = subprocess.run(
            words, cwd=tmp_path, env=os.environ | more, capture_output=True, text=True, timeout=800
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("OURS ")]
    assert [one for one in ended if one[0] != "passed"] == []
    assert len(ended) >= 31, f"too few had a connector of ours: {len(ended)}"
