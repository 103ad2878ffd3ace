"""Are measured decode costs stored, interpolated between their points, and refused outside them?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from against_schema import checked

from offstage.bindings.errors import BadInput, RunFailed
from offstage.host.decode.calibrate import Plan, calibrate
from offstage.host.decode.step_cost import FORMAT, CostRow, DecodeCost, read
from offstage.host.model.models import geometry
from offstage.testbeds.cli import run
from offstage.testbeds.cli.demo import options_of
from offstage.testbeds.lab.run.experiment import plan
from offstage.testbeds.lab.run.summarize import manifest
from offstage.testbeds.lab.spec.load import load
from offstage.testbeds.live.workload import describe, prepare

DEMO = geometry("demo")


def cost(**changes: Any) -> DecodeCost:
    """Projections cost 10 us, the MLP 20, attention 1 us per session and 64 tokens: linear
    everywhere."""
    rows = tuple(
        CostRow(
            batch=batch,
            tokens=tokens,
            projection_ns=10_000,
            mlp_ns=20_000,
            attention_ns=batch * tokens * 1_000 // 64,
        )
        for batch in (1, 8)
        for tokens in (512, 4096)
    )
    plain: dict[str, Any] = {
        "format": FORMAT,
        "geometry": "demo",
        "q_heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "layer_count": 4,
        "block_tokens": 64,
        "hidden": 512,
        "mlp": 1792,
        "dtype": "float32",
        "value_type": "float16",
        "kernel": "numpy",
        "device": "a machine",
        "versions": {},
        "date": "2026-01-01",
        "command": "offstage host calibrate",
        "rows": rows,
    }
    return DecodeCost(**{**plain, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cost.json"
    path.write_bytes(msgspec.json.encode(cost()))
    return path


@pytest.mark.parametrize(
    ("batch", "tokens"), [(1, 512), (8, 4096), (1, 2048), (4, 512), (4, 2048), (3, 777)]
)
def test_between_what_was_measured_it_is_a_plane(batch: int, tokens: int, file: Path) -> None:
    """Summed over layers: a constant, plus terms linear in sessions and in tokens."""
    expected = 4 * (30_000 + batch * tokens * 1_000 / 64)
    assert read(file).token_ns(DEMO, batch, tokens) == pytest.approx(expected, abs=4)


def test_what_was_not_measured_is_not_answered(file: Path) -> None:
    found = read(file)
    for batch, tokens in ((9, 512), (1, 511), (1, 4097)):
        with pytest.raises(BadInput, match="calibrate with a --batch or --tokens that reaches it"):
            found.token_ns(DEMO, batch, tokens)
    with pytest.raises(BadInput, match="measured for demo, but the run uses llama-3-8b"):
        found.token_ns(geometry("llama-3-8b"), 1, 512)
    more = replace(DEMO, layers=DEMO.layers * 2)
    assert found.token_ns(more, 1, 512) == 2 * found.token_ns(DEMO, 1, 512)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "not a file of decode costs"),
        ('{"format": 3}', "a file of decode"),
        ({"rows": []}, "below 1"),
        ({"rows": [{"batch": 1}]}, "missing required field"),
        ({"hidden": "wide"}, "Expected `int`"),
    ],
)
def test_a_file_that_is_none_is_one_line(content: Any, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    if isinstance(content, dict):
        content = json.dumps({**msgspec.to_builtins(cost()), **content})
    path.write_text(content)
    with pytest.raises(BadInput, match=problem):
        read(path)
    with pytest.raises(BadInput, match="no such file"):
        read(tmp_path / "none")


def test_a_calibration_has_a_row_for_each_batch_and_length(tmp_path: Path) -> None:
    """A calibration is measured, written and used by the next run. The cost of selection has its
    own column and is in no token's time."""
    pytest.importorskip("torch", reason="pip install '.[host]'")
    out = tmp_path / "tiny.json"
    words = [
        *"host calibrate --geometry tiny --batch 2,1".split(),
        *"--tokens 512,32 --selector quest,quest8".split(),
        *"--context-tokens 900".split(),
        "--out",
        str(out),
    ]
    for kernel in ("numpy", "torch"):
        assert run([*words, "--kernel", kernel]) == 0
        checked("file decode-cost", out.read_bytes())
        found = read(out)
        pairs = [(row.batch, row.tokens) for row in found.rows]
        assert pairs == [(1, 32), (1, 512), (2, 32), (2, 512)]
        parts = [(row.projection_ns, row.mlp_ns, row.attention_ns) for row in found.rows]
        assert min(map(min, parts)) > 0 and found.provenance == "measured"
        chosen = [(one.batch, one.selector, one.context_tokens) for one in found.selection]
        assert chosen == [(n, name, 900) for n in (1, 2) for name in ("quest", "quest8")]
        assert min(one.selection_ns for one in found.selection) > 0
        assert (found.kernel, found.hidden, found.mlp) == (kernel, 128, 448)
        assert found.token_ns(geometry("tiny"), 2, 512) == 2 * found.rows[-1].layer_ns
    assert "torch" in found.versions and found.device and found.command.startswith("offstage")


def test_what_cannot_be_calibrated_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="pip install '.[host]'")
    words = ["host", "calibrate", "--out", str(tmp_path / "cost.json")]
    for more, problem in {
        "--geometry glm-5.2": "stores latents",
        "--batch few": "write for example 1,4,16",
        "--batch 0": "--batch: 0; give 1 to 65,536",
        "--batch 99999999999": "--batch: 99999999999; give 1 to 65,536",
        "--tokens 99999999999999999": "give 1 to 16,777,216",
        "--selector quest4": "did you mean 'quest'?",
        "--selector quest --context-tokens 0": "give 1 to",
        "--dtype int4": "choose float32, bfloat16 or float16",
        "--device cuda:99": "no device 'cuda:99'",
        "--model none": "no such folder",
    }.items():
        assert run([*words, "--tokens", "64", *more.split()]) == 2
        assert problem in capsys.readouterr().err.strip().splitlines()[-1]
    # Within the bounds, and more than any machine has.
    large = Plan(
        geometry=geometry("tiny"),
        widths=(128, 448),
        kernel="numpy",
        device="cpu",
        dtype="float32",
        batches=(1 << 16,),
        tokens=(1 << 24,),
        processor="",
        command="",
    )
    with pytest.raises(RunFailed, match="not enough memory"):
        calibrate(large)


def test_demo_lab_and_chip_model_take_it_in_place_of_a_constant(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cost at the run's sessions and selection is in a demo's summary and in the manifest of a
    lab run on a modelled chip. It is refused together with a given time."""
    sizes, given = {"sessions": 4}, {"out": tmp_path, "storages": ("measured",)}
    options = options_of(sizes, time_per_token=None, decode_cost=file, **given)
    assert options.time_per_token_s == pytest.approx(4 * (30e-6 + 4 * 32 * 1e-6))
    assert options.decode_cost is not None and options.decode_cost.device == "a machine"
    with pytest.raises(BadInput, match="give one of them"):
        options_of(sizes, time_per_token="20ms", decode_cost=file, **given)
    assert run(["host", "run", "--time-per-token", "1ms", "--decode-cost", str(file)]) == 2
    assert "give one of them" in capsys.readouterr().err
    spec = tmp_path / "e.toml"
    text = (
        f'[workload]\nsessions = 8\nconcurrent = 4\n[geometry]\nmodel = "demo"\n[tier]\n'
        f'decode_cost = "{file}"\n'
    )
    spec.write_text(text)
    assert load(spec).time_per_token_ns == 4 * (30_000 + 4 * 32 * 1_000)
    spec.write_text(text + 'device = "asic_7nm"\n')
    modelled = load(spec)
    assert modelled.time_per_token_ns == 4 * (30_000 + 4 * 32 * 1_000), "a modelled chip alike"
    said = manifest(plan(spec, {})).decode_cost[str(file)]
    assert said == options.decode_cost.said()
    assert said["command"].startswith("offstage host calibrate")
    short = msgspec.structs.replace(options, sessions=1, context_tokens=4096, steps=1)
    about = describe(options, prepare(short))
    assert about.time_per_token_source == said
    spec.write_text(text + 'time_per_token = "40ms"\n')
    with pytest.raises(BadInput, match=r"\[tier\] decode_cost"):
        load(spec)
