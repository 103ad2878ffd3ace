"""The tables of README.md, by the laboratory: `python figures.py OUT`. Between them it prints the
means over the texts at 8K, as docs/cmx-128k.md has them, for k of 32 and of 16, and its table of
the longer ones.

`python figures.py OUT FULL` prints the means of the full captures in FULL instead, and by how much
the reduced ones differ where both have the same steps. Needs Offstage, and no model.
"""

import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from offstage_selections import scores

import offstage
from offstage.testbeds.lab.results.summary import PointSummary
from offstage.testbeds.workloads.selections.scores_file import open_capture

HERE = Path(__file__).resolve().parent
DATA = HERE / "offstage_selections/data"

LONG = ("-32k", "-128k")
"""How the names of texts beyond the model's own context end."""

BUDGETS = ((1300, 32, 4.0), (1300, 16, 4.0), (800, 32, 8.0))
"""Reads in thousandths of those of LRU at 2 k, k, and buffer over k."""

BUDGETS_PERMILLE = (600, 800, 1000, 1150, 1300, 1600, 2000)
"""Of the curve, reads over those of LRU at 2 k."""

HEADS = "-heads"
"""How the name of a file with KV heads apart ends."""

T_OF_EIGHT = 2.365
"""Student's t of a 95 % interval over eight texts."""


def points(
    file: Path, out: Path, pools: Iterable[float] = (0.0, 1.0), **more: object
) -> list[PointSummary]:
    """Every setting of selections.toml on one text; `more`: changes, with `__` for a dot."""
    changes = {
        "workload.file": str(file),
        "geometry.block_tokens": open_capture(file).header.block_tokens,
        "sweep": {"tier.hbm_pool_over_k": list(pools)},
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return offstage.run(HERE / "selections.toml", out=out, changes=changes).points


def cell(point: PointSummary) -> str:
    """Non-trivial hits in per cent, and the reads over those of LRU at 2 k."""
    assert point.nontrivial_hit is not None and point.traffic_vs_reference is not None
    return f"{100 * point.nontrivial_hit.value:.1f} at {point.traffic_vs_reference.value:.2f}"


def bound(point: PointSummary, name: str) -> str:
    """Non-trivial hits of a bound."""
    found = next(one.nontrivial_hit for one in point.bounds if one.name == name)
    assert found is not None
    return f"{100 * found.value:.1f}"


def rows(text: str, found: list[PointSummary]) -> list[str]:
    """The lines of a text: its policies, and the best without prefetch."""
    found = sorted(found, key=lambda one: (one.info.hbm_pool_over_k, one.info.buffer_over_k))
    policies = list(dict.fromkeys(one.info.policy for one in found))
    lines = []
    for policy in policies:
        cells = [cell(one) for one in found if one.info.policy == policy]
        lines.append(f"| {text} | `{policy}` | " + " | ".join(cells) + " |")
    first = [one for one in found if one.info.policy == policies[0]]
    lines.append(
        f"| {text} | *Belady* | " + " | ".join(bound(one, "belady") for one in first) + " |"
    )
    return lines


def differences(one: list[PointSummary], other: list[PointSummary]) -> list[float]:
    """Of the hits at each setting, in percentage points."""
    hits = []
    for side in (one, other):
        hits.append({repr(point.info): point.nontrivial_hit for point in side})
    assert hits[0].keys() == hits[1].keys()
    pairs = ((hits[0][key], hits[1][key]) for key in hits[0])
    return [100 * (a.value - b.value) for a, b in pairs if a is not None and b is not None]


def long_rows(text: str, found: list[PointSummary]) -> list[str]:
    """The page's lines of a long text: the model's perplexity, and at B = 4 k hits and reads of
    each policy, without a pool and behind one of k."""
    perplexity = open_capture(DATA / f"{text}.parquet").header.parameters["perplexity"]
    lines = []
    for policy in dict.fromkeys(one.info.policy for one in found):
        sides = {
            one.info.hbm_pool_over_k: cell(one)
            for one in found
            if one.info.policy == policy and one.info.buffer_over_k == 4
        }
        lines.append(f"| {text} | {perplexity:.1f} | `{policy}` | {sides[0.0]} | {sides[1.0]} |")
    return lines


def files(folder: Path = DATA) -> list[Path]:
    """Of whole texts, heads pooled."""
    return [one for one in sorted(folder.glob("*.parquet")) if not one.stem.endswith(HEADS)]


def means(out: Path, k: int, folder: Path = DATA) -> list[str]:
    """A row for each buffer and policy, over the texts at 8K: hits with the interval, the least
    text, reads and the most of them, without a pool and behind one of k."""
    found: dict[tuple[float, str, float], list[tuple[float, float]]] = {}
    for path in files(folder):
        if path.stem.endswith(LONG):
            continue
        changes = {"selection__k_blocks": k, "tier__buffer_over_k": [4.0, 8.0]}
        for point in points(path, out / f"{path.stem}-{k}", **changes):
            hit, traffic, info = point.nontrivial_hit, point.traffic_vs_reference, point.info
            if info.buffer_over_k >= 4 and hit is not None and traffic is not None:
                key = (info.buffer_over_k, info.policy, info.hbm_pool_over_k)
                found.setdefault(key, []).append((100 * hit.value, traffic.value))
    lines = []
    for buffer, policy, pool in found:
        if pool == 0.0:
            sides = [_mean(found[buffer, policy, side]) for side in (0.0, 1.0)]
            lines.append(f"| `{policy}` | {buffer:g}k | {sides[0]} | {sides[1]} |")
    return lines


def spent(text: Path, out: Path, permille: int, k: int, buffer: float) -> list[PointSummary]:
    """`lookahead-measured` with a budget of reads, without a pool and behind one of k."""
    policy = {"use": "lookahead-measured", "parameters": {"traffic_permille_max": permille}}
    more = {"selection__k_blocks": k, "tier__buffer_over_k": [buffer], "policy": [policy]}
    found = points(text, out / f"{text.stem}-{k}-{buffer:g}-{permille}", **more)
    own = [one for one in found if one.info.policy.startswith("lookahead-measured")]
    return sorted(own, key=lambda one: one.info.hbm_pool_over_k)


def budgeted(text: Path, out: Path) -> str:
    """A row of a text: at 4k with the policy's own budget, for k of 32 and of 16, and at 8k with
    one of 0.8 for k of 32."""
    cells = []
    for permille, k, buffer in BUDGETS:
        cells += [cell(one) for one in spent(text, out, permille, k, buffer)]
    return f"| {text.stem} | " + " | ".join(cells) + " |"


def curve(texts: list[Path], out: Path) -> list[str]:
    """A row for each budget, at k = 32 and B = 4k: mean hits and reads over the texts."""
    lines = []
    for permille in BUDGETS_PERMILLE:
        sides = zip(*(spent(text, out, permille, 32, 4.0) for text in texts), strict=True)
        cells = []
        for side in sides:
            hits = [100 * one.nontrivial_hit.value for one in side if one.nontrivial_hit]
            reads = [one.traffic_vs_reference.value for one in side if one.traffic_vs_reference]
            cells.append(f"{statistics.mean(hits):.1f} at {statistics.mean(reads):.2f}")
        lines.append(f"| {permille / 1000:g} | " + " | ".join(cells) + " |")
    return lines


def _mean(texts: list[tuple[float, float]]) -> str:
    hits, reads = zip(*texts, strict=True)
    half = T_OF_EIGHT * statistics.stdev(hits) / len(hits) ** 0.5
    return (
        f"{statistics.mean(hits):.1f} ± {half:.1f} | {min(hits):.1f} | "
        f"{statistics.mean(reads):.2f}× | {max(reads):.2f}×"
    )


def within(out: Path, folder: Path) -> list[str]:
    """A row of means, as of `means`, for each budget, k and buffer of `BUDGETS`."""
    lines = []
    for permille, k, buffer in BUDGETS:
        found = [spent(text, out, permille, k, buffer) for text in files(folder)]
        sides = []
        for points_of in zip(*found, strict=True):
            pairs = [(one.nontrivial_hit, one.traffic_vs_reference) for one in points_of]
            sides.append(
                _mean([(100 * hit.value, read.value) for hit, read in pairs if hit and read])
            )
        lines.append(f"| k = {k}, {permille / 1000:g}× | {buffer:g}k | {' | '.join(sides)} |")
    return lines


def by_head(text: str, k: int = 32) -> str:
    """A row of a file with KV heads apart, in per cent of k: what the heads of a layer select
    together, what a head keeps of its last selection, and what of it was foretold; the last two
    for heads pooled beside."""
    own, told = scores(text), scores(text, "foretold_mass")
    together = _selected(own, k).any(axis=2).sum(axis=-1).mean() / k
    cells = [f"{100 * together:.0f}"]
    for mass, ahead in ((own, told), (own.max(axis=2), told.max(axis=2))):
        chosen, guessed = _selected(mass, k), _selected(ahead, k)
        kept = (chosen[1:] & chosen[:-1]).sum(axis=-1).mean() / k
        foretold = (chosen & guessed).sum(axis=-1).mean() / k
        cells.append(f"{100 * kept:.1f} | {100 * foretold:.1f}")
    return f"| {text} | " + " | ".join(cells) + " |"


def _selected(mass: np.ndarray, k: int) -> np.ndarray:
    """Whether a block is of the k with the highest scores: bool, the shape of `mass`."""
    best = np.argsort(-mass, axis=-1, kind="stable")[..., :k]
    found = np.zeros(mass.shape, bool)
    np.put_along_axis(found, best, True, axis=-1)
    return found


def compared(out: Path, full: Path) -> None:
    """Print the means over the texts of `full`, and what reducing them changed."""
    for k in (32, 16):
        print("\n".join([f"k = {k}", *means(out / "full", k, full)]))
    print("\n".join(["within a budget", *within(out / "full", full)]))
    for whole in files(full):
        small = DATA / whole.name
        if open_capture(small).sessions[0].steps == open_capture(whole).sessions[0].steps:
            apart = differences(points(small, out / "small"), points(whole, out / "whole"))
            print(f"{whole.stem}: reduced less full {min(apart):+.3f} to {max(apart):+.3f}")


def main() -> None:
    """Print the tables."""
    out = Path(sys.argv[1])
    if sys.argv[2:]:
        compared(out, Path(sys.argv[2]))
        return
    long = []
    for path in files():
        found = points(path, out / path.stem)
        print("\n".join(rows(path.stem, found)))
        if path.stem.endswith(LONG):
            long += long_rows(path.stem, found)
    for k in (32, 16):
        print("\n".join([f"k = {k}", *means(out, k)]))
    print("\n".join(["beyond 8K", *long]))
    judges = [one for one in files() if one.stem.startswith("judge-")]
    print("\n".join(budgeted(text, out) for text in judges))
    short = [one for one in judges if not one.stem.endswith(LONG)]
    print("\n".join(["budgets", *curve(short, out)]))
    print("\n".join(by_head(one.stem) for one in sorted(DATA.glob(f"*{HEADS}.parquet"))))


if __name__ == "__main__":
    main()
