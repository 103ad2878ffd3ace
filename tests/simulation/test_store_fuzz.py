"""Can any damage to a store file crash recovery, or make the store serve bytes that were not
written?

Hypothesis draws the damage: bytes flipped, ranges copied elsewhere, the file truncated. Two readers
must agree: the store itself, and `storefile`, which shares no code with it.
"""

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.codec import DTYPES
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
from offstage.dpu.storage.drives import HEAD_BYTES, STORE, holds
from offstage.dpu.storage.storefile import SEGMENTS_OFFSET, StoreFile, check, inspect, recover

CONFIG = StoreConfig(
    payload_size_bytes=1024, layer_count=2, io_max=8, segment_size_bytes=512 + 4 * 1536
)
SIZE_BYTES = SEGMENTS_OFFSET + 10 * CONFIG.segment_size_bytes
KEYS = range(1, 13)


def payload(key: int, layer: int) -> bytes:
    """Noise, or for even keys two values of one exponent, which compress to almost nothing."""
    rng, length = random.Random(key * 2 + layer), 200 + key * 60 + layer
    return rng.randbytes(length) if key % 2 else bytes(rng.choices(b"@A", k=length))


PAYLOADS = {(key, layer): payload(key, layer) for key in KEYS for layer in range(2)}


def device(path: Path) -> Storage:
    return Storage(
        StorageConfig(backend="posix", path=str(path), size_bytes=SIZE_BYTES, lba_size_bytes=512)
    )


@pytest.fixture(scope="module", params=["off", "fp8_e5m2"])
def image(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> bytes:
    """A store with full and open segments, deleted blocks, and two copies of some; one of the two
    images has compressed blocks."""
    config = replace(CONFIG, codec=("off", *DTYPES).index(request.param))
    path = tmp_path_factory.mktemp("store") / "good.offstage"
    for life in range(2):
        with device(path) as storage, Store(storage, config, str(path)) as store:
            for (key, layer), data in PAYLOADS.items():
                if key <= 6 + 6 * life:
                    assert store.put_wait(key, layer, data) == 0
    assert check(path) == []
    assert bool(inspect(path)["coded"]) == bool(config.codec)
    return path.read_bytes()


Edits = list[tuple[int, bytes]]
WHERE = st.one_of(
    st.integers(0, 127),
    st.integers(65_536, 65_536 + 127),
    st.integers(SEGMENTS_OFFSET, SIZE_BYTES - 1),
    st.integers(0, 9).map(lambda i: SEGMENTS_OFFSET + i * CONFIG.segment_size_bytes),
)
EDITS = st.lists(st.tuples(WHERE, st.binary(min_size=1, max_size=64)), max_size=6)
COPIES = st.lists(st.tuples(WHERE, WHERE, st.sampled_from([128, 512, 1536, 6656])), max_size=2)


def damaged(image: bytes, edits: Edits, copies: list[tuple[int, int, int]], cut: int) -> bytes:
    data = bytearray(image)
    for to, at, length in copies:
        data[to : to + length] = data[at : at + length]
    for to, new in edits:
        data[to : to + len(new)] = bytes(a ^ b for a, b in zip(data[to:], new, strict=False))
    return bytes(data[:SIZE_BYTES])[: SIZE_BYTES - cut]


@given(edits=EDITS, copies=COPIES, cut=st.one_of(st.just(0), st.integers(0, SIZE_BYTES)))
def test_damage_is_a_miss_and_never_data(
    tmp_path_factory: pytest.TempPathFactory,
    image: bytes,
    edits: Edits,
    copies: list[tuple[int, int, int]],
    cut: int,
) -> None:
    """Whatever the damage to the file, each block is either correct or absent."""
    path = tmp_path_factory.mktemp("fuzz") / "store.offstage"
    path.write_bytes(damaged(image, edits, copies, cut))
    try:
        with StoreFile(path) as file:
            whole = {name: file.payload(block) for name, block in file.newest().items()}
    except BadInput:
        whole = None
    assert whole is None or all(PAYLOADS[name] == data for name, data in whole.items())
    try:
        storage = device(path)
    except OffstageError as error:  # a truncated file is extended only if it has our header
        data = path.read_bytes()
        assert error.errno == errno.EEXIST and cut and holds(data[:HEAD_BYTES]) != STORE
        return
    with storage:
        try:
            store = Store(storage, CONFIG, str(path))
        except OffstageError as error:
            assert error.errno == errno.EINVAL and error.fix and cut < SIZE_BYTES
            return
        with store:
            assert store.verify() == 0
            served = 0
            for (key, layer), data in PAYLOADS.items():
                done = store.get_wait(key, layer)
                assert (done.rc == 0 and done.payload == data) or (
                    done.rc in (-errno.ENOENT, -errno.EBADMSG) and done.payload is None
                )
                served += done.rc == 0
            # A block with an intact copy is served, unless a trailer hides it: then a later copy
            # with a damaged payload was in a full segment and the only one.
            assert whole is None or served == len(whole)
            assert store.put_wait(99, 0, b"new") == 0
            assert store.get_wait(99, 0).payload == b"new"
            assert store.verify() == 0


def test_both_readers_tell_the_same(tmp_path: Path, image: bytes) -> None:
    """The firmware and the Python reader find the same blocks, sequences and bytes."""
    xxhash = pytest.importorskip("xxhash", reason="pip install '.[test]'")
    path = tmp_path / "store.offstage"
    path.write_bytes(image)
    assert int.from_bytes(image[120:128], "little") == xxhash.xxh3_64_intdigest(image[:120])
    with StoreFile(path) as file:
        expected = {name: block.sequence for name, block in file.newest().items()}
        assert {name: file.payload(block) for name, block in file.newest().items()} == PAYLOADS
    with device(path) as storage, Store(storage, CONFIG, str(path)) as store:
        found = {(one.key, one.layer): one.sequence for one in store.scan()}
    assert found == expected
    shown = inspect(path)
    assert shown["blocks"] == len(PAYLOADS) and shown["torn"] == 0
    rehearsed = recover(path)
    assert rehearsed["recovered"] == len(PAYLOADS) and rehearsed["recovery_torn"] == 0
    assert inspect(path)["openings"] == int(str(shown["openings"])) + 1
    assert shown["superblocks_whole"] == 2 and shown["blocks_by_layer"] == {"0": 12, "1": 12}


def test_what_is_no_store_is_one_line(tmp_path: Path, image: bytes) -> None:
    """Each kind of wrong file has its own error in one line, with a fix."""
    path = tmp_path / "store.offstage"

    def line(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(BadInput) as caught:
            inspect(path)
        assert caught.value.fix and caught.value.exit_code == 2 and "\n" not in str(caught.value)
        return caught.value.what

    def patched(at: int, new: bytes) -> bytes:
        data = bytearray(image)
        for start in (0, 65_536):
            data[start + at : start + at + len(new)] = new
        return bytes(data)

    assert line(b"") == "this is not a store"
    assert line(b"x" * SIZE_BYTES) == "this is not a store"
    assert "version 7" in line(patched(8, b"\7"))
    assert "both superblocks" in line(patched(48, b"\1"))
    assert "cut short" in line(image[:-1])
    with pytest.raises(BadInput, match="No such file"):
        inspect(tmp_path / "absent")
    path.write_bytes(image[:200_000] + b"\1\2\3" + image[200_003:])
    assert inspect(path)["blocks"] == len(PAYLOADS)


def test_two_stores_on_one_file(tmp_path: Path, image: bytes) -> None:
    """The second store's error names the holder, and the first loses nothing."""
    path = tmp_path / "store.offstage"
    path.write_bytes(image)
    with device(path) as storage, Store(storage, CONFIG, str(path)) as store:
        with device(path) as other, pytest.raises(BadInput, match=r"in use by pid [1-9]\d*"):
            Store(other, CONFIG, str(path))
        assert store.get_wait(1, 0).payload == PAYLOADS[1, 0]
    with device(path) as storage, Store(storage, CONFIG, str(path)) as store:
        assert store.stats()["recovered"] == len(PAYLOADS)
