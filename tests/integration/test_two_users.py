"""Can two tenants under two users of one machine access each other's data, or the daemon's own?"""

import encodings.ascii
import encodings.idna  # noqa: F401
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from intruder import attack, host, listen, take

import offstage.dpu.control.store_moves  # noqa: F401  (a fork under another user may not be able to import)
from offstage.bindings.errors import RunFailed
from offstage.testbeds.beds.child import Child
from offstage.testbeds.beds.daemon import fork

KEEPER, RED, BLUE = 30_001, 30_002, 30_003  # ids that need no account
WAYS = {"fd", "mem", "maps", "environ", "ptrace", "process_vm_readv", "pidfd_getfd"}


def sections(base: Path) -> dict[str, Any]:
    def secret(name: str) -> str:
        return f"{base}/keeper/{name}.secret"

    return {
        "daemon": {
            "endpoint": "tcp://127.0.0.1:*",
            "metrics_endpoint": "127.0.0.1:0",
            "runtime_dir": f"{base}/keeper/run",
        },
        "arena": {"size": "4MiB", "payload": "4KiB", "layers": 2},
        "storage": {"path": f"{base}/keeper/store.ofs", "size": "32MiB"},
        "store": {"segment": "256KiB"},
        "tenant": [
            {"name": "red", "secret_file": secret("red"), "users": [str(RED)]},
            {"name": "blue", "secret_file": secret("blue"), "groups": [str(BLUE)]},
        ],
    }


def run(uid: int, act: Callable[..., Any], *words: Any) -> dict[str, Any]:
    child = Child(uid, act, *words)
    found = child.line()
    assert child.wait() == 0, child.complaint()
    return found


@dataclass
class World:
    """A daemon under its own user, and a folder for each of two others."""

    base: Path
    pid: int
    endpoint: str

    def secret(self, name: str) -> str:
        return str(self.base / name / "secret")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if os.getuid() != 0:
        pytest.skip("takes three users; run it as root")
    base = Path(tempfile.mkdtemp(prefix="ofs-users-", dir="/tmp"))
    base.chmod(0o755)
    try:
        for name, uid in (("keeper", KEEPER), ("red", RED), ("blue", BLUE)):
            (base / name).mkdir(mode=0o711)
            os.chown(base / name, uid, uid)
        for name, uid in (("red", RED), ("blue", BLUE)):
            text = secrets.token_hex(32)
            for path, owner in (
                (base / f"keeper/{name}.secret", KEEPER),
                (base / name / "secret", uid),
            ):
                path.write_text(text)
                path.chmod(0o600)
                os.chown(path, owner, owner)
        daemon = fork(KEEPER, sections(base), base, groups=(BLUE,))
        try:
            yield World(base, daemon.process.pid, daemon.endpoint)
        finally:
            daemon.kill()
    finally:
        shutil.rmtree(base)


def folder(world: World, name: str) -> Path:
    """Make a folder for another daemon's configuration and log."""
    made = world.base / name
    made.mkdir(mode=0o755)
    return made


def keeper_files(world: World) -> list[str]:
    found = [str(one) for one in (world.base / "keeper").rglob("*") if one.is_file()]
    names = {Path(one).name for one in found}
    assert {"operator.secret", "store.ofs", "red.secret", "blue.secret", "lock"} <= names
    return found


def test_only_root_can_inspect_the_daemon(world: World) -> None:
    """Other users, and the daemon's own, cannot access its descriptors, memory and environment."""
    for uid in (RED, BLUE, KEEPER):
        found = run(uid, attack, world.pid, [])
        assert set(found) == WAYS
        assert set(found.values()) <= {"EACCES", "EPERM"}, (uid, found)


def test_what_the_daemon_keeps_on_disk_is_its_own(world: World) -> None:
    """Other users cannot read the operator's secret, either tenant's secret, or the store."""
    files = keeper_files(world)
    for uid, other in ((RED, "blue"), (BLUE, "red")):
        found = run(uid, attack, world.pid, [*files, world.secret(other)])
        assert {found[Path(one).name] for one in [*files, world.secret(other)]} == {"EACCES"}


def test_a_tenants_memory_goes_to_its_own_users_only(world: World) -> None:
    """A user with the other tenant's socket and even its token does not get its descriptors. The
    rightful user, by name or by group, does, without write access to its region."""
    for name, uid, other in (("red", RED, BLUE), ("blue", BLUE, RED)):
        one = Child(uid, host, world.endpoint, name, world.secret(name))
        offered = one.line()
        found = run(other, take, offered["socket"], offered["token"])
        refused = f"refused: user {other} is not among this tenant's users"
        assert found == {"said": refused if name == "red" else "EACCES", "fds": 0}
        assert set(run(other, attack, one.pid, []).values()) <= {"EACCES", "EPERM"}
        one.go()
        assert one.line() == {"said": "ok", "right": True, "region": "EACCES"}
        assert one.wait() == 0


def test_a_login_needs_the_tenants_secret(world: World) -> None:
    """A user that the tenant's socket admits still needs the tenant's secret."""
    one = Child(BLUE, host, world.endpoint, "red", world.secret("blue"))
    assert one.wait() == 1 and "cannot prove that it has" in one.complaint()


def test_another_user_on_the_port_of_a_daemon_that_is_down_hears_hello_alone(world: World) -> None:
    """If another tenant's user has the port of a daemon that is down, with its own secret, it
    receives nothing of a tenant except the names in Hello."""
    stranger = Child(BLUE, listen, world.secret("blue"))
    one = Child(RED, host, stranger.line()["endpoint"], "red", world.secret("red"))
    assert one.wait() == 1 and "cannot prove that it has the secret" in one.complaint()
    stranger.go()
    assert stranger.line() == {"heard": ["Hello"]}
    assert stranger.wait() == 0


def test_a_folder_that_others_cannot_pass_is_said(world: World) -> None:
    """A runtime directory below a closed one is reported at the start, before a host fails."""
    shut = world.base / "keeper/shut"
    shut.mkdir(mode=0o700)
    os.chown(shut, KEEPER, KEEPER)
    closed = sections(world.base)
    closed["daemon"]["runtime_dir"] = f"{shut}/run"
    with pytest.raises(RunFailed, match="other users cannot pass it") as refused:
        fork(KEEPER, closed, folder(world, "shut"), groups=(BLUE,))
    assert str(shut) in str(refused.value)


def test_a_store_is_closed_to_others_or_refused(world: World) -> None:
    """A store's file that others can read is made private if it is the daemon's, else refused."""
    made = (world.base / "keeper/store.ofs").stat()
    assert (made.st_uid, made.st_mode & 0o777) == (KEEPER, 0o600)
    alien = world.base / "keeper/alien.ofs"
    alien.write_bytes(b"")
    alien.chmod(0o666)
    other = sections(world.base)
    other["daemon"]["runtime_dir"] = f"{world.base}/keeper/r2"
    other["storage"]["path"] = str(alien)
    place = folder(world, "alien")
    with pytest.raises(RunFailed, match="other users can read or change it"):
        fork(KEEPER, other, place, groups=(BLUE,))
    os.chown(alien, KEEPER, KEEPER)
    daemon = fork(KEEPER, other, place, groups=(BLUE,))
    try:
        assert alien.stat().st_mode & 0o777 == 0o600
    finally:
        daemon.kill()
