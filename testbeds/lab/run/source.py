"""The source of a spec's selections: drawn, captured or recorded, and the trace they follow."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.host.model.models import geometry
from offstage.testbeds.lab.spec.load import check
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.workloads.selections.slab import Workload

if TYPE_CHECKING:
    from offstage.testbeds.workloads.requests.columns import Trace
    from offstage.testbeds.workloads.requests.trace_sessions import TraceSession
    from offstage.testbeds.workloads.selections.generated import GeneratedOptions, TracedWorkload

__all__ = ["build", "digest", "fitted", "index_source", "recurs", "trace_notes", "trace_path"]


def build(spec: Spec, seed: int) -> Workload:
    """The sessions and selections, in units of granules if the spec has any, else of blocks."""
    work, select = spec.workload, spec.selection
    if work.kind == "generated":
        return _generated(spec, seed)
    path = trace_path(work.file)
    if work.kind == "selections":
        from offstage.testbeds.workloads.selections.recorded import SelectionWorkload

        found: Workload = SelectionWorkload(path)
    elif work.kind == "captured":
        from offstage.testbeds.workloads.selections.captured import CapturedWorkload

        selector: Any = select.selector
        found = CapturedWorkload(
            path,
            select.k_blocks * spec.granules,
            selector,
            select.sink_blocks * spec.granules,
            select.window_blocks * spec.granules,
        )
    else:
        raise BadInput(
            "a request trace has no selections",
            "[workload] kind",
            "run its prefix caching with `offstage lab run`; for decode sessions of its lengths "
            'set kind = "generated" and trace = FILE',
        )
    return found


def fitted(spec: Spec, where: str) -> Spec:
    """The spec with the values that a file of selections determines: sessions, lengths, layers and,
    if recorded, k, sinks and window. Buffers, bounds and progress are computed from these.

    BadInput, naming `where`, if the file's block size differs from the spec's (bytes would be
    wrong), or if its values contradict the spec.
    """
    if spec.workload.kind not in ("captured", "selections") or not spec.workload.file:
        return spec
    found = build(spec, 0)
    shape, granules = spec.geometry, spec.granules
    key = "granule_tokens" if shape.granule_tokens else "block_tokens"
    unit_tokens = shape.granule_tokens or shape.block_tokens
    if found.block_tokens != unit_tokens:
        raise BadInput(
            f"{key} = {unit_tokens}, but {spec.workload.file} has blocks of {found.block_tokens}",
            f"{where}: [geometry] {key}",
            f"give {found.block_tokens}",
        )
    workload = msgspec.structs.replace(
        spec.workload,
        layers=found.layer_count,
        sessions=len(found.sessions),
        steps=max(one.steps for one in found.sessions),
        context_tokens=max(one.blocks for one in found.sessions) * unit_tokens,
    )
    selection = msgspec.structs.replace(
        spec.selection,
        k_blocks=-(-found.select_blocks // granules),
        sink_blocks=found.sink_blocks // granules,
        window_blocks=found.window_blocks // granules,
    )
    found_spec = msgspec.structs.replace(spec, workload=workload, selection=selection)
    check(found_spec, where)
    return found_spec


def _generated(spec: Spec, seed: int) -> Workload:
    from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload

    work, select = spec.workload, spec.selection
    source = index_source(spec)
    options = GeneratedOptions(
        profile=work.profile,
        layers=spec.layer_count,
        context_tokens=work.context_tokens,
        steps=work.steps,
        sessions=work.sessions,
        block_tokens=spec.geometry.block_tokens,
        select_blocks=select.k_blocks,
        sink_blocks=select.sink_blocks,
        window_blocks=select.window_blocks,
        granule_tokens=spec.geometry.granule_tokens,
        turn_steps=work.turn_steps or None,
        shared_prefix_tokens=work.shared_prefix_tokens,
        groups=work.groups,
        draft_agreement=work.draft_agreement or None,
        index_source=None if source is None else tuple(source),
        sampled=spec.staged.layers if spec.staged else None,
        of_layers=geometry(spec.geometry.model).layer_count if spec.staged else 0,
        seed=seed,
    )
    drawn = _traced(spec, options) if work.trace else GeneratedWorkload(options)
    if not work.predicted:
        return drawn
    from offstage.testbeds.workloads.selections.predicted import Predicting

    return Predicting(drawn, seed)


def _traced(spec: Spec, options: "GeneratedOptions") -> "TracedWorkload":
    from offstage.testbeds.workloads.requests.importer import open_trace
    from offstage.testbeds.workloads.selections.generated import TracedWorkload

    work = spec.workload
    path = trace_path(work.trace)
    trace = open_trace(path, time_unit=work.time_unit or None)
    sessions = _trace_sessions(spec, trace, options.unit_tokens)
    origin: dict[str, object] = {
        "trace": path.name,
        "split": work.split,
        "trace_sha256": digest(path),
    }
    return TracedWorkload(options, sessions, origin)


def _trace_sessions(spec: Spec, trace: "Trace", unit_tokens: int) -> "list[TraceSession]":
    from offstage.testbeds.workloads.requests.trace_sessions import sessions_from_trace

    work = spec.workload
    return sessions_from_trace(
        trace,
        work.sessions,
        min(work.context_tokens_min, work.context_tokens),
        work.context_tokens,
        work.split,
        block_tokens=unit_tokens,
    )


def recurs(spec: Spec) -> bool:
    """Whether every seed has the same requests."""
    return spec.workload.kind in ("captured", "selections")


def trace_notes(spec: Spec) -> list[Note]:
    """Notes on the trace from which a run takes its requests, or the lengths of its generated
    sessions."""
    from offstage.testbeds.workloads.requests.importer import open_trace
    from offstage.testbeds.workloads.requests.in_vain import unused

    work, shape = spec.workload, spec.geometry
    path = work.file if work.kind == "requests" else work.trace
    if work.kind not in ("requests", "generated") or not path:
        return []
    trace = open_trace(trace_path(path), time_unit=work.time_unit or None)
    if work.kind == "requests":
        return list(trace.notes)
    sessions = _trace_sessions(spec, trace, shape.granule_tokens or shape.block_tokens)
    block = shape.block_tokens
    return [
        *trace.notes,
        *unused(
            trace,
            [one.context_tokens // block * block for one in sessions],
            [min(one.output_tokens, work.steps) for one in sessions],
            context_tokens_max=work.context_tokens // block * block,
            steps_max=work.steps,
            lengths_of_outputs=True,
        ),
    ]


def trace_path(name: str) -> Path:
    """A trace by its path, or by its name in the folder of traces (`OFFSTAGE_TRACES`)."""
    path = Path(name)
    if path.exists() or path.is_absolute():
        return path
    return Path(os.environ.get("OFFSTAGE_TRACES", "../shared/traces")) / name


def digest(path: Path) -> str:
    """SHA-256 of a file. BadInput if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})", str(path), "give another file"
        ) from None


def index_source(spec: Spec) -> list[int] | None:
    """The layer whose selection each layer uses, by the spec's groups or the geometry; None if
    every layer computes its selection."""
    if spec.staged:
        return list(spec.staged.source)
    layers = geometry(spec.geometry.model).layers[: spec.layer_count]
    group = spec.workload.index_group
    if group > 1:
        return [layer // group * group for layer in range(len(layers))]
    found = [
        layer if one.selection_layer < 0 else one.selection_layer
        for layer, one in enumerate(layers)
    ]
    return None if np.array_equal(found, range(len(found))) else found
