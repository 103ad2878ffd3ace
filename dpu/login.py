"""What shows at a login that one has a secret, and where a daemon of this machine left it."""

import hashlib
import hmac
import os
import re
from pathlib import Path

__all__ = ["default_runtime_dir", "prove", "prove_member"]


def prove(secret: bytes, nonce: bytes, tenant: str, name: str) -> bytes:
    """HMAC-SHA256 (RFC 2104) of the login: shows that one has the secret without telling it."""
    login = b"\0".join([b"offstage login", nonce, tenant.encode(), name.encode()])
    return hmac.new(secret, login, hashlib.sha256).digest()


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
