"""Does a wall clock that jumps while a daemon runs expire anything?

Only the daemon's clock jumps: a library loaded before libc adds ten days to CLOCK_REALTIME as soon
as a file is there.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol as p
from tests.integration.test_daemon import blocks_of, content, daemon, take_driver, until

COUNT, PAYLOAD = 8, 4096
JUMP = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int
clock_gettime(clockid_t id, struct timespec *now)
{
	const char *path = getenv("JUMPED");
	int rc = (int)syscall(SYS_clock_gettime, id, now);

	if (rc == 0 && id == CLOCK_REALTIME && path != NULL && access(path, F_OK) == 0)
		now->tv_sec += 10 * 86400;
	return rc;
}
"""


def preload(folder: Path) -> str:
    """Return LD_PRELOAD with the library after those already there."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    (folder / "jump.c").write_text(JUMP)
    library = folder / "jump.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "jump.c")], check=True
    )
    return " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)])


def test_a_wall_clock_that_jumps_expires_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", preload(tmp_path))
    monkeypatch.setenv("JUMPED", str(tmp_path / "jumped"))
    with daemon(tmp_path, store__ttl="1h") as served:
        monkeypatch.undo()
        with served.control() as control, served.control(p.OPERATOR) as operator:
            driver = take_driver(control.attach())
            session = control.session_open(select_blocks=COUNT)
            appended = control.append(session, [content(number) for number in range(COUNT)])
            ordinals, written = np.arange(COUNT, dtype=np.uint32), blocks_of(COUNT, 3)
            assert not driver.put(PutRequest(session, 1, ordinals, written)).any()
            (tmp_path / "jumped").touch()
            operator.reset()
            loops = operator.status()["device"]["loops"]
            until(lambda: operator.status()["device"]["loops"] > loops + 1_000)
            keys = np.ascontiguousarray(block_keys(appended.keys, 2)[1])
            target = np.zeros((COUNT, PAYLOAD), np.uint8)
            done = driver.fetch(FetchRequest(session, 0, 1, ordinals, keys, target))
            assert not done.rcs.any() and np.array_equal(target, written)
            assert operator.status()["device"]["store"]["expired"] == 0
            driver.close()
