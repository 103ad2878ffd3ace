"""Are acknowledged entries still in their file after a power cut?"""

from pathlib import Path

import pytest
from power_cut import Medium

from offstage.bindings.durable import write_whole
from offstage.dpu.archive.journal import Journal
from offstage.dpu.config.options import Tenant
from offstage.dpu.pod.map import PodMap, deleted
from offstage.dpu.pod.membership.static import StaticMembership
from offstage.dpu.tenants.tenancy import carry_secret, tenant_secret


@pytest.fixture
def medium(monkeypatch: pytest.MonkeyPatch) -> Medium:
    return Medium(monkeypatch)


def test_a_file_is_there_whole_with_its_bytes_name_and_mode(tmp_path: Path, medium: Medium) -> None:
    """Its bytes are durable before its name, and its name before the call returns. No other file
    remains, and a link at the new file's path is not followed."""
    path = tmp_path / "one"
    for data in (b"first", b"second, which is longer", b"3"):
        write_whole(path, data)
        assert medium.left(path) == path.read_bytes() == data
    assert [one.name for one in tmp_path.iterdir()] == ["one"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_journal_of_deletes_outlives_a_cut(tmp_path: Path, medium: Medium) -> None:
    """An accepted delete is on the disk when `add` returns, also in a new journal. Entries of the
    former journal survive a rewrite."""
    path = tmp_path / "journal"
    first = Journal(path)
    assert medium.left(path) == b""
    first.add(["a", "b"])
    assert medium.left(path) == b"+ a\n+ b\n"
    first.add(["c"])
    assert medium.left(path) == b"+ a\n+ b\n+ c\n"
    first.done("b")
    first.close()
    second = Journal(path)
    assert second.names == {"a", "c"}
    left = medium.left(path)
    assert left is not None and sorted(left.splitlines()) == [b"+ a", b"+ c"]


def test_a_journal_that_was_written_anew_outlives_a_cut(tmp_path: Path, medium: Medium) -> None:
    """A long journal has become a new file: the next delete is on the disk under its name."""
    path, names = tmp_path / "journal", [f"{n:01000}" for n in range(1000)]
    journal = Journal(path)
    journal.add(names)
    first = path.stat().st_ino
    for name in names:
        journal.done(name)
    assert path.stat().st_ino != first
    journal.add(["last"])
    assert medium.left(path) == path.read_bytes()
    journal.close()
    assert Journal(path).names == {"last"}


def test_a_deletion_in_a_map_in_a_file_outlives_a_cut(tmp_path: Path, medium: Medium) -> None:
    """It is acknowledged once the map has it."""
    path = tmp_path / "pod.toml"
    pods = StaticMembership(path)
    pods.change(lambda pod: pod)
    for _ in range(2):
        changed: PodMap = pods.change(lambda pod: deleted(pod, "lab"))
        left = medium.left(path)
        assert left == path.read_bytes() and changed.purges["lab"][-1].encode() in left


@pytest.mark.parametrize("carried", [False, True], ids=["generated", "carried"])
def test_the_secret_that_finds_blocks_outlives_a_cut(
    tmp_path: Path, medium: Medium, carried: bool
) -> None:
    """Only its tenant's secret finds a block that a cut leaves; the mark says which secret."""
    store = str(tmp_path / "store.ofs")
    secret, generated = tenant_secret(Tenant(), store, tmp_path)
    assert generated
    if carried:
        store = str(tmp_path / "other.ofs")
        carry_secret(Tenant(), store, tmp_path, secret)
    kept = Path(f"{store}.default.secret")
    assert medium.left(kept) == secret.hex().encode() + b"\n"
    assert medium.left(kept.with_suffix(".mark")) == kept.with_suffix(".mark").read_bytes() != b""
