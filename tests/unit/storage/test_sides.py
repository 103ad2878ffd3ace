"""Is a storage of an installed package found by its name, and a bad one refused in one line?

docs/examples/storage-mapped shows that a good one works: CI installs it with the wheel and runs the
contract suite over it.
"""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from offstage.bindings import sides
from offstage.bindings.errors import BadInput, Incompatible
from offstage.bindings.storage import Storage, StorageConfig
from offstage.dpu.config.derive import derive
from offstage.dpu.config.values import load

Install = Callable[[str, str], None]


class Table(ctypes.Structure):
    """The beginning of `struct ofs_storage_ops`, and room for the rest of it."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("rest", ctypes.c_byte * 256),
    ]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, code)`: a package `acme` whose module has the function `table`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, code: str) -> None:
        module = re.sub(r"\W", "_", f"acme_{name}_{tmp_path.name}")  # imported only once
        (tmp_path / f"{module}.py").write_text(code)
        folder = tmp_path / "acme-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{sides.GROUP}]\n{name} = {module}:table\n")

    return install


def open_side(name: str) -> None:
    Storage(StorageConfig(name, size_bytes=1 << 20)).close()


def test_an_unknown_name_lists_the_known(install: Install) -> None:
    """A daemon's configuration is checked too, before anything is opened."""
    install("acme", "def table(): return 0")
    with pytest.raises(BadInput, match=r"no storage 'acne'.* posix, .*spdk, acme, or install"):
        open_side("acne")
    config = load(overrides={"storage.backend": "acne", "storage.path": "x"}, environ={})
    with pytest.raises(BadInput, match="no storage 'acne'"):
        derive(config)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "does not load .ZeroDivisionError"),
        ("tables = 1", "does not load .AttributeError"),
        ("def table(): return 'x'", "does not load .ValueError"),
        ("def table(): return 0", "refused as invalid"),
    ],
)
def test_a_broken_package_is_named(install: Install, code: str, said: str) -> None:
    install("acme", code)
    with pytest.raises(Exception, match=said) as caught:
        open_side("acme")
    assert "storage 'acme' of package 'acme'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "version", "error", "said"),
    [
        (b"acme", 1, Incompatible, "another version of storage.h; build it again"),
        (b"posix", 3, BadInput, "another storage has this name"),
    ],
)
def test_a_table_that_cannot_be_added(
    install: Install, name: bytes, version: int, error: type[Exception], said: str
) -> None:
    """An old build, and one with the name of a built-in storage."""
    table = Table(name, version)
    install("acme", f"def table(): return {ctypes.addressof(table)}")
    with pytest.raises(error, match=said):
        open_side("acme")
