"""One of a tenant's two users puts forged bytes under the other's prefix first: what does each read
if the tenant shares, and what if its users do not?"""

import encodings.ascii
import encodings.idna  # noqa: F401
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archive_bed import archived, settings, settled, status
from doca_kv import Client, load
from live_daemon import LAYERS, PAYLOAD, Daemon, daemon, until
from tiny_s3 import TinyS3

from offstage.bindings.errors import OffstageError
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.dpu.watch.recorder import replay_log
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control
from offstage.host.values import Values
from offstage.testbeds.beds.child import Child

USERS = MALLORY, VICTIM = 30_002, 30_003  # ids that need no account
TOGETHER, APART = "together", "apart"
CHUNKS = 8
ALL = LAYERS * CHUNKS
OBJECT = 3 * PAYLOAD + 5


def bytes_of(user: int, *shape: int) -> Any:
    return np.random.default_rng(user).integers(0, 256, shape, np.uint8)


def whose(data: Any) -> int:
    """Return the user whose bytes they are, or 0."""
    return next((one for one in USERS if np.array_equal(data, bytes_of(one, *data.shape))), 0)


def visit(endpoint: str, tenant: str, secret: str, forged: bool = False) -> dict[str, Any]:
    """Name the prefix that both users name, put one's own blocks, then read the prefix. If
    `forged`, use the names that the daemon gives the victim's chunks."""
    found: dict[str, Any] = {}
    names = [bytes([n]) * 16 for n in range(CHUNKS)]
    if forged:
        salt = VICTIM.to_bytes(8, "little")
        names = [hashlib.blake2b(one, digest_size=16, salt=salt).digest() for one in names]
    with (
        Control(endpoint, tenant=tenant, secret=Path(secret), timeout_s=90.0) as control,
        open_driver(control.attach()) as driver,
    ):
        session = control.session_open(select_blocks=CHUNKS)
        appended = control.append(session, names)
        found["stored"] = sum(appended.stored_layers)
        ordinals, read = np.arange(CHUNKS, dtype=np.uint32), []
        for layer in range(LAYERS):
            put = driver.put(
                PutRequest(session, layer, ordinals, bytes_of(os.getuid(), CHUNKS, PAYLOAD))
            )
            keys = np.ascontiguousarray(block_keys(appended.keys, LAYERS)[layer])
            target = np.zeros((CHUNKS, PAYLOAD), np.uint8)
            done = driver.fetch(FetchRequest(session, 0, layer, ordinals, keys, target))
            assert set(put) <= {0, -errno.EEXIST} and not done.rcs.any(), (put, done.rcs)
            read.append(whose(target))
    (found["read"],) = set(read)
    return found


def objects(endpoint: str, tenant: str, secret: str) -> dict[str, Any]:
    """Read the object that both users name, and put one's own if there is none."""
    target = np.zeros(OBJECT, np.uint8)
    place = Endpoint.of_engine(
        {"endpoint": endpoint, "tenant": tenant, "secret": secret, "timeout_s": 60.0}
    )
    with ObjectClient(place) as client:
        state = client.wait(client.get, [b"key"], [target]).states[0]
        if state is State.ABSENT:
            assert client.wait(client.put, [b"key"], [bytes_of(os.getuid(), OBJECT)]).done[0]
    return {"state": state.name, "read": whose(target)}


def values(endpoint: str, tenant: str, secret: str) -> dict[str, Any]:
    """As `objects`, of a value."""
    place = Endpoint.of_engine(
        {"endpoint": endpoint, "tenant": tenant, "secret": secret, "timeout_s": 60.0}
    )
    with place.attached() as (_, fabric):
        mine = Values(fabric)
        found = mine.retrieve(b"key")
        if found is None:
            mine.store(b"key", bytes_of(os.getuid(), OBJECT))
    read = 0 if found is None else whose(np.frombuffer(found, np.uint8))
    return {"state": "ABSENT" if found is None else "DONE", "read": read}


def keys(endpoint: str, tenant: str, secret: str) -> dict[str, Any]:
    """Store a value under a key of one's own, then list the keys, and those from one's own on."""
    place = Endpoint.of_engine(
        {"endpoint": endpoint, "tenant": tenant, "secret": secret, "timeout_s": 60.0}
    )
    own = str(os.getuid())
    with place.attached() as (_, fabric):
        mine = Values(fabric)
        mine.store(own.encode(), b"value")
        found = [key.decode() for key in mine.keys()]
        assert [key.decode() for key in mine.keys(own.encode())] == found[found.index(own) :]
    return {"keys": sorted(found)}


def purge(endpoint: str, tenant: str, secret: str) -> dict[str, Any]:
    with Control(endpoint, tenant=tenant, secret=Path(secret), timeout_s=90.0) as control:
        return control.purge(tenant)


def attach_over_zmq(endpoint: str, tenant: str, secret: str) -> dict[str, Any]:
    with Control(endpoint, tenant=tenant, secret=Path(secret), timeout_s=90.0) as control:
        try:
            control.attach("zmq")
        except OffstageError as error:
            return {"refused": str(error)}
    return {}


def s3() -> dict[str, Any]:
    """Serve a small S3 server in a separate process, until it is killed."""
    with TinyS3() as server:
        print(json.dumps({"endpoint": server.endpoint}), flush=True)
        sys.stdin.readline()
    return {}


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that other users can traverse, with both tenants' secret for each user."""
    if os.getuid() != 0:
        pytest.skip("takes three users; run it as root")
    folder = Path(tempfile.mkdtemp(prefix="ofs-sharing-", dir="/tmp"))
    folder.chmod(0o755)
    text = secrets.token_hex(32)
    for owner in (0, *USERS):
        path = folder / f"{owner}.secret"
        path.write_text(text)
        path.chmod(0o600)
        os.chown(path, owner, owner)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def tenants(base: Path) -> dict[str, dict[str, Any]]:
    table = {"secret_file": f"{base}/0.secret", "users": [str(MALLORY), str(VICTIM)]}
    return {TOGETHER: table, APART: {**table, "sharing": "user"}}


def does(user: int, act: Any, tier: Daemon, base: Path, tenant: str, *more: Any) -> dict[str, Any]:
    child = Child(user, act, tier.endpoint, tenant, str(base / f"{user}.secret"), *more)
    found = child.line()
    assert child.wait() == 0, child.complaint()
    return found


def test_a_poisoned_prefix_stays_in_a_tenant_that_shares_and_in_no_other(base: Path) -> None:
    """The first put wins where users share, as the threat model says. Otherwise each reads its own
    put, also after a restart, a purge reaches both, and the recording replays."""
    with daemon(base, tenants(base), daemon__record_dir=str(base / "first")) as tier:
        shown = {one["name"]: one["sharing"] for one in status(tier)["tenants"]}
        assert shown == {TOGETHER: "tenant", APART: "user"}
        for tenant in (TOGETHER, APART):
            assert does(MALLORY, visit, tier, base, tenant) == {"stored": 0, "read": MALLORY}
        assert does(VICTIM, visit, tier, base, TOGETHER) == {"stored": ALL, "read": MALLORY}
        assert does(VICTIM, visit, tier, base, APART) == {"stored": 0, "read": VICTIM}
        tier.stop()
    with daemon(base, tenants(base), daemon__record_dir=str(base / "second")) as tier:
        for user in USERS:
            assert does(user, visit, tier, base, APART) == {"stored": ALL, "read": user}
        gone = does(MALLORY, purge, tier, base, APART)
        assert gone["blocks"] == 2 * ALL and gone["more"] == 0
        for user in reversed(USERS):
            assert does(user, visit, tier, base, APART) == {"stored": 0, "read": user}
        tier.stop()
    for run in ("first", "second"):
        replayed = replay_log(base / run / "decisions.log")
        assert replayed.agreed > 0 and replayed.diverged_at is None


@pytest.mark.parametrize("act", [objects, values])
def test_the_same_holds_for_objects_and_values(base: Path, act: Any) -> None:
    """Another user's object is there in a tenant that shares, and absent in any other."""
    more = {"limits__sessions": "32", "limits__values": "64", "arena__layers": "4"}
    with daemon(base, tenants(base), **more) as tier:
        for tenant, state, read in ((TOGETHER, "DONE", MALLORY), (APART, "ABSENT", 0)):
            assert does(MALLORY, act, tier, base, tenant) == {"state": "ABSENT", "read": 0}
            assert does(VICTIM, act, tier, base, tenant) == {"state": state, "read": read}
        for user in USERS:
            assert does(user, act, tier, base, APART) == {"state": "DONE", "read": user}


def test_a_list_has_the_keys_of_those_who_share(base: Path) -> None:
    """Both users' where they share, also after a restart; each one's own where they do not."""
    mallory, victim = (str(user) for user in USERS)
    with daemon(base, tenants(base), limits__values="64") as tier:
        for tenant, both in ((TOGETHER, [mallory, victim]), (APART, [victim])):
            assert does(MALLORY, keys, tier, base, tenant) == {"keys": [mallory]}
            assert does(VICTIM, keys, tier, base, tenant) == {"keys": both}
        tier.stop()
    with daemon(base, tenants(base), limits__values="64") as tier:
        assert does(MALLORY, keys, tier, base, TOGETHER) == {"keys": [mallory, victim]}
        assert does(MALLORY, keys, tier, base, APART) == {"keys": [mallory]}


def test_a_user_has_the_same_values_over_both_doors(base: Path) -> None:
    """What a user who shares with nobody stores by libdoca_kv it finds after a login."""
    table = {**tenants(base)[APART], "users": [str(os.getuid())]}
    with daemon(base, {APART: table}, limits__values="64") as tier:
        client = Client(load(), str(Path(tier.runtime_dir) / "host-0.sock"))
        client.wait(client.store(b"k", [b"mine"]))
        place = {"endpoint": tier.endpoint, "tenant": APART, "secret": f"{base}/0.secret"}
        with Endpoint.of_engine(place).attached() as (_, fabric):
            assert Values(fabric).retrieve(b"k") == b"mine"
        client.close()


def test_what_the_archive_brings_back_is_each_users_own(base: Path) -> None:
    """After the drive is lost, each user gets its own blocks from the bucket; a purge leaves none
    of either there."""
    pytest.importorskip("botocore")
    server = Child(0, s3)
    try:
        more = settings(base, server.line()["endpoint"], "access", "secret")
        with daemon(base, tenants(base), **more) as tier:
            for user in USERS:
                assert does(user, visit, tier, base, APART) == {"stored": 0, "read": user}
            until(lambda: archived(tier, APART)["chunks"] == 2 * CHUNKS)
            tier.stop()
        (base / "store.ofs").unlink()
        with daemon(base, tenants(base), **more) as tier:
            settled(tier)
            for user in USERS:
                assert does(user, visit, tier, base, APART) == {"stored": ALL, "read": user}
            does(MALLORY, purge, tier, base, APART)
            settled(tier)
            assert archived(tier, APART)["chunks"] == 0
    finally:
        server.kill()


def test_a_fabric_that_tells_no_users_apart_is_refused(base: Path) -> None:
    """zmq knows tenants, not users: its host is admitted where users share, and refused in one line
    where they do not."""
    with daemon(base, tenants(base)) as tier:
        assert does(VICTIM, attach_over_zmq, tier, base, TOGETHER) == {}
        refused = does(VICTIM, attach_over_zmq, tier, base, APART)["refused"]
        assert "do not share" in refused and "attach over shm" in refused and "\n" not in refused


def test_a_tenant_that_ceases_to_share_finds_nothing_of_before(base: Path) -> None:
    """While all shared, a user put forged bytes under the names of the victim's chunks. No user
    finds them once users do not share; they reappear once users share again."""
    together, apart = ({APART: table} for table in tenants(base).values())
    with daemon(base, together) as tier:
        assert does(MALLORY, visit, tier, base, APART, True) == {"stored": 0, "read": MALLORY}
        tier.stop()
    with daemon(base, apart) as tier:
        assert does(VICTIM, visit, tier, base, APART) == {"stored": 0, "read": VICTIM}
        tier.stop()
    with daemon(base, together) as tier:
        assert does(VICTIM, visit, tier, base, APART, True) == {"stored": ALL, "read": MALLORY}
