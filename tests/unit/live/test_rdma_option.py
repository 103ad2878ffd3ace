"""Is `--rdma` parsed as written, is bad input refused in one line, and do unset parts follow the
route to the daemon?"""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput
from offstage.bindings.verbs import Rdma, parse_rdma
from offstage.host.fabrics import verbs


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", Rdma()),
        ("rxe0", Rdma("rxe0")),
        ("rxe0,gid=1,mtu=1024", Rdma("rxe0", 0, 1, 1024)),
        ("mtu=4096,gid=-1", Rdma("", 0, -1, 4096)),
    ],
)
def test_what_names_an_adapter(text: str, meant: Rdma) -> None:
    assert parse_rdma(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "rxe0,rxe1",
        "gid=",
        "gid=-2",
        "gid=99999999999",
        "mtu=-5",
        "mtu=8192",
        "port=1",
        "gid=1-",
        "gid=--1",
        "mtu=1e3",
    ],
)
def test_what_names_none(text: str) -> None:
    """This includes numbers beyond any adapter's, too large for the firmware's fields."""
    with pytest.raises(BadInput, match="is not part of an adapter's name") as caught:
        parse_rdma(text)
    assert "\n" not in str(caught.value) and "write DEVICE" in str(caught.value)


@pytest.mark.parametrize("in_use", [False, True])
def test_the_adapter_is_chosen_when_the_daemon_has_said_where_it_is(
    in_use: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen before this end is opened; an adapter that connections already use stays."""
    did: list[Any] = []

    def prepare(rdma: Rdma) -> None:
        did.append(rdma)
        if in_use and rdma.device:
            raise BadInput("another RDMA device is in use", "rdma", errno=errno.EBUSY)

    def by_route(blob: bytes, rdma: Rdma) -> Rdma:
        return Rdma("second", 1, 3, rdma.mtu_bytes) if blob == b"there" else rdma

    control: Any = SimpleNamespace(
        limits=SimpleNamespace(put_slot_count=1),
        geometry=SimpleNamespace(payload_size_bytes=1),
        attach=lambda fabric: SimpleNamespace(blob=b"there"),
    )
    monkeypatch.setattr(verbs, "prepare", prepare)
    monkeypatch.setattr(verbs, "by_route", by_route)
    monkeypatch.setattr(Driver, "__init__", lambda self, attachment: did.append(attachment.blob))
    monkeypatch.setattr(Driver, "__del__", lambda self: None, raising=False)
    monkeypatch.setattr(verbs.VerbsDriver, "_introduce", lambda self: None)
    verbs.connect(control, Rdma(mtu_bytes=1024))
    assert did == [Rdma(mtu_bytes=1024), Rdma("second", 1, 3, 1024), b"there"]
