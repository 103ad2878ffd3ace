"""Does a run over the layers that a model selects for have its layers, its bytes, and its pace?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.host.model.models import geometry
from offstage.testbeds.lab.results.block_use import block_use
from offstage.testbeds.lab.results.bootstrap import Bootstrap
from offstage.testbeds.lab.results.ledger import totals
from offstage.testbeds.lab.results.whole_model import whole_model
from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.plan import points_of
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.run.source import build
from offstage.testbeds.lab.spec.load import find, load
from offstage.testbeds.lab.spec.staged import staged
from offstage.testbeds.lab.spec.sweep import variants

BLOCKS = '[geometry]\nmodel = "deepseek-v3.2"\nstaged = "selected"\nblock_tokens = 64\n[[policy]]\n'
SMALL = {"workload.context_tokens": 8192, "workload.steps": 4}


def spec_of(tmp_path: Path, body: str, **changes: Any) -> Any:
    path = tmp_path / "one.toml"
    path.write_text(body, encoding="utf-8")
    return load(path, changes)


@pytest.mark.parametrize(
    ("model", "layers", "k", "entry_bytes", "resident"),
    [("glm-5.2", 78, 2048, 1152, 21 * 256), ("deepseek-v3.2", 61, 2048, 1152, 61 * 256)],
)
def test_a_model_says_its_layers_its_k_and_its_entry(
    model: str, layers: int, k: int, entry_bytes: int, resident: int, tmp_path: Path
) -> None:
    """Published sizes: all layers, tokens one by one, 576 values each, an index key an indexer."""
    spec = spec_of(tmp_path, f'[geometry]\nmodel = "{model}"\nstaged = "selected"')
    assert (spec.layer_count, spec.selection.k_blocks) == (layers, k)
    assert (spec.block_bytes, spec.granules) == (entry_bytes, 1)
    groups = geometry(model).groups
    per_token = sum(one.layer_count * one.values * 2 for one in groups if one.is_resident)
    assert per_token == resident


def test_v4_stages_entries_of_four_tokens_in_its_sparse_layers(tmp_path: Path) -> None:
    """30 of 61 layers, 512 values for 4 tokens; its k stands in no source, so it is asked for."""
    body = '[geometry]\nmodel = "deepseek-v4-pro"\nstaged = "selected"\n'
    spec = spec_of(tmp_path, body + "top_k = 1024")
    assert (spec.layer_count, spec.geometry.block_tokens, spec.block_bytes) == (30, 4, 1024)
    assert spec.selection.k_blocks == 1024
    with pytest.raises(BadInput, match="no source says how many") as caught:
        spec_of(tmp_path, body)
    assert "top_k" in caught.value.where


def test_larger_blocks_hold_granules_of_an_entry(tmp_path: Path) -> None:
    """A tier of whole blocks: the same selection, as so many blocks that each token could be."""
    body = '[geometry]\nmodel = "glm-5.2"\nstaged = "selected"\nblock_tokens = 64'
    spec = spec_of(tmp_path, body)
    assert (spec.granules, spec.selection.k_blocks, spec.block_bytes) == (64, 32, 64 * 1152)


def test_indexers_are_drawn_over_the_depth_with_all_that_reuse_them(tmp_path: Path) -> None:
    """GLM-5.2: three of 21 indexers with four layers each, and the pace of these twelve."""
    found = staged("glm-5.2", 3)
    assert found.layers == (6, 7, 8, 9, 34, 35, 36, 37, 62, 63, 64, 65)
    assert found.source == (0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8)
    body = '[workload]\nindexers = 3\n[geometry]\nmodel = "glm-5.2"\nstaged = "selected"'
    spec = spec_of(tmp_path, body, **SMALL)
    assert spec.time_per_token_ns == 40_000_000 * 12 // 78
    assert build(spec, 1).index_source.tolist() == list(found.source)


def test_a_sampled_layer_has_the_process_of_its_depth(tmp_path: Path) -> None:
    """Of three layers drawn, the first lies between GVR's bands and the others in the last."""
    body = '[workload]\nprofile = "indexer"\nindexers = 3\n'
    body += '[geometry]\nmodel = "deepseek-v3.2"\nstaged = "selected"'
    workload = build(spec_of(tmp_path, body, **SMALL), 1)
    assert [one.name for one in workload.processes] == ["hisparse", "gvr", "gvr"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('[geometry]\nstaged = "selected"', "no layer of 'llama-3-70b' selects"),
        ('[workload]\nindexers = 22\n[geometry]\nmodel = "glm-5.2"\nstaged = "selected"', "of 21"),
        ("[workload]\nindexers = 2", "indexers has no effect"),
        ("[geometry]\ntop_k = 2", "top_k has no effect"),
        (
            BLOCKS + 'use = "granule"\nparameters = { granule_tokens = 24 }',
            "granule_tokens = 24, of",
        ),
        (BLOCKS + 'use = "none"\nparameters = { granule_tokens = 4 }', "whole blocks are staged"),
        (
            '[workload]\nlayers = 2\n[geometry]\nmodel = "glm-5.2"\nstaged = "selected"',
            "layers beside staged",
        ),
    ],
)
def test_what_cannot_be_staged_is_one_line(body: str, said: str, tmp_path: Path) -> None:
    """Models without indexers, more of them than there are, and keys without effect."""
    with pytest.raises(BadInput, match=said):
        spec_of(tmp_path, body)


def test_the_whole_model_is_the_layers_drawn_times_their_share(tmp_path: Path) -> None:
    """Without a pool a session demands k entries of every layer, whatever was drawn."""
    body = '[workload]\nindexers = 1\nsessions = 1\n[geometry]\nmodel = "glm-5.2"\n'
    spec = spec_of(tmp_path, body + 'staged = "selected"', **SMALL)
    point = points_of(spec, 0, 0)[0]
    workload = build(spec, 1)
    feed = Feed(workload, spec.granules, {0: Kind(1, 0)})
    runner = Runner(0, point, spec, workload, feed, 1)
    while not runner.advance():
        feed.make()
    whole = whole_model(spec, point.info(spec, ""), [totals(runner.result())])
    assert whole is not None and whole.drawn_layers == 4
    assert whole.demanded_bytes_per_token == pytest.approx(78 * 2048 * 1152)
    assert whole.sessions_per_link == pytest.approx(50e9 * 0.04 / (78 * 2048 * 1152))
    assert whole.sessions_per_drive == pytest.approx(3.3e6 * 0.04 / whole.reads_per_token, rel=1e-3)
    assert whole.resident_bytes == 21 * 256 * (8192 + 4)
    assert 0 < whole.stall_share < 1


@pytest.mark.parametrize(("over_k", "leaves"), [(4, True), (256, False)])
def test_units_are_counted_from_a_block_s_first_demand_until_it_goes(
    tmp_path: Path, over_k: int, leaves: bool
) -> None:
    """Staged 16 tokens at a time. Every block read is counted once; where the buffer holds the
    context nothing goes, and a block's units are those that any step selected."""
    body = f"[workload]\nindexers = 1\nsessions = 1\n[tier]\nbuffer_over_k = [{over_k}]\n{BLOCKS}"
    body += 'use = "granule"\nparameters = { granule_tokens = 16 }'
    spec = spec_of(tmp_path, body, **{"workload.context_tokens": 65536, "workload.steps": 12})
    point = next(one for one in points_of(spec, 0, 0) if one.policy.use == "granule")
    assert (point.grain(spec), point.info(spec, "").block_bytes) == (4, 16 * 1152)
    workload = build(spec, 1)
    feed = Feed(workload, spec.granules, {0: Kind(4, 0)})
    runner = Runner(0, point, spec, workload, feed, 1)
    while not runner.advance():
        feed.make()
    run = runner.result()
    gone, staged_still = (np.array(one) for one in run.units)
    assert bool(gone.sum()) == leaves and gone[0] == 0
    assert gone.sum() + staged_still.sum() == run.reads
    if leaves:
        found = block_use(spec, point.info(spec, ""), [totals(run)], Bootstrap(1, 10, 0))
        assert found is not None and (found.units, found.pays_from) == (16, 5)
        assert found.gone == gone[:17].tolist()
        return
    selected = np.concatenate([slab.selected.ravel() for slab in workload.slabs(0)])
    _, counts = np.unique(np.unique(selected) // 16, return_counts=True)
    assert staged_still[1:17].tolist() == np.bincount(counts, minlength=17)[1:].tolist()


def test_an_axis_of_tables_changes_several_keys(tmp_path: Path) -> None:
    """The shipped spec: three models with their own k and policies, each under its label."""
    found = dict(variants(find("cmx-1m")))
    assert all(not isinstance(one, BadInput) for one in found.values())
    glm = [one for label, one in found.items() if "model=glm-5.2" in label]
    assert {one.geometry.model for one in glm} == {"glm-5.2"}  # type: ignore[union-attr]
    v4 = [one for label, one in found.items() if "model=deepseek-v4-pro" in label]
    assert {one.selection.k_blocks for one in v4} == {1024}  # type: ignore[union-attr]


def test_a_table_of_an_axis_needs_a_label(tmp_path: Path) -> None:
    """Two values that could not be told apart."""
    path = tmp_path / "one.toml"
    path.write_text("[[sweep.x]]\nseeds = [1]\n[[sweep.x]]\nseeds = [2]", encoding="utf-8")
    with pytest.raises(BadInput, match="no label of its own"):
        list(variants(path))
