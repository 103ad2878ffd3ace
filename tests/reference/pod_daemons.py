"""Real daemons of the tiny geometry on this machine, and the map that makes a pod of them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from offstage.dpu.pod.map import Member, PodMap
from offstage.dpu.pod.membership.static import write_map
from offstage.testbeds.beds.daemon import Daemon, serve

TENANT = "lab"
SHARD_TOKENS = 512
UNHURRIED_NS = 5_000_000_000
"""A fetch deadline that no slow machine misses while every member of the map is there."""


@dataclass
class Pod:
    """`place` is its map; the daemons' runtime folders are in `folder`, by name."""

    place: str
    folder: Path
    tiers: list[Daemon]


@contextlib.contextmanager
def pod_of(count: int, folder: Path, layers: int = 2, device: str = "") -> Iterator[Pod]:
    """Run `count` identical daemons on emulated drives in memory. `device`: a chip that each
    emulates, slowed down 20 times."""
    with contextlib.ExitStack() as stack:
        tiers, members = [], []
        for number in range(count):
            name = f"dpu{number}"
            home = folder / name
            home.mkdir()
            sections = {
                "daemon": {"runtime_dir": str(home)},
                "arena": {"size": "3MiB", "payload": "4KiB", "layers": layers, "block_tokens": 16},
                "storage": {"backend": "emulated", "size": "64MiB"},
                "store": {"segment": "256KiB"},
                "model": {"device": device, "dilation": 20} if device else {},
                "limits": {"sessions": 64, "context_tokens": 8192},
                "tenant": [{"name": TENANT}],
            }
            tiers.append(stack.enter_context(serve(sections, home)))
            members.append(Member(name=name, endpoint=tiers[-1].endpoint))
        pod = PodMap(epoch=1, shard_tokens=SHARD_TOKENS, member=tuple(members))
        write_map(folder / "pod.toml", pod)
        yield Pod(str(folder / "pod.toml"), folder, tiers)
