"""Does `vllm serve`, as the page about vLLM has it, work under vLLM's client of conversations?"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_daemon import TENANT, Daemon, daemon, until

import offstage

FIX = (
    "the environment of vLLM and its source distribution, unpacked: OFFSTAGE_VLLM=, "
    "OFFSTAGE_VLLM_SOURCE= (docs/how-to/engines.md)"
)
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/engines.md"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
CONTEXT = 2048
TALKS = {
    "filetype": "generate_conversations",
    "num_conversations": 4,
    "text_files": ["text.txt"],
    "print_stats": False,
    "prompt_input": {
        "num_turns": {"distribution": "constant", "value": 6},
        "common_prefix_num_tokens": {"distribution": "constant", "value": 300},
        "prefix_num_tokens": {"distribution": "constant", "value": 800},
        "num_tokens": {"distribution": "constant", "value": 100},
    },
    "prompt_output": {"num_tokens": {"distribution": "constant", "value": 16}},
}
SIZES = {
    "limits__sessions": "256",
    "arena__size": "64MiB",
    "arena__payload": "128KiB",
    "arena__layers": "1",
    "storage__size": "1GiB",
    "store__segment": "4MiB",
    "limits__context_tokens": "65536",
}


@pytest.fixture
def bin_folder() -> Path:
    folder = Path(os.environ.get("OFFSTAGE_VLLM", "")) / "bin"
    if not (folder / "vllm").is_file():
        pytest.skip(f"needs {FIX}")
    return folder


@pytest.fixture
def client() -> Path:
    source = Path(os.environ.get("OFFSTAGE_VLLM_SOURCE", ""))
    script = source / "benchmarks/multi_turn/benchmark_serving_multi_turn.py"
    if not script.is_file():
        pytest.skip(f"needs {FIX}")
    return script


@pytest.fixture
def model() -> Path:
    folder = Path(os.environ.get("OFFSTAGE_MODELS", ROOT.parent / "shared/models")) / "pycode-3m"
    if not folder.is_dir():
        pytest.skip(f"no model {folder}; set OFFSTAGE_MODELS to a folder that holds it")
    return folder


def of_the_page() -> tuple[str, str]:
    """The page's command that serves, and the configuration it reads."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [command] = [text for kind, text in blocks if kind == "sh" and text.startswith("vllm serve")]
    [config] = [text for kind, text in blocks if kind == "json" and "kv_connector_module" in text]
    return command.strip(), config


def words_of(url: str) -> dict[str, float]:
    """Return the connector's counters from Prometheus' text."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = (re.match(r"vllm:offstage_(\w+)_total\{.*\} (\S+)", line) for line in lines)
    return {one[1]: float(one[2]) for one in found if one}


@contextlib.contextmanager
def served(bin_folder: Path, model: Path, folder: Path, tier: Daemon) -> Iterator[str]:
    """Run the page's command with a model's folder, a port and a small cache of vLLM's own."""
    command, text = of_the_page()
    config = json.loads(text)
    config["kv_connector_extra_config"] |= {
        "endpoint": tier.endpoint,
        "tenant": TENANT,
        "runtime_dir": str(tier.runtime_dir),
        "choose": False,
    }
    (folder / "offstage.json").write_text(json.dumps(config))
    (folder / "chat.jinja").write_text(TEMPLATE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "/path/to/model" in command
    command = command.replace("/path/to/model", str(model))
    command += (
        f" --host 127.0.0.1 --port {port} --max-model-len {CONTEXT} --enforce-eager"
        f" --num-gpu-blocks-override {CONTEXT // 32 + 8} --chat-template chat.jinja"
    )
    source = Path(offstage.__file__).resolve().parents[1]
    more = {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(source),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    url, log = f"http://127.0.0.1:{port}", folder / "serve.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            stdout=said,
            stderr=said,
            env=os.environ | more,
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return True
        return False

    try:
        until(answers)
        yield url
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_conversations_of_vllms_own_client(
    bin_folder: Path, client: Path, model: Path, tmp_path: Path
) -> None:
    """The page's `vllm serve` starts, every turn ends well for the conversations that vLLM's client
    ships, and the metrics say where the tier had the blocks."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    (tmp_path / "text.txt").write_text("\n".join(page.read_text() for page in pages))
    (tmp_path / "talks.json").write_text(json.dumps(TALKS))
    with daemon(tmp_path, **SIZES) as tier, served(bin_folder, model, tmp_path, tier) as url:
        run = subprocess.run(
            [
                bin_folder / "python",
                client,
                "--model",
                model,
                "--url",
                url,
                *"--input-file talks.json --num-clients 2".split(),
                *"--max-active-conversations 4 --stats-json-output stats.json".split(),
            ],
            cwd=tmp_path,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        counts = words_of(url)
    sys.stdout.write(run.stdout[-2500:])
    print({name: counts.get(f"objects_{name}", 0) for name in ("on_time", "late", "missing")})
    assert len(json.loads((tmp_path / "stats.json").read_text())) >= 4 * 3 - 2
    assert counts["objects_on_time"] + counts.get("objects_missing", 0) > 50
    assert counts["matched_tokens"] > 1000 and not counts.get("load_failed_blocks")
