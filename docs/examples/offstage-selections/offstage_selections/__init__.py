"""Block scores of SmolLM2-135M-Instruct, step by step, on texts of four kinds."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

__all__ = ["FILES", "scores"]

FILES = {path.stem: path for path in sorted(Path(__file__).with_name("data").glob("*.parquet"))}
"""By text; each is a workload of the laboratory, `kind = "captured"`."""


def scores(text: str, column: str = "mass") -> npt.NDArray[np.float16]:
    """`[steps, layers, blocks]` of the decode steps, 0 for a block that is not written yet; of a
    text called *-heads `[steps, layers, heads, blocks]`. A selection of k is the k highest, up to
    160, of one head up to 96. `column`: `mass`, or `foretold_mass` of the best 96 predicted."""
    table = pq.read_table(FILES[text], filters=[("step", ">=", 0)]).combine_chunks()
    blocks = table["blocks"].to_numpy()
    found = np.zeros((len(blocks), blocks.max()), np.float16)
    found[np.arange(blocks.max()) < blocks[:, None]] = table[column].chunk(0).flatten().to_numpy()
    heads = [table["group"].to_numpy().max() + 1] if text.endswith("-heads") else []
    return found.reshape(-1, table["layer"].to_numpy().max() + 1, *heads, blocks.max())
