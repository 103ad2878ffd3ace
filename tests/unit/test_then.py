"""Is the command that comes next one that can be typed as it stands, with what was used?"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from offstage.testbeds.beds.here import Up
from offstage.testbeds.beds.pod import PodBed
from offstage.testbeds.cli import run
from offstage.testbeds.models.kept import Marker

Told = Callable[..., list[str]]
SIZES = ["--sessions", "3", "--context-tokens", "8192", "--steps", "5"]
DEFAULTS = ["--sessions", "2", "--context-tokens", "32768", "--steps", "64"]
EMULATED = ["--sessions", "2", "--context-tokens", "4096", "--steps", "8"]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run a command, and give the words of the one that it names last, which the parser takes. As
    JSON the document stands alone."""

    def command(*words: str, json_too: bool = True) -> list[str]:
        assert run(words) == 0
        *_, heading, line = capsys.readouterr().out.splitlines()
        assert heading.strip() == "next:" and line.startswith("  offstage ")
        named = shlex.split(line)
        assert run([*named[1:], "--help"]) == 0 and "Usage: offstage" in capsys.readouterr().out
        if json_too:
            assert run([*words, "--format", "json"]) == 0
            assert "next" not in json.loads(capsys.readouterr().out)
        return named[1:]

    return command


def test_keys_lead_to_a_client_that_the_daemon_lets_in(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is that which the one before named; paths stay as they were given."""
    monkeypatch.chdir(tmp_path)
    words = told("keys", "make", "server", "its keys", json_too=False)
    assert words == ["keys", "make", "client", "its keys-client"]
    words = told(*words, json_too=False)
    assert words == ["keys", "add", "its keys", "its keys-client/client.key"]
    assert run(words) == 0
    assert (tmp_path / "its keys/clients/client.key").is_file()


@pytest.mark.parametrize("known", [False, True])
def test_a_key_beside_no_daemons_or_several_leads_to_its_use(
    known: bool, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose daemon it is for is not known here, unless the environment has its address and the
    operator's secret: they are part of the command."""
    endpoint, secret = "tcp://DPU:7411", "operator.secret"
    if known:
        endpoint, secret = "tcp://10.0.0.7:7500", "/etc/lab.secret"
        monkeypatch.setenv("OFFSTAGE_DAEMON_ENDPOINT", endpoint)
        monkeypatch.setenv("OFFSTAGE_OPERATOR_SECRET", secret)
    for name in ("alone", "beside"):
        folder = tmp_path / name / "keys"
        words = told("keys", "make", "client", str(folder), json_too=False)
        way = ["--endpoint", endpoint, "--curve-dir", str(folder), "--secret", secret]
        assert words == ["dpu", "status", *way]
        for daemon in ("one", "other"):
            (tmp_path / "beside" / daemon / "clients").mkdir(parents=True, exist_ok=True)


def test_json_of_new_keys_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "make", "server", str(tmp_path), "--format", "json"]) == 0
    assert {"public", "secret"} <= json.loads(capsys.readouterr().out).keys()


def test_a_model_leads_to_its_demo(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = SimpleNamespace(parameters=1, size_bytes=2, content="00")
    assert {"parameters", "size_bytes", "content"} <= set(Marker.__struct_fields__)
    monkeypatch.setattr(
        "offstage.testbeds.models.get.get", lambda *_, **__: (Path("folder"), marker, True)
    )
    words = told("models", "get", "smollm2-135m")
    assert words == ["demo", "--model", "smollm2-135m"]


@pytest.mark.parametrize("bed", ["local", "netns"])
def test_a_bed_that_is_up_leads_to_a_run_of_its_sizes(
    bed: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is as it was given; a link is shaped when it is made."""
    up = Up(bed, Path("/bed of mine"), 7, "tcp://127.0.0.1:1", {}, {"gpu": "not real"})
    monkeypatch.setattr("offstage.testbeds.beds.here.up", lambda *_: up)
    words = told("testbed", "up", bed, *SIZES, "--out", "bed of mine")
    assert words == ["testbed", "run", bed, *SIZES, "--out", "bed of mine"]
    assert told("testbed", "up", bed)[3:] == [*DEFAULTS, "--out", "testbed-out"]


def test_a_pod_that_is_up_leads_to_a_run_over_it(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = PodBed(Path("/pod"), "/pod/pod.toml", {"dpu0": 7})
    monkeypatch.setattr("offstage.testbeds.beds.pod.up", lambda *_: up)
    words = told("testbed", "up", "pod", *SIZES, "--out", "/pod")
    assert words == ["testbed", "run", "pod", *SIZES, "--out", "/pod"]


def test_guests_that_are_up_lead_to_a_run_on_them(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = SimpleNamespace(process=SimpleNamespace(pid=7), console=Path("/guest/console"))
    up = SimpleNamespace(node=guest, dpu=guest, share=Path("/share"))
    monkeypatch.setattr("offstage.testbeds.beds.qemu.pair.up", lambda *_, **__: up)
    words = told("testbed", "up", "qemu", "--out", "/guests")
    assert words == ["testbed", "run", "qemu", *EMULATED, "--out", "/guests"]


def test_a_dpu_that_is_up_leads_to_a_run_on_it(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that are only printed lead nowhere."""
    inventory = tmp_path / "the inventory.toml"
    inventory.write_text('[dpu]\nssh = "root@dpu"\naddress = "192.168.100.2"\n')
    for name in ("execute", "wait"):
        monkeypatch.setattr(f"offstage.testbeds.cli.testbed_bluefield.{name}", lambda *_: None)
    given = ["--inventory", str(inventory), *SIZES, "--out", str(tmp_path / "out")]
    assert told("testbed", "up", "bluefield", *given) == ["testbed", "run", "bluefield", *given]
    assert run(["testbed", "up", "bluefield", *given, "--dry-run"]) == 0
    assert "next:" not in capsys.readouterr().out
