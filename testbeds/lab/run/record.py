"""The decisions of one policy as a recorded run, for the chip model.

Model: the policy is run once more, alone, at its largest buffer with the spec's first seed, by a
core that writes its decision log. A folder under `records/` holds that log and what a daemon's
recorder says of one, so whatever takes a recorded run takes it; `laboratory` in `record.json` says
that no machine was measured. Of a spec with axes each combination leaves a folder of its own.
Where some layers are drawn for all that select, `layers` says for how many they stand. Equal specs
give an equal log. Its sessions are opened when their turn
comes and not ahead of their start, because the times of a log never go back; where blocks are
judged by age, its counts differ from the experiment's for that.

What can fail: `BadInput` for a policy or a spec that has no such log; `RunFailed` where one session
decides more between two slabs than the core's ring of the log holds.
"""

import json
import re
from pathlib import Path

from offstage import __version__
from offstage.bindings.durable import replacing, write_text
from offstage.bindings.errors import BadInput, RunFailed, nearest
from offstage.host.model.models import geometry
from offstage.testbeds.lab.run.experiment import Experiment, Variant
from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.plan import Point
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.run.source import build
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.selections.coarse import PrefillOnce

__all__ = ["chosen", "record"]

WHERE = "--record"


def chosen(variant: Variant, policy: str) -> Point:
    """The point of that label, or of that name, at the largest buffer. BadInput if none has a log
    for a chip: one over tiers, or prefix caching."""
    spec = variant.spec
    if spec.workload.kind == "requests":
        raise BadInput("prefix caching decodes nothing", WHERE, "give sessions that decode")
    if spec.tier.below:
        raise BadInput("the chip model has no tiers", WHERE, "leave [[tier.below]] out")
    points = variant.points
    found = [one for one in points if policy in (one.label, one.policy.use)]
    if not found:
        names = dict.fromkeys(one.label for one in points)
        raise BadInput(f"no policy {policy!r}", WHERE, nearest(policy, names))
    return max(found, key=lambda one: one.buffer_over_k)


def record(experiment: Experiment, policy: str, out: Path, progress: Progress) -> Path:
    """Run the policy of every combination, and leave its log and `record.json` in a folder of its
    own under `out`. The path of the one, or of `out` where there are several."""
    folders = [_record(one, policy, out, progress) for one in experiment.variants]
    return folders[0] if len(folders) == 1 else out


def _record(variant: Variant, policy: str, out: Path, progress: Progress) -> Path:
    point, spec = chosen(variant, policy), variant.spec
    seed = spec.seeds[0]
    said = re.sub(r"[^\w.]+", "-", variant.label)
    folder = out / "records" / f"modelled-{point.policy.use.replace('+', '-')}-{said}".rstrip("-")
    folder.mkdir(parents=True, exist_ok=True)
    workload = PrefillOnce(build(spec, seed))
    kind = Kind(point.grain(spec), spec.tier.hbm_pool_over_k)
    feed = Feed(workload, spec.granules, {0: kind})
    steps = sum(one.steps for one in workload.sessions)
    progress.start(f"decisions of {point.label}", steps, "decode steps")
    with replacing(folder / "decisions.log") as path, path.open("wb") as file:
        runner = Runner(0, point, spec, workload, feed, seed, keep=file.write)
        while not runner.advance():
            progress.advance(feed.make())
        if lost := runner.result().counters.log_bytes_lost:
            raise RunFailed(
                f"the log has a hole of {lost:,} B", WHERE, "give fewer sessions, or shorter ones"
            )
    about = {
        "version": __version__,
        "closed": True,
        "storage": f"modelled {spec.tier.device or spec.tier.storage}",
        "laboratory": ", ".join(
            (spec.name, *filter(None, [variant.label]), f"policy {point.label}", f"seed {seed}")
        ),
        "model": spec.geometry.model,
        "kv_heads": max(one.kv_heads for one in geometry(spec.geometry.model).layers),
        "layers": 0 if spec.staged is None else spec.staged.of,
        "context_tokens": spec.workload.context_tokens,
        "block_tokens": spec.geometry.block_tokens // point.grain(spec),
        "stages": {},
    }
    write_text(folder / "record.json", json.dumps(about, indent=1) + "\n")
    return folder
