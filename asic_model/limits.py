"""What a table of the chip costs that is too small: closed loops with tables of several sizes.

Model: each size is a closed loop of its own, with all else the preset's, beside one in which that
table has room for everything that the run has. A row says what of the hits and of the sharing is
lost, in points, and what is read and written for it. One that decides as the table with room for
everything has no effect, and says so.

What can fail: `BadInput` for a table that is no limit of the chip's decisions, or a preset whose
software keeps it, and as `replay.closed_loop`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from offstage.asic_model.parameters import Preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.result import ChipRun, LimitRow
from offstage.asic_model.trace import Trace
from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import share
from offstage.bindings.settings import check_known

__all__ = ["LIMITS", "check", "limit_rows"]

LIMITS: dict[str, Callable[[Trace], int]] = {
    "scheduler.candidates": lambda trace: trace.config.queue_max,
    "dedup.entries": lambda trace: max(1, trace.named),
}
"""Tables that bound what is decided, each with the entries that a run can fill at most."""


def check(preset: Preset, asked: Mapping[str, Sequence[int]], where: str) -> None:
    """BadInput for a table or a size that cannot be."""
    for name, sizes in asked.items():
        check_known(name, LIMITS, where, "table")
        if preset.kind != "asic":
            raise BadInput(f"{preset.name} keeps its tables in memory", where, "name a chip")
        for size in sizes:
            preset.with_({name: size})


def limit_rows(
    trace: Trace,
    preset: Preset,
    asked: Mapping[str, Sequence[int]],
    *,
    drive: str = "",
    seed: int = 0,
    advance: Callable[[int], None],
) -> Iterator[LimitRow]:
    """For each table a row with room for everything, then one for each size. `advance`: the
    fetches that were run."""
    for name, sizes in asked.items():
        most = LIMITS[name](trace)
        base: ChipRun | None = None
        for size in (None, *sizes):
            chip = preset.with_({name: most if size is None else size})
            run = closed_loop(trace, chip, drive=drive, seed=seed, advance=advance)
            base = base or run
            yield _row(name, size, run, base)


def _row(name: str, size: int | None, run: ChipRun, base: ChipRun) -> LimitRow:
    known, all_known = run.prefixes, base.prefixes
    assert known is not None and all_known is not None
    return LimitRow(
        table=name,
        entries=size,
        hit=share(run.hits, run.demands),
        hit_lost_points=100 * (share(base.hits, base.demands) - share(run.hits, run.demands)),
        reads=run.reads,
        bytes_read=run.bytes_read,
        known=share(known.known, known.named),
        known_lost_points=100 * share(all_known.known - known.known, known.named),
        bytes_written_again=known.bytes_written_again,
        tokens_per_s=run.tokens_per_s,
        has_effect=_decided(run) != _decided(base),
    )


def _decided(run: ChipRun) -> tuple[dict[str, int], dict[str, int], int]:
    return run.ends, run.reads_by_cause, run.prefixes.known if run.prefixes else 0
