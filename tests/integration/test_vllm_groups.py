"""vLLM models with several groups of layers on the tier: are the tokens those without it?"""

import subprocess
from pathlib import Path

import pytest
from live_daemon import daemon, until
from vllm_bed import BLOCK, FULL, SIZES, engine, prompt

MODELS = Path(__file__).resolve().parents[1] / "reference/vllm_models.py"
UNITS = FULL // BLOCK
KINDS = ("gemma3_text", "gpt_oss", "mistral")  # the last two blocks are in the window, of 64 tokens


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_without_the_tier(
    python: Path, model: Path, tmp_path: Path, kind: str
) -> None:
    """A prefix is a hit where the full layers have all of it and the windows their last blocks.
    Older blocks of a window may be gone; without the last one the hit is a block shorter. A request
    of which a block does not load is computed, and stored again."""
    made = tmp_path / kind
    subprocess.run([python, MODELS, kind, made, model], check=True, capture_output=True)
    prompts = [prompt(n) for n in range(2)]
    with engine(python, made, tmp_path, None) as alone:
        expected = alone.ask(*prompts)["tokens"]
    assert len({token for each in expected for token in each}) > 8
    with daemon(tmp_path, **SIZES) as tier:
        with engine(python, made, tmp_path, tier) as first:
            assert first.ask(*prompts) == {"tokens": expected, "reused": [0] * 2}
        with engine(python, made, tmp_path, tier) as second:
            assert second.ask(*prompts) == {"tokens": expected, "reused": [FULL] * 2}
            gone = UNITS - 4
            for place, reused in ((gone, FULL), (UNITS - 1, FULL - BLOCK)):
                torn = second.ask(prompts[0], truncate=place)
                assert torn == {"tokens": expected[:1], "reused": [reused]}
            until(lambda: bool(second.ask(prompts[0], read=UNITS - 1) == "done"))
            lost = second.ask(prompts[0], rot=UNITS - 1)
            assert lost == {"tokens": expected[:1], "reused": [0]}
            until(lambda: bool(second.ask(prompts[0], read=gone) == "done"))
            assert second.ask(*prompts) == {"tokens": expected, "reused": [FULL] * 2}
