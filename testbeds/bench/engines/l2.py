"""`offstage bench l2`: LMCache's own bench of a second level, of the tier and of LMCache's files.

LMCache's program drives each adapter, and verifies every byte. Adapters take turns, each turn over
an empty folder or a daemon that has just started, and both keep what they are given alike: in the
page cache, or past it, and in neither case flushed.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.beds.daemon import serve, write_config
from offstage.testbeds.beds.said import ask

__all__ = ["ADAPTERS", "STATES", "bench_l2", "rates_of"]

ADAPTERS = {"fs": "", "plugin": "OffstageL2", "native_plugin": "NativeClient"}
"""By LMCache's name of the kind, the class of ours."""
STATES = {"page cache": False, "direct": True}
"""What is read and written, and whether it passes the page cache by."""
AIM = 1.5
WAIT_S = 300.0
OBJECTS_MIN_BYTES = 1 << 30
ALIGN_BYTES = 4096


def bench_l2(
    program: Path,
    *,
    folder: Path | None,
    size_kib: int,
    in_flight: int,
    rounds: int,
    turns: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`program`: LMCache's `lmcache`. MB/s of each adapter, operation and turn. BadInput: there is
    no such program; RunFailed: it failed, or did not verify what it loaded."""
    if not program.is_file():
        raise BadInput("no program of LMCache", str(program), "give its environment's bin/lmcache")
    words = [
        "--num-keys",
        "1",
        "--in-flight",
        str(in_flight),
        "--data-size-kb",
        str(size_kib),
        "--rounds",
        str(rounds),
        "--no-skip-verify",
        "--lookup-max-hit-rate",
        "1.0",
        "--format",
        "json",
    ]
    stored = 4 * size_kib * 1024 * in_flight * (rounds + 1)
    rates: dict[str, dict[str, dict[str, list[float]]]] = {}
    for state, direct in STATES.items():
        of_state = rates[state] = {name: {} for name in ADAPTERS}
        for turn in range(turns):
            for name in ADAPTERS:
                say(f"{state}, turn {turn + 1} of {turns}: {name}")
                with (
                    tempfile.TemporaryDirectory(dir=folder, prefix="offstage-l2-") as place,
                    _adapter(name, Path(place), stored, direct) as spec,
                ):
                    align = ["--l1-align-bytes", str(ALIGN_BYTES)] if direct else []
                    found = _run(program, [*words, *align, "--l2-adapter", json.dumps(spec)])
                for operation, rate in rates_of(found, rounds * in_flight, size_kib, name).items():
                    of_state[name].setdefault(operation, []).append(rate)
    medians = {
        state: {
            name: {operation: statistics.median(all_of) for operation, all_of in one.items()}
            for name, one in each.items()
        }
        for state, each in rates.items()
    }
    ratios = {
        state: {
            name: {operation: one[operation] / each["fs"][operation] for operation in one}
            for name, one in each.items()
            if name != "fs"
        }
        for state, each in medians.items()
    }
    return {
        "provenance": "measured",
        "size_kib": size_kib,
        "in_flight": in_flight,
        "rounds": rounds,
        "turns": turns,
        "mb_per_s": rates,
        "median_mb_per_s": medians,
        "over_files": ratios,
        "aim": AIM,
        "aim_reached": min(
            rate for each in ratios.values() for one in each.values() for rate in one.values()
        )
        >= AIM,
    }


def rates_of(said: str, objects: int, size_kib: int, adapter: str) -> dict[str, float]:
    """MB/s by operation, of the median round, out of what LMCache prints. RunFailed: not all were
    stored, found, loaded and verified."""
    begin, where = said.find("\n{"), f"lmcache bench l2, {adapter}"
    if "keys data verified OK" not in said or begin < 0:
        raise RunFailed("what was loaded was not verified", where, "run it by itself")
    try:
        return _rates(json.JSONDecoder().raw_decode(said[begin + 1 :])[0], objects, size_kib, where)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunFailed(
            f"its figures are in another form ({type(error).__name__}: {error})",
            where,
            "give another release of LMCache",
        ) from None


def _rates(found: Any, objects: int, size_kib: int, where: str) -> dict[str, float]:
    rates = {}
    for row in (row for name, row in found["metrics"].items() if "op_" in name):
        if row["operation"] != "Lookup" and row["total_success"] != objects:
            raise RunFailed(
                f"{row['operation']}: {row['total_success']} of {objects} objects",
                where,
                "run it by itself",
            )
        if row["operation"] != "Lookup":
            size_mb = row["keys_per_round"] * size_kib * 1024 / 1e6
            rates[row["operation"].lower()] = 1e3 * size_mb / row["duration_p50_ms"]
    return rates


@contextmanager
def _adapter(name: str, place: Path, stored: int, direct: bool) -> Iterator[dict[str, Any]]:
    """What LMCache is told of it; a daemon ends with the block."""
    if name == "fs":
        yield {"type": name, "base_path": str(place / "files"), "use_odirect": direct}
        return
    write_config(
        place / "daemon.toml",
        {
            "daemon": {
                "endpoint": f"ipc://{place}/control",
                "runtime_dir": str(place / "run"),
                "metrics_endpoint": "",
            },
            "arena": {"size": "256MiB", "payload": "128KiB", "layers": 1},
            "storage": {
                "path": str(place / "store"),
                "size": max(OBJECTS_MIN_BYTES, stored),
                "direct": direct,
            },
            "store": {"durable": False, "segment": "32MiB"},
            "limits": {"sessions": 256, "context_tokens": 65536, "chunks": 1 << 17},
        },
        "default",
    )
    with serve(place / "daemon.toml", place / "daemon.log") as tier:
        yield {
            "type": name,
            "module_path": "offstage.host.connectors.lmcache",
            "class_name": ADAPTERS[name],
            "adapter_params": {
                "endpoint": tier.endpoint,
                "weights_id": "none",
                "layout": "bytes",
                "runtime_dir": str(tier.ready["runtime_dir"]),
            },
        }


def _run(program: Path, words: list[str]) -> str:
    path = os.pathsep.join(one for one in sys.path if one)
    said, _ = ask(
        [str(program), "bench", "l2", *words],
        "lmcache bench l2",
        "run it by itself",
        WAIT_S,
        environ=os.environ | {"PYTHONPATH": path},
    )
    return said.decode(errors="replace")
