"""The schema of every JSON document: what each command prints, and each file that a run leaves.

`pages.py` writes them to docs/reference/schemas. The types are those that the writers fill, and the
texts of figures those of the pages, so that none of them can say something else.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, NotRequired

from json_schema import document, flattened, only, typed, with_more

Kinds = tuple[Any, ...]
"""What a document may be: one of these types."""


@functools.cache
def schemas() -> dict[str, str]:
    """The text of every schema, by the name of its file."""
    found = {name: (f"offstage {name} --format json", kinds) for name, kinds in printed().items()}
    found |= {
        f"file {name}": (f"{file} of {by}", kinds) for name, (file, by, kinds) in written().items()
    }
    return {
        schema_name(name): json.dumps(
            document(title, *kinds, texts=texts()), indent=1, ensure_ascii=False
        )
        + "\n"
        for name, (title, kinds) in sorted(found.items())
    }


def schema_name(name: str) -> str:
    """The file of the schema of a command, or of `file KEY`."""
    return f"{name.replace(' ', '-')}.json"


def texts() -> Mapping[type, Mapping[str, str]]:
    """What the keys of a run and of a point mean, as their pages say it."""
    from offstage.testbeds.lab.results.summary import PointSummary
    from offstage.testbeds.live.results import RunResult
    from offstage.testbeds.report import DEFINITIONS
    from offstage.testbeds.report.lab.definitions import LAB_DEFINITIONS

    return {
        RunResult: {one.key: one.sentence for one in DEFINITIONS},
        PointSummary: {one.key: one.sentence for one in LAB_DEFINITIONS},
    }


def printed() -> dict[str, Kinds]:
    """What each command prints, by its name."""
    return {**of_the_tier(), **of_a_daemon(), **of_experiments(), **of_chips(), **of_benches()}


def written() -> dict[str, tuple[str, str, Kinds]]:
    """The files that a run leaves: their names, what writes them, and their types."""
    from offstage.asic_model.result import ChipRun
    from offstage.host.decode.step_cost import DecodeCost
    from offstage.testbeds.lab.pod.summary import PodSummary
    from offstage.testbeds.lab.results.paired import Difference
    from offstage.testbeds.lab.results.summary import LabSummary, Manifest
    from offstage.testbeds.live.model_results import ModelSummary
    from offstage.testbeds.live.pod_figures import PodResult
    from offstage.testbeds.live.results import Summary
    from offstage.testbeds.plan.result import Plan
    from offstage.testbeds.report.compare.columns import Comparison

    differences = typed("Differences", "A row for each.", {"rows": list[Difference]})
    return {
        "summary": ("summary.json", "`demo`, `host run`, `testbed run`", (Summary,)),
        "lab-summary": ("summary.json", "`lab run`", (LabSummary,)),
        "lab-manifest": ("manifest.json", "`lab run`", (Manifest,)),
        "lab-pod-summary": ("summary.json", "`lab pod`", (PodSummary,)),
        "differences": ("differences.json", "`report A B`", (differences,)),
        "model": ("model.json", "`host run --model`", (ModelSummary,)),
        "pod": ("pod.json", "`pod run`, `testbed run pod`", (PodResult,)),
        "decode-cost": ("--out FILE", "`host calibrate`", (DecodeCost,)),
        "compare": ("compare.json", "`compare`", (Comparison,)),
        "plan": ("plan.json", "`plan`", (Plan,)),
        "chip-run": ("chip-run.json", "`asic run`", (ChipRun,)),
    }


def of_the_tier() -> dict[str, Kinds]:
    """Commands that start something, prepare for it or ask about a machine."""
    from offstage.host.decode.step_cost import DecodeCost
    from offstage.testbeds.beds.qemu.session import Findings
    from offstage.testbeds.cli import printed as p
    from offstage.testbeds.cli.doctor import Examined
    from offstage.testbeds.cli.pod_shown import ShownPod
    from offstage.testbeds.live.model_results import ModelSummary
    from offstage.testbeds.live.pod_figures import PodResult
    from offstage.testbeds.plan.result import Plan
    from offstage.testbeds.plan.rivals.result import Rivals

    drawn, over_pod = headlines(), with_more(PodResult, failed=list[str])
    modelled = with_more(ModelSummary, like_dense=dict[str, float | None], failed=list[str])
    return {
        "demo": (drawn,),
        "doctor": (Examined,),
        "plan": (Plan,),
        "rivals": (Rivals,),
        "config show": (p.ConfigShown,),
        "host run": (drawn, modelled),
        "host calibrate": (with_more(DecodeCost, out=str),),
        "keys add": (p.KeyAdded,),
        "keys make": (p.KeysMade,),
        "keys token": (p.Token,),
        **dict.fromkeys(
            [f"pod {verb}" for verb in ("accept", "add", "drain", "remove", "status")], (ShownPod,)
        ),
        "pod purge": (p.PodPurged,),
        "pod run": (over_pod,),
        "testbed down": (p.BedEnded,),
        "testbed list": (dict[str, str],),
        "testbed run": (drawn, over_pod, Findings),
        "testbed up": (p.BedUp, p.PodUp, p.GuestsUp),
    }


def headlines() -> Any:
    """What is printed of a run that has a summary.json: its headlines, and where the rest is."""
    from offstage.bindings.notes import Note
    from offstage.testbeds.cli.summary import HEADLINES
    from offstage.testbeds.live.results import RunResult

    run = only(RunResult, HEADLINES, "RunHeadlines")
    keys = {
        "sentence": str,
        "notes": list[Note],
        "failed": list[str],
        "runs": list[run],
        "baselines": list[run],
        "summary": NotRequired[str],
        "report": NotRequired[str],
        "requests": NotRequired[str],
    }
    return typed("Headlines", headlines.__doc__ or "", keys)


def of_a_daemon() -> dict[str, Kinds]:
    """Commands to a daemon, and those that read what it left."""
    from offstage.bindings.figures import MoveStatus
    from offstage.dpu.protocol.message import Setting
    from offstage.dpu.protocol.status import (
        ArchivedLedger,
        DaemonStatus,
        FabricReport,
        WearFigures,
    )
    from offstage.testbeds.cli import printed as p
    from offstage.testbeds.cli.watch import Interval

    return {
        "dpu dismiss": (p.DpuDismissed,),
        "dpu drain": (p.DpuDrained,),
        "dpu erase": (p.DrivesErased,),
        "dpu fabric add": (dict[str, FabricReport],),
        "dpu fabric remove": (dict[str, FabricReport],),
        "dpu ledger": (with_more(ArchivedLedger, wear=NotRequired[WearFigures]),),
        "dpu policy set": (dict[str, Setting],),
        "dpu policy show": (dict[str, Setting],),
        "dpu purge": (p.DpuPurged,),
        "dpu replay": (p.DpuReplayed,),
        "dpu reset": (p.DpuReset,),
        "dpu status": (DaemonStatus, Interval),
        "dpu storage move": (MoveStatus,),
        "dpu store": (p.StoreRead,),
        "dpu undrain": (p.DpuUndrained,),
    }


def of_experiments() -> dict[str, Kinds]:
    """Traces, models, the laboratory, and what reads its results."""
    from offstage.testbeds.cli import printed as p
    from offstage.testbeds.cli.trace_selections import Described
    from offstage.testbeds.models.shown import ModelShown
    from offstage.testbeds.report.accept.judge import Acceptance
    from offstage.testbeds.report.bottleneck.tree import Bottleneck
    from offstage.testbeds.workloads.requests.stats import BlockInfo, SessionInfo, TraceInfo
    from offstage.testbeds.workloads.selections.explain import Explained
    from offstage.testbeds.workloads.selections.field import Structure
    from offstage.testbeds.workloads.selections.generated import GeneratedOptions

    info = with_more(flattened(TraceInfo, BlockInfo, SessionInfo), definitions=dict[str, str])
    generated = with_more(
        GeneratedOptions,
        file=str,
        size_bytes=int,
        kind=str,
        synthetic=bool,
        prefill_windows=int,
        structure=Structure,
        processes=dict[str, dict[str, Any]],
    )
    return {
        "accept": (Acceptance,),
        "bottleneck": (Bottleneck,),
        "compare": (p.Compared,),
        "lab bounds": (p.LabBounds,),
        "lab pod": (p.LabPods,),
        "lab policies": (p.LabPolicies,),
        "lab run": (p.LabRan,),
        "model show": (ModelShown,),
        "models get": (p.ModelKept,),
        "models list": (p.ModelsListed,),
        "report": (p.PageMade, p.FiguresMade, p.Differences),
        "requests": (p.RequestsServed,),
        "results": (p.ResultsListed,),
        "trace capture": (p.TraceCaptured,),
        "trace export": (p.TraceExported,),
        "trace generate": (generated, Explained),
        "trace import": (p.TraceImported,),
        "trace info": (info, Described),
    }


def of_chips() -> dict[str, Kinds]:
    """The chip model and the drives."""
    from offstage.asic_model import hardware
    from offstage.asic_model.result import ChipRun
    from offstage.testbeds.cli import printed as p
    from offstage.testbeds.drives import DriveCard
    from offstage.testbeds.lab.run.wear import DriveWear
    from offstage.testbeds.report.compare.size import Sized
    from offstage.testbeds.report.compare.validate import Validation

    row = with_more(hardware.Row, "Synthesized", clock_ghz=float)
    blocks = only(hardware.Synthesis, ("library", "node_nm", "program"), "Synthesis")
    return {
        "asic commands": (p.ChipCommands,),
        "asic presets": (p.PresetsListed, p.PresetShown),
        "asic run": (ChipRun,),
        "asic size": (Sized,),
        "asic sweep": (p.ChipsSwept,),
        "asic synth": (with_more(blocks, rows=list[row]),),
        "asic validate": (Validation,),
        "drive presets": (p.DrivesListed, DriveCard),
        "drive wear": (DriveWear,),
    }


def of_benches() -> dict[str, Kinds]:
    """Every bench: its result, and whether it kept its aims."""
    from offstage.testbeds.bench.asic import AsicResult
    from offstage.testbeds.bench.cmx import CmxResult
    from offstage.testbeds.bench.codec import CodecResult
    from offstage.testbeds.bench.core import CoreResult
    from offstage.testbeds.bench.engines.l2 import L2Result
    from offstage.testbeds.bench.engines.moment_result import LivePrefetchResult
    from offstage.testbeds.bench.engines.result import EngineResult
    from offstage.testbeds.bench.fabric import FabricResult
    from offstage.testbeds.bench.links import LinksResult
    from offstage.testbeds.bench.pod.result import Figures, PodResult, TraceResult
    from offstage.testbeds.bench.pod.reuse import ScheduleResult
    from offstage.testbeds.bench.prefetch import PrefetchResult
    from offstage.testbeds.bench.qos import QosResult
    from offstage.testbeds.bench.soak import SoakResult
    from offstage.testbeds.bench.sparse.result import SparseResult
    from offstage.testbeds.bench.spdk import SpdkResult
    from offstage.testbeds.bench.storage_result import StorageResult
    from offstage.testbeds.bench.tenants import TenantsResult

    kinds: dict[str, Kinds] = {
        "asic": (AsicResult,),
        "cmx": (CmxResult,),
        "prefetch": (PrefetchResult, LivePrefetchResult),
        "codec": (CodecResult,),
        "core": (CoreResult,),
        "engine": (EngineResult,),
        "fabric": (FabricResult, LinksResult),
        "l2": (L2Result,),
        "pod": (PodResult, flattened(TraceResult, Figures)),
        "qos": (QosResult,),
        "schedule": (ScheduleResult,),
        "soak": (SoakResult,),
        "sparse": (SparseResult,),
        "storage": (StorageResult, SpdkResult),
        "tenants": (TenantsResult,),
    }
    return {
        f"bench {name}": tuple(with_more(one, aims_met=bool, verdicts_met=bool) for one in own)
        for name, own in kinds.items()
    }
