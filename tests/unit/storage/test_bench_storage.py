"""Does the bench compare both sides, keep the user's file, and say what is missing?"""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.storage import preset, presets
from offstage.testbeds.bench import storage as bench
from offstage.testbeds.bench.storage import bench_storage

MIB = 1 << 20


def test_without_fio_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing reference is named before a byte is written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="apt-get install fio"):
        bench_storage(tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is missing; apt-get install fio")
def test_a_file_too_small_to_read_from_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(BadInput, match="only 4 B"):
        bench_storage(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_runs_that_overlap_return_all_the_huge_pages_they_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first holds its pages, and outlives it."""
    monkeypatch.setattr(bench, "HUGE_PAGES", tmp_path)
    for name, pages in (("nr", 5), ("free", 0), ("surplus", 0)):
        (tmp_path / f"{name}_hugepages").write_text(str(pages))
    first, second = bench._huge_pages(), bench._huge_pages()
    with ExitStack() as outlives:
        with first:
            outlives.enter_context(second)
        assert int((tmp_path / "nr_hugepages").read_text()) > 5
    assert (tmp_path / "nr_hugepages").read_text() == "5"


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is missing; apt-get install fio")
def test_a_quick_look_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has both sides, and only a file that the bench made is removed."""
    monkeypatch.setattr(bench, "CASES", bench.CASES[:2])
    try:
        found = bench_storage(tmp_path / "f", rounds=1, scale=0.01, file_size_bytes=64 * MIB)
    except OffstageError as error:
        pytest.skip(str(error))  # no io_uring or no O_DIRECT; the line says which
    assert not list(tmp_path.iterdir())  # neither the file nor those beside it
    pages = [one.pages for one in found.cases]
    assert pages.count("base pages") == 2
    huge = pages.count("reserved huge pages")
    assert len(pages) == 2 + huge
    assert len(found.notes) == (huge < 2)  # a note says where huge pages were not available
    published = sum(len(drive.figures) for drive in found.emulated)
    drives = {name for name in presets() if not preset(name).params["scheduled"]}
    assert published == 3 * len(drives) - 1  # of one drive no rate of 4 KiB is published
    assert found.provenance == "measured" and len(found.rows) == 2 * len(pages) + published + 6 + 2
    assert [one.entry_bytes for one in found.entries] == [512, 1152, 4096]
    for entry in found.entries:  # whole sectors, and the model's rate of that many bytes
        assert entry.block_bytes % 512 == 0 and 0 <= entry.block_bytes - entry.entry_bytes < 512
        assert entry.modelled_reads_per_s["gen5-tlc"] == pytest.approx(3.3e6, rel=0.01)
    assert found.values is not None and found.values.record_bytes == 33 * 4096  # with a trailer
    for moved in (found.values.load, found.values.store):
        assert moved.ratio == pytest.approx(moved.ours / moved.fio)
    for one in found.cases:
        assert one.bandwidth_ratio == pytest.approx(one.ours.bytes_per_s / one.fio.bytes_per_s)
        assert (one.latency_ratio_fio_spinning is not None) == (one.queue_depth == 1)
    assert {drive.preset for drive in found.emulated} == drives
    for drive in found.emulated:
        latency = drive.figures["read_latency_ns_p50"]
        assert latency.got >= 0.99 * latency.cited  # never faster than the drive

    monkeypatch.setattr(bench, "CASES", bench.CASES[1:])
    kept = tmp_path / "kept"
    kept.write_bytes(b"\x11" * (8 * MIB))
    only_read = bench_storage(kept, rounds=1, scale=0.01)
    assert only_read.values is None and "no-values" in [note.code for note in only_read.notes]
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.read_bytes() == b"\x11" * (8 * MIB)
