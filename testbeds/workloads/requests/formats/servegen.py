"""ServeGen: a generator of arrivals from the measured rates of many clients (alibaba/ServeGen).

A tar archive of `FOLDER/chunk-N-trace.csv`, one client each, a line for each 600 s: start, requests
a second, coefficient of variation, Gamma or Weibull, and the two parameters of the time between
requests. Used are the active clients, their rates, and the shape of the distribution; the scale is
set so that the mean rate is the recorded one. `servegen:FOLDER` picks a folder; the default is the
first by name. Ten minutes are generated, those whose total rate is the median over all non-empty
ones.

Lengths are drawn from the client's own distributions where the archive has them
(`servegen_lengths`). Without, they are log-normal, with the median and 99th percentile of Azure's
conversation trace of 2023 (1,020 and 4,142 tokens in, 129 and 601 out), half of the variance
between clients and half within one. Such a trace is synthetic, and its notes say so.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import NormalDist, median_low
from typing import IO

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.containers import RATES_END, members
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.formats.servegen_lengths import LENGTHS_END, Lengths

__all__ = ["FORMAT"]

WINDOW_S = 600.0
INPUT_TOKENS = (1_020, 4_142)
OUTPUT_TOKENS = (129, 601)
_RATE_MAX = 1e5
_REQUESTS_MAX = 1 << 23
"""Maximum requests in one window, of all clients; 14,000 a second."""
_SHAPE_MIN = {"Gamma": 1e-4, "Weibull": 1e-2}  # below it, a Weibull's mean is no float
_FILE_BYTES_MAX, _ARCHIVE_BYTES_MAX = 16 << 20, 1 << 29
_EXPECTED = (
    "lines of start (s), requests/s, coefficient of variation, Gamma or Weibull (or nothing), "
    "shape and scale are expected"
)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Rate:
    """One client in one window of time."""

    start_s: float
    per_s: float
    family: str
    shape: float


def _knows(head: Head) -> bool:
    return head.is_tar


def _rate(line: str, where: str) -> _Rate | None:
    """The line's rate, None where the client was idle."""
    fields = line.split(",")
    try:
        if len(fields) != 6:
            raise ValueError
        start_s, per_s, _, shape, scale = (float(fields[i]) for i in (0, 1, 2, 4, 5))
        if not (start_s >= 0 and 0 <= per_s <= _RATE_MAX) or not math.isfinite(start_s):
            raise ValueError
        if not fields[3] or not per_s:
            return None
        if not (_SHAPE_MIN.get(fields[3], math.inf) <= shape < 1e3 and scale > 0):
            raise ValueError
    except ValueError:
        raise BadInput(f"{line[:60]!r} is not a rate", where, _EXPECTED) from None
    return _Rate(start_s, per_s, fields[3], shape)


def _text(file: IO[bytes], where: str) -> bytes:
    data = file.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise BadInput(f"more than {_FILE_BYTES_MAX >> 20} MiB of one client", where, _EXPECTED)
    return data


@dataclass(frozen=True)
class _Client:
    """One client: its rates, and its lengths where the archive has them."""

    rates: list[_Rate]
    lengths: Lengths | None


def _files(source: Source) -> tuple[dict[str, bytes], int]:
    """The files of rates and lengths by their names, and the number of others."""
    path = source.path
    archive = members(path)
    if archive is None:
        raise BadInput("is not a tar archive", str(path), _EXPECTED)
    texts: dict[str, bytes] = {}
    size = others = 0
    for name, file in archive:
        if not name.endswith((RATES_END, LENGTHS_END)):
            others += 1
            continue
        texts[name] = _text(file, f"{path}:{name}")
        size += len(texts[name])
        if size > _ARCHIVE_BYTES_MAX:
            raise BadInput(
                f"more than {_ARCHIVE_BYTES_MAX >> 20} MiB of rates and lengths",
                str(path),
                "make an archive of one folder",
            )
    return texts, others


def _client(texts: dict[str, bytes], name: str, path: Path) -> _Client:
    rates = [
        _rate(line, f"{path}:{name}:{number}")
        for number, line in enumerate(texts[name].decode("utf-8", "replace").splitlines(), 1)
    ]
    beside = name.removesuffix(RATES_END) + LENGTHS_END
    lengths = Lengths(texts[beside], f"{path}:{beside}") if beside in texts else None
    return _Client([rate for rate in rates if rate], lengths or None)


def _clients(source: Source) -> tuple[str, list[_Client], str]:
    """The chosen folder, its clients in order of their names, and the unused parts of the
    archive."""
    path = source.path
    texts, others = _files(source)
    folders: dict[str, list[_Client]] = {}
    for name in sorted(name for name in texts if name.endswith(RATES_END)):
        folder = str(PurePosixPath(name).parent)
        folders.setdefault(folder, []).append(_client(texts, name, path))
    found = {
        name: clients
        for name, clients in folders.items()
        if any(client.rates for client in clients)
    }
    if not found:
        raise BadInput("the archive holds no rate above 0", str(path), _EXPECTED)
    part = source.part or min(found)
    if part not in found:
        raise BadInput(
            f"no folder {part!r}", str(path), f"choose servegen:NAME of {', '.join(sorted(found))}"
        )
    passed = [f"the rates of {name}" for name in sorted(found) if name != part]
    passed += [f"{others:,} file{'s' * (others > 1)} without rates"] if others else []
    tables = {name for one in found[part] if one.lengths for name in one.lengths.others}
    passed += [f"the tables {', '.join(sorted(tables))}"] if tables else []
    passed.append("of each rate the coefficient of variation and the scale")
    return part, found[part], ", ".join(passed)


def _median_window(clients: list[_Client]) -> float:
    total: dict[float, float] = {}
    for client in clients:
        for rate in client.rates:
            total[rate.start_s] = total.get(rate.start_s, 0.0) + rate.per_s
    return median_low((per_s, start_s) for start_s, per_s in total.items())[1]


def _arrivals_s(random: np.random.Generator, rate: _Rate, where: str) -> Array:
    """Times in [0, WINDOW_S) of a renewal process with the recorded rate and shape."""
    mean = rate.shape if rate.family == "Gamma" else math.gamma(1 + 1 / rate.shape)
    times: list[Array] = []
    now_s = 0.0
    while now_s < WINDOW_S:
        count = int(rate.per_s * WINDOW_S * 1.2) + 16
        draw = random.gamma if rate.family == "Gamma" else random.weibull
        steps = draw(rate.shape, size=count) / (mean * rate.per_s)
        times.append(now_s + np.cumsum(steps))
        now_s = float(times[-1][-1])
        if len(times) * count > _REQUESTS_MAX:
            raise BadInput(
                f"{_REQUESTS_MAX:,} draws of {rate.family} of shape {rate.shape} are "
                f"no {WINDOW_S:.0f} s",
                where,
                _EXPECTED,
            )
    all_s = np.concatenate(times)
    return all_s[all_s < WINDOW_S]


def _lengths(
    random: np.random.Generator, client: Array, count: int, quantiles: tuple[int, int]
) -> npt.NDArray[np.int64]:
    median, p99 = quantiles
    sigma = math.log(p99 / median) / NormalDist().inv_cdf(0.99) * math.sqrt(0.5)
    exponent = sigma * (client + random.standard_normal(count))
    tokens: npt.NDArray[np.int64] = np.maximum(1, np.rint(median * np.exp(exponent))).astype("i8")
    return tokens


def _read(source: Source) -> Trace:
    folder, clients, passed = _clients(source)
    start_s = _median_window(clients)
    drawn = WINDOW_S * sum(
        one.per_s for client in clients for one in client.rates if one.start_s == start_s
    )
    if drawn > _REQUESTS_MAX:
        raise BadInput(
            f"about {drawn:,.0f} requests in {WINDOW_S:.0f} s, more than {_REQUESTS_MAX:,}",
            str(source.path),
            "give a folder of fewer clients",
        )
    columns = Columns(None, ordered=False)
    active = with_lengths = 0
    for number, client in enumerate(clients):
        # A client's draws depend on its number alone: adding or removing another changes nothing.
        random = np.random.default_rng((source.seed, number))
        traits = random.standard_normal(2)
        for rate in client.rates:
            if rate.start_s != start_s:
                continue
            active, with_lengths = active + 1, with_lengths + (client.lengths is not None)
            where = f"{source.path}:{folder}, client {number}"
            times_s = _arrivals_s(random, rate, where)
            if client.lengths is not None:
                inputs, outputs = client.lengths.draw(random, rate.start_s, len(times_s))
            else:
                inputs = _lengths(random, traits[0], len(times_s), INPUT_TOKENS)
                outputs = _lengths(random, traits[1], len(times_s), OUTPUT_TOKENS)
            for row in zip(times_s.tolist(), inputs.tolist(), outputs.tolist(), strict=True):
                columns.add(where, *row)
    if not len(columns):
        raise BadInput("no request was drawn", str(source.path), "give another seed or folder")
    notes = (
        f"synthetic: drawn from the rates of {folder} at {start_s:.0f} s, seed {source.seed}",
        *_of_lengths(active, with_lengths),
        f"of the archive these have no effect: {passed}",
    )
    return columns.finish(source.origin(FORMAT, *notes), source.limit)


def _of_lengths(active: int, with_lengths: int) -> Iterator[str]:
    if with_lengths:
        yield f"lengths drawn from those of {with_lengths:,} of {active:,} clients"
    if with_lengths < active:
        whose = "other clients' lengths" if with_lengths else "lengths"
        yield f"{whose} are not from this data set: log-normal as Azure's conversations of 2023"


FORMAT = Format(
    "servegen",
    "ServeGen client rates: a tar archive; arrivals and lengths are drawn from a seed",
    "Apache-2.0 (alibaba/ServeGen)",
    _knows,
    _read,
    drawn=True,
)
