"""A daemon with an archive, and the steps of its tests: write, await, delete and lose texts."""

import json
from pathlib import Path
from typing import Any

from live_daemon import CHUNKS, LAYERS, TENANT, Daemon, open_text, put, until

from offstage.host.fabrics.shm import open_driver

BLOCKS = CHUNKS * LAYERS  # of one text
EVERY = {(ordinal, layer) for ordinal in range(CHUNKS) for layer in range(LAYERS)}


def settings(folder: Path, endpoint: str, access: str, secret: str, **more: str) -> dict[str, str]:
    """The configuration of a daemon in this folder."""
    keys = folder / "s3.keys"
    keys.write_text(f"{access}\n{secret}\n")
    keys.chmod(0o600)
    return {
        "archive__bucket": "kv-archive",
        "archive__endpoint": endpoint,
        "archive__key_file": str(keys),
        "archive__wait": "60s",
        "archive__timeout": "2s",
        **more,
    }


def status(tier: Daemon) -> dict[str, Any]:
    """The status that the operator sees."""
    with tier.control("operator") as control:
        found: dict[str, Any] = control.status()
        return found


def archived(tier: Daemon, tenant: str = TENANT) -> dict[str, int]:
    """The archive's figures of a tenant, by name."""
    for one in status(tier)["tenants"]:
        if one["name"] == tenant:
            return {
                name.removeprefix("archive_"): count
                for name, count in one.items()
                if name.startswith("archive_")
            }
    raise AssertionError(tenant)


def settled(tier: Daemon) -> None:
    """Wait until no upload and no deletion is pending."""

    def quiet() -> bool:
        found = status(tier)["device"]["archive"]
        return not (found["uploads_waiting"] or found["deletes_waiting"] or found["away"])

    until(quiet)


def write(tier: Daemon, number: int, tenant: str = TENANT, *, keep: bool = True) -> None:
    """Write all of a text, acknowledged; then keep or delete it."""
    with (
        tier.control(tenant, timeout_s=90.0) as control,
        open_driver(control.attach("shm")) as driver,
    ):
        text = open_text(control, number)
        for layer in range(LAYERS):
            for first in range(0, CHUNKS, 16):
                ordinals = list(range(first, first + 16))
                assert put(driver, text, layer, ordinals) == ordinals
        control.session_close(text.session, keep=keep)


def stored(tier: Daemon, number: int, tenant: str = TENANT, *, keep: bool = True) -> int:
    """How many blocks of a text the tier has, after archived blocks had time to come back."""
    with tier.control(tenant, timeout_s=90.0) as control:
        control.attach("shm")
        text = open_text(control, number)
        control.session_close(text.session, keep=keep)
        return sum(text.stored)


def lose_store(folder: Path) -> None:
    """Replace the drive: its blocks are lost, the secrets and the journal are kept."""
    (folder / "store.ofs").unlink()


def logged(tier: Daemon, event: str) -> list[dict[str, Any]]:
    """The lines of the log about an event."""
    lines = [json.loads(line) for line in tier.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == event]


def whole(number: int) -> set[tuple[int, int, int]]:
    """All blocks of a text, in the form that `check_text` uses."""
    return {(number, ordinal, layer) for ordinal, layer in EVERY}
