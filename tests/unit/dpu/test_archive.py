"""Is an archived object exactly what was packed, and does the journal keep its entries?"""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_disk import snapshot

from offstage.bindings.archive import Value
from offstage.bindings.errors import BadInput, Corrupt
from offstage.dpu.archive.format import (
    Shape,
    keys_of,
    name_of,
    object_key,
    pack,
    unpack,
    value_name,
    value_of,
)
from offstage.dpu.archive.journal import Journal
from offstage.dpu.archive.state import State, Tenant

SHAPE = Shape(payload_bytes=512, layers=3, block_tokens=64)
KEY = object_key(b"k" * 16)
KEYS = [bytes([n]) * 16 for n in range(4)]
BLOCKS = [(key, layer, bytes([7 + layer]) * (100 + layer)) for key in KEYS for layer in range(3)]


@pytest.mark.parametrize("dtype", ["off", "bfloat16", "fp8_e4m3"])
def test_what_was_packed_comes_out(dtype: str) -> None:
    shape = Shape(512, 3, 64, dtype)
    data = pack(shape, KEY, 1234, KEYS, BLOCKS)
    written_s, blocks = unpack(SHAPE, KEY, name_of(KEYS), data)  # however it is coded
    assert written_s == 1234 and [(k, at, bytes(d)) for k, at, d in blocks] == BLOCKS


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.booleans())
def test_any_other_byte_is_corrupt(at: int, bit: int, cut: bool) -> None:
    data = bytearray(pack(SHAPE, KEY, 1, KEYS, BLOCKS))
    if cut:
        del data[at % len(data) :]
    else:
        data[at % len(data)] ^= 1 << bit
    with pytest.raises(Corrupt):
        unpack(SHAPE, KEY, name_of(KEYS), bytes(data))


def test_another_name_tenant_or_shape_is_corrupt() -> None:
    data = pack(SHAPE, KEY, 1, KEYS, BLOCKS)
    with pytest.raises(Corrupt, match="another object"):
        unpack(SHAPE, KEY, name_of(KEYS[:3]), data)
    with pytest.raises(Corrupt, match="its check"):
        unpack(SHAPE, object_key(b"j" * 16), name_of(KEYS), data)
    with pytest.raises(Corrupt, match="another shape"):
        unpack(Shape(512, 4, 64), KEY, name_of(KEYS), data)


VALUE = Value(b"k" * 16, KEYS[0], 7, 1000)
PIECES = [(KEYS[0], 0, b"a" * 512), (KEYS[0], 1, b"b" * 488)]


def test_a_value_is_what_its_name_says() -> None:
    """All pieces of one store of one key, or nothing."""
    name = value_name(KEY, VALUE)
    assert value_of(KEY, name) == VALUE and keys_of(name) == KEYS[:1]
    assert VALUE.key.hex() not in name and value_of(b"j" * 32, name) != VALUE
    data = pack(SHAPE, KEY, 1, KEYS[:1], PIECES, VALUE)
    assert [bytes(part) for _, _, part in unpack(SHAPE, KEY, name, data)[1]] == [
        b"a" * 512,
        b"b" * 488,
    ]
    others = [
        Value(b"j" * 16, KEYS[0], 7, 1000),
        Value(b"k" * 16, KEYS[0], 8, 1000),
        Value(b"k" * 16, KEYS[0], 7, 999),
        Value(b"k" * 16, KEYS[1], 7, 1000),
    ]
    for other in others:
        with pytest.raises(Corrupt, match="another object"):
            unpack(SHAPE, KEY, value_name(KEY, other), data)
    with pytest.raises(Corrupt, match="another object"):
        unpack(SHAPE, KEY, name_of(KEYS[:1]), data)
    for blocks in (PIECES[:1], PIECES[::-1], [PIECES[0], (KEYS[0], 1, b"b" * 487)]):
        with pytest.raises(Corrupt, match="its check"):
            unpack(SHAPE, KEY, name, pack(SHAPE, KEY, 1, KEYS[:1], blocks, VALUE))
    zero = value_name(KEY, Value(b"k" * 16, KEYS[0], 0, 1000))
    assert value_of(KEY, zero) is None and keys_of(zero) == [] == keys_of(name.upper())


def test_of_a_key_one_value_stays() -> None:
    """The tables delete every other store of a key, queued uploads too; a delete by a key that no
    listing has found yet applies to what a listing finds."""
    tenant = Tenant(0, "red/", KEY)
    state = State(queue_max=4, group=4, layers=3)
    values = [Value(b"k" * 16, KEYS[n], n + 1, 1000) for n in range(4)]
    names = ["red/" + value_name(KEY, one) for one in values]
    assert state.listed(tenant, [names[1], names[0]], set()) == values[:2]
    state.listed(tenant, names[:2], set())
    assert tenant.is_listed
    state.value_stored(tenant, values[2], 0.0)
    state.value_stored(tenant, values[3], 0.0)
    state.value_gone(tenant, values[3], stays=True)
    assert [one.value for one in state.uploads] == values[3:]
    assert sorted(name for _, name in state.unnoted) == sorted(names[:2]) and not tenant.known
    for n in range(6):
        state.closed(tenant, [bytes([50 + n]) * 16], 0.0)
    assert [one.value for one in state.uploads] == [values[3], None, None, None]
    fresh = Tenant(1, "blue/", KEY)
    state.value_gone(fresh, values[0], stays=False)
    noted = {name for one, name in state.unnoted if one is fresh}
    assert state.listed(fresh, ["blue/" + value_name(KEY, values[2])], noted) == []


@pytest.mark.parametrize("name", ["", "x", "00", "0" * 33, "A0" * 16, "00" * 16 * 17, "../" * 11])
def test_a_foreign_name_has_no_chunks(name: str) -> None:
    assert keys_of(name) == [] and keys_of(name_of(KEYS)) == KEYS


def test_the_journal_outlives_its_writer_but_for_half_a_line(tmp_path: Path) -> None:
    """At the next open, added entries are there and finished ones are not. A line that a kill
    truncated was never acknowledged."""
    first = Journal(tmp_path / "j")
    first.add(["a", "b", "c"])
    first.done("b")
    with (tmp_path / "j").open("a") as file:
        file.write("+ d\n+ half")
    assert Journal(tmp_path / "j").names == {"a", "c", "d"}
    with pytest.raises(BadInput, match="notes deletes there"):
        Journal(tmp_path / "nowhere" / "j")


def test_what_is_no_journal_of_ours_is_left_as_it_is(tmp_path: Path) -> None:
    """Another file's bytes, a link, a pipe, a folder, or a file that others may read or own: each
    is refused in one line, without waiting, and is neither written, replaced, followed nor made
    private."""
    text = tmp_path / "text"
    text.write_text("# Notes\n- milk\n")
    text.chmod(0o600)
    (tmp_path / "link").symlink_to(text)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    (tmp_path / "word").write_text("secret")
    (tmp_path / "open").write_text("+ a\n")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "word").chmod(0o600)
    if os.getuid() == 0:
        (tmp_path / "anothers").write_text("+ a\n")
        (tmp_path / "anothers").chmod(0o600)
        os.chown(tmp_path / "anothers", 4242, 4242)
    before = snapshot(tmp_path)
    for path in list(tmp_path.iterdir()):
        with pytest.raises(BadInput) as refused:
            Journal(path)
        assert refused.value.where == str(path) and refused.value.fix
    assert snapshot(tmp_path) == before


def test_a_journal_holds_any_name_of_a_bucket(tmp_path: Path) -> None:
    """A prefix may have non-ASCII letters."""
    Journal(tmp_path / "j").add(["Größe/t/a b"])
    assert Journal(tmp_path / "j").names == {"Größe/t/a b"}


def test_a_full_queue_drops_the_oldest_and_counts() -> None:
    state, tenant = State(queue_max=2, group=2, layers=3), Tenant(0, "t/", KEY)
    state.closed(tenant, [bytes([n]) * 16 for n in range(8)], 0.0)
    assert [one.keys[0][0] for one in state.uploads] == [4, 6]
    assert tenant.counts["dropped"] == 4


def test_a_chunk_is_sent_once_and_a_deleted_one_never() -> None:
    """Groups of a chain are uploaded once. A deleted chunk leaves queue and tables, and is
    journaled if it may be in the bucket."""
    state, tenant = State(queue_max=9, group=2, layers=3), Tenant(0, "t/", KEY)
    tenant.is_listed = True
    state.closed(tenant, KEYS, 0.0)
    state.closed(tenant, KEYS, 0.0)
    assert [one.keys for one in state.uploads] == [KEYS[:2], KEYS[2:]]
    upload = state.uploads.popleft()
    state.active.add(upload)
    name = state.sending(upload, upload.keys)
    state.deleting(tenant, [KEYS[0], KEYS[2]])
    assert state.unnoted == [(tenant, name)] and state.uploads[0].keys == [KEYS[3]]
    state.sent(upload, dict.fromkeys(upload.keys, 3))
    assert tenant.known == {}
    assert state.wanted(tenant, [(KEYS[0], 0)]) == []


def test_an_old_pace_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes without a return, only the next one counts."""
    state, now_s = State(queue_max=9, group=2, layers=3), [100.0]
    monkeypatch.setattr("offstage.dpu.archive.state.time.monotonic", lambda: now_s[0])
    state.returned(10.0, 16)
    assert state.pace() == (10.0, 16.0)
    now_s[0] += 700
    assert state.pace() == (0.0, 0.0)
    state.returned(0.01, 16)
    assert state.pace() == (0.01, 16.0)
