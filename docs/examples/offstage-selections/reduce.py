"""Reduce captures to what a selection is made of: `python reduce.py FULL.parquet REDUCED.parquet`.

Scores of `mass` are pooled over KV heads by their maximum, as the laboratory pools them. Of each
step and layer the best `KEPT` are rounded to eight levels an octave and stay in their order, also
on one level: a selection of k blocks is that of the full capture for every k up to `KEPT`. The
others are rounded to two levels an octave, since averages of scores need them. Of what was
predicted the best `KEPT_FORETOLD` are kept and the others become 0. The result is a file of the
capture format, which the laboratory reads like a full one.
"""

import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from offstage.testbeds.workloads.selections.scores_file import PREDICTED, Capture, open_capture
from offstage.testbeds.workloads.selections.scores_writer import Writer

KEPT = 160
"""A buffer of 4 k blocks, and k in the HBM pool, at k = 32."""

KEPT_FORETOLD = 96
"""`lookahead-query` looks at the best 1.5 k; k = 64."""

_LEVEL = 1 << 7  # of float16's ten bits of mantissa, three are kept
_ROUGH = 1 << 9

Halves = npt.NDArray[np.float16]


def reduced(scores: Halves, kept: int, rest: bool) -> Halves:
    """`[layers, KV heads, blocks]` to `[layers, 1, blocks]`; `rest`: of the others too."""
    # The bits of float16 from 0 on are ordered as the numbers are.
    bits = scores.view(np.uint16).max(axis=1)
    result = np.zeros_like(bits)
    for row, out in zip(bits, result, strict=True):
        # Of equal scores the lower ordinal comes first, as in a selection.
        order = np.argsort(-row.astype(np.int32), kind="stable")
        best, others = order[:kept], order[kept:]
        best = best[row[best] > 0]
        values, place = np.unique(row[best], return_inverse=True)
        level = values // _LEVEL
        first = np.searchsorted(level, level)
        count = np.searchsorted(level, level, side="right") - first
        start = np.minimum(_LEVEL // 2, _LEVEL - count)
        out[best] = (level * _LEVEL + start + np.arange(values.size) - first)[place]
        if rest and others.size:
            below = max(row[others[0]] // _LEVEL * _LEVEL, 1) - 1
            rough = row[others] // _ROUGH * _ROUGH + _ROUGH // 2
            out[others] = np.where(row[others] > 0, np.minimum(rough, below), 0)
    return result.view(np.float16)[:, None]


def reduce(capture: Capture, path: Path) -> None:
    """Write the reduced file of a capture."""
    header = capture.header
    parameters = {**header.parameters, "kept": [KEPT, KEPT_FORETOLD]}
    small = msgspec.structs.replace(header, group_count=1, parameters=parameters)
    names = ("mass", PREDICTED + "mass")
    with Writer(path, small, names) as writer:
        for index, held in enumerate(capture.sessions):
            context_blocks = header.sessions[held.index].context_tokens // header.block_tokens
            whole = [capture.steps(index, name, -held.windows, held.steps) for name in names]
            for own, told in zip(*whole, strict=True):
                # The block that decode fills is never selected; of a window nothing is predicted.
                full = (
                    own.blocks if own.step < 0 else context_blocks + own.step // header.block_tokens
                )
                found = reduced(np.ascontiguousarray(own.scores[:, :, :full]), KEPT, rest=True)
                ahead = np.zeros_like(found)
                if own.step >= 0:
                    predicted = np.ascontiguousarray(told.scores[:, :, :full])
                    ahead = reduced(predicted, KEPT_FORETOLD, rest=False)
                writer.step(index, own.step, dict(zip(names, (found, ahead), strict=True)))


def packed(source: Path, path: Path) -> None:
    """The same rows in as few bytes as Parquet makes of them; a row group holds whole steps."""
    table = pq.read_table(source)
    layers = len(pq.read_table(source, columns=["layer"])["layer"].unique())
    scores = [f"{name}.list.element" for name in table.column_names if "mass" in name]
    pq.write_table(
        table,
        path,
        row_group_size=64 * layers,
        compression="zstd",
        compression_level=19,
        use_dictionary=False,
        column_encoding=dict.fromkeys(scores, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        write_page_checksum=True,
    )


def main() -> None:
    """Reduce one file."""
    full, path = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        reduce(open_capture(full), Path(folder) / "wide.parquet")
        packed(Path(folder) / "wide.parquet", path)


if __name__ == "__main__":
    main()
