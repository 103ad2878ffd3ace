"""vLLM on the tier: is what it generates the same with and without, and is less computed?"""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_daemon import TENANT, Tier, daemon, until

import offstage

MEND = "the environment of vLLM: OFFSTAGE_VLLM=its folder (docs/how-to/vllm.md)"
ENGINE = Path(__file__).resolve().parents[1] / "reference/vllm_engine.py"
MARK = "ENGINE "
BLOCK = 32
PROMPT = 300  # tokens: 9 blocks are full
FULL = PROMPT // BLOCK * BLOCK


@pytest.fixture(scope="module")
def python() -> Path:
    program = Path(os.environ.get("OFFSTAGE_VLLM", "")) / "bin/python"
    if not program.is_file():
        pytest.skip(f"needs {MEND}")
    return program


@pytest.fixture(scope="module")
def model() -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared/models"
    folder = Path(os.environ.get("OFFSTAGE_MODELS", beside))
    if not (folder / "pycode-3m").is_dir():
        pytest.skip(f"no pycode-3m in {folder}; set OFFSTAGE_MODELS to a folder that holds it")
    return folder / "pycode-3m"


def prompt(number: int) -> list[int]:
    """Tokens of a text of its own."""
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

    def ask(self, *prompts: list[int], tokens: int = 24, **more: int) -> Any:
        assert self.process.stdin is not None
        line = json.dumps({"prompts": prompts, "tokens": tokens} | more)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()


@contextlib.contextmanager
def engine(python: Path, model: Path, folder: Path, tier: Tier | None) -> Iterator[Engine]:
    words = [str(python), str(ENGINE), str(model)]
    if tier is not None:
        where = {"endpoint": tier.endpoint, "tenant": TENANT, "runtime_dir": str(tier.runtime_dir)}
        words.append(json.dumps({
            "kv_connector": "OffstageConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "offstage.host.connectors.vllm",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": where,
        }))  # fmt: skip
    source = Path(offstage.__file__).resolve().parents[1]
    more = {"PYTHONPATH": str(source), "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # fmt: skip
    log = folder / "engine.log"
    with log.open("ab") as stderr:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   stderr=stderr, env=os.environ | more)  # fmt: skip
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


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_what_is_generated_is_the_same_with_the_tier(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """Does vLLM generate the same with the tier as without: when it fills it, when another engine
    reuses what the first one stored, when an object is truncated, which it then stores again, and
    when the daemon is lost?"""
    prompts = [prompt(n) for n in range(4)]
    with engine(python, model, tmp_path, None) as alone:
        expected = alone.ask(*prompts)
    assert expected["reused"] == [0] * 4
    with daemon(tmp_path, limits__sessions="128", arena__size="64MiB", arena__payload="128KiB",
                arena__layers="1", storage__size="1GiB", store__segment="4MiB",
                ) as tier:  # fmt: skip
        with engine(python, model, tmp_path, tier) as first:
            assert first.ask(*prompts) == expected
        with engine(python, model, tmp_path, tier) as second:
            reused = second.ask(*prompts)
            assert reused == {"tokens": expected["tokens"], "reused": [FULL] * 4}
            assert second.ask(prompts[0], read=3) == "done"
            torn = second.ask(prompts[0], truncate=3)
            assert torn["tokens"] == expected["tokens"][:1]
            until(lambda: bool(second.ask(prompts[0], read=3) == "done"))
            healed = second.ask(prompts[0])
            assert healed == {"tokens": expected["tokens"][:1], "reused": [FULL]}
            tier.process.kill()
            tier.process.wait()
            assert second.ask(*prompts) == expected
    said = (tmp_path / "engine.log").read_text()
    assert "get unreadable" in said and "the tier is away" in said
