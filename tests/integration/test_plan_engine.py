"""Do the files that a plan gives to paste work: a daemon starts with its TOML, and each connector
stores and loads every object of the plan by its JSON?"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import started
from tiny_llama import TINY

from offstage.host.connectors import lmcache, sglang, vllm
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint
from offstage.host.values import Values

USERS, CONTEXT = 3, 1024


def planned(folder: Path, engine: str) -> dict[str, Any]:
    """What the command prints; its files are in `folder`. The model has weights too."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "model.safetensors").write_bytes(os.urandom(4096))
    words = ["plan", "--engine", engine, "--model", str(folder / "config.json")]
    words += ["--users", str(USERS), "--context", str(CONTEXT), "--turns", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "offstage", *words, "--out", str(folder), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)["engine"]
    return found


def client_of(engine: str, text: str, where: dict[str, str]) -> ObjectClient:
    """An object client as the connector makes it of its own settings."""
    given = json.loads(text)
    if engine == "lmcache":
        return lmcache.client_of(given["adapter_params"] | where)
    own = vllm.OWN if engine == "vllm" else sglang.OWN
    settings = given["kv_connector_extra_config"] if engine == "vllm" else given
    plain = {key: value for key, value in settings.items() if key not in own}
    return ObjectClient(Endpoint.of_engine(plain | where), model="tiny", layout="of this test")


def options_of(folder: Path) -> dict[str, Any]:
    """The pasted TOML by `section.key`, except where the daemon is, and its drive."""
    written = tomllib.loads((folder / "plan/dpu.toml").read_text())
    found = {f"{name}.{key}": value for name, one in written.items() for key, value in one.items()}
    return found | {
        "storage.path": str(folder / "store.ofs"),
        "daemon.endpoint": "tcp://127.0.0.1:*",
        "daemon.metrics_endpoint": "",
        "daemon.runtime_dir": str(folder / "run"),
    }


@pytest.mark.parametrize("engine", ["vllm", "lmcache", "sglang"])
def test_what_is_pasted_serves_what_was_planned(tmp_path: Path, engine: str) -> None:
    """Every user's context is stored at once, and loaded."""
    plan = planned(tmp_path / "plan", engine)
    figures = {one["name"].partition(",")[0]: one["value"] for one in plan["settings"]}
    options = options_of(tmp_path)
    with started(tmp_path, options, ["default"]) as tier:
        where = {"endpoint": tier.endpoint, "runtime_dir": str(tier.runtime_dir)}
        connector = (tmp_path / "plan" / plan["connector"]["name"]).read_text()
        with client_of(engine, connector, where) as client:
            count = USERS * int(figures["objects of a context"])
            size = int(figures["object"])
            bytes_ = np.random.default_rng(7).integers(0, 256, (count, size), np.uint8)
            keys = [f"chunk {number}".encode() for number in range(count)]
            assert set(client.wait(client.put, keys, list(bytes_)).states) == {State.DONE}
            read = np.zeros_like(bytes_)
            assert set(client.wait(client.get, keys, list(read)).states) == {State.DONE}
            assert np.array_equal(read, bytes_)


def test_a_daemon_for_cmx_keeps_every_chunk_as_a_value(tmp_path: Path) -> None:
    """The same by the commands on values, which libdoca_kv gives."""
    plan = planned(tmp_path / "plan", "cmx")
    figures = {one["name"].partition(",")[0]: one["value"] for one in plan["settings"]}
    with started(tmp_path, options_of(tmp_path), ["default"]) as tier:
        where = Endpoint(tier.endpoint, runtime_dir=tier.runtime_dir)
        with where.attached() as (_, fabric):
            values, size = Values(fabric), int(figures["object"])
            stored = [os.urandom(size) for _ in range(USERS * int(figures["objects of a context"]))]
            for number, value in enumerate(stored):
                assert values.store(b"%d" % number, value)
            for number, value in enumerate(stored):
                assert values.retrieve(b"%d" % number) == value
