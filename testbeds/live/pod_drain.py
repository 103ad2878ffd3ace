"""The push of `offstage pod drain`: a member's hot and pinned shards go to their new homes.

It logs in as a host of the tenant, asks the member for these shards, and copies each to the
home in the current map, as a running host would. Cold shards stay: they are read there until
the member is gone, and recomputed after that.
"""

from dataclasses import dataclass
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.dpu import protocol as p
from offstage.dpu.pod.map import PodMap
from offstage.dpu.pod.placement import homes
from offstage.host.endpoint import Endpoint
from offstage.host.pod.between_members import Move, Moves
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.pod_sessions import PodSessions
from offstage.testbeds.live.pod_run import join, joined
from offstage.testbeds.progress import Progress

__all__ = ["NotPushed", "Pushed", "push"]

DEADLINE_NS = 1_000_000_000
WAIT_NS = 1_000_000


@dataclass
class Pushed:
    """Figures of one tenant. `shards` were hot or pinned; `whole` of them are complete at
    their new home, and of `unnamed` no host had named the contents."""

    shards: int = 0
    pinned: int = 0
    whole: int = 0
    unnamed: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class NotPushed:
    """Nothing was pushed, and why."""

    nothing: str


def push(
    found: PodMap, name: str, link: Endpoint, runtime_dir: Path | None, progress: Progress
) -> Pushed:
    """Push a tenant's hot or pinned shards from the member `name`. BadInput, RunFailed: the
    member, or all others, cannot be reached."""
    drained = found.find(name)
    if drained is None:
        raise BadInput(f"no member is called {name!r}", "pod map", "see offstage pod status")
    alone = join(drained, link, runtime_dir, found.epoch)  # not there: no other member is asked
    alone.fabric.close()
    alone.control.close()
    done = Pushed()
    with joined(found, link, runtime_dir) as members:
        source = next((one for one in members if one.member.name == name), None)
        if source is None:
            raise BadInput("it stopped answering", name, "see offstage pod status")
        asked = p.Shards(hot_per_s=float(found.copies.hot_blocks_per_s))
        hot = source.control.call(asked).hot
        done.shards, done.pinned = len(hot), sum(one.pinned for one in hot)
        named = [one for one in hot if one.contents]
        done.unnamed = len(hot) - len(named)
        geometry = source.control.geometry
        fabric = PodFabric(PodSessions(members, found.grid(geometry.block_tokens)), DEADLINE_NS)
        moves = Moves(fabric, geometry.layer_count)
        at = {one.member.name: one for one in members}

        def ended(move: Move) -> None:
            done.whole += move.whole
            done.bytes += move.moved_bytes
            progress.advance(1)
            progress.note(f"{done.bytes:,} bytes")

        progress.start(f"push what is hot or pinned at {name}", len(named), "shards")
        for one, home in zip(named, homes(found, [one.name for one in named]), strict=True):
            chain = [one.contents[first : first + 16] for first in range(0, len(one.contents), 16)]
            if home.name in at:
                moves.add(Move(one.name, chain, source, at[home.name], "filled", ended))
        while len(moves):
            moves.turn()
            fabric.poll(WAIT_NS)
        moves.close()
        fabric.close()
    return done
