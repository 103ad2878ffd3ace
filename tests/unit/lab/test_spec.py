"""Is every mistake in a spec one line that names the file and the key, and is the page right?"""

import datetime
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.lab_pod import toml_value
from offstage.testbeds.lab.run.experiment import plan
from offstage.testbeds.lab.run.plan import points_of
from offstage.testbeds.lab.spec import schema as specs
from offstage.testbeds.lab.spec.idle import IDLE
from offstage.testbeds.lab.spec.load import find, load
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.sweep import variants

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/lab-spec.md"
TABLES = {
    "workload": specs.WorkloadSpec,
    "geometry": specs.GeometrySpec,
    "selection": specs.SelectionSpec,
    "tier": specs.TierSpec,
    "weights": specs.WeightsSpec,
    "policy": specs.PolicySpec,
    "reference": specs.ReferenceSpec,
}
GOOD: dict[str, Any] = {
    "workload": {"context_tokens": 4096, "sessions": 2, "steps": 24},
    "geometry": {"model": "tiny", "block_tokens": 64},
    "selection": {"k_blocks": 8},
    "tier": {"buffer_over_k": [2]},
    "policy": [{"use": "window+ema"}],
}


def toml(value: Any) -> str:
    """Return a value as TOML, whose strings are JSON's except surrogates and DEL."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write(folder: Path, raw: dict[str, Any]) -> Path:
    path = folder / "e.toml"
    path.write_text("".join(f"{toml(k)} = {toml(v)}\n" for k, v in raw.items()), "utf-8")
    return path


def merged(changes: dict[str, Any]) -> dict[str, Any]:
    """Return `GOOD` with `table.key` or `key` changed."""
    raw = {key: dict(one) if isinstance(one, dict) else one for key, one in GOOD.items()}
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        if table:
            raw.setdefault(table, {})[name] = value
        else:
            raw[key] = value
    return raw


BAD: list[tuple[dict[str, Any], str]] = [
    ({"seeds": []}, "seeds"),
    ({"seeds": [1, 1]}, "seeds"),
    ({"seeds": [-1]}, "seeds"),
    ({"name": 3}, "name"),
    ({"workload": 3}, "workload"),
    ({"workload.kind": "captured"}, "[workload] file"),
    ({"workload.file": "x"}, "[workload] file"),
    ({"workload.kind": "prose"}, "workload.kind"),
    ({"workload.sessions": 0}, "workload.sessions"),
    ({"workload.sessions": 65537}, "workload.sessions"),
    ({"workload.sessions": 60000, "geometry.block_tokens": 1}, "[workload] sessions"),
    ({"workload.context_tokens": 4095}, "[workload] context_tokens"),
    ({"workload.shared_prefix_tokens": 4160}, "[workload] shared_prefix_tokens"),
    ({"workload.shared_prefix_tokens": 100}, "[workload] shared_prefix_tokens"),
    ({"workload.index_group": 3}, "[workload] index_group"),
    ({"workload.layers": 3}, "[workload] layers"),
    ({"workload.draft_agreement": 1.5}, "workload.draft_agreement"),
    ({"workload.predicted": "guessed"}, "workload.predicted"),
    (
        {"workload.predicted": "captured", "workload.kind": "captured", "workload.file": "x"},
        "[workload] predicted",
    ),
    ({"geometry.model": "tinny"}, "did you mean 'tiny'"),
    ({"xyzzy": {}}, "unknown key 'xyzzy'; choose one of "),
    ({"geometry.block_tokens": 8192}, "[geometry] block_tokens"),
    ({"geometry.granule_tokens": 24}, "[geometry] granule_tokens"),
    ({"geometry.granule_tokens": 128}, "[geometry] granule_tokens"),
    ({"selection.k_blocks": 65}, "[selection] k_blocks"),
    ({"selection.window_blocks": 7}, "[selection] window_blocks"),
    (
        {
            "workload.context_tokens": 1 << 20,
            "geometry.granule_tokens": 1,
            "selection.k_blocks": 1024,
        },
        "[selection] k_blocks",
    ),
    ({"tier.buffer_over_k": []}, "[tier] buffer_over_k"),
    ({"tier.buffer_over_k": [0.5]}, "[tier] buffer_over_k"),
    ({"tier.buffer_over_k": [math.nan]}, "tier.buffer_over_k"),
    ({"tier.buffer_over_k": [4096], "workload.sessions": 60000}, "[tier] buffer_over_k"),
    ({"tier.hbm_pool_over_k": 0.5}, "[tier] hbm_pool_over_k"),
    ({"tier.storage": "floppy"}, "[tier] storage"),
    ({"tier.bandwidth": []}, "[tier] bandwidth"),
    ({"tier.bandwidth": ["fast"]}, "[tier] bandwidth"),
    ({"tier.bandwidth": [0]}, "[tier] bandwidth"),
    ({"tier.bandwidth": ["99999999GB/s"]}, "[tier] bandwidth"),
    ({"tier.time_per_token": "1ns"}, "[tier] time_per_token"),
    ({"tier.time_per_token": "soon"}, "[tier] time_per_token"),
    ({"tier.warmup": "2h"}, "[tier] warmup"),
    ({"tier.in_flight": 0}, "tier.in_flight"),
    ({"policy": []}, "[[policy]]"),
    ({"policy": [{}]}, "policy"),
    ({"policy": [{"use": "nope"}]}, "unknown policy 'nope'"),
    ({"policy": [{"use": "no.such:Class"}]}, "no.such:Class"),
    ({"policy": [{"use": "window", "eviction": "lrux"}]}, "[[policy]] eviction"),
    ({"policy": [{"use": "window", "parameters": {"degree_mx": 2}}]}, "'degree_max'"),
    ({"policy": [{"use": "window", "parameters": {"degree_max": -1}}]}, "degree_max"),
    ({"policy": [{"use": "window", "parameters": {"degree_max": 1 << 32}}]}, "degree_max"),
    (
        {"policy": [{"use": "window", "parameters": {"prefetch_bytes_per_s_max": 1}}]},
        "[[policy]] parameters",
    ),
    ({"reference.use": "nope"}, "unknown policy 'nope'"),
    ({"reference.eviction": "lrux"}, "[reference] eviction"),
    ({"reference.buffer_over_k": 0.5}, "[reference] buffer_over_k"),
]


@pytest.mark.parametrize(("changes", "named"), BAD, ids=lambda one: str(one)[:60])
def test_what_cannot_be_is_one_line_that_names_the_key(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = write(tmp_path, merged(changes))
    with pytest.raises(BadInput) as caught:
        load(path)
    line = str(caught.value)
    assert named in line and str(path) in line and "\n" not in line, line
    assert caught.value.exit_code == 2


def test_what_can_be_is_read(tmp_path: Path) -> None:
    """The base of all bad specs is valid."""
    spec = load(write(tmp_path, GOOD))
    assert (spec.name, spec.layer_count, spec.concurrent, spec.granules) == ("e", 2, 2, 1)
    assert spec.block_bytes == 64 * 256 and spec.caps == [None]
    one_cap = load(write(tmp_path, merged({"tier.bandwidth": [0], "policy": [{"use": "lru"}]})))
    assert one_cap.caps == [0]


@pytest.mark.parametrize("table", TABLES)
def test_an_unknown_key_names_the_nearest_at_every_level(table: str, tmp_path: Path) -> None:
    field = max(TABLES[table].__struct_fields__, key=len)
    raw = merged({})
    inner = {"use": "none", field + "s": 1} if table == "policy" else {field + "s": 1}
    raw[table] = [inner] if table == "policy" else inner
    with pytest.raises(
        BadInput,
        match=rf"\[{table}\]: unknown key '{field}s'; did you mean '{field}'",
    ):
        load(write(tmp_path, raw))
    with pytest.raises(BadInput, match=rf"e.toml: unknown key '{table}z'; did you mean '{table}'"):
        load(write(tmp_path, merged({f"{table}z": 1})))


@pytest.mark.parametrize(
    ("sweep", "named"),
    [
        ({"workload.steps": []}, "workload.steps"),
        ({"workload.steps": [1, 1]}, "has 1 twice"),
        ({"workload.stepz": [1]}, "did you mean 'steps'"),
        ({"wrkload.steps": [1]}, "did you mean 'workload'"),
        ({"policy.use": ["none"]}, "policy.use"),
        ({"sweep": [{}]}, "cannot be an axis"),
        ({"name": ["a"]}, "cannot be an axis"),
        ({"workload.steps": 3}, "sweep"),
        ({"workload.steps": [0, "x"]}, "no variant can run"),
    ],
)
def test_an_axis_that_is_none_ends_the_sweep(
    sweep: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = write(tmp_path, {**GOOD, "sweep": sweep})
    with pytest.raises(BadInput) as caught:
        plan(path, {})
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_combination_that_contradicts_itself_is_kept_and_the_others_run(tmp_path: Path) -> None:
    """With sinks and window of 3, k = 8 is valid and k = 3 is not; a word is not a number."""
    sweep = {"selection.k_blocks": [8, 3, "x"], "geometry.block_tokens": [32, 64]}
    path = write(tmp_path, {**GOOD, "sweep": sweep})
    found = dict(variants(path))
    assert [label for label, one in found.items() if isinstance(one, Spec)] == [
        "k_blocks=8, block_tokens=32",
        "k_blocks=8, block_tokens=64",
    ]
    experiment = plan(path, {})
    assert [label for label, _ in experiment.refused] == [
        f"k_blocks={k}, block_tokens={tokens}" for k in (3, "x") for tokens in (32, 64)
    ]
    numbers = [point.number for one in experiment.variants for point in one.points]
    assert numbers == list(range(len(numbers)))


def test_axes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    sweep = {"tier.buffer_over_k": [[2], [4]], "reference.buffer_over_k": [2, 4]}
    labels = [label for label, _ in variants(write(tmp_path, {**GOOD, "sweep": sweep}))]
    assert len(set(labels)) == 4 and "tier.buffer_over_k=[2]" in labels[0]


def test_two_policies_of_one_name_are_refused(tmp_path: Path) -> None:
    raw = merged({"policy": [{"use": "ema", "label": "a"}, {"use": "window", "label": "a"}]})
    with pytest.raises(BadInput, match="two policies have the label 'a'"):
        plan(write(tmp_path, raw), {})


def test_what_the_workload_refuses_is_said_before_a_run(tmp_path: Path) -> None:
    for changes, named in (
        ({"workload.draft_agreement": 0.01}, "draft_agreement"),
        ({"workload.profile": "nope"}, "unknown profile 'nope'"),
    ):
        path = write(tmp_path, merged(changes))
        with pytest.raises(BadInput, match=named) as caught:
            plan(path, {})
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("0.5", 0.5),
        ("[2, 4]", [2, 4]),
        ('"40ms"', "40ms"),
        ("40ms", "40ms"),
        ("true", True),
        ('[{use = "none"}]', [{"use": "none"}]),
        ("a\nb = 1", "a\nb = 1"),
        ("", ""),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_setting_is_what_toml_would_make_of_it_or_text(text: str, value: Any) -> None:
    assert toml_value(text) == value


def test_changes_reach_every_level(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    spec = load(path, {"workload.steps": 7, "seeds": [4], "policy": [{"use": "none"}]})
    assert (spec.workload.steps, spec.seeds, spec.policy[0].use) == (7, (4,), "none")
    for key in ("stepz", "workload.stepz", "wrkload.steps", "policy.use", "name.x"):
        with pytest.raises(BadInput, match=r"e\.toml"):
            load(path, {key: 7})


WORDS = {
    ("geometry", "granule_tokens"): "whole blocks",
    ("workload", "trace"): "none",
    ("policy", "eviction"): "the components'",
    ("policy", "label"): "made of the others",
    ("policy", "parameters"): "none",
    ("workload", "file"): "",
    ("workload", "capacity_share"): "1, 5, 10, 25, 50 %",
    ("tier", "below"): "none",
    ("tier.below", "promote_within"): "break-even",
}


def test_the_page_has_every_key_with_its_default_and_no_other() -> None:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    rows = {
        title: {
            name: default.strip()
            for name, default in re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", text, re.MULTILINE)
        }
        for title, text in sections.items()
    }
    assert list(rows["Top level"]) == list(Spec.__struct_fields__)
    for table, kind in (TABLES | {"tier.below": specs.BelowSpec}).items():
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        assert set(rows[table]) == set(fields), table
        for name, text in rows[table].items():
            if (table, name) in WORDS:
                assert text == WORDS[table, name]
            elif fields[name].required:
                assert text == ""
            else:
                described = toml_value(text.strip("`"))
                default = fields[name].default
                default = list(default) if isinstance(default, tuple) else default
                assert described == default, (table, name)
    shares = msgspec.structs.fields(specs.WorkloadSpec)[-1]
    assert [f"{100 * one:g}" for one in shares.default] == "1 5 10 25 50".split()


def test_the_page_shows_a_spec_that_is_good(tmp_path: Path) -> None:
    for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        (tmp_path / "shown.toml").write_text(text)
        assert plan(tmp_path / "shown.toml", {}).variants


KEYS = [f"{table}.{name}" for table, kind in TABLES.items() for name in kind.__struct_fields__]
SCALARS = st.one_of(
    st.integers(-(1 << 40), 1 << 40),
    st.integers(0, 300),
    st.booleans(),
    st.text(max_size=8),
    st.floats(),
    st.sampled_from(
        [
            "lru",
            "none",
            "4GB/s",
            "1ms",
            "captured",
            "1e9",
            "tiny",
            "mass",
            "unlimited",
            "window+ema",
            "granule",
            "+",
            ":",
            "a:b",
        ]
    ),
    st.dates(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["use", "label", "eviction", "parameters", "degree_max", "x", "a.b"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=4,
)
CHANGES = st.dictionaries(
    st.one_of(
        st.sampled_from([key for key in KEYS if not key.startswith("policy.")]),
        st.sampled_from(["policy", "sweep", "seeds", "name", "workload", "", "x", "reference"]),
    ),
    VALUES,
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kind", ["captured", "selections"])
def test_loading_a_spec_opens_no_data(tmp_path: Path, kind: str) -> None:
    """A spec loads without its data; planning opens the file and names a missing one in one
    line."""
    raw = merged({"workload": {"kind": kind, "file": "not-there.data"}})
    if kind == "selections":
        del raw["selection"]
    path = write(tmp_path, raw)
    assert load(path).workload.file == "not-there.data"
    with pytest.raises(BadInput, match="no such file") as caught:
        plan(path, {})
    assert "not-there.data" in str(caught.value) and "\n" not in str(caught.value)


IDLE_KEYS: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "captured", "file": "f", "sessions": 9}, "", "sessions has no effect with recorded"),
    ({"kind": "captured", "file": "f", "profile": "x"}, "", "profile has no effect with recorded"),
    ({"kind": "selections", "file": "f"}, "selection", "k_blocks has no effect with recorded"),
    ({"ttl_s": [1.0]}, "", "ttl_s has no effect in a workload of kind 'generated'"),
    ({"split": "test"}, "", "split has no effect without [workload] trace"),
    ({"indexers": 2}, "", "indexers has no effect without [geometry] staged"),
    ({"kind": "requests", "file": "f", "steps": 9}, "", "steps has no effect in a workload of"),
    ({"kind": "requests", "file": "f"}, "geometry", "model has no effect in a workload of kind"),
    ({"kind": "requests", "file": "f"}, "selection", "k_blocks has no effect in a workload of"),
    ({"kind": "requests", "file": "f"}, "tier", "buffer_over_k has no effect in a workload of"),
    ({"kind": "requests", "file": "f"}, "reference", "use has no effect in a workload of kind"),
]
"""What a workload says, the table beside it, and the error."""
BESIDE: dict[str, dict[str, Any]] = {
    "geometry": {"model": "tiny"},
    "selection": {"k_blocks": 9},
    "tier": {"buffer_over_k": [2]},
    "reference": {"use": "none"},
}


@pytest.mark.parametrize(("work", "table", "said"), IDLE_KEYS, ids=lambda one: str(one)[:40])
def test_keys_that_do_nothing_beside_their_workload_are_refused(
    tmp_path: Path, work: dict[str, Any], table: str, said: str
) -> None:
    """They are refused in the file and on the command line; without them the spec loads."""
    beside = {table: BESIDE[table]} if table else {}
    with pytest.raises(BadInput, match=re.escape(said)):
        load(write(tmp_path, {"workload": work, **beside}))
    name = said.partition(" ")[0]
    path = write(tmp_path, {"workload": {key: one for key, one in work.items() if key != name}})
    assert load(path)
    value = BESIDE[table][name] if table else work[name]
    with pytest.raises(BadInput, match="has no effect"):
        load(path, {f"{table or 'workload'}.{name}": value})


def test_every_idle_key_is_tried() -> None:
    said = [said for _, _, said in IDLE_KEYS]
    assert (
        all(
            any(row.why.startswith(one.split(" has no effect ")[1]) for one in said) for row in IDLE
        )
        and len(IDLE) == 11
    )


def test_a_sweep_over_files_needs_only_those(tmp_path: Path) -> None:
    """The spec's own file is not opened if each variant has another; one without its file is
    refused."""
    steps = [[token, layer, [0, token, 7], []] for token in (1, 2, 3) for layer in (0, 1)]
    one = {
        "run": "a",
        "model": "M",
        "layers": 2,
        "prompt_tokens": 256,
        "block_tokens": 32,
        "steps": steps,
    }
    (tmp_path / "one.jsonl").write_text(json.dumps(one) + "\n")
    files = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    path = tmp_path / "e.toml"
    path.write_text(
        '[workload]\nkind = "selections"\nfile = "not-there.jsonl"\n'
        '[geometry]\nmodel = "llama-3-70b"\nblock_tokens = 32\n'
        '[[policy]]\nuse = "none"\n'
    )
    experiment = plan(path, {"sweep": {"workload.file": files}})
    assert [variant.spec.workload.file for variant in experiment.variants] == files[:1]
    assert "no such file" in experiment.refused[0][1]
    with pytest.raises(BadInput, match="not-there"):
        plan(path, {"sweep": {"tier.hbm_pool_over_k": [0.0, 1.0]}})


@given(CHANGES, st.booleans())
def test_anything_is_a_spec_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], bare: bool
) -> None:
    """Values and keys are arbitrary, alone or in a good spec, written as TOML and read back."""
    raw: dict[str, Any] = {} if bare else merged({})
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        if table and isinstance(raw.setdefault(table, {}), dict):
            raw[table][name] = value
        elif not table:
            raw[key] = value
    path = write(tmp_path_factory.getbasetemp(), raw)
    tomllib.loads(path.read_text())  # what is tested is the spec, not the writer
    try:
        for _, found in variants(path):
            if isinstance(found, Spec):
                assert points_of(found, 0, 0)
    except BadInput as error:
        assert "\n" not in str(error) and str(error)


def test_a_folder_of_results_does_not_hide_the_spec_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lab run cmx-128k --out cmx-128k` continues where it was interrupted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cmx-128k").mkdir()
    assert find("cmx-128k").name == "cmx-128k.toml"
    assert load(find("cmx-128k")).name == "cmx-128k"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_spec_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    path.write_bytes(data)
    try:
        assert isinstance(load(path), Spec)
    except BadInput as error:
        assert str(path) in str(error) and "\n" not in str(error)
