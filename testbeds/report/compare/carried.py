"""How many sessions of a model one device carries, and what a chip gains: one row for each run.

Model: the load's source holds the laboratory's decisions for several models. Each is a load of the
same GPUs and sessions, with the model's own reads and bytes; a device is then what `effect` says of
it. Three means bound its sessions: what its busiest unit lets through at the GPUs' pace, buffers in
its staging memory, and caches on its drives. How much memory GPUs have for what must be resident is
not asked. What can fail: `BadInput` of a run that cannot be read.
"""

from collections.abc import Sequence

from offstage.asic_model.copies import begin
from offstage.asic_model.load import Work, work_of
from offstage.asic_model.parameters import Preset
from offstage.asic_model.ranges import draws
from offstage.asic_model.replay import decision_replay
from offstage.asic_model.trace import Trace
from offstage.host.model.models import geometry
from offstage.testbeds.prices import catalog
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.compare.columns import Carried, LoadFigures, ModelLoad
from offstage.testbeds.report.compare.effect import Load, figures_at
from offstage.testbeds.report.compare.recorded import Recorded
from offstage.testbeds.report.compare.vary import FETCHES_MAX, SEED

__all__ = ["models_of"]


def models_of(
    loads: Sequence[Load],
    first: Trace,
    run: tuple[Trace, Recorded],
    presets: Sequence[Preset],
    samples: int,
    error: float,
    progress: Progress,
) -> list[ModelLoad]:
    """A row for each load, the largest model first; none for a single load. `first`: the
    trace of the first load; `run`: the recorded one; `error`: the model's own on it, 1 or more."""
    if len(loads) < 2:
        return []
    progress.start("each model's load", len(loads) * len(presets), "devices")
    rows = [
        _row(load, load.trace(*run) if at else first, presets, samples, error, progress)
        for at, load in enumerate(loads)
    ]
    return sorted(
        rows, key=lambda one: (-one.session_bytes / one.context_tokens, one.context_tokens)
    )


def _row(
    load: Load,
    trace: Trace,
    presets: Sequence[Preset],
    samples: int,
    error: float,
    progress: Progress,
) -> ModelLoad:
    name = load.model or trace.record.model
    shape, tokens = geometry(name), trace.record.context_tokens
    drawn = trace.config.layer_count
    whole = load.layers(trace) / drawn
    sessions = len({one.session for one in trace.fetches})
    steps = len({(one.session, one.step) for one in trace.fetches})
    reads = len(trace.reads) / steps * whole
    row = ModelLoad(
        load="",
        model=name,
        context_tokens=tokens,
        session_bytes=shape.session_bytes(tokens),
        resident_bytes=shape.resident_bytes(tokens) if trace.record.layers else 0,
        buffer_bytes=round(trace.config.slot_count / sessions * trace.block_bytes * whole),
        reads_per_token=reads,
        read_bytes_per_token=reads * trace.block_bytes,
        devices=[],
    )
    works = []
    for preset in presets:
        fit = preset.for_heads(trace.heads)
        works.append(load.of(work_of(decision_replay(trace, fit), trace), trace))
        progress.advance(1)
    gpus = load.gpus or max(1, round(works[0].knee_gpus))
    row.load = load.said(gpus, works[0], trace)
    for preset, work in zip(presets, works, strict=True):
        spread = _spread(load, trace, preset.for_heads(trace.heads), samples)
        figures = figures_at(gpus, work.knee_gpus, preset, work, spread, error)
        row.devices.append(_carried(row, preset, work, figures))
    return row


def _spread(load: Load, trace: Trace, preset: Preset, samples: int) -> list[tuple[Work, Work]]:
    """Draws of the device's parameters, each with the preset's own work, on the log's beginning."""
    short = begin(trace, FETCHES_MAX)
    own = load.of(work_of(decision_replay(short, preset), short), trace)
    drawn = (work_of(decision_replay(short, one), short) for one in draws(preset, samples, SEED))
    return [(load.of(work, trace), own) for work in drawn]


def _carried(row: ModelLoad, preset: Preset, work: Work, figures: LoadFigures) -> Carried:
    most = figures.tokens_per_s_max
    drives = catalog().numbers("tlc")["capacity"].base * preset.nvme.drives.value
    needs: dict[str, float | None] = {
        "rate": None if most is None else most * work.host_s,
        "memory": preset.arena_bytes / row.buffer_bytes if row.buffer_bytes else None,
        "capacity": drives / row.session_bytes,
    }
    known = {name: one for name, one in needs.items() if one is not None}
    binds = min(known, key=lambda name: known[name])
    return Carried(device=preset.name, by_need=needs, binds=binds, load=figures)
