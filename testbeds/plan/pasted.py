"""Files to paste: a daemon's TOML, and the configuration of an engine's connector.

Model: a configuration is written as its difference to the defaults, so that a key that is not
there is the default. A connector's file has its engine's form: JSON for vLLM
(`--kv-transfer-config`), LMCache (`--l2-adapter`) and SGLang
(`--hicache-storage-backend-extra-config`), YAML for LMCache over `libdoca_kv`. Endpoint and fabric
are those of a daemon on the engine's own machine.

Pure; nothing can fail.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from offstage.bindings.settings import Option, declared, show
from offstage.dpu.config.options import Tenant
from offstage.dpu.config.values import SECTIONS, Config
from offstage.host.endpoint import DEFAULT_ENDPOINT

__all__ = ["CONNECTORS", "File", "Served", "connector_file", "toml_of"]

STAGED_CHUNKS = 64
"""Of LMCache's memory over `libdoca_kv`: as many as when it was tried."""
WHOLE = {1 << 40: "TiB", 1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB"}


class File(msgspec.Struct, kw_only=True):
    """A file to paste."""

    name: str
    text: str


class Connector(NamedTuple):
    """An engine's way to the tier. `hosts`: logins of one engine by its ranks; `shares_latents`:
    whether one rank stores for all what all have alike."""

    chunk: int
    source: str
    hosts: Callable[[int], int]
    shares_latents: bool = False


CONNECTORS = {
    "vllm": Connector(32, "--block-size, as on docs/how-to/engines.md", lambda ranks: 1 + ranks),
    "lmcache": Connector(256, "LMCache's own default, --chunk-size", lambda _: 1),
    "sglang": Connector(64, "--page-size; SGLang's default of 1 is too small", lambda n: n, True),
    "cmx": Connector(256, "LMCache's own default, chunk_size", lambda ranks: ranks),
}


@dataclass(frozen=True)
class Served:
    """What is served: `chunk` tokens an object of `size_bytes`, of one of `ranks`."""

    model: str
    chunk: int
    ranks: int
    tokens: int
    layout: str
    size_bytes: int
    tenant: str
    patience_s: float

    @property
    def files(self) -> str:
        """The model as engines call it: a folder, or its name."""
        path = Path(self.model)
        return str(path.parent) if path.name == "config.json" else self.model

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all connectors share."""
        own = {"tenant": self.tenant, "patience_s": self.patience_s}
        return {"endpoint": DEFAULT_ENDPOINT, **own}


def toml_of(config: Config) -> str:
    """The configuration as TOML, without what is the default."""
    usual, pieces = Config(), []
    for section, kind in SECTIONS.items():
        lines = list(_lines(declared(kind), getattr(config, section), getattr(usual, section)))
        pieces += ["\n".join((f"[{section}]", *lines))] if lines else []
    if config.tenants != usual.tenants:
        for tenant in config.tenants:
            lines = [f'name = "{tenant.name}"']
            lines += _lines(declared(Tenant), tenant, Tenant(name=tenant.name))
            pieces.append("\n".join(("[[tenant]]", *lines)))
    return "\n\n".join(pieces) + "\n"


def _lines(options: dict[str, Option], table: Any, usual: Any) -> Iterator[str]:
    for key, one in options.items():
        value = getattr(table, one.name)
        if value != getattr(usual, one.name):
            yield f"{key} = {json.dumps(_plain(one, value))}"


def _plain(one: Option, value: Any) -> Any:
    """A value as TOML has it; a size in the largest unit of which it is whole."""
    if one.unit is None:
        return show(one, value) if isinstance(value, tuple) else value
    if one.unit.base != "B":
        return show(one, value)
    scale = next((one for one in WHOLE if value % one == 0), 1)
    return f"{value // scale}{WHOLE.get(scale, 'B')}"


def connector_file(engine: str, served: Served) -> tuple[File, str]:
    """The connector's file, and the engine's command."""
    return {"vllm": _vllm, "lmcache": _lmcache, "sglang": _sglang, "cmx": _cmx}[engine](served)


def _vllm(served: Served) -> tuple[File, str]:
    text = {
        "kv_connector": "OffstageConnector",
        "kv_connector_module_path": "offstage.host.connectors.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": served.settings,
    }
    return _json("vllm.json", text), (
        f"vllm serve {served.files} --tensor-parallel-size {served.ranks} "
        f"--max-model-len {served.tokens} --block-size {served.chunk} "
        '--kv-transfer-config "$(cat vllm.json)"'
    )


def _lmcache(served: Served) -> tuple[File, str]:
    computed = {"layout": f"{served.layout}, TP{served.ranks}, {served.chunk} tokens"}
    text = {
        "type": "plugin",
        "module_path": "offstage.host.connectors.lmcache",
        "class_name": "OffstageL2",
        "adapter_params": served.settings | {"model": served.files} | computed,
    }
    return _json("lmcache.json", text), (
        f"lmcache server --l1-size-gb 20 --eviction-policy LRU --chunk-size {served.chunk} "
        '--l2-adapter "$(cat lmcache.json)"'
    )


def _sglang(served: Served) -> tuple[File, str]:
    text = {
        "backend_name": "offstage",
        "module_path": "offstage.host.connectors.sglang",
        "class_name": "OffstageStorage",
        "interface_v1": 1,
        **served.settings,
    }
    return _json("sglang.json", text), (
        f"python -m sglang.launch_server --model-path {served.files} --tp {served.ranks} "
        f"--page-size {served.chunk} --enable-hierarchical-cache "
        "--hicache-storage-backend dynamic "
        '--hicache-storage-backend-extra-config "$(cat sglang.json)"'
    )


def _cmx(served: Served) -> tuple[File, str]:
    """As on docs/how-to/cmx.md."""
    staged = max(0.125, STAGED_CHUNKS * served.size_bytes / 2**30)
    text = f"""chunk_size: {served.chunk}
local_cpu: false
save_unfull_chunk: false
nixl_buffer_device: cpu
max_local_cpu_size: {staged:.3f}
extra_config:
  enable_nixl_storage: true
  nixl_backend: DOCA_MEMOS
  nixl_pool_size: 0
  nixl_enable_prog_thread: false
  nixl_backend_params:
    device_name: cmx/host-0.sock
    nguid: "0123456789abcdef0123456789abcdef"
    query_mem_mode: actual
    num_tasks: "256"
"""
    return File(name="lmcache.yaml", text=text), (
        f"PYTHONHASHSEED=0 LMCACHE_CONFIG_FILE=lmcache.yaml vllm serve {served.files} "
        f"--tensor-parallel-size {served.ranks} --max-model-len {served.tokens} "
        "--kv-transfer-config "
        """'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'"""
    )


def _json(name: str, text: dict[str, Any]) -> File:
    return File(name=name, text=json.dumps(text, indent=1) + "\n")
