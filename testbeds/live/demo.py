"""The demo: prefill once, then every arm on every storage, then the summary."""

import shutil
import time
from typing import Any

import offstage
from offstage.bindings.errors import BadInput
from offstage.testbeds.beds.local import Place
from offstage.testbeds.live.curve import DemandTrace, hit_versus_traffic
from offstage.testbeds.live.demo_fill import fill
from offstage.testbeds.live.demo_measure import Storage, measure
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.live.describe import describe
from offstage.testbeds.live.figures import against_baseline
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.live.workload import Workload, prepare
from offstage.testbeds.machine import machine, memory_peak_bytes
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.run.definitions import as_text
from offstage.testbeds.report.run.sentence import sentence

__all__ = ["run"]

READ_BYTES = 8 << 20


def run(options: DemoOptions, progress: Progress) -> Summary:
    """Run the whole demo into `options.out`. BadInput for options, RunFailed for a run."""
    begun = time.monotonic()
    options.check()
    place = _make_place(options)
    workload = prepare(options)
    measured = Storage("io_uring", "measured", {"backend": "auto", "direct": True})
    contexts = fill(options, workload, place, measured.keys, progress)
    runs: list[RunResult] = []
    trace = DemandTrace()
    for storage in _storages(options, measured):
        if storage.provenance == "emulated":
            _warm_page_cache(place)
        done = [
            measure(
                options, workload, contexts, storage, arm, place, progress,
                observe=trace if not runs and number == 0 else None,
            )
            for number, arm in enumerate(options.arms)
        ]  # fmt: skip
        runs += [against_baseline(one, done[0]) for one in done]
    summary = Summary(
        runs=runs,
        workload=_describe(options, workload),
        machine={**machine(), "memory_peak_bytes": memory_peak_bytes(),
                 "wall_s": time.monotonic() - begun},
        seed=options.seed,
        sentence=sentence(runs),
        curve=hit_versus_traffic(options, trace, contexts, progress),
        definitions=as_text(),
        command=options.command,
        version=offstage.__version__,
    )  # fmt: skip
    if not options.keep_store:
        shutil.rmtree(place.work, ignore_errors=True)
    return summary


def _make_place(options: DemoOptions) -> Place:
    place = Place(options.out.resolve())
    try:
        place.runtime.mkdir(parents=True, exist_ok=True)
        place.store.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(options.out), "give another --out"
        ) from None
    return place


def _storages(options: DemoOptions, measured: Storage) -> list[Storage]:
    emulated = Storage(
        f"emulated {options.nvme}",
        "emulated",
        {"backend": "emulated", "inner": "posix", "direct": False, "nvme": options.nvme,
         "busy_spin": True, "seed": options.seed},
    )  # fmt: skip
    return [one for one in (measured, emulated) if one.provenance in options.storages]


def _warm_page_cache(place: Place) -> None:
    """The emulated drive's bytes come from the page cache: a cold page would be slower than the
    drive that is emulated, and the daemon counts every I/O that came later than the model says."""
    with place.store.open("rb", buffering=0) as store:
        while store.read(READ_BYTES):
            pass


def _describe(options: DemoOptions, workload: Workload) -> dict[str, Any]:
    return {
        **describe(options, workload),
        "buffer_ratio": options.buffer_ratio,
        "slot_count": options.slot_count,
        "window_tokens": options.window_tokens,
        "nvme": options.nvme,
    }
