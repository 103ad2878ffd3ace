"""The layers of a model that a tier can stage: those whose selection the model makes itself.

Model: a model's cache is several groups (`host/model/groups.py`). What every step reads whole,
index keys, windows, states and layers that select nothing, stays in the memory of the GPU. With
`[geometry] staged = "selected"` a run has the other layers alone: a unit is one of their entries, k
their top k, and the layers between two of them are time that passes. Contexts of a million tokens
do not fit a machine with all layers, so a run may draw some of a model's indexers, evenly over the
depth, each with all layers that reuse its selection. The time of a token shrinks as the layers do,
so that a drive is asked as often as by the whole model.

Pure. A model that selects nothing, or whose k is nowhere stated, is `BadInput`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.layer_kv import LayerKv
from offstage.host.model.models import GEOMETRIES, geometry

__all__ = ["SELECTED", "Staged", "settle", "staged"]

SELECTED = "selected"


@dataclass(frozen=True)
class Staged:
    """layers: the numbers in the model of those that are drawn. source: for each of them the place
    among them of the layer that selects for it. of: how many layers of the model select. form: what
    each of them stores."""

    layers: tuple[int, ...]
    source: tuple[int, ...]
    of: int
    form: LayerKv


@lru_cache(maxsize=64)
def staged(model: str, indexers: int) -> Staged:
    """The layers of `model` that its own indexers select for: all, or those of `indexers` of them,
    spread evenly over the depth."""
    shape = geometry(model)
    chosen = [number for number, one in enumerate(shape.layers) if one.top_k]
    if not chosen:
        names = sorted(name for name, one in GEOMETRIES.items() if any(x.top_k for x in one.layers))
        raise BadInput(
            f"no layer of {model!r} selects: each reads all of its entries",
            "[geometry] staged",
            f"leave it out, or choose a model with indexers: {', '.join(names)}",
        )
    sets: dict[int, list[int]] = {}
    for number in chosen:
        sets.setdefault(shape.selection_source(number), []).append(number)
    groups = list(sets.values())
    if indexers > len(groups):
        raise BadInput(
            f"{indexers} indexers of {len(groups)}",
            "[workload] indexers",
            "give fewer, or 0 for all",
        )
    if indexers:
        places = ((2 * at + 1) * len(groups) // (2 * indexers) for at in range(indexers))
        groups = [groups[place] for place in places]
    layers = tuple(number for group in groups for number in group)
    source = tuple(layers.index(group[0]) for group in groups for _ in group)
    return Staged(layers, source, len(chosen), shape.layers[chosen[0]])


def settle(tables: dict[str, Any], where: str) -> None:
    """Add what the model itself says to the tables of a spec that stages what is selected: a unit
    is an entry, k is the top k, and neither sinks nor a window are set apart. What the spec says
    wins."""
    shaped = tables.get("geometry")
    if not isinstance(shaped, Mapping) or shaped.get("staged") != SELECTED:
        return
    model, top_k = shaped.get("model"), shaped.get("top_k", 0)
    if not isinstance(model, str) or model not in GEOMETRIES or not isinstance(top_k, int):
        return  # refused where every key is checked
    form = staged(model, 0).form
    top_k = top_k or form.top_k
    if top_k < 1:
        raise BadInput(
            f"no source says how many entries {model!r} selects",
            f"{where}: [geometry] top_k",
            "give the index_topk of its config.json",
        )
    entry = form.tokens_per_entry
    block = shaped.get("block_tokens", entry)
    own: dict[str, Any] = {"block_tokens": block}
    if block != entry:
        own["granule_tokens"] = entry
    tables["geometry"] = {**own, **shaped}
    if isinstance(block, int) and block > 0:
        k_blocks = -(-top_k * entry // block)
        chosen = tables.get("selection")
        rest = chosen if isinstance(chosen, Mapping) else {}
        alone = {"k_blocks": k_blocks, "sink_blocks": 0, "window_blocks": 0}
        tables["selection"] = {**alone, **rest}


def entry_bytes(shape: KvGeometry, form: LayerKv) -> int:
    """Bytes of one entry of a layer that selects, without its index key."""
    return form.entry_values * shape.value_bytes
