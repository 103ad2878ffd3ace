"""Does a daemon with a wrong archive configuration report that in one line at its start?"""

import subprocess
import sys
from pathlib import Path

import pytest
from archive_bed import (
    BLOCKS,
    archived,
    logged,
    settings,
    settled,
    whole,
    write,
)
from live_daemon import (
    CHUNKS,
    WAIT_S,
    Daemon,
    check_text,
    daemon,
)
from swift_server import ACCESS, SECRET, Swift
from tiny_s3 import TinyS3

from offstage.testbeds.beds.daemon import offstage_words


def serve(folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run `dpu serve`, which must be refused at its start."""
    chosen = {
        "daemon.endpoint": "tcp://127.0.0.1:*",
        "daemon.metrics_endpoint": "",
        "daemon.runtime_dir": str(folder / "run"),
        "storage.path": str(folder / "s.ofs"),
        "storage.size": "256MiB",
    }
    chosen |= {name.replace("__", "."): value for name, value in more.items()}
    sets = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    return subprocess.run(
        offstage_words("dpu", "serve", *sets), capture_output=True, text=True, timeout=WAIT_S
    )


def refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """Expect exit code 2 and one line with all of `words`."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in words), lines[0]


@pytest.mark.slow
def test_swift_refuses_a_wrong_key_and_has_no_such_bucket(tmp_path: Path, swift: Swift) -> None:
    """Wrong credentials and a missing bucket each give one line and exit code 2."""
    wrong = settings(tmp_path, swift.endpoint, ACCESS, "another")
    refused(serve(tmp_path, **wrong), "credentials are refused", "archive.key_file")
    unknown = settings(tmp_path, swift.endpoint, "tier:nobody", SECRET)
    refused(serve(tmp_path, **unknown), "credentials", "archive.key_file")
    nowhere = settings(tmp_path, swift.endpoint, ACCESS, SECRET) | {"archive__bucket": "nowhere"}
    refused(serve(tmp_path, **nowhere), "'nowhere'", "no such bucket", "archive.bucket")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"archive__bucket": "nowhere"}, ("no such bucket",)),
        ({"archive__bucket": "a b/c"}, ("bucket of that name", "archive.bucket")),
        ({"archive__endpoint": "nonsense"}, ("no S3 endpoint", "archive.endpoint")),
        ({"archive__prefix": "/a/"}, ("archive.prefix",)),
        ({"archive__key_file": "/nonexistent"}, ("cannot be read", "archive.key_file")),
        ({"archive__connections": "0"}, ("connections",)),
    ],
)
def test_a_bad_archive_is_one_line(
    tmp_path: Path, tiny: TinyS3, changed: dict[str, str], words: tuple[str, ...]
) -> None:
    """Each mistake is one line that names the setting to fix, before the store is opened."""
    refused(serve(tmp_path, **settings(tmp_path, tiny.endpoint, "a", "b") | changed), *words)
    assert not (tmp_path / "s.ofs").exists()


@pytest.mark.parametrize(
    "page",
    [
        b"<html></html>",
        b"<!doctype html>\n<html lang=en><p>Log in<br></html>",
        b"{}",
    ],
)
def test_what_is_no_s3_is_one_line(tmp_path: Path, tiny: TinyS3, page: bytes) -> None:
    """A web server, a proxy, or a login page that answers 200 is refused at the start. An XML page
    is not taken for an empty bucket, any other not for a server error to wait out."""
    tiny.page = page
    refused(
        serve(tmp_path, **settings(tmp_path, tiny.endpoint, "a", "b")), "no S3", "archive.endpoint"
    )


def test_keys_that_others_can_read(tmp_path: Path, tiny: TinyS3) -> None:
    """A key file that is not private, or has a single word, is refused."""
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    (tmp_path / "s3.keys").chmod(0o644)
    refused(serve(tmp_path, **more), "chmod 600")
    (tmp_path / "s3.keys").write_text("one")
    (tmp_path / "s3.keys").chmod(0o600)
    refused(serve(tmp_path, **more), "1 words")


def test_a_server_that_is_gone_at_the_start_is_waited_for(tmp_path: Path, tiny: TinyS3) -> None:
    """The daemon serves without its bucket, reports that, and archives once it is back."""
    tiny.fail = (503, "SlowDown")
    with daemon(tmp_path, **settings(tmp_path, tiny.endpoint, "a", "b")) as tier:
        write(tier, 1)
        assert check_text(tier, 1, whole(1)) == BLOCKS
        assert logged(tier, "archive_away") and not tiny.objects
        tiny.fail = None
        settled(tier)
        assert archived(tier)["chunks"] == CHUNKS


def threads(tier: Daemon) -> int:
    return len(list(Path(f"/proc/{tier.process.pid}/task").iterdir()))


def test_a_daemon_without_an_archive_loads_no_client(tmp_path: Path, tiny: TinyS3) -> None:
    """A daemon without an archive neither loads botocore nor starts a thread of the archive."""
    with daemon(tmp_path) as tier:
        without = threads(tier)
    more = settings(tmp_path, tiny.endpoint, "a", "b")
    with daemon(tmp_path, **more) as tier:
        settled(tier)
        assert threads(tier) > without
    code = "import sys; import offstage.dpu.daemon; assert 'botocore' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
