"""Is what commands print, and what runs leave, what its JSON Schema says?

Commands that need more than a moment are held to their schemas where they are tested.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from against_schema import SCHEMAS, checked
from bench_results import RESULTS
from jsonschema import Draft202012Validator
from schemas import printed

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run
from offstage.testbeds.cli.described import described
from offstage.testbeds.document import SCHEMA_VERSION, as_json, as_line, refuse_later

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "tests/golden/data/tiny_mooncake.jsonl")
ASKED = {
    "asic commands": (),
    "asic presets": (),
    "asic presets asic_7nm": (),
    "asic synth": (),
    "config show": (2,),
    "config show --set storage.backend=emulated": (),
    "doctor": (0, 1),
    "drive presets": (),
    "drive presets qlc": (),
    "drive presets xl-flash-n3x": (),
    "keys make client keys": (),
    "keys make server served": (),
    "lab policies": (),
    "model show deepseek-v4-pro --kv-dtype fp8": (),
    "model show gemma-3-270m": (),
    "models list": (),
    "plan": (),
    "plan --model llama-3-8b --users 4 --tiers ddr5,tlc": (),
    "rivals prefix --draws 8": (),
    "testbed list": (),
    f"trace info {TRACE}": (),
    f"trace import {TRACE} --out trace.jsonl": (),
    f"trace export {TRACE} --to vllm --out vllm.jsonl": (),
    "trace generate --out drawn.parquet --layers 2 --context-tokens 640 --steps 3": (),
}
"""Words of a command, and the exit codes that it may have; none: 0."""


def test_every_command_that_prints_json_has_a_schema() -> None:
    """And no schema is of a command that there is not."""
    print_json = [
        one.name.removeprefix("offstage ")
        for one in described().all()
        if any("--format" in each.names for each in one.parameters)
    ]
    assert sorted(print_json) == sorted(printed())


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda path: path.stem)
def test_a_schema_is_one_and_asks_for_its_version(path: Path) -> None:
    """Each is valid by its draft, and refuses a document without a version or of another one."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    for top in schema.get("anyOf", [schema]):
        assert top["properties"]["schema_version"] == {"const": SCHEMA_VERSION}
        assert "schema_version" in top["required"]
        assert top["additionalProperties"] is not True


@pytest.mark.parametrize("words", ASKED)
def test_a_command_prints_what_its_schema_says(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = max((one for one in printed() if f"{words} ".startswith(f"{one} ")), key=len)
    assert run([*words.split(), "--format", "json"]) in (ASKED[words] or (0,))
    checked(name, capsys.readouterr().out)


def test_the_files_of_a_plan_and_of_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--out", str(tmp_path)]) == 0
    checked("file plan", (tmp_path / "plan.json").read_text(encoding="utf-8"))
    for side in ("server", "client"):
        assert run(["keys", "make", side, str(tmp_path / side)]) == 0
    capsys.readouterr()
    key = str(tmp_path / "client/client.key")
    assert run(["keys", "add", str(tmp_path / "server"), key, "--format", "json"]) == 0
    checked("keys add", capsys.readouterr().out)
    (tmp_path / "secret").write_text("ab" * 32)
    (tmp_path / "secret").chmod(0o600)
    assert run(["keys", "token", str(tmp_path / "secret"), "--format", "json"]) == 0
    checked("keys token", capsys.readouterr().out)


@pytest.mark.parametrize("name", RESULTS)
def test_a_bench_writes_what_its_schema_says(name: str) -> None:
    """Two benches have another one's command."""
    command = {"links": "fabric", "spdk": "storage"}.get(name, name)
    checked(f"bench {command.partition(',')[0]}", as_line(RESULTS[name].document()))


def broken(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The document with one thing wrong."""
    (first, *_) = document["checks"]
    return {
        "another version": document | {"schema_version": SCHEMA_VERSION + 1},
        "a key less": {key: one for key, one in document.items() if key != "ready"},
        "a key more": document | {"extra": 1},
        "another type": document | {"ready": "yes"},
        "a key more inside": document | {"checks": [{**first, "extra": 1}]},
        "another type inside": document | {"checks": [{**first, "repairs": "none"}]},
    }


def test_a_schema_refuses_what_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """A key that is gone, new or of another type does not pass, at any depth."""
    assert run(["doctor", "--format", "json"]) in (0, 1)
    document = checked("doctor", capsys.readouterr().out)
    for what, one in broken(document).items():
        with pytest.raises(AssertionError, match="doctor: "):
            checked("doctor", json.dumps(one))
            pytest.fail(f"{what} passes")


def test_the_version_is_first_in_a_line_and_in_a_file() -> None:
    """Also of a document with no other key."""
    assert as_line({"b": 1}) == '{"schema_version": 1, "b": 1}'
    assert as_json({"b": [1, 2]}) == '{\n "schema_version": 1,\n "b": [1,2]\n}\n'
    assert json.loads(as_line({})) == json.loads(as_json({})) == {"schema_version": SCHEMA_VERSION}


def test_a_later_version_is_refused_in_one_line() -> None:
    """One from before the promise passes; so does what is no document, which its reader refuses."""
    with pytest.raises(BadInput, match=r"x\.json: has schema_version 2, and this release knows 1"):
        refuse_later(b'{"schema_version": 2}', "x.json")
    for passes in (b'{"schema_version": 1}', b"{}", b"[]", b"\xff", b'{"schema_version": "a"}'):
        refuse_later(passes, "x.json")
