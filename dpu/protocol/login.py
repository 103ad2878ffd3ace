"""Login: protocol versions, proofs of a secret, and where a local daemon leaves its secrets."""

import hashlib
import hmac
import os
import re
from pathlib import Path

from offstage.bindings.errors import BadInput

__all__ = [
    "OPERATOR",
    "OPERATOR_SOCKET",
    "VERSIONS",
    "default_runtime_dir",
    "negotiate",
    "outer_user",
    "prove",
    "prove_daemon",
    "prove_member",
]

VERSIONS = (6,)  # newest first
OPERATOR = "operator"  # the name an operator logs in by; no tenant may have it
OPERATOR_SOCKET = "operator.sock"  # its own way in, in the runtime directory


def negotiate(versions: list[int]) -> int:
    """The newest version both sides speak; BadInput where there is none."""
    for version in VERSIONS:
        if version in versions:
            return version
    raise BadInput(
        f"the host speaks protocol {sorted(versions)}, the daemon {sorted(VERSIONS)}",
        "Hello",
        "install the same release on both sides",
    )


def prove(secret: bytes, nonce: bytes, tenant: str, name: str) -> bytes:
    """HMAC-SHA256 (RFC 2104) of the login: shows that one has the secret without telling it."""
    login = b"\0".join([b"offstage login", nonce, tenant.encode(), name.encode()])
    return hmac.new(secret, login, hashlib.sha256).digest()


def prove_daemon(
    secret: bytes,
    asked: bytes,
    nonce: bytes,
    tenant: str,
    name: str,
    version: int,
    user: int,
    fabric_key: bytes,
) -> bytes:
    """As `prove`, of the daemon: over the nonce of the host that asked, its own, and what the host
    trusts from then on. It is no host's proof, whatever the nonces are."""
    words = [tenant.encode(), name.encode(), str(version).encode(), str(user).encode(), fabric_key]
    return hmac.new(
        secret, b"\0".join([b"offstage daemon", asked, nonce, *words]), hashlib.sha256
    ).digest()


def outer_user(user: int, uid_map: str) -> int:
    """The number outside of a user namespace, by /proc/self/uid_map, of this one inside."""
    for line in uid_map.splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= user < inside + count:
            return outside + user - inside
    return user


def prove_member(secret: bytes, nonce: bytes, *words: str | int) -> bytes:
    """As `prove`, under the secret of a pod: shows that one is a member of it."""
    said = b"\0".join([b"offstage pod", nonce, *(str(one).encode() for one in words)])
    return hmac.new(secret, said, hashlib.sha256).digest()


def default_runtime_dir(endpoint: str) -> Path:
    """Where this user's daemon at `endpoint` keeps its files; daemon and client agree on it."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", endpoint).strip("-.")
    name = name if len(name) <= 48 else hashlib.sha256(endpoint.encode()).hexdigest()[:16]
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) / "offstage" if base else Path("/tmp") / f"offstage-{os.getuid()}"
    return root / name
