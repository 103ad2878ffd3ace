"""Does a pod notice that its real etcd was restored from an older copy, and stop?"""

import shutil
import signal
from pathlib import Path

import pytest
from etcd import Etcd
from pod_daemons import TENANT
from pod_leases import leased

from offstage.bindings.errors import RunFailed
from offstage.host.endpoint import Endpoint
from offstage.testbeds.cli import run


@pytest.mark.slow
def test_a_deletion_survives_a_restored_etcd(tmp_path: Path) -> None:
    """dpu1 is away and has seen changes newer than the copy. dpu0 is up, stops serving and says
    why; a deletion is not acknowledged. Once an operator accepts the map, epochs continue above all
    seen ones, and dpu1 returns with its knowledge."""
    etcd = Etcd(tmp_path)
    try:
        with leased(tmp_path, [etcd.address], "dpu0", "dpu1") as pod:
            pod.settle()
            etcd.kill()
            shutil.copytree(tmp_path / "etcd", tmp_path / "copy")
            etcd.start()
            for name in ("up", "draining") * 4:  # dpu1 sees a map far newer than the copy
                undo = ["--undo"] if name == "up" else []
                assert run(["pod", "drain", pod.place, "dpu0", "--no-push", *undo]) == 0
            assert run(["pod", "drain", pod.place, "dpu0", "--no-push", "--undo"]) == 0
            pod.settle()
            seen = pod.etcd.map().epoch
            pod.send("dpu1", signal.SIGKILL)
            etcd.kill()
            shutil.rmtree(tmp_path / "etcd")
            shutil.copytree(tmp_path / "copy", tmp_path / "etcd")
            etcd.start()
            pod.until(lambda: bool(pod.etcd.map().doubt), "dpu0 follows the copy")
            assert run(["pod", "purge", pod.place, TENANT]) == 1, "acknowledged in doubt"
            assert '"pod_in_doubt"' in pod.log("dpu0")
            found = pod.member("dpu0")
            with pytest.raises(RunFailed, match="in doubt"):
                Endpoint(
                    found.endpoint,
                    TENANT,
                    runtime_dir=pod.folder / "dpu0",
                    incarnation=found.incarnation,
                    epoch=pod.etcd.map().epoch,
                ).control()
            assert run(["pod", "accept", pod.place]) == 0
            assert pod.etcd.map().epoch > seen
            pod.start("dpu1")
            pod.settle()
            assert run(["pod", "purge", pod.place, TENANT]) == 0
    finally:
        etcd.kill()
