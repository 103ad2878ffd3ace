"""Prefill: one daemon, every session's context written once; all runs then read the same store."""

from collections.abc import Mapping
from typing import Any

from offstage.bindings.driver import Driver
from offstage.host.control import Control
from offstage.host.prefill import MissingWriter, compute_context
from offstage.host.session import Context
from offstage.host.sessions import append_chunks
from offstage.testbeds.demo.connect import attached
from offstage.testbeds.demo.options import ARMS, DemoOptions
from offstage.testbeds.demo.place import Place
from offstage.testbeds.demo.progress import Progress
from offstage.testbeds.demo.tier import serve
from offstage.testbeds.demo.workload import Workload, full_chunks

__all__ = ["fill"]


def fill(
    options: DemoOptions,
    workload: Workload,
    place: Place,
    storage: Mapping[str, Any],
    progress: Progress,
) -> dict[int, Context]:
    """Write every session's full chunks; returns what the host keeps of them, by session number.

    A chunk that an earlier session wrote is not written again: the tier says what it has."""
    sessions = workload.plan.sessions
    config = place.config(
        options, "prefill", ARMS[0], storage, workload.plan.stored_bytes, len(sessions)
    )
    layers = options.geometry.layer_count
    progress.start("prefill", sum(len(full_chunks(one)) for one in sessions) * layers)
    contexts: dict[int, Context] = {}
    with (
        serve(config, place.work / "prefill.log") as tier,
        attached(tier.endpoint, place.runtime) as (control, driver),
    ):
        for number, session in enumerate(sessions):
            contexts[number] = _fill_session(
                options, workload, full_chunks(session), control, driver, progress
            )
    return contexts


def _fill_session(
    options: DemoOptions,
    workload: Workload,
    identities: list[int],
    control: Control,
    driver: Driver,
    progress: Progress,
) -> Context:
    layers = options.geometry.layer_count
    handle = control.session_open(select_blocks=options.select_blocks)
    appended = append_chunks(control, handle, identities, layers)
    write = MissingWriter(driver, handle, appended.stored_layers, layers)

    def written(layer: int, first: int, blocks: Any) -> None:
        write(layer, first, blocks)
        progress.advance(len(blocks))

    context = compute_context(workload.material, identities, options.selector, written)
    control.session_close(handle, archive=True)
    return context
