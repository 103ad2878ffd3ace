"""Do the benches' tables say reached and missed as the figures say, and fit a terminal?"""

import io

import pytest
from bench_results import CODEC, CORE, FABRIC, LINKS, QOS, STORAGE
from rich.console import Console

from offstage.testbeds.cli.bench_tables import TABLES


@pytest.mark.parametrize(
    ("name", "result", "reached", "missed"),
    [
        ("codec", CODEC, [], []),
        ("fabric", FABRIC, ["64 KiB hit, checksum included"], ["command round trip p50, C"]),
        ("links", LINKS, ["nixl 64 KiB one read"], ["nixl 64 KiB 32 together"]),
        ("storage", STORAGE, ["64 KiB depth 32 bandwidth"], ["64 KiB depth 1, huge latency p50"]),
        (
            "core",
            CORE,
            ["lru on zipf", "decode, ema, 64 of 2048", "lab, 80 by 1,000 steps"],
            ["lru on other"],
        ),
        ("qos", QOS, [], ["Jain's index of bytes by weight"]),
    ],
)
def test_aims_stand_at_their_rows(
    name: str, result: dict[str, object], reached: list[str], missed: list[str]
) -> None:
    table, notes = TABLES[name](result)
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "…" not in out.getvalue() and "seed 1" in notes[0]
    for word, names in (("reached", reached), ("missed", missed)):
        found = [line for line in lines if line.endswith(word)]
        assert len(found) == len(names)
        assert all(line.startswith(start) for line, start in zip(found, names, strict=True))
