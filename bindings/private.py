"""Files that only their owner may read: secrets, keys, stores."""

import os
import stat
from pathlib import Path

from offstage.bindings.errors import BadInput

__all__ = ["check_private", "parse_secret", "read_secret"]

SECRET_BYTES_MIN = 16


def check_private(path: Path, *, ours: bool = True, found: os.stat_result | None = None) -> None:
    """BadInput where it is no file, where others can read or change it, or, with `ours`, its owner
    is neither this user nor root (a folder shared with a virtual machine has its owner's number).
    OSError if it does not exist. The group of a drive's node may have access: the system sets it.
    `found`: of the open descriptor, where there is one."""
    found = path.stat() if found is None else found
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        raise BadInput("is neither a file nor a block device", str(path), "give another path")
    closed = 0o007 if stat.S_ISBLK(found.st_mode) else 0o077
    if found.st_mode & closed:
        raise BadInput("other users can read or change it", str(path), f"chmod 600 {path}")
    if ours and found.st_uid not in (os.getuid(), 0):
        raise BadInput("it belongs to another user", str(path), f"chown it, and chmod 600 {path}")


def parse_secret(text: str, where: str) -> bytes:
    """A tenant's secret from hex; BadInput says what is wrong, never what was there."""
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        raise BadInput("is not hex", where, "write one with `openssl rand -hex 32`") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise BadInput(
            f"has {len(secret)} bytes, fewer than {SECRET_BYTES_MIN}",
            where,
            "write one with `openssl rand -hex 32`",
        )
    return secret


def read_secret(path: Path, option: str = "--secret") -> bytes:
    """The secret in a file of hex digits that no other user can read; `option` named it."""
    try:
        check_private(path)
        with path.open("rb") as file:
            text = file.read(4096).decode("ascii", errors="replace")
    except OSError as error:
        raise BadInput(
            f"the secret cannot be read ({error.strerror})",
            str(path),
            "give --secret FILE, its tenant's or operator's; a daemon of your own has it there"
            if option == "--secret"
            else f"write one with `openssl rand -hex 32`, mode 0600, or correct {option}",
        ) from None
    return parse_secret(text, str(path))
