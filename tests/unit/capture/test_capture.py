"""Do the captured scores match the model's own attention, for every architecture?"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.capture import attention
from offstage.testbeds.capture.attention import Hook, KvCache, attend, installed
from offstage.testbeds.capture.model import GROUPED, load, look, text_tokens
from offstage.testbeds.capture.run import Options, capture
from offstage.testbeds.workloads.selections.scores_file import Step, open_capture

torch = pytest.importorskip("torch", reason="needs the extra capture")
safetensors = pytest.importorskip("safetensors.torch", reason="needs the extra capture")
transformers = pytest.importorskip("transformers", reason="needs the extra capture")

BLOCK = 8
CONTEXT = 128
STEPS = 12


def options(model: Path, text: Path, out: Path, **changes: Any) -> Options:
    """Options of a short capture; keyword arguments override them."""
    return Options(
        **{
            "model": model,
            "text": text,
            "out": out,
            "mode": "teacher",
            "steps": STEPS,
            "context_tokens": CONTEXT,
            "block_tokens": BLOCK,
            "prefill_piece": 48,
            **changes,
        }
    )


def all_steps(path: Path, session: int = 0, score: str = "mass") -> list[Step]:
    return list(open_capture(path).steps(session, score, -1000, 1000))


class Seen:
    """Queries, keys and attention weights of every layer over the whole sequence, computed by the
    library's own eager attention, without our code."""

    def __init__(self, folder: Path, ids: list[int]) -> None:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.queries: dict[int, Any] = {}
        self.keys: dict[int, Any] = {}
        self.scaling = model.model.layers[0].self_attn.scaling

        def spy(
            module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any
        ) -> tuple[Any, Any]:
            self.queries[module.layer_idx] = query[0]
            self.keys[module.layer_idx] = key[0]
            return attend(query, key, value, more["scaling"]), None

        with torch.no_grad():
            model.set_attn_implementation("eager")
            seen = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
            self.weights = [one[0].numpy() for one in seen.attentions]
            transformers.AttentionInterface.register("offstage_spy", spy)
            model.set_attn_implementation("offstage_spy")
            self.logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        np.testing.assert_allclose(self.logits, seen.logits[0].numpy(), rtol=1e-3, atol=1e-3)

    def blocks(self, position: int) -> list[tuple[int, int]]:
        """First and last + 1 token of each block that exists at a position."""
        return [(at, min(at + BLOCK, position + 1)) for at in range(0, position + 1, BLOCK)]

    def mass(self, layer: int, position: int) -> npt.NDArray[Any]:
        weights = self.weights[layer][:, position]
        grouped = weights.reshape(2, 2, -1).mean(axis=1)
        return np.stack([grouped[:, a:b].sum(axis=1) for a, b in self.blocks(position)], axis=1)

    def logits_of(self, layer: int, position: int) -> npt.NDArray[Any]:
        """Scaled q.k, `[groups, heads of a group, tokens]`."""
        query = self.queries[layer][:, position].reshape(2, 2, -1)
        keys = self.keys[layer][:, : position + 1]
        return (query @ keys.transpose(1, 2) * self.scaling).numpy()


@pytest.mark.parametrize("architecture", GROUPED)
def test_scores_are_those_of_eager_attention(
    architecture: str, make_model: Any, text: Path, tmp_path: Path
) -> None:
    """In every window, step, layer and group, mass is the eager weights summed by block, mean key
    is q.k averaged by block, and Quest is at least every q.k of its block."""
    folder = make_model(architecture)
    out = tmp_path / "a.parquet"
    capture(options(folder, text, out))
    loaded = load(look(folder))
    ids, _ = text_tokens(loaded, text)
    seen = Seen(folder, ids[: CONTEXT + STEPS])
    windows = CONTEXT // BLOCK
    found = {score: all_steps(out, score=score) for score in ("mass", "quest", "mean_key")}
    assert [one.step for one in found["mass"]] == list(range(-windows, STEPS))
    for index, one in enumerate(found["mass"]):
        position = CONTEXT - 1 + one.step * BLOCK + BLOCK if one.step < 0 else CONTEXT + one.step
        blocks = seen.blocks(position)
        assert one.blocks == len(blocks)
        for layer in range(2):
            np.testing.assert_allclose(
                one.scores[layer], seen.mass(layer, position), rtol=2e-3, atol=2e-4
            )
            logits = seen.logits_of(layer, position)
            mean = np.stack([logits[:, :, a:b].mean(axis=2).max(axis=1) for a, b in blocks], axis=1)
            np.testing.assert_allclose(
                found["mean_key"][index].scores[layer], mean, rtol=2e-3, atol=2e-3
            )
            top = np.stack([logits[:, :, a:b].max(axis=(1, 2)) for a, b in blocks], axis=1)
            quest = found["quest"][index].scores[layer].astype(np.float32)
            assert (quest >= top - 1e-3 * (1 + np.abs(top))).all()


def test_fewer_windows_leave_the_steps_as_they_are(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """What is not recorded is read all the same."""
    folder, few, all_of = make_model("qwen2"), tmp_path / "few.parquet", tmp_path / "all.parquet"
    capture(options(folder, text, few, windows=2))
    capture(options(folder, text, all_of))
    found, whole = all_steps(few, score="mass"), all_steps(all_of, score="mass")
    assert [one.step for one in found] == list(range(-2, STEPS))
    for one, other in zip(found, whole[-len(found) :], strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=2e-3, atol=2e-4)


def test_quest_is_the_bound_of_the_least_and_greatest_keys(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """The bound is tight: exactly that of the channel-wise least and greatest keys."""
    folder = make_model("qwen2")
    out = tmp_path / "a.parquet"
    capture(options(folder, text, out))
    ids, _ = text_tokens(load(look(folder)), text)
    seen = Seen(folder, ids[: CONTEXT + STEPS])
    one = all_steps(out, score="quest")[-1]
    position = CONTEXT + STEPS - 1
    query = seen.queries[1][:, position].reshape(2, 2, 1, -1) * seen.scaling
    for block, (a, b) in enumerate(seen.blocks(position)):
        keys = seen.keys[1][:, None, a:b]
        low, high = keys.amin(dim=2, keepdim=True), keys.amax(dim=2, keepdim=True)
        bound = torch.maximum(query * low, query * high).sum(dim=3).amax(dim=(1, 2))
        np.testing.assert_allclose(one.scores[1, :, block], bound.numpy(), rtol=2e-3, atol=2e-3)


def test_pieces_of_the_prefill_make_no_difference(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """However the context is cut, the scores are equal up to the order of float additions."""
    folder = make_model("glm4")
    long = {"context_tokens": 400, "steps": 4}
    found = []
    for piece in (400, 7, 48):
        out = tmp_path / f"{piece}.parquet"
        capture(options(folder, text, out, prefill_piece=piece, **long))
        found.append({name: all_steps(out, score=name) for name in ("mass", "quest", "mean_key")})
    assert len(found[0]["mass"]) == 32 + 4
    for other in found[1:]:
        for name, steps in found[0].items():
            for one, two in zip(steps, other[name], strict=True):
                assert (one.step, one.blocks) == (two.step, two.blocks)
                np.testing.assert_allclose(one.scores, two.scores, rtol=4e-3, atol=2e-3)


def test_free_and_teacher_part_at_the_first_sampled_token(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Both modes share one prefill; the free one follows the model's greedy continuation; each
    equals a capture of that mode alone."""
    folder = make_model("llama")
    both, free, teacher = (tmp_path / f"{name}.parquet" for name in ("both", "free", "teacher"))
    for out in (both, free, teacher):
        capture(options(folder, text, out, mode=out.stem, context_tokens=400))
    assert [one.mode for one in open_capture(both).header.sessions] == ["teacher", "free"]
    for session, alone in ((0, teacher), (1, free)):
        for one, two in zip(all_steps(both, session), all_steps(alone), strict=True):
            np.testing.assert_array_equal(one.scores, two.scores)
    pairs = list(zip(all_steps(both, 0), all_steps(both, 1), strict=True))
    for one, two in pairs:
        assert (one.step < 0) == np.array_equal(one.scores, two.scores), one.step
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids, _ = text_tokens(load(look(folder)), text)
    with torch.no_grad():
        logits = model(torch.tensor([ids[:400]])).logits[0, -1]
    logits[2] = -torch.inf  # the end-of-text token is never sampled
    seen = Seen(folder, [*ids[:400], int(logits.argmax())])
    np.testing.assert_allclose(pairs[32][1].scores[1], seen.mass(1, 400), rtol=2e-3, atol=2e-4)


def test_sampling_follows_the_seed(make_model: Any, text: Path, tmp_path: Path) -> None:
    """At a temperature above 0, equal seeds give equal scores and different seeds do not."""
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / f"{name}.parquet"
        sampled = {"mode": "free", "temperature": 2.0, "seed": seed}
        capture(options(make_model("qwen3"), text, out, **sampled))
        found.append(np.stack([one.scores[:, :, :16] for one in all_steps(out)[16:]]))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_a_context_is_named_by_tokens_weights_and_rotation(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Sessions with one content share blocks in the laboratory, so other weights or rotary
    positions under the same config must give another content."""
    model, other = make_model("llama"), tmp_path / "other"
    shutil.copytree(model, other)
    weights = safetensors.load_file(other / "model.safetensors")
    weights["model.norm.weight"] += 1
    safetensors.save_file(weights, other / "model.safetensors", {"format": "pt"})

    def content(folder: Path, **changes: Any) -> str:
        done = capture(options(folder, text, tmp_path / "c.parquet", **changes))
        return done.header.sessions[0].content

    one = content(model)
    assert content(model, steps=STEPS - 1) == one
    assert len({one, content(other), content(model, rope="yarn:2")}) == 3


def test_a_scaled_model_takes_a_longer_context(make_model: Any, text: Path, tmp_path: Path) -> None:
    model = make_model("llama", max_position_embeddings=CONTEXT)
    with pytest.raises(BadInput, match=f"the model supports {CONTEXT}"):
        capture(options(model, text, tmp_path / "c.parquet"))
    done = capture(options(model, text, tmp_path / "c.parquet", rope="yarn:2"))
    assert done.header.parameters["rope"] == "yarn:2" and done.row_count > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near(dtype: str, make_model: Any, text: Path, tmp_path: Path) -> None:
    """The scores add no error to the model's rounding: mass sums to 1, and is close to float32 in
    the first layer, whose keys depend only on embeddings and one matrix."""
    folder = make_model("qwen3")
    half, whole = tmp_path / "half.parquet", tmp_path / "whole.parquet"
    capture(options(folder, text, half, dtype=dtype))
    capture(options(folder, text, whole))
    assert open_capture(half).header.dtype == dtype
    assert open_capture(whole).header.dtype == "float32"
    for one, two in zip(all_steps(half), all_steps(whole), strict=True):
        total = one.scores.astype(np.float64).sum(axis=2)
        np.testing.assert_allclose(total, 1.0, atol=0.01)
        np.testing.assert_allclose(one.scores[0], two.scores[0], atol=0.05)


def test_scores_that_overflow_end_the_run(make_model: Any, text: Path, tmp_path: Path) -> None:
    """Weights that overflow float16 give one line that names the layer, and no file."""
    source, folder, out = make_model("llama"), tmp_path / "model", tmp_path / "a.parquet"
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.mul_(3e5)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    model.save_pretrained(folder)
    with pytest.raises(RunFailed, match=r"dtype float16: \w+ of layer 1 is not finite"):
        capture(options(folder, text, out, dtype="float16"))
    assert list(tmp_path.iterdir()) == [folder]


def test_layers_can_be_left_out(make_model: Any, text: Path, tmp_path: Path) -> None:
    """The recorded layers have the same scores as in a capture of all layers."""
    folder = make_model("llama", num_hidden_layers=4)
    whole, part = tmp_path / "whole.parquet", tmp_path / "part.parquet"
    capture(options(folder, text, whole))
    capture(options(folder, text, part, layers="1,3"))
    header = open_capture(part).header
    assert (header.layer_count, header.layers, header.index_source) == (2, (1, 3), (0, 1))
    for one, two in zip(all_steps(whole), all_steps(part), strict=True):
        np.testing.assert_array_equal(one.scores[[1, 3]], two.scores)


def test_what_waits_does_not_grow_with_the_capture(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Row groups are written as they fill: with ten times the steps, at most one row group and one
    step are buffered."""
    folder = make_model("llama")
    limit_bytes = 4096
    for steps in (9, 90):
        out = tmp_path / f"{steps}.parquet"
        found = capture(options(folder, text, out, steps=steps, row_group_bytes=limit_bytes))
        step_bytes = 2 * 2 * -(-(CONTEXT + steps) // BLOCK) * 6 * 2
        assert found.held_bytes_max <= limit_bytes + step_bytes
        groups = open_capture(out).sessions[0].row_groups
        assert sum(count for _, _, count in groups) == 16 + steps
        assert len(groups) >= steps // 12


def test_attention_is_never_materialised(make_model: Any) -> None:
    """No tensor of a prefill pass has heads x queries x keys elements: what lies before a piece is
    read by SDPA without a mask, and only a piece's own tokens are scored outside of it."""
    folder = make_model("llama")
    loaded = load(look(folder))
    cache, hook = KvCache(2, 1500), Hook((0, 1), BLOCK, 1500)
    calls, scored = [], []
    real, own = torch.nn.functional.scaled_dot_product_attention, attention._own_part

    def watched(query: Any, key: Any, value: Any, attn_mask: Any = None, scale: Any = None) -> Any:
        calls.append(query.shape[2])
        assert attn_mask is None
        return real(query, key, value, scale=scale)

    def watched_own(rows: Any, key: Any, value: Any, scaling: float) -> Any:
        scored.append((rows.shape[2], key.shape[2]))
        return own(rows, key, value, scaling)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
        patch.setattr(attention, "_own_part", watched_own)
        with installed(loaded.model, hook):
            loaded.model(
                torch.ones(1, 1500, dtype=torch.long), past_key_values=cache, logits_to_keep=1
            )
    # Two layers, 512 tokens of two heads at once: the first piece has nothing before it.
    assert calls == [1024, 952] * 2 and scored == [(1024, 512), (1024, 512), (952, 476)] * 2
    assert cache.get_seq_length() == 1500


@pytest.mark.parametrize("amplitude", [0.1, 3.0, 30.0])
@pytest.mark.parametrize(
    ("dtype", "off_by"), [("float32", 2e-6), ("bfloat16", 1e-2), ("float16", 1e-3)]
)
@pytest.mark.parametrize(("new", "tokens"), [(1, 300), (700, 700), (700, 1500), (5, 900)])
def test_attention_in_two_parts_is_that_of_one(
    new: int, tokens: int, dtype: str, off_by: float, amplitude: float
) -> None:
    """Past and own tokens merged are causal attention in float64, but for the rounding that SDPA
    with a mask has too, however steep the softmax is and whichever part weighs more."""
    random = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    shapes = ((6, new), (2, tokens), (2, tokens))
    query, key, value = (torch.randn(1, a, b, 16, generator=random) for a, b in shapes)
    key[:, :, : tokens // 2] *= 2  # the past weighs more in some rows
    query, key, value = (query * amplitude).to(kind), key.to(kind), value.to(kind)
    mask = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)

    def plain(precision: Any) -> Any:
        repeated = (one.to(precision).repeat_interleave(3, dim=1) for one in (key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            query.to(precision), *repeated, attn_mask=mask, scale=0.25
        )
        return found.transpose(1, 2).double()

    exact, found = plain(torch.float64), attend(query, key, value, 0.25)
    assert found.dtype == kind and found.shape == exact.shape
    rounding = (plain(kind) - exact).abs().max().item()
    assert (found.double() - exact).abs().max().item() <= 3 * rounding + off_by


def test_perplexity_is_that_of_the_model_itself(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Of the text's tokens in the steps, by the library's eager attention; free running has none.
    It is in the file's header too."""
    folder, out = make_model("llama"), tmp_path / "a.parquet"
    done = capture(options(folder, text, out, mode="both"))
    ids, _ = text_tokens(load(look(folder)), text)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor([ids[: CONTEXT + STEPS]])).logits[0, CONTEXT - 1 : -1]
    nll = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[CONTEXT : CONTEXT + STEPS]))
    assert done.perplexity == pytest.approx(float(nll.exp()), rel=1e-4)
    assert open_capture(out).header == done.header
    assert done.header.parameters["perplexity"] == pytest.approx(done.perplexity, abs=1e-4)
    free = capture(options(folder, text, out, mode="free"))
    assert free.perplexity is None and "perplexity" not in free.header.parameters
