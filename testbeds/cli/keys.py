"""`offstage keys`: CURVE keys of a daemon and of its clients, and tokens of the metrics."""

import contextlib
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.durable import write_text
from offstage.bindings.errors import BadInput
from offstage.dpu.config.addresses import NAME
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.then import then

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import KeyAdded, KeysMade, Token

__all__ = ["register"]

KEY_BYTES_MAX = 65_536

keys = typer.Typer(no_args_is_help=True, help="CURVE keys and metrics tokens.")


class Side(StrEnum):
    """The side that owns the keys."""

    server = "server"
    client = "client"


def register(app: typer.Typer) -> None:
    """Add `offstage keys`."""
    app.add_typer(keys, name="keys")


@keys.command()
def make(
    side: Annotated[Side, typer.Argument(help="server: a daemon's; client: a host's")],
    folder: Annotated[
        Path, typer.Argument(help="folder of the keys; created if missing, private to this user")
    ],
    form: FormatOption = Format.text,
) -> None:
    """Make a pair of keys: SIDE.key, which is public, and SIDE.key_secret, mode 0600."""
    import zmq.auth

    secret, public = folder / f"{side.value}.key_secret", folder / f"{side.value}.key"
    for path in (secret, public):
        if os.path.lexists(path):
            raise BadInput("already has a key", str(path), "use it, or give another folder")
    old_mask = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if side is Side.server:
            (folder / "clients").mkdir(exist_ok=True)
        zmq.auth.create_certificates(folder, side.value)
    except OSError as error:
        for half in (secret, secret.with_suffix(".key")):
            with contextlib.suppress(OSError):
                half.unlink()
        raise BadInput(
            f"cannot be written ({error.strerror})", str(folder), "give another folder"
        ) from None
    finally:
        os.umask(old_mask)
    following = {
        Side.server: "copy {} to the folder of every client; add each client's key with "
        "`offstage keys add`",
        Side.client: "put the daemon's server.key next to it; on the daemon's machine: "
        "`offstage keys add DIR {}`. To use it, name the daemon's address and the file of the "
        "operator's secret",
    }
    made: KeysMade = {"public": str(public), "secret": str(secret)}
    told = f"{public}\n{secret}\n{following[side].format(public.name)}"
    emit(made, form, then(told, *_following(side, folder)))


def _following(side: Side, folder: Path) -> list[str]:
    """What comes after new keys: a client's after the daemon's, its entry with the daemon whose
    folder is beside it, or, if none or several are, the use of the key."""
    if side is Side.server:
        place = folder if folder.name else folder.resolve()
        return ["keys", "make", "client", f"{place}-client"]
    daemons = [one.parent for one in folder.parent.glob("*/clients") if one.is_dir()]
    if len(daemons) == 1:
        return ["keys", "add", str(daemons[0]), str(folder / "client.key")]
    endpoint = os.environ.get("OFFSTAGE_DAEMON_ENDPOINT", "tcp://DPU:7411")
    secret = os.environ.get("OFFSTAGE_OPERATOR_SECRET", "operator.secret")
    way = ["--endpoint", endpoint, "--curve-dir", str(folder), "--secret", secret]
    return ["dpu", "status", *way]


@keys.command()
def add(
    folder: Annotated[Path, typer.Argument(help="the daemon's daemon.curve_dir")],
    key: Annotated[Path, typer.Argument(help="a client's public key: its client.key")],
    name: Annotated[
        str, typer.Option("--name", help="name of the client; default: from the file")
    ] = "",
    form: FormatOption = Format.text,
) -> None:
    """Let a client in. A daemon that runs takes the key within a second."""
    name = name or key.stem
    if not NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a valid name for a key", "--name", "use letters, digits, . _ -"
        )
    if not (folder / "clients").is_dir():
        raise BadInput("has no clients/", str(folder), f"offstage keys make server {folder}")
    public, secret, text = _certificate(key, "give the client's client.key")
    if secret is not None:
        raise BadInput(
            "is a secret key, which stays with its client",
            str(key),
            f"give {key.with_suffix('.key')}",
        )
    own = folder / "server.key"
    if own.exists() and _certificate(own, "put the daemon's server.key back")[0] == public:
        raise BadInput("is the daemon's own key", str(key), "give the client's client.key")
    kept = folder / "clients" / f"{name}.key"
    for other in sorted(kept.parent.glob("*.key")):
        if other != kept and _certificate(other, "remove it")[0] == public:
            fix = "remove that one first: who is shut out must have no other"
            raise BadInput(f"has this key as {other.stem}", str(folder), fix)
    if kept.exists() and _certificate(kept, "remove it")[0] != public:
        raise BadInput("another key has this name", str(kept), "give another --name, or remove it")
    write_text(kept, text)
    document: KeyAdded = {"added": str(kept)}
    emit(document, form, str(kept))


def _certificate(path: Path, fix: str) -> tuple[bytes, bytes | None, str]:
    """The public key of a file, the secret one if it has it, and the file's text."""
    import zmq.auth

    try:
        if not path.is_file() or path.stat().st_size > KEY_BYTES_MAX:
            raise ValueError(f"no file of at most {KEY_BYTES_MAX:,} bytes")
        text = path.read_text(encoding="utf-8")
        return *zmq.auth.load_certificate(path), text
    except (OSError, ValueError) as error:
        raise BadInput(f"is not a key ({error})", str(path), fix) from None


@keys.command()
def token(
    secret: Annotated[Path, typer.Argument(help="file with a tenant's or the operator's secret")],
    form: FormatOption = Format.text,
) -> None:
    """Print the bearer token that shows the metrics of the secret's owner."""
    from offstage.bindings.private import read_secret
    from offstage.dpu.tenants.tenancy import metrics_token

    found = metrics_token(read_secret(secret))
    document: Token = {"token": found}
    emit(document, form, found)
