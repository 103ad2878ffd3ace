"""What each device serves at a stated load of GPUs: tokens, dollars and joules, with intervals.

Model: a GPU decodes the run's batch over and over; so many GPUs share one device
(`asic_model/load.py`). An interval holds nine in ten draws of the device's parameters, and the
model's own error: every time of the device is taken as many times longer, and shorter, as the model
of the measured machine is off in mean fetch latency on this run. Dollars and joules are those of
the GPUs and of the device with its drives, by `testbeds/prices/`.

What can fail: `BadInput` for a load that cannot be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from offstage.asic_model.load import Work, serve
from offstage.asic_model.parameters import Preset
from offstage.asic_model.trace import Trace, read_trace
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known
from offstage.bindings.units import parse_time
from offstage.host.model.models import geometry
from offstage.testbeds.asic.price import price
from offstage.testbeds.prices import Catalog, catalog
from offstage.testbeds.report.compare.columns import LoadFigures, Range
from offstage.testbeds.report.compare.recorded import Recorded, find_runs, read_run

__all__ = ["FEW_DRAWS", "Load", "figures_at", "parse_load", "spread_of"]

KEYS = ("gpus", "sessions", "tenants", "model", "pace", "from")
WHERE = "--load"
GPUS_MAX, SESSIONS_MAX, TENANTS_MAX = 1_000_000, 10_000, 64
GPU = "h100"
POINTS = 33
BEYOND = 4.0
"""A curve ends at so many times the last knee."""
MEGA = 1e6
LOW, HIGH = 0.05, 0.95
FEW_DRAWS = 20
"""Fewer draws have no 5th percentile: their range covers all of them."""


@dataclass(frozen=True)
class Load:
    """A load. gpus, sessions: 0 for the baseline's knee, and for the run's own; model: empty for
    the run's own; pace_s: the GPU's time for a step; 0: what the sessions announced, or else the
    host's own in the log; source: another run whose decisions are a GPU's; empty: the run's."""

    gpus: int = 0
    sessions: int = 0
    tenants: int = 1
    model: str = ""
    pace_s: float = 0.0
    source: str = ""

    def each(self) -> "list[Load]":
        """The same load with the decisions of every run of its source."""
        runs = find_runs(Path(self.source)) if self.source else []
        return [replace(self, source=str(run)) for run in runs] or [self]

    def trace(self, trace: Trace, run: Recorded) -> Trace:
        """The run's decisions, or those of the source, on the blocks of the model; the run's own
        without either."""
        if self.source:
            run = read_run(find_runs(Path(self.source))[0])
            trace = read_trace(run.path)
        if not self.model:
            return trace
        if trace.record.layers:
            raise BadInput(
                f"the run reads single entries of {trace.record.model}",
                f"{WHERE} model={self.model}",
                "leave the model out: the load is of that model's layers",
            )
        tokens = run.block_tokens
        if not tokens:
            raise BadInput(
                "the run does not say how many tokens a block has",
                f"{WHERE} model={self.model}",
                "record the host's summary beside it, or leave the model out",
            )
        shape = geometry(self.model)
        size = max(512, round(shape.bytes_per_token() * tokens / shape.layer_count))
        heads = max(one.kv_heads for one in shape.layers)
        return replace(trace, config=replace(trace.config, block_size_bytes=size), heads=heads)

    def layers(self, trace: Trace) -> int:
        """Layers of the model that a device is asked for."""
        if self.model:
            return len(geometry(self.model).layers)
        return trace.record.layers or trace.config.layer_count

    def of(self, work: Work, trace: Trace) -> Work:
        """The work of one GPU's step under this load."""
        layers = self.layers(trace) / trace.config.layer_count
        sessions = self.sessions / work.tokens if self.sessions else 1.0
        announced = [one for one in trace.session_ns.values() if one > 0]
        pace_s = self.pace_s or (max(announced) / 1e9 if announced else 0.0)
        if trace.record.layers and not self.pace_s:
            pace_s *= layers  # drawn layers run at their share of a token's time
        return work.scaled(sessions, layers, pace_s)

    def said(self, gpus: int, work: Work, trace: Trace) -> str:
        """In words. `trace`: the load's own."""
        own = f"the model {self.model}" if self.model else "the run's model"
        if not self.model and trace.record.model:
            layers, all_layers = self.layers(trace), geometry(trace.record.model).layer_count
            drawn = layers < all_layers and not trace.record.layers
            own = f"{f'{layers} layers of ' if drawn else ''}the model {trace.record.model}"
        ms, count = 1e3 * work.host_s, round(work.tokens)
        if trace.record.layers and trace.record.context_tokens:
            own += f" with {trace.record.context_tokens:,} tokens"
        said = (
            f"{gpus:,} GPU{'s' * (gpus != 1)}, each decoding {count:,} session{'s' * (count != 1)} "
            f"of {own} at {ms:.3g} ms of GPU time per token"
        )
        if trace.record.laboratory:
            return f"{said}, with the decisions of the laboratory ({trace.record.laboratory})"
        return f"{said}, with the decisions of {trace.name}" if self.source else said


def parse_load(text: str, where: str = WHERE) -> Load:
    """From `gpus=64,sessions=8,...`. BadInput for an unknown key or a number out of range; `where`:
    what it names as the place."""
    given: dict[str, str] = {}
    for piece in filter(None, (one.strip() for one in text.split(","))):
        key, equals, value = piece.partition("=")
        check_known(key, KEYS, where)
        if not equals or not value or key in given:
            raise BadInput(f"{piece!r}", where, "write each once, such as gpus=64,sessions=8")
        given[key] = value
    if "model" in given:
        geometry(given["model"])
    pace_ns = parse_time(given["pace"], f"{where} pace") if "pace" in given else 0
    if "pace" in given and not pace_ns:
        fix = "give one such as 20ms, or leave it out for the run's own"
        raise BadInput("a token in no time", f"{where} pace", fix)
    return Load(
        gpus=_count(given, "gpus", GPUS_MAX, 0, where),
        sessions=_count(given, "sessions", SESSIONS_MAX, 0, where),
        tenants=_count(given, "tenants", TENANTS_MAX, 1, where),
        model=given.get("model", ""),
        source=given.get("from", ""),
        pace_s=pace_ns / 1e9,
    )


def _count(given: dict[str, str], key: str, most: int, otherwise: int, where: str) -> int:
    if key not in given:
        return otherwise
    text = given[key]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise BadInput(f"{key}={text}", where, f"give a whole number from 1 to {most:,}")
    return int(text)


def figures_at(
    gpus: int,
    last: float,
    preset: Preset,
    work: Work,
    spread: Sequence[tuple[Work, Work]],
    error: float,
) -> LoadFigures:
    """One device at a load, and its curve up to `BEYOND` times `last` GPUs. `spread`: draws, each
    with the preset's own work on the same decisions; `error`: the model's, 1 or more."""
    at = serve(work, gpus)
    factors = [
        serve(drawn, gpus).tokens_per_s / max(serve(base, gpus).tokens_per_s, 1e-12)
        for drawn, base in spread
    ]
    low, high = spread_of([*factors, 1.0])  # the preset is one of its draws
    tokens = Range(
        at.tokens_per_s,
        min(at.tokens_per_s, low * serve(work.slower(error), gpus).tokens_per_s),
        max(at.tokens_per_s, high * serve(work.slower(1 / error), gpus).tokens_per_s),
    )
    known = catalog()
    knee = work.knee_gpus
    ends = np.geomspace(1.0, max(BEYOND * last, 2.0 * gpus, 8.0), POINTS).tolist()
    curve = [serve(work, one) for one in ends]
    return LoadFigures(
        gpus=gpus,
        tokens_per_s=tokens,
        token_ms=_inverse(tokens, 1e3 * gpus * work.tokens),
        dollars=_dollars(preset, gpus, tokens, known),
        device_dollars=_dollars(preset, 0, tokens, known),
        joule=_joule(work, gpus, tokens, known),
        device_joule=_joule(work, 0, tokens, known),
        binds=at.binds,
        busiest_share=at.busiest,
        knee_gpus=None if np.isinf(knee) else knee,
        knee_unit=max(work.units, key=lambda name: work.units[name], default=""),
        tokens_per_s_max=None if np.isinf(knee) else work.tokens_per_s_max,
        curve=[(one.gpus, one.tokens_per_s) for one in curve],
    )


def spread_of(factors: Sequence[float]) -> tuple[float, float]:
    """The range of nine in ten of the draws, or of all if few; 1 without draws."""
    if not factors:
        return 1.0, 1.0
    if len(factors) < FEW_DRAWS:
        return min(factors), max(factors)
    low, high = np.quantile(factors, [LOW, HIGH])
    return float(low), float(high)


def _inverse(rate: Range, times: float) -> Range:
    return Range(*(times / max(one, 1e-12) for one in (rate.value, rate.high, rate.low)))


def _dollars(preset: Preset, gpus: int, tokens: Range, known: Catalog) -> Range | None:
    """Of a million tokens: GPUs by the hour, the device spread over its life."""
    device = price(preset, known)
    if device is None:
        return None
    hour, life = known.numbers(GPU)["hour"], known.numbers("serving")["life"]
    per_s = [
        (gpus * getattr(hour, end) + getattr(device, end) / (getattr(life, worse) * life.scale))
        / 3600
        for end, worse in (("value", "value"), ("low", "high"), ("high", "low"))
    ]
    rates = (tokens.value, tokens.high, tokens.low)
    return Range(*(MEGA * one / max(rate, 1e-12) for one, rate in zip(per_s, rates, strict=True)))


def _joule(work: Work, gpus: int, tokens: Range, known: Catalog) -> Range:
    """Of a million tokens: what is drawn all the time, and what a step adds."""
    gpu = known.numbers(GPU)["power"]
    drawn = [
        gpus * own + watt
        for own, watt in zip((gpu.value, gpu.low, gpu.high), work.watt, strict=True)
    ]
    rates = (tokens.value, tokens.high, tokens.low)
    return Range(
        *(
            MEGA * (watt / max(rate, 1e-12) + joule / work.tokens)
            for watt, rate, joule in zip(drawn, rates, work.joule, strict=True)
        )
    )
