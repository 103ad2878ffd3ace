"""Can an operator reach a daemon with CURVE, and does a failure name its cause?"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq.auth
from against_schema import checked
from live_daemon import Daemon, daemon

from offstage.bindings.errors import BadInput
from offstage.dpu import protocol as p
from offstage.dpu.config.derive import derive
from offstage.dpu.config.values import load
from offstage.host.endpoint import Endpoint
from offstage.testbeds.cli import run

SECRET = "5a" * 32


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys made by the commands: the daemon's, a known client's and an unknown client's."""
    base = tmp_path_factory.mktemp("curve")
    assert run(["keys", "make", "server", str(base / "server")]) == 0
    for name in ("known", "stranger"):
        assert run(["keys", "make", "client", str(base / name)]) == 0
        shutil.copy(base / "server/server.key", base / name)
    known = str(base / "known/client.key")
    assert run(["keys", "add", str(base / "server"), known, "--name", "known"]) == 0
    (base / "operator.secret").write_text(SECRET)
    (base / "operator.secret").chmod(0o600)
    return base


@pytest.fixture(scope="module")
def tier(base: Path) -> Iterator[Daemon]:
    with daemon(
        base,
        daemon__curve_dir=str(base / "server"),
        daemon__operator_secret_file=str(base / "operator.secret"),
    ) as tier:
        yield tier


def reach(address: str, base: Path, keys: str) -> None:
    Endpoint(
        address,
        p.OPERATOR,
        secret=base / "operator.secret",
        timeout_s=3.0,
        curve_dir=base / keys if keys else None,
    ).control(heartbeat=False).close()


def test_an_operator_reaches_it_with_a_key_by_name_and_on_the_spot_without(
    tier: Daemon, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name in the user's file gives address and keys for the network's port; the daemon's user on
    its machine needs no key."""
    entry = (
        f'[lab]\nendpoint = "{tier.endpoint}"\ncurve_dir = "known"\n'
        'operator_secret = "operator.secret"\n'
    )
    (base / "daemons.toml").write_text(entry)
    monkeypatch.setenv("OFFSTAGE_DAEMONS", str(base / "daemons.toml"))
    for words in (["status"], ["ledger"], ["policy", "show"], ["reset"]):
        assert run(["dpu", *words, "--endpoint", "lab", "--format", "json"]) == 0
    names = ("dpu status", "dpu ledger", "dpu policy show", "dpu reset")
    lines = capsys.readouterr().out.splitlines()
    spoken = [checked(name, line) for name, line in zip(names, lines, strict=True)]
    assert spoken[0]["storage"] == tier.storage and spoken[-1]["reset"] is True
    assert (
        run(["dpu", "status", "--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)])
        == 0
    )
    assert run(["dpu", "status", "--endpoint", "lib"]) == 2
    assert "nor a daemon in" in capsys.readouterr().err


def test_each_reason_is_told_from_the_next(tier: Daemon, base: Path) -> None:
    """No key, another daemon's key, an unknown client, and no daemon have one error each; the log
    says whose key was refused."""
    with pytest.raises(BadInput, match="does not know this client's key"):
        reach(tier.endpoint, base, "stranger")
    key = zmq.auth.load_certificate(base / "stranger/client.key")[0].decode()
    lines = map(json.loads, tier.log.read_text().splitlines())
    refused = [line["key"] for line in lines if line["event"] == "login_refused"]
    assert refused and set(refused) == {key}
    with pytest.raises(BadInput, match="may require CURVE"):
        reach(tier.endpoint, base, "")
    assert run(["keys", "make", "server", str(base / "other")]) == 0
    shutil.copytree(base / "known", base / "mistaken")
    shutil.copy(base / "other/server.key", base / "mistaken")
    with pytest.raises(BadInput, match="different key"):
        reach(tier.endpoint, base, "mistaken")
    with pytest.raises(BadInput, match="nothing listens there"):
        reach("tcp://127.0.0.1:1", base, "known")


def test_a_key_counts_once_it_is_added(tier: Daemon, base: Path) -> None:
    """No restart is needed. A secret key, the daemon's own, a second of a name or a second name of
    a key is refused: whose one name is removed must not get in by the other."""
    folder, key = str(base / "server"), base / "stranger/client.key"
    (base / "large.key").touch()
    os.truncate(base / "large.key", 1 << 40)
    for wrong in ("/dev/zero", str(base / "large.key"), str(base)):
        assert run(["keys", "add", folder, wrong, "--name", "wrong"]) == 2
    assert run(["keys", "add", folder, str(key.with_suffix(".key_secret"))]) == 2
    assert run(["keys", "add", folder, str(base / "server/server.key"), "--name", "own"]) == 2
    assert run(["keys", "add", folder, str(key), "--name", "known"]) == 2
    assert run(["keys", "add", folder, str(base / "known/client.key"), "--name", "again"]) == 2
    assert run(["keys", "add", folder, str(key), "--name", "stranger"]) == 0
    assert run(["keys", "add", folder, str(key), "--name", "stranger"]) == 0
    for _ in range(40):
        try:
            return reach(tier.endpoint, base, "stranger")
        except BadInput as error:
            last = error
    raise last


def test_a_daemon_whose_clients_have_no_key_does_not_start(tmp_path: Path) -> None:
    """With an empty clients/ no client could connect, and the ready line would be false."""
    assert run(["keys", "make", "server", str(tmp_path / "keys")]) == 0
    config = load(
        overrides={"daemon.curve_dir": f"{tmp_path}/keys", "storage.backend": "emulated"},
        environ={},
    )
    with pytest.raises(BadInput, match="client's key"):
        derive(config)
