"""Which users are admitted, and which files are private, for each bit of a mode and each
identity?"""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq.auth
from on_disk import snapshot

from offstage.bindings.errors import BadInput, Unreachable
from offstage.bindings.private import check_private, read_secret
from offstage.dpu.archive import s3
from offstage.dpu.config.options import Daemon, Tenant
from offstage.dpu.config.values import Config, load
from offstage.dpu.log import Log
from offstage.dpu.sockets.control_socket import ControlSocket
from offstage.dpu.sockets.door import Door, Peer
from offstage.dpu.storage.preflight import check_store_file
from offstage.dpu.tenants.hosts import Hosts
from offstage.dpu.tenants.tenancy import (
    check_secrets,
    metrics_tokens,
    operator_secret,
    tenant_secret,
)
from offstage.host.link.control import Control
from offstage.testbeds.cli import run

US = os.getuid()
STRANGER = US + 1000  # is not root either
OTHERS = (0o640, 0o620, 0o610, 0o604, 0o602, 0o601)
TOKEN = "5e" * 32


def as_if(mode: int, uid: int = US, kind: int = stat.S_IFREG) -> os.stat_result:
    return os.stat_result((kind | mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("mode", OTHERS, ids=oct)
def test_no_bit_of_a_group_or_of_others_may_be_set(mode: int) -> None:
    with pytest.raises(BadInput, match=r"other users can read or change it.*chmod 600"):
        check_private(Path("file"), found=as_if(mode))
    with pytest.raises(BadInput, match="other users can read"):
        check_private(Path("file"), ours=False, found=as_if(mode))
    check_private(Path("file"), found=as_if(0o600))
    check_private(Path("file"), found=as_if(0o400))


@pytest.mark.parametrize("mode", [0o664, 0o662, 0o661], ids=oct)
def test_a_drive_may_be_open_to_its_group_only(mode: int) -> None:
    drive = stat.S_IFBLK
    check_private(Path("drive"), found=as_if(0o660, kind=drive))
    with pytest.raises(BadInput, match="other users can read or change it"):
        check_private(Path("drive"), found=as_if(mode, kind=drive))


@pytest.mark.parametrize("path", ["/dev/null", "/dev", "/proc/self/fd"])
def test_what_is_no_file_is_not_to_be_changed(path: str) -> None:
    """Its mode is not the fault: with chmod the whole machine would suffer."""
    with pytest.raises(BadInput, match="is neither a file nor a block device") as raised:
        read_secret(Path(path))
    assert "chmod" not in str(raised.value)


def test_the_option_that_names_a_missing_secret_is_in_the_line(tmp_path: Path) -> None:
    file = str(tmp_path / "none")
    with pytest.raises(BadInput, match=r"correct daemon\.operator_secret_file"):
        operator_secret(tmp_path, file)
    with pytest.raises(BadInput, match=r"correct secret_file of \[\[tenant\]\] 'a'"):
        tenant_secret(Tenant(name="a", secret_file=file), "", tmp_path)
    with pytest.raises(BadInput, match="give --secret FILE"):
        read_secret(Path(file))


def test_a_file_of_another_user_is_not_ours() -> None:
    """Root's is accepted; where the owner's number means nothing, it is not checked."""
    with pytest.raises(BadInput, match="belongs to another user"):
        check_private(Path("file"), found=as_if(0o600, STRANGER))
    check_private(Path("file"), found=as_if(0o600, 0))
    check_private(Path("file"), ours=False, found=as_if(0o600, STRANGER))


def secret_file(folder: Path) -> tuple[Path, Callable[[], object]]:
    path = folder / "tenant.secret"
    path.write_text("5e" * 32)
    return path, lambda: read_secret(path)


def config_with_a_secret(folder: Path) -> tuple[Path, Callable[[], object]]:
    path = folder / "offstage.toml"
    path.write_text(f'[[tenant]]\nname = "a"\nsecret = "{TOKEN}"\n')
    return path, lambda: load(path, environ={})


def keys_of_the_archive(folder: Path) -> tuple[Path, Callable[[], object]]:
    path = folder / "s3.keys"
    path.write_text("access\nsecret\n")
    return path, lambda: s3._credentials(str(path))


def key_of_the_daemon(folder: Path) -> tuple[Path, Callable[[], object]]:
    zmq.auth.create_certificates(folder, "server")
    (folder / "clients").mkdir()

    def secure() -> None:
        control = ControlSocket(
            load(overrides={"daemon.curve_dir": str(folder)}, environ={}), Log("error")
        )
        try:
            control.secure(control._socket)
        finally:
            control.close()

    return folder / "server.key_secret", secure


def key_of_a_host(folder: Path) -> tuple[Path, Callable[[], object]]:
    zmq.auth.create_certificates(folder, "server")
    zmq.auth.create_certificates(folder, "client")

    def dial() -> None:
        with contextlib.suppress(Unreachable):  # nothing listens there
            Control("tcp://127.0.0.1:9", secret=b"s" * 32, curve_dir=folder, timeout_s=0.05)

    return folder / "client.key_secret", dial


@pytest.mark.parametrize(
    "made",
    [secret_file, config_with_a_secret, keys_of_the_archive, key_of_the_daemon, key_of_a_host],
    ids=lambda one: str(one.__name__),
)
def test_a_secret_that_its_group_can_read_is_refused_wherever_it_is_read(
    tmp_path: Path, made: Callable[[Path], tuple[Path, Callable[[], object]]]
) -> None:
    path, read = made(tmp_path)
    path.chmod(0o600)
    read()
    path.chmod(0o640)
    with pytest.raises(BadInput, match=r"other users can read or change it.*chmod 600"):
        read()


def test_marks_and_keys_of_others_are_not_overwritten(tmp_path: Path) -> None:
    """A file has the name of a tenant's mark; another is one half of a pair of keys."""
    (tmp_path / "store.ofs.default.mark").write_text("of a proof reader\n")
    (tmp_path / "server.key").write_text("of a door\n")
    config = load(overrides={"storage.path": str(tmp_path / "store.ofs")}, environ={})
    secret, _ = tenant_secret(Tenant(secret="5e" * 32), config.storage.path, tmp_path)
    before = snapshot(tmp_path)
    tenants = (Tenant(secret=secret.hex()),)
    with pytest.raises(BadInput, match="not a mark of a tenant's secret"):
        check_secrets(msgspec.structs.replace(config, tenants=tenants), tmp_path)
    assert run(["keys", "make", "server", str(tmp_path)]) == 2
    assert snapshot(tmp_path) == before


def test_a_store_that_its_group_can_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "store.ofs"
    path.touch()
    path.chmod(0o640)
    check_store_file(load(overrides={"storage.path": str(path)}, environ={}))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o642, 0o641], ids=oct)
def test_the_token_of_metrics_is_its_groups_and_not_everybodys(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "metrics.token"
    path.write_text(TOKEN)
    path.chmod(0o640)
    config = Config(daemon=Daemon(metrics_token_file=str(path)))
    hosts = Hosts(None, [], b"", 4, Log("error"))  # type: ignore[arg-type]
    assert TOKEN in metrics_tokens(config, tmp_path, hosts)
    path.chmod(mode)
    with pytest.raises(BadInput, match="everybody can read it"):
        metrics_tokens(config, tmp_path, hosts)


def test_a_door_with_groups_admits_their_members_alone() -> None:
    """If a tenant has groups, a user in none of them is kept out, and one in any is admitted."""
    door = Door(groups=frozenset({500, 501}))
    assert not door.admits(Peer(1, STRANGER, frozenset()))
    assert not door.admits(Peer(1, STRANGER, frozenset({502, 0})))
    assert door.admits(Peer(1, STRANGER, frozenset({502, 501})))
    assert door.admits(Peer(1, US, frozenset())) and door.admits(Peer(1, 0, frozenset()))


def test_a_door_with_users_admits_them_alone() -> None:
    """A number is a user's or a group's, never both. A door with neither admits only the daemon's
    user."""
    door = Door(users=frozenset({STRANGER}))
    assert door.admits(Peer(1, STRANGER, frozenset()))
    assert not door.admits(Peer(1, STRANGER + 1, frozenset({STRANGER})))
    assert not Door(groups=frozenset({STRANGER})).admits(
        Peer(1, STRANGER, frozenset({STRANGER + 1}))
    )
    assert not Door().admits(Peer(1, STRANGER, frozenset({US, 0})))
