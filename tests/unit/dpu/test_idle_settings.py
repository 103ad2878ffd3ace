"""Is every setting without effect on a daemon named, and no other?"""

from pathlib import Path

import pytest
from against_schema import checked

from offstage.bindings.errors import BadInput
from offstage.bindings.verbs import Rdma
from offstage.dpu.config.idle import IDLE, unused
from offstage.dpu.config.values import Config, load
from offstage.dpu.control.store_moves import target
from offstage.host.endpoint import Endpoint
from offstage.testbeds.cli import run

ROOT = Path(__file__).parents[3]
URING = {"storage.backend": "io_uring", "storage.path": "p"}
SPDK = {"storage.backend": "spdk", "storage.path": "trtype:TCP"}
POD = {"pod.map": "pod.toml", "pod.name": "a"}
EMULATED = {"storage.backend": "emulated"}
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "storage.target=t": (URING, {"storage.backend": "spdk"}),
    "storage.target_file=f": (SPDK, {"storage.backend": "spdk", "storage.target": "t"}),
    "storage.discard=no": (SPDK | {"storage.target": "t"}, SPDK),
    "storage.discard=yes": (SPDK | {"store.durable": "no"}, SPDK),
    "storage.nvme=gen5-tlc": (URING, EMULATED),
    "storage.nvme=gen4-tlc": (EMULATED | {"model.device": "ideal"}, EMULATED),
    "storage.inner=posix": (URING, EMULATED),
    "storage.busy_spin=yes": (SPDK, EMULATED),
    "storage.threads=8": (URING, {"storage.backend": "posix", "storage.path": "p"}),
    "storage.threads=9": (EMULATED, EMULATED | {"storage.inner": "posix"}),
    "storage.direct=no": (SPDK, URING),
    "storage.path=x": (EMULATED, EMULATED | {"storage.inner": "posix"}),
    "archive.queue=7": ({}, {"archive.bucket": "b"}),
    "pod.weight=3": ({}, POD | {"pod.map": "etcd:127.0.0.1:2379"}),
    "pod.lease=9s": (POD, POD | {"pod.map": "etcd:127.0.0.1:2379"}),
    "pod.name=b": ({}, {"pod.map": "pod.toml"}),
    "rdma.port=1": ({}, {"rdma.enabled": "yes"}),
    "store.dirty_max=9": ({}, {"store.write": "back"}),
    "store.room_percent=5": ({"storage.size": "1GiB", "arena.layers": "16"}, {}),
    "limits.log=1MiB": ({}, {"daemon.record_dir": "r"}),
    "limits.tenant_in_flight=1MiB": ({}, {"two": ""}),
    "daemon.metrics_token_file=f": ({"daemon.metrics_endpoint": ""}, {}),
    "arena.granule_tokens=64": ({"arena.block_tokens": "64"}, {"arena.block_tokens": "128"}),
    "policy.drive_years=5": ({"policy.write_budget": "1TB"}, {}),
}


def config_of(tmp_path: Path, given: dict[str, str]) -> Config:
    """`two`: read a file with two tenants."""
    file = None
    if "two" in given:
        file = tmp_path / "two.toml"
        file.write_text('[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\n')
    return load(file, {key: text for key, text in given.items() if key != "two"}, {})


@pytest.mark.parametrize("case", CASES)
def test_what_is_given_in_vain_is_named_and_what_counts_is_not(case: str, tmp_path: Path) -> None:
    key, _, value = case.partition("=")
    idle, counts = CASES[case]
    told = [note.what for note in unused(config_of(tmp_path, {**idle, key: value}))]
    assert sum(f"{key} " in what or f"{key}," in what for what in told) == 1, told
    told = [note.what for note in unused(config_of(tmp_path, {**counts, key: value}))]
    assert not any(key in what for what in told), told
    assert unused(config_of(tmp_path, {})) == [], "a default is nobody's wish"


def test_every_row_is_tried() -> None:
    cases = {case.partition("=")[0] for case in CASES}
    assert all(cases & set(row.keys) for row in IDLE) and len(IDLE) == 20


@pytest.mark.parametrize("path", sorted((ROOT / "testbeds/presets").glob("*.toml")), ids=str)
def test_no_sample_says_anything_in_vain(path: Path) -> None:
    assert unused(load(path, {}, {})) == []


def test_what_is_said_of_a_tenant_in_vain_is_named(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[[tenant]]\nname = "a"\nweight = 3\ndirty_max = 4\n')
    assert [note.what for note in unused(load(file, {}, {}))] == [
        'tenant.0.dirty_max has no effect without store.write = "back": nothing is dirty',
        "tenant.0.weight has no effect with one tenant",
    ]


def test_a_setting_with_two_values_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The last one counted, unsaid; the same value twice is one."""
    own = ["--set", "storage.backend=emulated", "--set", "archive.queue=7"]
    twice = ["config", "show", *own, "--set"]
    assert run([*twice, "archive.queue = 8"]) == 2
    assert "archive.queue is set twice; give one of the values" in capsys.readouterr().err
    assert run([*twice, "archive.queue=7"]) == 0


def test_config_show_says_it_above_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "show", "--set", "storage.backend=emulated", "--set", "archive.queue=7"]
    assert run(words) == 0
    assert capsys.readouterr().out.startswith("note: archive.queue has no effect without")
    assert run([*words, "--format", "json"]) == 0
    (note,) = checked("config show", capsys.readouterr().out)["notes"]
    assert note["code"] == "setting-unused"


def test_a_move_refuses_what_would_do_nothing(tmp_path: Path) -> None:
    config = load(None, {"storage.path": str(tmp_path / "a"), "storage.backend": "posix"}, {})
    with pytest.raises(BadInput, match=r"storage\.threads has no effect on a storage other"):
        target(config, {"path": str(tmp_path / "b"), "backend": "io_uring", "threads": "8"})
    moved = target(config, {"path": str(tmp_path / "b"), "threads": "8"})
    assert moved.storage.threads == 8


def test_an_engine_is_told_of_an_adapter_that_no_fabric_takes() -> None:
    with pytest.raises(BadInput, match="rdma has no effect over zmq"):
        Endpoint.of_engine({"fabric": "zmq", "rdma": "mlx5_0"})
    assert Endpoint.of_engine({"fabric": "verbs", "rdma": "mlx5_0"}).rdma == Rdma("mlx5_0")
