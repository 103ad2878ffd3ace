"""Do the figures of the small committed trace stay as counted?

`data/tiny_mooncake.jsonl` was made for this test. A system prompt S of 2 blocks; 12 conversations
of 4 turns, turn t (from 0) holding S, 3 (t + 1) blocks that later turns keep, and a partial tail of
its own; 6 single requests of S, 3 blocks and a tail; 6 single requests of 7 blocks and a tail
without S. Counted by hand: accesses 12 (6 + 9 + 12 + 15) + 6 * 6 + 6 * 8 = 588; unique 2 + 12 (12 +
4) + 6 * 4 + 6 * 8 = 266. The LRU and token counts in `data/tiny_mooncake.json` come from a plain
loop over an ordered dict.
"""

import json
from pathlib import Path

from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.stats import summarise

DATA = Path(__file__).parent / "data"


def test_counts_of_the_tiny_trace() -> None:
    """No change of reader or statistics moves a single hit."""
    gold = json.loads((DATA / "tiny_mooncake.json").read_text())
    info = summarise(open_trace(DATA / "tiny_mooncake.jsonl"))
    blocks = info.blocks
    assert blocks is not None
    accesses = blocks.block_access_count
    assert (info.request_count, accesses, blocks.unique_block_count) == (60, 588, 266)
    assert (gold["requests"], gold["block_accesses"], gold["unique_blocks"]) == (60, 588, 266)
    assert round(blocks.ideal_block_hit_rate * accesses) == 588 - 266 == gold["ideal_block_hits"]
    assert blocks.ideal_prefix_hit_rate == blocks.ideal_block_hit_rate
    assert blocks.ideal_token_hit_rate == gold["ideal_token_hits"] / gold["input_tokens"]
    assert [point.capacity_blocks for point in blocks.lru] == gold["lru_capacity_blocks"]
    assert [round(point.hit_rate * accesses) for point in blocks.lru] == gold["lru_hits"]
    assert info.duration_s == gold["duration_s"]
