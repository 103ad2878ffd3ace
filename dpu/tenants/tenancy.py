"""Secrets and the runtime directory: the daemon's private files on this machine.

A tenant's secret has two uses: a host proves it at login, and it keys the prefix hashes of the
decision core, so that no tenant can name another's blocks. Each use derives a key by HMAC-SHA256
with a distinct label: neither reveals the other. Where the configuration names no secret, one is
generated and kept next to the store, because the keys on the store depend on it.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from offstage.bindings.durable import write_whole
from offstage.bindings.errors import BadInput
from offstage.bindings.private import parse_secret, read_secret
from offstage.dpu.config.options import Storage, Tenant
from offstage.dpu.config.values import Config
from offstage.dpu.protocol import OPERATOR
from offstage.dpu.storage.storefile import tenants_stored
from offstage.dpu.tenants.hosts import Hosts

__all__ = [
    "carry_secret",
    "check_carried",
    "check_secrets",
    "hold_runtime_dir",
    "index_key",
    "metrics_token",
    "metrics_tokens",
    "operator_secret",
    "owner_key",
    "publish_dhchap",
    "publish_secret",
    "secrets_beside",
    "tenant_secret",
]


def hold_runtime_dir(directory: Path, *, shared: bool = False) -> int:
    """Create the directory, private to its user, and lock it. Returns the lock's descriptor.

    `shared`: other users reach the sockets in it by name; they can neither list nor change it."""
    try:
        _check_owners(directory)
        _make_folder(directory, shared)
        _check_owners(directory)
        lock = _open_lock(directory / "lock")
        try:
            _take_lock(lock, directory)
            directory.chmod(0o711 if shared else 0o700)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise BadInput(
            f"cannot be used ({error.strerror})",
            str(directory),
            "set daemon.runtime_dir to a directory of your own",
        ) from None
    return lock


def _take_lock(lock: int, directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
        raise BadInput(
            f"another daemon (pid {holder}) uses it",
            str(directory),
            "stop that daemon, or set another daemon.endpoint",
        ) from None


def _open_lock(path: Path) -> int:
    """Its descriptor; created if absent. BadInput if it is not a daemon's lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = os.open(path, flags, 0o600)
    found = os.fstat(lock)
    if stat.S_ISREG(found.st_mode) and found.st_uid in (os.getuid(), 0):
        said = os.pread(lock, 21, 0).strip()
        if not said or (said.isdigit() and found.st_size <= 20):
            return lock
    os.close(lock)
    raise BadInput(
        "is not a lock of a daemon", str(path), "set daemon.runtime_dir to a directory of its own"
    )


def _check_owners(directory: Path) -> None:
    """BadInput if another user owns the folder, its parent, or a link in its place."""
    for one in (directory.parent, directory):
        if not os.path.lexists(one):
            continue
        for found in (one.lstat(), one.stat()):
            others = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
            if found.st_uid not in (os.getuid(), 0):
                raise BadInput(
                    "belongs to another user",
                    str(one),
                    "set XDG_RUNTIME_DIR, or daemon.runtime_dir",
                )
            if one != directory and others and not stat.S_ISLNK(found.st_mode):
                raise BadInput("others can change it", str(one), f"chmod go-w {one}")
            if one == directory and found.st_mode & stat.S_ISVTX:
                raise BadInput(
                    "is a folder of everybody",
                    str(one),
                    "set daemon.runtime_dir to a directory in it",
                )


def _make_folder(directory: Path, shared: bool) -> None:
    """Create it with its parents, which other users must be able to traverse if it is shared.
    BadInput if they cannot: the daemon's files would not show the cause."""
    missing = [one for one in directory.parents if not one.exists()]
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not shared:
        return
    for made in missing:
        made.chmod(0o711)
    shut = [one for one in directory.resolve().parents if not one.stat().st_mode & 0o001]
    if shut:
        raise BadInput(
            "other users cannot pass it to the hand-out sockets",
            str(shut[0]),
            "set daemon.runtime_dir, such as to /run/offstage",
        )


def tenant_secret(tenant: Tenant, store_path: str, runtime_dir: Path) -> tuple[bytes, bool]:
    """The tenant's secret, and whether it was generated (and so has to be published)."""
    where = f"[[tenant]] {tenant.name!r}"
    if tenant.secret:
        return parse_secret(tenant.secret, f"{where} secret"), False
    if tenant.secret_file:
        return read_secret(
            Path(tenant.secret_file), f"secret_file of [[tenant]] {tenant.name!r}"
        ), False
    kept = _kept_at(tenant, store_path, runtime_dir)
    if kept.exists():
        return read_secret(kept), True
    secret = secrets.token_bytes(32)
    _write_private(kept, secret.hex())
    _write_private(kept.with_suffix(".mark"), _mark(secret))
    return secret, True


def check_secrets(config: Config, runtime_dir: Path) -> None:
    """BadInput if a tenant's secret is missing or changed while the store has blocks of it: none of
    them could be served. Call it before the store is opened."""
    beside = secrets_beside(config.storage)
    stored = tenants_stored(beside)
    for index, tenant in enumerate(config.tenants):
        kept = _kept_at(tenant, beside, runtime_dir)
        given = bool(tenant.secret or tenant.secret_file)
        if given or kept.exists():
            _check_mark(tenant, beside, runtime_dir, index in stored)
        if index not in stored or given or kept.exists():
            continue
        copy = runtime_dir / f"{tenant.name}.secret"
        there = f"cp {copy} {kept}" if copy.exists() else "put it back from a copy"
        other = _secret_of_another(config, beside, runtime_dir)
        if other is not None and not copy.exists():
            raise BadInput(
                f"the store holds blocks of another tenant than {tenant.name!r}: {other} is there",
                str(kept),
                "give the tenant the name in that, or another storage.path",
            )
        raise BadInput(
            f"the secret of the tenant {tenant.name!r} is gone, and the store holds blocks that "
            "only it finds",
            str(kept),
            f"{there}, or remove {beside} to begin with an empty store",
        )


def _secret_of_another(config: Config, beside: str, runtime_dir: Path) -> Path | None:
    """A secret beside the store whose tenant is not configured."""
    named = {_kept_at(tenant, beside, runtime_dir) for tenant in config.tenants}
    pattern = _kept_at(Tenant(name="*"), beside, runtime_dir)
    found = sorted(set(pattern.parent.glob(pattern.name)) - named)
    return found[0] if found else None


def _check_mark(tenant: Tenant, beside: str, runtime_dir: Path, stored: bool) -> None:
    """The mark next to the store identifies the secret that named its blocks; there is none where
    the folder belongs to others, like that of a drive."""
    secret, _ = tenant_secret(tenant, beside, runtime_dir)
    path = _kept_at(tenant, beside, runtime_dir).with_suffix(".mark")
    said = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else ""
    if said and not re.fullmatch("[0-9a-f]{64}", said):
        raise BadInput(
            "is not a mark of a tenant's secret, and it would be overwritten",
            str(path),
            "move it away",
        )
    if stored and path.exists() and said != _mark(secret):
        raise BadInput(
            f"the secret of the tenant {tenant.name!r} is not the one that named its blocks in the "
            "store, and finds none of them",
            tenant.secret_file or f"[[tenant]] {tenant.name!r}",
            f"give the old one, or remove {path} to start over without the old blocks",
        )
    with contextlib.suppress(BadInput):
        _write_private(path, _mark(secret))


def _mark(secret: bytes) -> str:
    return hmac.new(secret, b"offstage store", hashlib.sha256).hexdigest()


def secrets_beside(storage: Storage) -> str:
    """The file next to which generated secrets are kept across restarts; empty if there is none."""
    return storage.target_file if storage.backend == "spdk" else storage.path


def carry_secret(tenant: Tenant, store_path: str, runtime_dir: Path, secret: bytes) -> list[Path]:
    """Copy a generated secret next to another store, whose blocks can be found by no other secret,
    with its mark. Returns the files created."""
    kept = _kept_at(tenant, store_path, runtime_dir)
    made = [path for path in (kept, kept.with_suffix(".mark")) if not path.exists()]
    if not tenant.secret and not tenant.secret_file:
        _write_private(kept, secret.hex())
    with contextlib.suppress(BadInput):
        _write_private(kept.with_suffix(".mark"), _mark(secret))
    return made


def check_carried(tenant: Tenant, store_path: str, runtime_dir: Path, secret: bytes) -> None:
    """BadInput if `carry_secret` would overwrite the secret of another store, whose blocks would be
    lost."""
    kept = _kept_at(tenant, store_path, runtime_dir)
    for path, text in ((kept, secret.hex()), (kept.with_suffix(".mark"), _mark(secret))):
        generated = not tenant.secret and not tenant.secret_file
        if (path == kept and not generated) or not path.exists():
            continue
        try:
            said = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise BadInput(
                f"cannot be read ({error.strerror})", str(path), "give another path"
            ) from None
        if said != text:
            raise BadInput(
                "belongs to another store",
                str(path),
                "give another path, or remove it with its store",
            )


def _kept_at(tenant: Tenant, store_path: str, runtime_dir: Path) -> Path:
    base = Path(store_path) if store_path else runtime_dir / "memory"
    return base.with_name(f"{base.name}.{tenant.name}.secret")


def operator_secret(runtime_dir: Path, file: str = "") -> bytes:
    """The secret of the file, or a new one at every start; published for this user only."""
    secret = (
        read_secret(Path(file), "daemon.operator_secret_file") if file else secrets.token_bytes(32)
    )
    publish_secret(runtime_dir, OPERATOR, secret)
    return secret


def publish_secret(runtime_dir: Path, name: str, secret: bytes) -> None:
    """Write a generated secret to where clients of the same user look for it."""
    _write_private(runtime_dir / f"{name}.secret", secret.hex())


def publish_dhchap(runtime_dir: Path, name: str, text: str) -> None:
    """Write the key of a tenant's hosts over NVMe/TCP, as initiators take it."""
    _write_private(runtime_dir / f"{name}.dhchap", text)


def index_key(secret: bytes, sharing: str = "tenant") -> bytes:
    """16 bytes that key the tenant's prefix hashes in the decision core. Where its users do not
    share, blocks that were put while they did cannot be found."""
    label = b"offstage index" if sharing == "tenant" else b"offstage index of users"
    return hmac.new(secret, label, hashlib.sha256).digest()[:16]


def owner_key(secret: bytes, user: int) -> bytes:
    """16 bytes that key the names of a user's values, where the tenant's users do not share."""
    return hmac.new(secret, b"offstage values of user %d" % user, hashlib.sha256).digest()[:16]


def metrics_token(secret: bytes) -> str:
    """The token for the metrics of the secret's owner; not valid for a login."""
    return hmac.new(secret, b"offstage metrics", hashlib.sha256).hexdigest()


def metrics_tokens(config: Config, runtime_dir: Path, hosts: Hosts) -> dict[str, str]:
    """The owner of each token. The operator's token is written to a file if it was generated."""
    given = config.daemon.metrics_token_file
    operators = _read_token(Path(given)) if given else metrics_token(hosts.operator_secret)
    if not given:
        _write_private(runtime_dir / "metrics.token", operators)
    tokens = {metrics_token(one.secret): one.name for one in hosts.tenants.values()}
    return {**tokens, operators: OPERATOR}


def _read_token(path: Path) -> str:
    """Readable by its group, for Prometheus."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
        if path.stat().st_mode & 0o007:
            raise BadInput("everybody can read it", str(path), f"chmod o= {path}")
    except OSError as error:
        raise BadInput(
            f"the token cannot be read ({error.strerror})",
            str(path),
            "correct daemon.metrics_token_file",
        ) from None
    if len(text) < 32 or not text.isalnum():
        raise BadInput("is not a token", str(path), "write one with `openssl rand -hex 32`")
    return text


def _write_private(path: Path, text: str) -> None:
    """Durable when this returns: blocks that survive a power failure can only be found by their
    secret."""
    try:
        write_whole(path, f"{text}\n".encode("ascii"))
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(path), "name a secret_file for the tenant"
        ) from None
