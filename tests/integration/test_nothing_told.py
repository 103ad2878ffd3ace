"""Does anything that the daemon writes or shows contain a secret, a key or a hash of contents?"""

import base64
import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, WAIT_S, Daemon, daemon, scrape, until

from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol as p
from offstage.dpu.archive.format import object_key
from offstage.dpu.pod.map import Member, added
from offstage.dpu.pod.membership.static import StaticMembership
from offstage.dpu.tenants.tenancy import index_key, metrics_token
from offstage.host.fabrics import shm
from offstage.testbeds.cli import run

TENANTS = ("crimson-lab", "azure-lab")
HOST = "rack7-host"
CHUNKS = 4
COMMANDS = (["dpu", "status"], ["dpu", "ledger"], ["dpu", "policy", "show"])


def written(name: str, secret: bytes) -> dict[str, bytes]:
    """Return every encoding of bytes that output might use: raw and reversed, hexadecimal, base64
    in each alphabet, escaped, and as the core's 64-bit numbers."""
    forms = {
        "raw": secret,
        "turned": secret[::-1],
        "hex": secret.hex().encode(),
        "HEX": secret.hex().upper().encode(),
        "turned hex": secret[::-1].hex().encode(),
        "escaped": repr(secret)[2:-1].encode(),
        "escaped in JSON": json.dumps(repr(secret)[2:-1])[1:-1].encode(),
        "as text in JSON": json.dumps(secret.decode("latin-1"))[1:-1].encode(),
        "list": str(list(secret))[1:-1].encode(),
    }
    for at in range(3):  # at any offset in a longer text
        whole = base64.b64encode(bytes(at) + secret)[4 * (at > 0) : -4]
        forms[f"base64 {at}"], forms[f"url {at}"] = (
            whole,
            whole.translate(bytes.maketrans(b"+/", b"-_")),
        )
    for order in ("little", "big"):
        for at in range(0, len(secret), 8):
            number = int.from_bytes(secret[at : at + 8], order)  # type: ignore[arg-type]
            forms[f"{order} {at}"] = str(number).encode()
    return {f"{name}, {form}": text for form, text in forms.items()}


def found(needles: dict[str, bytes], told: dict[str, bytes]) -> list[str]:
    return [
        f"{what} in {where}"
        for what, needle in needles.items()
        for where, text in told.items()
        if needle in text
    ]


@pytest.fixture
def needles(tmp_path: Path) -> dict[str, bytes]:
    """The encodings of each tenant's secret, of the keys derived from it, and of the hashes that
    its host appends. The secret is in the tenant's file."""
    all_of_them = {}
    for name in TENANTS:
        secret = secrets.token_bytes(32)
        path = tmp_path / f"{name}.secret"
        path.touch(0o600)
        path.write_text(secret.hex())
        of_index = index_key(secret)
        parts = {
            "secret": secret,
            "index key": of_index,
            "archive key": object_key(of_index),
            "token": metrics_token(secret).encode(),
        }
        parts |= {f"content {at}": content(secret, at) for at in range(CHUNKS)}
        for part, of_part in parts.items():
            all_of_them |= written(f"{name}'s {part}", of_part)
    return all_of_them


def content(secret: bytes, at: int) -> bytes:
    """Return a hash of tokens that no other caller would name."""
    return object_key(secret + bytes([at]))[:16]


@pytest.fixture
def tier(tmp_path: Path, needles: dict[str, bytes]) -> Iterator[Daemon]:
    """A daemon alone in a pod, recorded, and at its most talkative."""
    (tmp_path / "pod").mkdir()
    endpoint = f"ipc://{tmp_path}/control"
    StaticMembership(tmp_path / "pod/pod.toml").change(
        lambda pod: added(pod, Member(name="dpu0", endpoint=endpoint))
    )
    tenants = {name: {"secret_file": f"{tmp_path}/{name}.secret"} for name in TENANTS}
    with daemon(
        tmp_path,
        tenants,
        daemon__endpoint=endpoint,
        daemon__record_dir=f"{tmp_path}/rec",
        daemon__log_level="debug",
        daemon__metrics_endpoint="127.0.0.1:0",
        arena__size="2MiB",
        pod__map=f"{tmp_path}/pod/pod.toml",
        pod__name="dpu0",
    ) as tier:
        yield tier


def drive(tier: Daemon, folder: Path) -> None:
    """Attach both hosts at once; each writes blocks and reads some of them."""
    rows = [tier.control(one, name=HOST, secret=folder / f"{one}.secret") for one in TENANTS]
    drivers = [shm.open_driver(one.attach("shm"), WAIT_S) for one in rows]
    ordinals = np.arange(CHUNKS, dtype=np.uint32)
    for name, control, driver in zip(TENANTS, rows, drivers, strict=True):
        secret = bytes.fromhex((folder / f"{name}.secret").read_text())
        session = control.session_open(select_blocks=4)
        appended = control.append(session, [content(secret, at) for at in range(CHUNKS)])
        keys = block_keys(appended.keys, LAYERS)
        blocks = np.zeros((CHUNKS, PAYLOAD), np.uint8)
        assert not np.any(driver.put(PutRequest(session, 0, ordinals, blocks)))
        driver.fetch(FetchRequest(session, 1, 0, ordinals, np.ascontiguousarray(keys[0]), blocks))
        with pytest.raises(Exception, match="no session"):  # a refusal that is logged and returned
            control.append(session + 1, [content(secret, 0)])
    for control, driver in zip(rows, drivers, strict=True):
        driver.close()
        control.close()


def shown(tier: Daemon, capfd: pytest.CaptureFixture[str]) -> dict[str, bytes]:
    """Return everything that the daemon shows to any caller."""
    told = {}
    for words in COMMANDS:
        for form in ("json", "text"):
            capfd.readouterr()
            assert (
                run(
                    [
                        *words,
                        "--endpoint",
                        tier.endpoint,
                        "--runtime-dir",
                        str(tier.runtime_dir),
                        "--format",
                        form,
                    ]
                )
                == 0
            )
            told[f"{' '.join(words)} --format {form}"] = capfd.readouterr().out.encode()
    token = (tier.runtime_dir / "metrics.token").read_text().strip()
    told["metrics"] = scrape(tier, token).encode()
    process = Path(f"/proc/{tier.process.pid}")
    for name in ("cmdline", "environ"):
        try:
            told[name] = (process / name).read_bytes()
        except PermissionError:  # only root may inspect the process
            continue
    return told


def test_what_is_written_and_shown_tells_no_secret_and_no_hash(
    tier: Daemon, tmp_path: Path, needles: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    """After two hosts of two tenants have run, every byte of the recording, log, pod's map,
    metrics, status, ledger, policy, arguments and environment is searched."""
    with capfd.disabled():
        drive(tier, tmp_path)
    until(lambda: b"offstage_put_blocks_total 0.0" not in shown(tier, capfd)["metrics"])
    told = shown(tier, capfd)
    tier.process.terminate()
    assert tier.process.wait(WAIT_S) == 0
    files = [*(tmp_path / "rec").iterdir(), *(tmp_path / "pod").iterdir(), tier.log]
    told |= {path.name: path.read_bytes() for path in files}
    assert {"ledger.bin", "decisions.log", "record.json", "pod.toml", "daemon.log"} <= set(told)
    assert len(told["decisions.log"]) > 1000
    assert b'"crimson-lab"' in told["dpu status --format json"]
    assert b'tenant="azure-lab"' in told["metrics"] and b"serve" in told.get("cmdline", b"serve")
    assert found(needles, told) == []
    recording = {path.name: path.read_bytes() for path in (tmp_path / "rec").iterdir()}
    assert found({name: name.encode() for name in (*TENANTS, HOST)}, recording) == []


def test_the_search_finds_what_is_there(needles: dict[str, bytes], tmp_path: Path) -> None:
    secret = bytes.fromhex((tmp_path / "crimson-lab.secret").read_text())
    key = index_key(secret)
    for text in (
        secret,
        b"x" + secret.hex().encode(),
        base64.b64encode(b"ab" + key + b"c"),
        b'{"lo": %d}' % int.from_bytes(key[8:], "little"),
        repr(key).encode(),
        content(secret, 3)[::-1],
        json.dumps({"key": repr(key)}).encode(),
    ):
        assert found(needles, {"it": b"before " + text + b" after"})
    assert not found(needles, {"it": b"before and after", "env": str(p.VERSIONS).encode()})
