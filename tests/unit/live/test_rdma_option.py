"""Is `--rdma` read as it is written, and everything else refused in one line?"""

import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.verbs import Rdma, parse_rdma


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
    "text", ["rxe0,rxe1", "gid=", "gid=-2", "gid=99999999999", "mtu=-5", "mtu=8192", "port=1",
             "gid=1-", "gid=--1", "mtu=1e3"]
)  # fmt: skip
def test_what_names_none(text: str) -> None:
    """Numbers too that no adapter can have, which the firmware has no room for."""
    with pytest.raises(BadInput, match="names no part of an adapter") as caught:
        parse_rdma(text)
    assert "\n" not in str(caught.value) and "write DEVICE" in str(caught.value)
