"""Are options that cannot work refused before anything runs, in one line with the fix?"""

from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.errors import BadInput, Missing
from offstage.host import attention
from offstage.host.model.models import geometry
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.live.model.options import ModelOptions
from offstage.testbeds.live.options import STORE_BYTES_MAX, DriveOptions
from offstage.testbeds.live.workload import full_chunks, prepare


@pytest.mark.parametrize(
    "wrong",
    [
        {"sessions": 0},
        {"sessions": 65},
        {"steps": 0},
        {"context_tokens": 4_095},
        {"context_tokens": 131_073},
        {"seed": -1},
        {"time_per_token_s": -0.1},
        {"time_per_token_s": float("nan")},
        {"shared_prefix_tokens": 131_073},
        {"kernel": "cuda"},
        {"device": "cuda"},  # neither this kernel nor this device exists
        {"select_blocks": 5},
        {"pool_ratio": 0.9},
        {"pool_ratio": float("nan")},
        {"geometry": geometry("deepseek-v4-pro")},
    ],
    ids=str,
)
def test_what_the_host_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refused:
        DriveOptions(**wrong).check()
    assert refused.value.fix
    with pytest.raises(BadInput):
        DemoOptions(out=Path("out"), **wrong).check()


@pytest.mark.parametrize(
    "wrong", [{"buffer_ratio": 0.9}, {"storages": ()}, {"storages": ("floppy",)}], ids=str
)
def test_what_the_demo_refuses_beyond_that(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="demo"):
        DemoOptions(out=Path("out"), **wrong).check()


def test_a_real_geometry_is_planned_by_what_the_store_holds() -> None:
    """Eight sessions of 128K tokens of a real model do not fit the demo's store, and fit a store of
    their size."""
    options = DriveOptions(geometry=geometry("llama-3-8b"), sessions=8)
    options.check()
    with pytest.raises(BadInput, match=r"\[storage\] size"):
        prepare(options)
    plan = prepare(options, 160 << 30).plan
    assert 100 << 30 < plan.stored_bytes <= 160 << 30
    with pytest.raises(BadInput, match="need"):
        prepare(options, plan.stored_bytes - 1)


@pytest.mark.parametrize("kind", [DriveOptions, ModelOptions])
def test_a_kernel_whose_library_is_missing_is_refused_before_anything_runs(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton uses torch's arrays, so a missing triton itself must still be reported at once."""
    monkeypatch.setattr(attention, "_lacking", lambda needs: needs[-1])
    paths = {"model": Path("m"), "text": Path("t")} if kind is ModelOptions else {}
    with pytest.raises(Missing, match="triton kernel needs triton"):
        kind(kernel="triton", **paths).arrays()


def test_a_quarter_of_a_context_is_shared_unless_it_is_said() -> None:
    assert DriveOptions(context_tokens=8_192).prefix_tokens == 2_048
    assert DriveOptions(context_tokens=8_192, shared_prefix_tokens=0).prefix_tokens == 0


def test_the_demo_fits_its_promise() -> None:
    """128K tokens, four sessions that share a prefix and 300 steps fit the bytes it may write."""
    options = DemoOptions(out=Path("out"))
    options.check()
    plan = prepare(options).plan
    assert len(plan.sessions) >= 4 and plan.sharing_session_count >= 4
    assert {one.context_tokens for one in plan.sessions} == {131_072}
    assert min(one.decode_steps for one in plan.sessions) >= 300
    assert plan.stored_bytes <= STORE_BYTES_MAX
    first, second = (full_chunks(one) for one in plan.sessions[:2])
    shared = sum(a == b for a, b in zip(first, second, strict=True))
    assert shared == options.prefix_tokens // options.geometry.block_tokens
