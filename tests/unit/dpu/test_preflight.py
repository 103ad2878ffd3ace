"""Are requests beyond what the machine or a file can provide refused before anything is changed?"""

import os
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.config.values import Config, load
from offstage.dpu.storage.preflight import check_machine, check_store_file
from offstage.dpu.storage.storefile import STORE_MAGIC

SIZE_BYTES = 32 << 20


def stored_at(path: Path) -> Config:
    given = {"storage.path": str(path), "storage.size": str(SIZE_BYTES)}
    return load(overrides=given, environ={})


def test_a_file_that_is_no_whole_store_is_refused_and_not_grown(tmp_path: Path) -> None:
    """The firmware grows a file as it opens it, so one of another kind or size is left alone."""
    head = STORE_MAGIC + bytes(24)
    for name, data, said in (
        ("alien", b"\x7fELF" * 100, "not a store, and not empty"),
        ("cut", head + SIZE_BYTES.to_bytes(8, "little") + bytes(4096), "was cut: 4136 B"),
        ("smaller", head + (1024).to_bytes(8, "little") + bytes(4096), "has a size of 1024 B"),
    ):
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(BadInput, match=said) as refused:
            check_store_file(stored_at(file))
        assert refused.value.where == str(file) and refused.value.fix
        assert file.read_bytes() == data


def test_an_empty_absent_or_whole_file_may_be_opened(tmp_path: Path) -> None:
    for name, size_bytes in (("empty", 0), ("zeros", 8192), ("whole", SIZE_BYTES)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size_bytes)
        check_store_file(stored_at(tmp_path / name))
    check_store_file(stored_at(tmp_path / "absent"))


def test_more_memory_or_cores_than_there_are_is_refused() -> None:
    """Otherwise the OOM killer would report too much memory late, and nothing would report too many
    cores."""
    with pytest.raises(BadInput, match=r"this machine has .* of memory; lower arena.size"):
        check_machine(load(overrides={"arena.size": "64TiB"}, environ={}))
    with pytest.raises(BadInput, match=r"daemon\.cpu is 4095"):
        check_machine(load(overrides={"daemon.cpu": "4095"}, environ={}))
    mine = str(min(os.sched_getaffinity(0)))
    check_machine(load(overrides={"daemon.cpu": mine}, environ={}))


def test_a_file_that_is_refused_keeps_its_mode_and_bytes(tmp_path: Path) -> None:
    """A file that is no store, of any size, is inspected before its mode is changed. A pipe is not
    waited for."""
    for size_bytes in (100, SIZE_BYTES):
        file = tmp_path / f"alien{size_bytes}"
        file.write_bytes(b"x" * size_bytes)
        file.chmod(0o644)
        with pytest.raises(BadInput, match="not a store, and not empty"):
            check_store_file(stored_at(file))
        assert file.stat().st_mode & 0o777 == 0o644 and file.stat().st_size == size_bytes
    os.mkfifo(tmp_path / "pipe", 0o644)
    with pytest.raises(BadInput, match="neither a file nor a block device"):
        check_store_file(stored_at(tmp_path / "pipe"))
    (tmp_path / "empty").touch(0o644)
    check_store_file(stored_at(tmp_path / "empty"))
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["a\0b", "a\x1b[31mb", "a\nb", "a\udc80b", "a\u202eb"])
def test_a_path_that_is_no_text_is_refused(path: str) -> None:
    """A zero byte, an escape, a surrogate or a change of direction is one line of bad input."""
    with pytest.raises(BadInput, match="not printable") as refused:
        load(overrides={"storage.path": path}, environ={})
    assert str(refused.value).isprintable()
