"""`offstage bench sparse`: decoding from drives, against context, k and the number of drives.

Model: the first value of each axis is the base; the others are run one axis at a time around it.
Live a small geometry decodes on this machine's disk and on a device model in the loop, each beside
the laboratory's run of the same setting. In virtual time a whole model decodes with more and more
sessions on one core of a DPU, until tokens wait for the stated share of their time. With captures
the selections are a real model's, and in virtual time one session is run, beside a drawn one.

What can fail: `BadInput` for an axis or a name; RunFailed of a live run.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import preset
from offstage.host.model.models import geometry
from offstage.testbeds.bench.sparse.live import LIVE_MODEL, live_points
from offstage.testbeds.bench.sparse.replay import captured
from offstage.testbeds.bench.sparse.result import Pair, Replay, SparseResult
from offstage.testbeds.bench.sparse.virtual import Setting, carried, decoded

__all__ = ["DISK", "Axes", "bench_sparse"]

DISK = "disk"
"""This machine's, among the storages of live runs."""
REAL_STEPS, REAL_PACE = 64, "20ms"
LOOP_STEPS, LOOP_PACE = 12, "2ms"
"""Of four layers: half a millisecond each, as of Llama-3-70B at 40 ms."""
VALUES_MAX = 8
WORK_MAX = 58
"""Characters of the folder's path: the daemon's sockets below it have 107 in all."""

Say = Callable[[str], None]


class Axes(msgspec.Struct, frozen=True, kw_only=True):
    """The values of each axis, the base first. `captures`: in place of contexts."""

    contexts: Sequence[int] = (131_072, 65_536, 32_768)
    selected: Sequence[int] = (32, 16, 64)
    drives: Sequence[int] = (1, 2, 4)
    captures: Sequence[Path] = ()

    def check(self) -> None:
        """BadInput for an empty axis, a value twice, or one out of range."""
        for values, low, high, where in (
            (self.contexts, 4_096, 1 << 20, "--context"),
            (self.selected, 6, 4_096, "--select"),
            (self.drives, 1, 64, "--drives"),
        ):
            if not 0 < len(values) <= VALUES_MAX or len(set(values)) < len(values):
                raise BadInput(
                    f"{len(values)} values, or one twice", where, f"give 1 to {VALUES_MAX} of them"
                )
            if bad := [one for one in values if not low <= one <= high]:
                raise BadInput(f"{bad[0]:,}", where, f"give {low:,} to {high:,}")
        if len(self.captures) > VALUES_MAX or len(set(self.captures)) < len(self.captures):
            raise BadInput(
                f"{len(self.captures)} files, or one twice",
                "--capture",
                f"give at most {VALUES_MAX}",
            )

    def around(self, base: Setting, *, live: bool = False) -> Iterator[Setting]:
        """The base, and each other value alone. `live`: several drives where there is a device."""
        change = msgspec.structs.replace
        base = change(base, selected=self.selected[0], drives=self.drives[0] if base.device else 1)
        places = [captured(base, one) for one in self.captures]
        base, *others = places or [change(base, context_tokens=one) for one in self.contexts]
        yield base
        yield from others
        yield from (change(base, selected=one) for one in self.selected[1:])
        if base.device or not live:
            yield from (change(base, drives=one) for one in self.drives[1:])


def bench_sparse(
    *,
    axes: Axes,
    storages: Sequence[str],
    base: Setting,
    waits: float,
    dilation: int,
    virtual: bool = True,
    work: Path = Path(),
    say: Say = lambda line: None,
) -> SparseResult:
    """Every setting around the base. `storages` of live runs: `disk`, or presets of drives, which
    serve through the base's device. `waits`: the stated share; `work`: where the live files are."""
    axes.check()
    if not 0 < waits < 1:
        raise BadInput(
            f"tokens that wait {100 * waits:g} % of their time", "--waits", "give 1 to 99"
        )
    base.spec(1)  # its errors before minutes of runs
    work = work.resolve()
    if storages and len(str(work)) > WORK_MAX:
        raise BadInput("too long a path for sockets", f"--work {work}", "give a shorter one")
    for name in storages:
        if name != DISK:
            preset(name)
    found = SparseResult(
        provenance="measured, emulated and modelled" if storages else "modelled",
        seed=base.seed,
        model=base.model,
        live_model=LIVE_MODEL,
        device=base.device,
        drive=base.drive,
        policy=base.policy,
        block_bytes=base.spec(1).block_bytes,
        layers=geometry(base.model).layer_count,
        waits=waits,
        load_before=os.getloadavg()[0] if storages else None,
        pairs=[],
        points=[],
        carried=[],
    )
    with tempfile.TemporaryDirectory(
        prefix="offstage-sparse-", dir=work if storages else None
    ) as folder:
        settings = [one for name in storages for one in axes.around(_live(base, name), live=True)]
        for setting, point in live_points(settings, dilation, Path(folder)):
            found.pairs.append(Pair(point, decoded(setting, 1) if setting.device else None))
            say(f"live, {_said(setting)}: {point.stall_ms_mean:.3f} ms a token")
    for setting in axes.around(base) if virtual else ():
        if setting.capture:
            drawn = decoded(msgspec.structs.replace(setting, capture=""), 1)
            found.replays.append(Replay(decoded(setting, 1), drawn))
            say(f"{_said(setting)}: {found.replays[-1].point.stall_ms_mean:.3f} ms a token")
            continue
        points, one = carried(setting, waits)
        found.points += points
        found.carried.append(one)
        say(f"{_said(setting)}: {one.sessions:.1f} sessions")
    return found


def _live(base: Setting, storage: str) -> Setting:
    """The base of live runs on a storage."""
    change = msgspec.structs.replace
    if storage == DISK:
        return change(base, model=LIVE_MODEL, device="", steps=REAL_STEPS, time_per_token=REAL_PACE)
    return change(base, model=LIVE_MODEL, drive=storage, steps=LOOP_STEPS, time_per_token=LOOP_PACE)


def _said(one: Setting) -> str:
    where = f"{one.drives} {one.drive}" if one.device else DISK
    what = f"{one.captured}, " if one.capture else ""
    return f"{what}{one.context_tokens:,} tokens, k {one.selected}, {where}"
