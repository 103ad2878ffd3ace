"""Is KV named by the content of weights, whatever the names, dates, copies and places of the
files?"""

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.model import identity
from offstage.host.model.identity import (
    Adapters,
    digest_of,
    files_of,
    identity_of,
    process_began_ns,
)

TICK_S = 0.02  # longer than a tick of the clock that stamps files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache in which files count as settled at once and pieces are small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "SETTLED_NS", -1)
    monkeypatch.setattr(identity, "PIECE_BYTES", 1 << 12)
    return tmp_path / "cache/offstage/weights"


def model_of(folder: Path, fill: int = 1, pieces: int = 5) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"rope_theta": 1e4}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes([fill]) * (pieces * identity.PIECE_BYTES - 7))
    return folder


def digest(folder: Path) -> str:
    return digest_of(files_of(str(folder))).digest


def test_equal_bytes_are_equal_and_other_bytes_are_not(tmp_path: Path) -> None:
    """A copy, renamed shards and a touch keep the digest. A change of the weights, the
    configuration or an adapter's configuration changes it."""
    model = model_of(tmp_path / "a")
    first = digest(model)
    copy = Path(shutil.copytree(model, tmp_path / "b"))
    assert digest(copy) == first
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    os.utime(copy / "other.safetensors", (1, 1))
    (copy / "tokenizer.json").write_text("[]")
    assert digest(copy) == first
    (copy / "config.json").write_text('{"rope_theta": 1e5}')
    assert digest(copy) != first
    (model / "adapter_config.json").write_text("{}")
    assert digest(model) != first


@pytest.mark.parametrize("how", ["in place", "replaced", "swapped under the cache"])
def test_a_change_with_equal_size_and_mtime_is_seen(how: str, tmp_path: Path, cache: Path) -> None:
    """Other bytes under the same name, size and mtime are another model: written in place, copied
    over it with its times, or swapped so that the cache knows the stamp."""
    model = model_of(tmp_path / "a")
    file, before = model / "model.safetensors", digest(model)
    found = file.stat()
    time.sleep(TICK_S)
    other = model_of(tmp_path / "b", 2) / "model.safetensors"
    if how == "in place":
        file.write_bytes(other.read_bytes())
    else:
        shutil.copy(other, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    if how.startswith("swapped"):  # the old file's cache entry, under the new file's stamp
        kept = {len(one.read_text()): one for one in cache.iterdir() if one.stat().st_size}
        digest(model)
        fresh = max(cache.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        shutil.copy(kept[max(kept)], fresh)
    assert file.stat().st_mtime_ns == found.st_mtime_ns and file.stat().st_size == found.st_size
    assert digest(model) != before


def test_files_are_read_once_and_checked_by_a_piece_each(tmp_path: Path, cache: Path) -> None:
    """A second digest reads one piece and the cache, also after a broken entry, with a cache that
    others can write, or without one. A recently changed file is not cached."""
    model = model_of(tmp_path / "a")
    first, again = (digest_of(files_of(str(model))) for _ in range(2))
    assert first.read_bytes == first.size_bytes and again.digest == first.digest
    assert again.read_bytes < 2 * identity.PIECE_BYTES and "checked by" in again.cost()
    for entry in cache.iterdir():
        entry.write_text("nonsense")
    assert digest_of(files_of(str(model))).read_bytes == first.size_bytes
    cache.chmod(0o777)
    for _ in range(2):
        assert digest_of(files_of(str(model))).read_bytes == first.size_bytes


def test_what_changed_a_moment_ago_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in full the next time, since a second change could have the same stamp."""
    monkeypatch.setattr(identity, "SETTLED_NS", 3600 * 10**9)
    model = model_of(tmp_path / "a")
    for _ in range(2):
        found = digest_of(files_of(str(model)))
        assert found.read_bytes == found.size_bytes


def test_a_hubs_name_leads_to_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hub name, with or without a revision, one of its files and the folder itself have one
    content."""
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    folder = model_of(hub / "models--org--m/snapshots/abc")
    (hub / "models--org--m/refs").mkdir()
    (hub / "models--org--m/refs/main").write_text("abc")
    named = [files_of("org/m"), files_of("org/m", "abc"), files_of("org/m:Q4", None, str(hub))]
    assert all(one == files_of(str(folder)) for one in named)
    assert files_of("org/other") == [] == files_of("org/m", "gone")
    single = folder / "x.gguf"
    single.write_bytes(b"g")
    assert files_of(str(single)) == [single]


def test_no_files_need_a_name_that_is_set(tmp_path: Path) -> None:
    """KV of absent weights is refused without `weights_id`, and the line has all that determines
    KV."""
    with pytest.raises(BadInput, match="weights_id") as told:
        identity_of("org/nowhere", {})
    assert "\n" not in str(told.value)
    lines = {
        identity_of("org/nowhere", computed, weights_id=name)
        for name in "ab"
        for computed in ({}, {"KV": "fp8"}, {"KV": "bf16"})
    }
    assert len(lines) == 6
    model = str(model_of(tmp_path / "a"))
    assert identity_of(model, {"KV": 1}) == identity_of(digest_of(files_of(model)), {"KV": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a; KV x", {"LMCache": "y"}), ("a", {"KV": "x; LMCache y"})),
        (("a", {"KV": "x; y 1"}), ("a", {"KV": "x", "y": 1})),
        (("a", {"KV": "x\\", "y": 1}), ("a", {"KV": "x\\; y 1"})),
    ],
)
def test_no_text_moves_from_one_part_into_another(one: Any, other: Any) -> None:
    """Is the line of two programs equal though the parts of it are not?"""
    names = [identity_of("m", parts, weights_id=name) for name, parts in (one, other)]
    assert names[0] != names[1]


@pytest.mark.parametrize("how", ["written", "renamed", "linked"])
def test_weights_that_changed_after_the_start_are_refused(how: str, tmp_path: Path) -> None:
    """A file was written, or an older folder or a link to one replaced it: a program that may have
    loaded other weights does not share."""
    model = model_of(tmp_path / "a")
    if how == "linked":
        (tmp_path / "model").symlink_to(model)
        model = tmp_path / "model"
    older = model_of(tmp_path / "b", 2)
    time.sleep(TICK_S)
    began = time.time_ns()
    identity_of(str(model), {}, since_ns=began)
    time.sleep(TICK_S)
    if how == "written":
        (model / "model.safetensors").write_bytes(b"x")
    elif how == "renamed":
        shutil.rmtree(model)
        older.rename(model)
    else:
        model.unlink()
        model.symlink_to(older)
    with pytest.raises(BadInput, match="start it again"):
        identity_of(str(model), {}, since_ns=began)


def test_a_process_knows_when_it_began() -> None:
    """The time is in the past, and not long before this test's run."""
    assert 0 < time.time_ns() - process_began_ns() < 86_400 * 10**9


def adapter(path: Path, number: int = 1, **more: Any) -> Any:
    return SimpleNamespace(lora_name="sql", lora_path=str(path), lora_int_id=number, **more)


def adapter_files(folder: Path, fill: int) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(bytes([fill]) * 900)
    return folder


def test_an_adapter_is_its_files(tmp_path: Path) -> None:
    """Equal files are one adapter under any name; different files are another."""
    one, two = adapter_files(tmp_path / "1", 1), adapter_files(tmp_path / "2", 2)
    same = Path(shutil.copytree(one, tmp_path / "3"))
    held = Adapters(time.time_ns() + 10**9)
    found = [held.of(adapter(path, n)) for n, path in enumerate((one, two, same))]
    digests = [weights.digest for weights in found if weights is not None]
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("how", ["rewritten", "another file", "another path", "in place", "gone"])
def test_an_adapter_that_changes_under_its_number_is_not_shared(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM may keep the loaded adapter or reload it without notice, so the adapter is excluded from
    then on, with one line in the log. Adapters with other numbers are not."""
    path, other = adapter_files(tmp_path / "1", 1), adapter_files(tmp_path / "2", 2)
    held = Adapters(time.time_ns() + 10**9)
    assert held.of(adapter(path)) is not None
    time.sleep(TICK_S)
    later = adapter(path)
    if how == "rewritten":
        file = path / "adapter_model.safetensors"
        found = file.stat()
        file.write_bytes(bytes([2]) * 900)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    elif how == "another file":
        (path / "adapter_model.bin").write_bytes(b"x")
    elif how == "another path":
        later = adapter(other)
    elif how == "in place":
        later = adapter(path, load_inplace=True)
    else:
        shutil.rmtree(path)
    assert [held.of(later), held.of(adapter(path))] == [None, None]
    assert held.of(adapter(other, 2)) is not None
    assert len([one for one in caplog.messages if "without the tier" in one]) == 1


def test_an_adapter_younger_than_the_engine_is_not_shared(tmp_path: Path) -> None:
    """It may have been loaded before it changed."""
    began = time.time_ns()
    time.sleep(TICK_S)
    assert Adapters(began).of(adapter(adapter_files(tmp_path / "1", 1))) is None
    assert Adapters(began).of(adapter(tmp_path / "nowhere")) is None
