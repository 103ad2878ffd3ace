"""Does what a plan says to set for an engine follow from its question, and do daemon and connectors
take the files?"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_llama import TINY

from offstage.bindings.errors import BadInput
from offstage.bindings.units import parse_size
from offstage.dpu.config.derive import derive
from offstage.dpu.config.idle import unused
from offstage.dpu.config.values import load
from offstage.host.connectors import vllm
from offstage.host.connectors.lmcache import OWN as OF_LMCACHE
from offstage.host.connectors.sglang import Storage
from offstage.host.endpoint import Endpoint
from offstage.testbeds.plan.engine import EnginePlan, make_engine
from offstage.testbeds.plan.inputs import gather
from offstage.testbeds.plan.question import ENGINES, read_spec
from offstage.testbeds.plan.sizing import Place, places
from offstage.testbeds.prices import catalog

PRESETS = Path(__file__).resolve().parents[3] / "testbeds/presets"
TOKEN_BYTES = 131_072  # of llama-3-8b
SMALL = {"model": "llama-3-8b", "users": 8, "context": "32K"}


def planned(**words: Any) -> EnginePlan:
    spec = read_spec(None, {"engine": "vllm", **SMALL, **words})
    spec.check(catalog())
    return make_engine(spec, gather(spec, catalog()))


def figures(**words: Any) -> dict[str, float]:
    return {one.name.partition(",")[0]: one.value for one in planned(**words).settings}


def of_tier(**words: Any) -> Place:
    spec = read_spec(None, {**SMALL, **words, "tiers": ("dpu",)})
    return places(spec.plan, gather(spec, catalog()).values)[1]


def test_sizes_follow_from_bytes_of_a_token() -> None:
    """Does an object hold its tokens, and the store every user's context and some room?"""
    found = figures()
    assert found["object"] == 32 * TOKEN_BYTES and found["objects of a context"] == 1024
    held = 8 * 32_768 * TOKEN_BYTES
    assert 1.1 * held < found["store"] < 1.25 * held
    assert figures(shared=0.5)["store"] < 0.62 * found["store"]


def test_ranks_share_the_heads_and_not_the_latents() -> None:
    """Is an object of one rank, and are all ranks' objects counted?"""
    large = {"model": "llama-3-70b", "users": 100, "context": "128K"}
    ranks = figures(**large)["ranks of an engine"]
    assert ranks > 1
    assert figures(**large)["object"] * ranks == 32 * 327_680
    assert figures(**large)["objects of a context"] == 131_072 / 32 * ranks
    latent = {"model": "deepseek-v3", "users": 4, "context": "4K"}
    for_all, once = (figures(engine=one, **latent) for one in ("vllm", "sglang"))
    ranks = for_all["ranks of an engine"]
    assert ranks > 1 and for_all["objects of a context"] == 4096 / 32 * ranks
    assert once["objects of a context"] == 4096 / 64
    assert once["object"] == 2 * for_all["object"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_daemon_takes_the_file_and_it_holds_what_was_planned(tmp_path: Path, engine: str) -> None:
    """Do the daemon's own relations hold for the TOML, and its tables hold what the figures say?"""
    for words in ({}, {"tenants": 3}, {"model": "llama-3-70b", "users": 100, "context": "128K"}):
        plan = planned(engine=engine, **words)
        found = {one.name.partition(",")[0]: one.value for one in plan.settings}
        (tmp_path / "dpu.toml").write_text(plan.daemon.text)
        config = load(tmp_path / "dpu.toml", environ={})
        derived = derive(config)
        assert unused(config) == []
        blocks = -(-int(found["object"]) // config.arena.payload_bytes)
        kept = int(found["objects kept"]) * blocks
        room = derived.segment_count - derived.segment_count_min
        assert kept <= room * derived.segment_record_max
        assert kept <= config.limits.chunks
        assert blocks < derived.session_chunk_max
        loading = found["contexts loaded at once"] * found["objects of a context"] * blocks
        assert derived.slot_count >= found["of them in the arena"] * loading * 0.99 - 3
        assert found["arena of a tenant"] == derived.slot_counts[0] * derived.record_size_bytes
        assert found["hosts of a tenant"] == derived.port_counts[0]
        assert len(config.tenants) == words.get("tenants", 1)


def test_quotas_are_equal_parts_that_hold_each_tenants_engines() -> None:
    """Does every tenant get the ports of its engines, and a part of the store?"""
    found, whole = figures(tenants=3), figures()
    assert found["engines of a daemon"] % 3 == 0
    assert found["hosts of a tenant"] * 3 == found["engines of a daemon"] * 2
    assert found["store of a tenant"] == found["store"] // 3
    assert "store of a tenant" not in whole


def test_the_arena_holds_what_is_loaded_or_what_memory_leaves() -> None:
    """Is the arena cut by the memory, and refused where nothing fits?"""
    whole = figures(memory="64GiB")
    cut = figures(memory="2GiB")
    assert whole["of them in the arena"] == 1.0 and cut["of them in the arena"] < 0.5
    assert cut["arena"] + cut["memory beside it"] <= 2 << 30
    with pytest.raises(BadInput, match="the least arena"):
        figures(memory="300MiB")
    assert cut["memlock"] == cut["arena"]


def test_patience_is_of_the_fetch() -> None:
    """Is a load given the time of fetching a long context from one drive?"""
    long = {"users": 1, "context": "4M", "dtype": "fp16", "gpu": "b300"}
    assert of_tier(**long).fetch_s > 5
    assert figures(**long)["patience of a load"] >= 4 * of_tier(**long).fetch_s
    assert figures()["patience of a load"] == 5


def test_the_grace_is_that_of_the_presets() -> None:
    """Do systemd's unit and the pod wait as long as the plan says?"""
    grace = figures()["grace of systemd and Kubernetes"]
    unit = (PRESETS / "systemd/offstage-dpu.service").read_text()
    pod = (PRESETS / "kubernetes/dpu.yml").read_text()
    assert re.findall(r"TimeoutStopSec=(\d+)", unit) == [f"{grace:g}"]
    assert re.findall(r"terminationGracePeriodSeconds: (\d+)", pod) == [f"{grace:g}"]


def test_every_figure_has_a_kind_and_a_source() -> None:
    """Does an operator see where a figure comes from?"""
    plans = [planned(engine=one, tenants=2).settings for one in ENGINES]
    assert all(one.source and one.kind for settings in plans for one in settings)
    assert {one.kind for one in plans[0]} == {"measured", "modelled", "cited", "assumed"}


def test_the_connectors_own_parsers_take_their_files() -> None:
    """Does each connector take its JSON: every key, and every value?"""
    of_vllm = json.loads(planned().connector.text)
    assert of_vllm["kv_load_failure_policy"] == "recompute"
    extra = of_vllm["kv_connector_extra_config"]
    assert vllm._bounds_of(extra)["patience_s"] == 5 and all(vllm._switches_of(extra).values())
    own = {key: value for key, value in extra.items() if key not in vllm.OWN}
    assert Endpoint.of_engine(own).tenant == "default"
    text = json.loads(planned(engine="sglang").connector.text)
    Storage(
        SimpleNamespace(
            extra_config=text,
            model_name="m",
            is_mla_model=False,
            **dict.fromkeys(("pp_rank", "tp_rank", "attn_cp_rank"), 0),
            **dict.fromkeys(("pp_size", "tp_size", "attn_cp_size"), 1),
        )
    )
    text = json.loads(planned(engine="lmcache").connector.text)
    params = text["adapter_params"]
    assert params["layout"] and params["model"] == "llama-3-8b"
    Endpoint.of_engine({key: value for key, value in params.items() if key not in OF_LMCACHE})


def test_the_yaml_is_of_the_daemons_socket_and_holds_its_chunks() -> None:
    """Does LMCache find the device, and do its chunks fit into its memory and a value?"""
    yaml = pytest.importorskip("yaml")
    plan = planned(engine="cmx")
    found, config = yaml.safe_load(plan.connector.text), tomllib.loads(plan.daemon.text)
    params = found["extra_config"]["nixl_backend_params"]
    assert params["device_name"] == f"{config['daemon']['runtime_dir']}/host-0.sock"
    chunk = found["chunk_size"] * TOKEN_BYTES
    assert found["max_local_cpu_size"] * 2**30 >= 64 * chunk
    assert config["limits"]["values"] >= 8 * 32_768 / 256
    value = config["limits"]["context_tokens"] / 64 * parse_size(config["arena"]["payload"], "")
    assert value >= chunk


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"users": 0}, "--users: 0; give 1 to 1,000,000,000"),
        ({"model": "no-such"}, "no published geometry of 'no-such'"),
        ({"model": "glm-5.2"}, "keeps other KV than that of full attention"),
        ({"engine": "vlm"}, "unknown engine 'vlm'; did you mean 'vllm'"),
        ({"context": 16}, "16 tokens are less than an object of 32"),
        ({"tenants": 0}, "--tenants: 0; give 1 to 254"),
        ({"memory": "much"}, "memory: 'much' is not a size"),
        ({"engine": "", "memory": "1GiB"}, "none is asked for"),
        ({"users": 9, "model": "llama-2-7b", "context": "64M"}, "a daemon takes"),
    ],
)
def test_a_question_without_an_answer_is_one_line(words: dict[str, Any], text: str) -> None:
    """What is wrong, where, and what to do?"""
    with pytest.raises(BadInput, match=re.escape(text)) as refused:
        planned(**words)
    assert "\n" not in str(refused.value) and refused.value.fix


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    """Is a model's own limit known, where its config.json states one?"""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    own = {"model": str(tmp_path / "config.json")}
    assert figures(**own, context=2048)["objects of a context"] == 64
    with pytest.raises(BadInput, match=r"4,096 tokens, and .* takes 2,048"):
        figures(**own, context=4096)


def test_the_page_shows_what_its_command_prints(tmp_path: Path) -> None:
    """Is the output on the page that of the command above it, at the page's width?"""
    page = (PRESETS.parents[1] / "docs/how-to/engines.md").read_text(encoding="utf-8")
    section = page.partition("## Size it for your users")[2]
    command = re.search(r"^offstage (plan .+)$", section, re.MULTILINE)
    shown = re.search(r"```text\n(.+?)```", section, re.DOTALL)
    assert command is not None and shown is not None
    done = subprocess.run(
        [sys.executable, "-m", "offstage", *shlex.split(command[1])],
        env={**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [one.rstrip() for one in done.stdout.splitlines()] == shown[1].splitlines()
    assert {"dpu.toml", "vllm.json"} <= {one.name for one in tmp_path.glob("engine-plan/*")}
    drawn = (tmp_path / "engine-plan/plan.html").read_text(encoding="utf-8")
    assert "What to set for an engine" in drawn and "terminationGracePeriodSeconds" in drawn
