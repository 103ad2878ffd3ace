"""Are the types of a model's KV heads chosen by what each head's error costs, within the bound?"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from tiny_models import save_model, save_text

from offstage.bindings.errors import BadInput
from offstage.host.model.quantized import head_bytes, padded, uniform
from offstage.testbeds.capture.model import load, look, text_tokens

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

from offstage.host.transformer.dense import DenseKv, kv_geometry
from offstage.host.transformer.sensitivity import CHOICES, Probe, choose, measured

LBA = 128
TOKENS = 192


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DenseKv, list[int]]]:
    """A tiny model of two layers of two heads that has read a text."""
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "llama", {"head_dim": 16})
    loaded = load(look(folder))
    kv = DenseKv(loaded.model, kv_geometry("tiny", loaded.model.config, 16, "float32"))
    tokens = text_tokens(loaded, save_text(folder / "text"))[0][:TOKENS]
    kv.prefill(tokens, 64, lambda count: None)
    yield kv, tokens


def test_a_probe_measures_and_leaves_the_context_as_it_was(
    context: tuple[DenseKv, list[int]],
) -> None:
    """No effect from the model's own type, a larger one from fewer bits; and the effect of one head
    is measured again as the same."""
    kv, tokens = context
    before = [kv.blocks(layer, 0, range(TOKENS // 16)) for layer in range(2)]
    probe = Probe(kv, tokens, 64)
    assert probe.tail_tokens == 64
    layers = range(2)
    found = {kind: probe.kl(uniform(kv.geometry, kind, 1), layers) for kind in CHOICES}
    assert found["model"] < 1e-9 < found["int8"] < found["fp8-e4m3"] < found["int4"]
    assert found == {kind: probe.kl(uniform(kv.geometry, kind, 1), layers) for kind in CHOICES}
    for layer, blocks in enumerate(before):
        assert (kv.blocks(layer, 0, range(TOKENS // 16)) == blocks).all()
    with pytest.raises(BadInput, match="give more --context-tokens"):
        Probe(kv, tokens[:16], 64)


def test_the_smallest_block_within_the_bound_is_chosen(
    context: tuple[DenseKv, list[int]],
) -> None:
    """By the check and not by the sum; a lower bound never gives smaller blocks; with one that no
    type keeps, nothing is quantized."""
    kv, tokens = context
    probe = Probe(kv, tokens, 64)
    advanced: list[int] = []
    effects = measured(probe, advanced.append)
    assert effects.shape == (2, 2, len(CHOICES)) and sum(advanced) == 4
    assert (effects[..., 0] > effects[..., 2]).all() and not effects[..., 3].any()
    most = probe.kl(uniform(kv.geometry, "int4", LBA), range(2))
    sizes = []
    for bound in (2 * most, most / 3, most / 30, most / 300):
        found = choose(probe, effects, bound, LBA)
        assert found.quantizer is not None and found.checked <= bound
        assert found.checked == probe.kl(found.quantizer, range(2))
        sizes.append(found.quantizer.payload_bytes)
    assert sizes == sorted(sizes) and len(set(sizes)) > 2
    assert sizes[0] == uniform(kv.geometry, "int4", LBA).payload_bytes
    nothing = choose(probe, effects, 1e-15, LBA)
    assert nothing.quantizer is None and nothing.checked == 0


def test_no_other_types_of_that_size_have_less_effect(
    context: tuple[DenseKv, list[int]],
) -> None:
    """Against every combination, of drawn effects."""
    kv, tokens = context
    probe, geometry = Probe(kv, tokens, 64), kv.geometry
    effects = np.sort(np.random.default_rng(6).random((2, 2, len(CHOICES))), axis=-1)[..., ::-1]
    sizes = [head_bytes(geometry, kind) for kind in CHOICES]
    most = probe.kl(uniform(geometry, "int4", LBA), range(2))
    for bound in (2 * most, most / 10):
        found = choose(probe, effects, bound, LBA)
        assert found.quantizer is not None
        for layer, kinds in enumerate(found.quantizer.kinds):
            own = sum(effects[layer, head, CHOICES.index(kind)] for head, kind in enumerate(kinds))
            fitting = [
                effects[layer, 0, one] + effects[layer, 1, two]
                for one, two in product(range(len(CHOICES)), repeat=2)
                if 2 + sizes[one] + sizes[two] <= found.quantizer.payload_bytes
            ]
            assert own == pytest.approx(min(fitting))
        assert padded(geometry, found.quantizer.kinds, LBA).payload_bytes <= (
            found.quantizer.payload_bytes
        )
