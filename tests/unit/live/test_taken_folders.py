"""Does a command that writes into a folder leave other files there alone?"""

from collections.abc import Callable
from pathlib import Path

import pytest
from on_disk import snapshot

from offstage.bindings.errors import BadInput
from offstage.dpu.watch.recorder import FILES, forget
from offstage.testbeds.beds import here, pod
from offstage.testbeds.beds.local import DaemonSizes, LocalBed
from offstage.testbeds.beds.qemu.pair import _share
from offstage.testbeds.live import demo
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.progress import Silent

SIZES = DaemonSizes(
    payload_bytes=4096,
    layers=1,
    block_tokens=16,
    slots=64,
    window_tokens=16,
    context_tokens=64,
    stored_bytes=1 << 20,
    sessions=1,
)
COMMANDS: dict[str, Callable[[Path], object]] = {
    "testbed up local": lambda out: here.up("local", out, SIZES),
    "testbed up pod": lambda out: pod.up(out, SIZES, with_etcd=False),
    "testbed up qemu": _share,
    "demo": lambda out: demo.run(DemoOptions(out=out), Silent()),
}
WRITES = [
    ("testbed up local", "work/thesis.tex"),
    ("testbed up local", "testbed.json"),
    ("testbed up pod", "work/thesis.tex"),
    ("testbed up pod", "testbed.json"),
    ("testbed up pod", "pod.toml"),
    ("testbed up qemu", "share/thesis.tex"),
    ("demo", "work/thesis.tex"),
]


@pytest.mark.parametrize(("command", "name"), WRITES)
def test_a_folder_that_holds_others_files_keeps_them(
    command: str, name: str, tmp_path: Path
) -> None:
    """A user's files in `work`, another pod's map, or a file of the same name are neither deleted
    nor overwritten, and nothing is created next to them."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("years of it")
    before = snapshot(tmp_path)
    try:
        with pytest.raises(BadInput, match="it would be overwritten; give another --out"):
            COMMANDS[command](tmp_path)
    finally:  # in case a bed came up
        for bed in (here, pod):
            bed.down(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_bed_is_taken_again(tmp_path: Path) -> None:
    """The command that made it may take it again, over its own leftovers, even where the folder
    must be empty."""
    bed = LocalBed(tmp_path / "bed")
    assert not bed.take("pod.toml")
    (bed.out / "pod.toml").touch()
    (bed.work / "store.kv").touch()
    assert bed.take("pod.toml") and (bed.work / "store.kv").exists()
    bed.clear("pod.toml")
    assert bed.take("pod.toml") and not (bed.work / "store.kv").exists()


def test_a_recording_is_forgotten_and_nothing_beside_it(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).touch()
    (tmp_path / "mine").write_text("years of it")
    forget(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "mine").unlink()
    forget(tmp_path)
    assert not tmp_path.exists()
    forget(tmp_path)
