"""Does the archive keep its data whatever a single answer of a server or an impostor says?"""

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_s3 import BUCKET, TinyS3

from offstage.bindings.errors import Corrupt
from offstage.dpu.archive import s3, state, workers
from offstage.dpu.archive.format import Shape, name_of
from offstage.dpu.archive.object_moves import bring_back
from offstage.dpu.archive.s3 import Bucket, Failed
from offstage.dpu.archive.state import Return, State, Tenant
from offstage.dpu.config.options import Archive

pytest.importorskip("botocore", reason="needs the extra s3")

HTML = b"<html><body>Please log in</body></html>"
NAME = "t/" + name_of([b"k" * 16])


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


@pytest.fixture
def tiny() -> Iterator[TinyS3]:
    with TinyS3() as server:
        yield server


def bucket_of(tiny: TinyS3, timeout_ns: int = 1_000_000_000) -> Bucket:
    return Bucket(Archive(bucket=BUCKET, endpoint=tiny.endpoint, timeout_ns=timeout_ns), "")


def read(tables: State, tenant: Tenant, bucket: Bucket) -> None:
    one: Any = Return(tenant, NAME)
    places: Any = None
    bring_back(tables, bucket, places, Shape(64, 3, 64, "off"), one, 0)


def tables() -> tuple[State, Tenant]:
    tenant = Tenant(0, "t/", b"x" * 32)
    tenant.add(b"k" * 16, NAME)
    return State(9, 4, 3), tenant


def test_a_page_in_place_of_an_object_deletes_nothing(
    tiny: TinyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With HTML on every GET, however often and long, the object stays known and is not deleted."""
    monkeypatch.setattr(state, "DOUBT_S", 0.0)
    (held, tenant), bucket = tables(), bucket_of(tiny)
    tiny.objects[NAME] = b"what was sent up"
    real = Bucket.get
    monkeypatch.setattr(Bucket, "get", lambda self, name, size_max: HTML)
    for _ in range(5):
        with pytest.raises(Corrupt):
            read(held, tenant, bucket)
    assert (tenant.has(NAME), held.unnoted) == (True, [])
    monkeypatch.setattr(Bucket, "get", real)
    assert tenant.counts["damaged"] == 5


def test_what_is_damaged_twice_and_a_head_agrees_goes(
    tiny: TinyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged object that the server really holds is deleted, but not after one read."""
    (held, tenant), bucket = tables(), bucket_of(tiny)
    tiny.objects[NAME] = b"damaged"
    for wait_s, gone in ((60.0, False), (60.0, False), (0.0, True)):
        monkeypatch.setattr(state, "DOUBT_S", wait_s)
        with pytest.raises(Corrupt):
            read(held, tenant, bucket)
        assert (not tenant.has(NAME), len(held.unnoted)) == (gone, gone)


def test_one_that_is_not_found_once_is_still_known(
    tiny: TinyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 404, which may come from another server, is a miss and not a deletion."""
    (held, tenant), bucket = tables(), bucket_of(tiny)
    read(held, tenant, bucket)
    read(held, tenant, bucket)
    assert (tenant.has(NAME), held.unnoted) == (True, [])
    monkeypatch.setattr(state, "DOUBT_S", 0.0)
    tiny.objects[NAME] = b"x"
    assert not bucket.holds(NAME, None)
    del tiny.objects[NAME]
    read(held, tenant, bucket)
    assert not tenant.has(NAME)


def test_a_page_confirms_neither_a_put_nor_a_delete(tiny: TinyS3) -> None:
    """A 200 with HTML confirms neither a put nor a delete, which the journal would forget."""
    bucket = bucket_of(tiny)
    tiny.page = HTML
    for call in (lambda: bucket.delete(NAME), lambda: bucket.put(NAME, b"x")):
        with pytest.raises(Failed):
            call()


def test_a_delete_that_a_read_contradicts_is_not_done(tiny: TinyS3) -> None:
    """After a 204 from a server that deletes nothing, or a 404 that names no key, the deletion
    stays pending."""
    bucket = bucket_of(tiny)
    tiny.objects[NAME] = b"x"
    tiny.keeps = True
    with pytest.raises(Failed, match="still has"):
        bucket.delete(NAME)
    tiny.keeps, tiny.fail = False, (404, "NotFound")
    with pytest.raises(Failed):
        bucket.delete(NAME)
    tiny.fail = (404, "NoSuchBucket")
    with pytest.raises(Failed):
        bucket.delete(NAME)
    tiny.fail = None
    bucket.delete(NAME)
    assert NAME not in tiny.objects


@pytest.mark.parametrize(
    "page",
    [
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>",
        b"<ListBucketResult>"
        + b"<Contents><Key>a</Key></Contents>" * (s3.KEYS_MAX + 1)
        + b"<IsTruncated>false</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><KeyCount>2</KeyCount><Contents><Key>t/a</Key></Contents>"
        b"<IsTruncated>false</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>false</IsTruncated>"
        b"<NextContinuationToken>more</NextContinuationToken></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>True</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>u/a</Key></Contents>"
        b"<IsTruncated>false</IsTruncated></ListBucketResult>",
        b"<ListBucketResult>" + b" " * s3.BODY_BYTES_MAX + b"</ListBucketResult>",
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult><Contents><Key>&a;</Key></Contents>'
        b"<IsTruncated>false</IsTruncated></ListBucketResult>",
    ],
    ids=[
        "no token",
        "a token again",
        "many names",
        "fewer than counted",
        "ends with a token",
        "neither true nor false",
        "another prefix",
        "many bytes",
        "entities",
    ],
)
def test_a_listing_beyond_its_bounds_is_a_failure(tiny: TinyS3, page: bytes) -> None:
    """A listing without an end or a bound fails before it fills memory; a short one is not taken as
    complete."""
    tiny.page = page
    with pytest.raises(Failed):
        list(bucket_of(tiny).names("t/"))


@pytest.mark.parametrize("ours", [False, True])
def test_a_listing_holds_a_bounded_number_of_names(
    monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """Of endless names, foreign ones are not kept, and the archive's own only up to the bound."""
    monkeypatch.setattr(workers, "NAMES_MAX", 16)
    held: list[weakref.ref[Name]] = []
    most = 0

    def names() -> Iterator[str]:
        nonlocal most
        for n in range(200):
            name = Name("t/" + (name_of([n.to_bytes(16, "big")]) if ours else f"other {n}"))
            held.append(weakref.ref(name))
            yield name
            del name
            most = max(most, sum(one() is not None for one in held))

    if ours:
        with pytest.raises(Failed, match="more than 16 objects"):
            workers._ours(tables()[1], names())
    else:
        assert workers._ours(tables()[1], names()) == []
    assert most <= 16 + 1


class Name(str):
    """A name whose instances can be counted."""


def test_a_dripping_answer_ends_with_the_archive(tmp_path: Path) -> None:
    """Bytes come one at a time, each in time: a stop ends the call; without one, the deadline
    does."""
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        while not over.is_set():
            try:
                to = server.accept()[0]
                to.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(0.05):
                    to.sendall(b"x")
            except OSError:
                continue

    threading.Thread(target=drip, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    bucket = Bucket(Archive(bucket=BUCKET, endpoint=endpoint, timeout_ns=300_000_000), "")
    with pytest.raises(Failed, match="in time"):
        bucket.get(NAME, 1 << 20)
    threading.Timer(0.2, bucket.stop).start()
    with pytest.raises(Failed, match="ends"):
        bucket.get(NAME, 1 << 20)
    over.set()
    server.close()
