"""Is perftest's output parsed, and does the client wait for a server that is not up yet?"""

from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.verbs import Adapter
from offstage.testbeds.bench import perftest

ADAPTER = Adapter("rxe0", 1, 1, "10.0.0.1", 4096)
LATENCY = """ #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 65536   100          1295.64        38878.42      1684.12  	       4916.66"""
BANDWIDTH = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      100              0.40              0.25   		   0.000150"""


def fake(folder: Path, program: str, said: str) -> None:
    """A perftest stand-in: a server waits, a client prints a table, the first finds no server."""
    path = folder / program
    path.write_text(
        '#!/bin/sh\ncase "$*" in *127.0.0.1) ;; *) exec sleep 100 ;; esac\n'
        f'[ -e {folder}/up ] || {{ touch {folder}/up; echo "Couldn\'t connect" >&2; exit 1; }}\n'
        f"cat <<'T'\n{said}\nT\n"
    )
    path.chmod(0o755)


def test_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fake(tmp_path, "ib_read_lat", LATENCY)
    fake(tmp_path, "ib_read_bw", BANDWIDTH)
    floor = perftest.Perftest(ADAPTER, 65536)
    assert floor(1, 10).tolist() == [1_684_120]
    assert floor(32, 10).tolist() == [65536 * 32 * 8 * 4]


def test_a_clock_that_does_not_settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """perftest prints inf if it cannot calibrate its counter: that is no figure."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fake(tmp_path, "ib_read_lat", LATENCY.replace("1684.12", "inf"))
    fake(tmp_path, "ib_read_bw", BANDWIDTH)
    with pytest.raises(RunFailed, match="calibrate its clock"):
        perftest.Perftest(ADAPTER, 4096)(1, 1)


def test_a_run_in_vain_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="apt-get install perftest"):
        perftest.Perftest(ADAPTER, 4096)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(perftest, "TIMEOUT_S", 0.5)
    fake(tmp_path, "ib_read_lat", "nothing")
    fake(tmp_path, "ib_read_bw", "nothing")
    with pytest.raises(RunFailed, match="ib_read_lat failed"):
        perftest.Perftest(ADAPTER, 4096)(1, 1)
