"""Blocks stored by groups of heads, so that engines of other tensor-parallel sizes find them.

A worker has some KV heads of every layer. With the setting `head_groups` a block is stored in that
many objects, each with all layers of equally many heads; one worker stores several of them, and an
engine of any number of workers that divides the setting has the same objects. Workers' sums differ
with their number, so what is loaded has been computed with other roundings.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.connectors.vllm.groups import Group

__all__ = ["head_groups_of", "of_all_workers"]

WHERE = "OffstageConnector"


def head_groups_of(extra: Any, groups: Sequence[Group], model: Any, ranks: int) -> int:
    """The objects of a block, of all of `ranks` workers; 0 where each worker's part is one, which
    only engines of as many workers find. `model`: vLLM's configuration of it. BadInput: its layers
    are not kept by heads, or cannot be split so."""
    parts = extra.get("head_groups", 0)
    if type(parts) is not int or parts < 0:
        raise BadInput(f"head_groups is {parts!r}", WHERE, "write a number of objects of a block")
    if parts == 0:
        return 0
    if any(one.latents or not one.heads for one in groups):
        raise BadInput("this model's KV is not kept by heads", WHERE, "leave head_groups out")
    heads, total = [one.heads * ranks for one in groups], model.get_total_num_kv_heads()
    if parts % ranks or total < ranks or any(each % parts for each in heads):
        raise BadInput(
            f"{total} KV heads on {ranks} workers are not {parts} equal groups of heads",
            WHERE,
            "set head_groups to a multiple of the workers that divides the KV heads",
        )
    return parts


def of_all_workers(spec: Any, ranks: int) -> Any:
    """vLLM's description of layers with the heads of all workers."""
    each = getattr(spec, "kv_cache_specs", None)
    if each is not None:
        return replace(
            spec, kv_cache_specs={name: of_all_workers(one, ranks) for name, one in each.items()}
        )
    return replace(spec, num_kv_heads=spec.num_kv_heads * ranks)
