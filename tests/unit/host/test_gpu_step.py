"""Does a step of graphs do each layer's work once, in order, with the hook in its place?

On the CPU a graph is its work, done again: this tests the structure, and the selection that the
hook sees. On a GPU the same step is checked by tests/gpu/run_all.py.
"""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install '.[triton]'")
pytest.importorskip("triton", reason="pip install '.[triton]'")

import torch
from gpu_step import StepCase
from step_bytes import layer_bytes

from offstage.host.gpu import interpreted
from offstage.host.gpu.step import Layer, Step
from offstage.host.model.models import geometry

pytestmark = pytest.mark.skipif(
    not interpreted(), reason="a GPU is there: python tests/gpu/run_all.py checks it"
)


def test_hooks_stand_between_the_graphs() -> None:
    """After the selection and before the attention of its layer, for any number of replays."""
    said: list[str] = []

    def layer(number: int) -> Layer:
        return Layer(
            lambda: said.append(f"select {number}"), lambda: said.append(f"attend {number}")
        )

    step = Step([layer(0), layer(1), layer(2)], "cpu")
    for _ in range(2):
        said.clear()
        step.run(lambda number: said.append(f"hook {number}"))
        assert said == [
            f"{word} {number}" for number in range(3) for word in ("select", "hook", "attend")
        ]


def test_a_step_over_the_pool_is_attention_over_what_was_selected() -> None:
    """Blocks that are in the pool are found by the device; those that are not are named to the
    hook, put in, and attended to in the same step."""
    case = StepCase(sessions=2, blocks=9, layers=2, select_blocks=5, device="cpu")
    case.forget(layer=1, session=0)
    lacking = case.run()
    assert [layer for layer, _ in lacking] == [1]
    ((session, ordinals),) = lacking[0][1]
    assert session == 0 and ordinals.size == 5
    assert case.run() == [], "what came in stays"
    for layer in range(2):
        assert case.error(layer) < 1e-2


def test_the_hook_has_the_scores_of_all_blocks() -> None:
    """The hint: levels of every block of each session, none for absent blocks."""
    case = StepCase(sessions=2, blocks=9, layers=1, select_blocks=5, device="cpu")
    case.run()
    hint = case.selected[0].hint
    assert hint.shape == (2, 9) and (hint[0] > 0).all()
    assert (hint[1, :7] > 0).all() and not hint[1, 7:].any()


def test_a_new_token_opens_a_block() -> None:
    """The graph reads the lengths, they are not built into it: the next step sees the added
    block."""
    case = StepCase(sessions=2, blocks=9, layers=1, select_blocks=5, device="cpu")
    case.run()
    case.selected[0].tokens[1] += case.block_tokens
    case.run()
    assert np.flatnonzero(case.selected[0].hint[1]).size == 8
    assert case.error(0) < 1e-2


def test_a_shorter_selection_leaves_the_rest_of_the_table_unread() -> None:
    case = StepCase(sessions=1, blocks=3, layers=1, select_blocks=5, device="cpu")
    case.run()
    assert case.selected[0].lengths.tolist() == [3] and case.error(0) < 1e-2
    assert replace(case.rule).select_blocks == 5 and torch.isfinite(case.outputs[0]).all()


def test_the_bytes_of_a_layer_of_llama_by_hand() -> None:
    """The basis of the shares in the docs: 436 MB of weights, 2 x 8 x 128 x 64 numbers of 2 bytes a
    block, 2 x 8 x 128 bounds of a block, or half of it and a byte for each 32 channels."""
    shape, widths = geometry("llama-3-8b"), (4096, 14336)
    projections = 4096 * (4096 + 1024 + 1024) + 4096 * 4096
    for bits, row in ((16, 2 * 8 * 128 * 2), (8, 2 * 8 * 128 + 8 * 4)):
        found = layer_bytes(shape, widths, 8, 131_072, 128, bits // 8)
        assert found.weights == 2 * (projections + 3 * 4096 * 14336)
        assert found.selected_kv == 8 * 128 * (2 * 8 * 128 * 64 * 2)
        assert found.bounds == 8 * 2048 * row
        assert found.share == found.bounds / (found.weights + found.selected_kv)
