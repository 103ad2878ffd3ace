"""One guest of QEMU with a later kernel than Debian 12's, for tests marked `qemu`."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.beds.qemu.guest import Guest, GuestSpec, start
from offstage.testbeds.beds.qemu.images import X86_64, Image, get, needs
from offstage.testbeds.progress import Silent

BOOT_S = 300.0


def later_image() -> Image:
    """Its image, built where there is none yet; skips where QEMU is missing or not asked for."""
    if not os.environ.get("OFFSTAGE_TEST_QEMU"):
        pytest.skip("takes minutes: OFFSTAGE_TEST_QEMU=1 pytest -m qemu")
    arch = replace(X86_64, linux="trixie-backports")
    try:
        needs((arch.emulator, arch.package), ("setpriv", "util-linux"))
        return get(arch, Silent())
    except BadInput as error:
        pytest.skip(f"{error.what}: {error.fix}")


@contextmanager
def linux_guest(
    image: Image,
    share: Path,
    modules: Sequence[str],
    devices: Sequence[str],
    memory_mib: int = 1024,
) -> Iterator[Guest]:
    """A booted guest at 10.0.2.15, which reaches this machine's loopback as 10.0.2.2 where
    `devices` has a user network."""
    spec = GuestSpec(
        name="linux",
        image=image,
        share=share,
        address="10.0.2.15/24",
        modules=modules,
        memory_mib=memory_mib,
        devices=devices,
    )
    with tempfile.TemporaryDirectory(prefix="offstage-qemu.") as folder:
        guest = start(spec, Path(folder), stays=False)
        try:
            guest.agent.connect(BOOT_S)
            yield guest
        finally:
            guest.end()
