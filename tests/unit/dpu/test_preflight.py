"""Is what the machine or a file cannot give refused before anything is changed?"""

import os
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.config import Config, load
from offstage.dpu.preflight import check_machine, check_store_file
from offstage.dpu.storefile import STORE_MAGIC

SIZE_BYTES = 32 << 20


def stored_at(path: Path) -> Config:
    given = {"storage.path": str(path), "storage.size": str(SIZE_BYTES)}
    return load(overrides=given, environ={})


def test_a_file_that_is_no_whole_store_is_refused_and_not_grown(tmp_path: Path) -> None:
    """The firmware grows a file as it opens it: is one of another kind or size left alone?"""
    head = STORE_MAGIC + bytes(24)
    for name, data, said in (
        ("alien", b"\x7fELF" * 100, "no store and not empty"),
        ("cut", head + SIZE_BYTES.to_bytes(8, "little") + bytes(4096), "was cut: 4136 B"),
        ("smaller", head + (1024).to_bytes(8, "little") + bytes(4096), "has a size of 1024 B"),
    ):
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(BadInput, match=said) as refused:
            check_store_file(stored_at(file))
        assert refused.value.where == str(file) and refused.value.mend
        assert file.read_bytes() == data


def test_an_empty_absent_or_whole_file_may_be_opened(tmp_path: Path) -> None:
    for name, size_bytes in (("empty", 0), ("zeros", 8192), ("whole", SIZE_BYTES)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size_bytes)
        check_store_file(stored_at(tmp_path / name))
    check_store_file(stored_at(tmp_path / "absent"))


def test_more_memory_or_cores_than_there_are_is_refused() -> None:
    """Both would otherwise be found out late: by the kernel's memory killer, or never."""
    with pytest.raises(BadInput, match=r"this machine has .* of memory; lower arena.size"):
        check_machine(load(overrides={"arena.size": "64TiB"}, environ={}))
    with pytest.raises(BadInput, match=r"daemon\.cpu is 4095"):
        check_machine(load(overrides={"daemon.cpu": "4095"}, environ={}))
    mine = str(min(os.sched_getaffinity(0)))
    check_machine(load(overrides={"daemon.cpu": mine}, environ={}))
