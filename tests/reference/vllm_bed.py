"""A running vLLM for the connector's tests, in the environment that has vLLM."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from live_daemon import TENANT, Daemon

import offstage

FIX = "the environment of vLLM: OFFSTAGE_VLLM=its folder (docs/how-to/engines.md)"
ENGINE = Path(__file__).resolve().parent / "vllm_engine.py"
MARK = "ENGINE "
BLOCK = 32
SIZES = {
    "limits__sessions": "128",
    "arena__size": "64MiB",
    "arena__payload": "16KiB",
    "arena__layers": "1",
    "storage__size": "1GiB",
    "store__segment": "4MiB",
}
PROMPT = 300  # tokens: 9 blocks are full
FULL = PROMPT // BLOCK * BLOCK


def prompt(number: int) -> list[int]:
    """Return the tokens of a text that is this number's own."""
    return [5 + (number * 977 + i * i * 31 + i * 7) % 4000 for i in range(PROMPT)]


class Engine:
    """A running vLLM."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self.log = process, log

    def answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise AssertionError(self.log.read_text()[-4000:])

    def ask(self, *prompts: list[int], tokens: int = 24, **more: Any) -> Any:
        assert self.process.stdin is not None
        line = json.dumps({"prompts": prompts, "tokens": tokens} | more)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        if isinstance(answer, dict):
            answer.pop("first_s", None)  # no test asserts time
        return answer


@contextlib.contextmanager
def engine(
    python: Path,
    model: Path,
    folder: Path,
    tier: Daemon | None,
    more: dict[str, Any] | None = None,
    **extra: object,
) -> Iterator[Engine]:
    words, config = [str(python), str(ENGINE), str(model)], None
    if tier is not None:
        where = {
            "endpoint": tier.endpoint,
            "tenant": TENANT,
            "runtime_dir": str(tier.runtime_dir),
            "choose": False,
            **extra,
        }
        config = {
            "kv_connector": "OffstageConnector",
            "kv_role": "kv_both",
            "kv_connector_module_path": "offstage.host.connectors.vllm",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": where,
        }
    words += [json.dumps(config), json.dumps(more or {})]
    source = Path(offstage.__file__).resolve().parents[1]
    more = {
        "PYTHONPATH": str(source),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    log = folder / "engine.log"
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=stderr,
            env=os.environ | more,
        )
    running = Engine(process, log)
    try:
        assert running.answer() == {}
        yield running
        assert process.stdin is not None
        process.stdin.close()
        process.wait(200)
    finally:
        process.kill()
        process.wait()
