"""A decision log of sessions that decode in virtual time, and the folder that a recorder leaves."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offstage.asic_model.trace import Trace
from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.moments import MOMENT
from offstage.bindings.sim import DecodePlan, decode, populate
from offstage.bindings.storage import preset

__all__ = ["STEPS", "WIDTH", "moments", "recorded", "written"]

STEPS, LAYERS, BLOCKS, WIDTH = 24, 2, 64, 8


@lru_cache(maxsize=8)
def recorded(prefetchers: str = "window+ema", sessions: int = 2) -> bytes:
    """The log of sessions that decode over a modelled drive."""
    config = CoreConfig(
        slot_count=48 * sessions,
        chunk_max=256,
        session_chunk_max=BLOCKS + 8,
        layer_count=LAYERS,
        session_max=sessions,
        block_size_bytes=65536,
        io_max=32,
        queue_max=256,
        demand_max=WIDTH,
        log_size_bytes=1 << 22,
    )
    core = Core(config, Policy(prefetchers, "score", window_blocks=4, degree_max=4))
    tenant = core.tenant_add(0, b"k" * 16, 48 * sessions)
    opened = []
    for number in range(sessions):
        opened.append(core.session_open(0, SessionConfig(tenant, WIDTH, step_ns=300_000)))
        populate(core, opened[-1], BLOCKS, content=number)
    draw = np.random.default_rng(7)
    rows = sessions * STEPS * LAYERS
    phase = draw.random((sessions, 1, LAYERS, BLOCKS))
    turn = phase + np.arange(STEPS).reshape(1, STEPS, 1, 1) / STEPS
    scores = (30_000 * (1 + np.sin(2 * np.pi * turn))).astype(np.int64)
    chosen = np.argsort(-scores.reshape(rows, BLOCKS), axis=1)[:, :WIDTH]
    decode(
        core,
        DecodePlan(
            tuple(opened),
            STEPS,
            np.arange(rows + 1, dtype=np.uint64) * WIDTH,
            np.sort(chosen, axis=1).astype(np.uint32).ravel(),
            scores=scores.astype(np.uint16),
            selected_count=WIDTH,
            compute_ns=30_000,
            nvme=preset("gen5-tlc").params,
        ),
    )
    return core.log()


def written(tmp_path: Path, log: bytes, **record: object) -> Path:
    """Write a folder like one that the recorder leaves."""
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    (folder / "decisions.log").write_bytes(log)
    (folder / "record.json").write_text(json.dumps({"storage": "emulated gen5-tlc", **record}))
    return folder


def moments(trace: Trace) -> NDArray[np.void]:
    """Moments of a log as a reactor with known costs leaves them: a turn takes 5 us a command, 700
    ns a demand, 8 ns a score, 4 us a read submitted, 6 us one that ended, 60 us to wake the drive,
    in every second turn, 20 more in every fourth, and 9 us after a rest, in every third. One turn
    in five has a window in which the reactor was away, and took 50 times as long."""
    rows = []
    for number, one in enumerate(trace.fetches):
        command = np.zeros(1, MOMENT)
        command["kind"], command["session"], command["layer"] = 1, one.session, one.layer
        command["commands"], command["begun"] = 1, one.demands - one.hits
        command["demands"], command["scores"] = one.demands - number % 3, one.scores + number % 7
        at_ns, answered_ns = one.at_ns + 10**6, one.answered_ns + 10**6
        command["at_ns"][0, :4] = at_ns - 20_000, at_ns, at_ns, answered_ns
        turn = np.zeros(1, MOMENT)
        turn["kind"] = 2
        for key in ("commands", "demands", "scores"):
            turn[key] = command[key]
        turn["begun"], turn["ended"], turn["starts"] = 1 + number % 4, 1 + number % 5, number % 2
        turn["wakes"] = number % 4 == 1
        away = 50 if number % 5 == 4 else 1
        turn["rested_us"] = 2_000 * (number % 3 == 0)
        took = (
            5_000
            + 9_000 * (number % 3 == 0)
            + 700 * int(command["demands"][0])
            + 8 * int(command["scores"][0])
        )
        issued = 4_000 * turn["begun"][0] + 60_000 * turn["starts"][0]
        issued += 20_000 * turn["wakes"][0]
        turn["at_ns"][0, :3] = 6_000 * turn["ended"][0], took, issued
        turn["at_ns"] *= away
        window = np.zeros(1, MOMENT)
        window["kind"], window["commands"] = 3, 1
        window["at_ns"][0, :2] = 40_000 * away, 40_000
        rows += [command, turn, window]
    for one in trace.reads:
        read = np.zeros(1, MOMENT)
        read["cause"], read["session"], read["layer"] = one.cause, one.session & 0xFFFF, one.layer
        ends = [one.at_ns, one.at_ns, one.at_ns, one.ended_ns, one.ended_ns, one.ended_ns]
        read["at_ns"][0] = np.array([*ends, one.ended_ns]) + 10**6
        rows.insert(-3, read)
    return np.concatenate(rows)
