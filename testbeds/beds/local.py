"""A daemon on this machine: its folders, and its configuration for one run."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from offstage.bindings.errors import BadInput
from offstage.bindings.outside import read_json

__all__ = ["STATE", "BedSections", "DaemonSizes", "LocalBed", "bed_up", "claim", "runs"]

TENANT = "demo"
STATE = "testbed.json"
"""In a testbed's folder: what is up there."""
MARK = ".offstage"
"""Marks a folder as a bed's: its contents may be deleted."""
LBA_BYTES = 4096
SEGMENT_BYTES = 4 << 20
STORE_SLACK = 1.25
"""Room in the store over what is written: partly filled segments, and what decoding adds."""


Keys = dict[str, str | int | list[str]]


class BedSections(TypedDict):
    """The configuration of a bed's daemon, by section."""

    daemon: Keys
    arena: Keys
    storage: Keys
    store: Keys
    policy: Keys
    limits: Keys
    tenant: list[Keys]
    model: NotRequired[Keys]
    pod: NotRequired[Keys]


@dataclass(frozen=True, kw_only=True)
class DaemonSizes:
    """The daemon sizes that a run needs. `context_tokens` is the longest context, in tokens."""

    payload_bytes: int
    layers: int
    block_tokens: int
    slots: int
    window_tokens: int
    context_tokens: int
    stored_bytes: int
    sessions: int


def claim(folder: Path, *files: Path) -> bool:
    """Create a folder that a bed fills and empties; returns whether it was a bed's before.
    BadInput, with nothing changed, if the folder has contents of other origin or is not
    writable, or if one of `files`, which a bed writes too, exists and no bed made it."""
    try:
        had = (folder / MARK).is_file()
        others = [] if had else [*files]
        if not had and os.path.lexists(folder) and any(folder.iterdir()):
            others.append(folder)
        if found := [one for one in others if os.path.lexists(one)]:
            raise BadInput(
                "already exists and was not made by a testbed: it would be overwritten",
                str(found[0]),
                "give another --out, or move it away",
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(folder.parent), "give another --out"
        ) from None
    return had


def runs(pid: int, name: str) -> bool:
    """Whether that process is still the one that was started under the name."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    except OSError:
        return False
    return f"--name={name}" in command if name.startswith("etcd") else "serve" in command


def bed_up(out: Path) -> str:
    """The name of the testbed that is up in this folder; "": none, or all of it has ended."""
    try:
        state = read_json(out / STATE, "")
        processes = state["processes"] if "processes" in state else {"dpu": state["pid"]}
        return state["bed"] if any(runs(pid, name) for name, pid in processes.items()) else ""
    except (BadInput, KeyError, TypeError, AttributeError):
        return ""


@dataclass(frozen=True)
class LocalBed:
    """`out/work` contains store, configurations, logs and records; `out` the files for readers.
    `peaks`: the largest resident set of each daemon that has run here."""

    out: Path
    peaks: list[int] = field(default_factory=list, compare=False)

    @property
    def work(self) -> Path:
        """Everything that may be deleted afterwards."""
        return self.out / "work"

    def take(self, *files: str) -> bool:
        """`claim` of `work`, with the bed's other output files. BadInput also where a testbed is
        up: its daemons have their stores there."""
        if bed := bed_up(self.out):
            raise BadInput(
                f"the testbed {bed} is already up",
                str(self.out),
                f"offstage testbed down {bed} --out {self.out}",
            )
        return claim(self.work, *(self.out / name for name in files))

    def clear(self, *files: str) -> None:
        """As `take`; also deletes the contents of `work` from an earlier run."""
        self.take(*files)
        shutil.rmtree(self.work, ignore_errors=True)
        self.take()

    @property
    def records(self) -> Path:
        """The decision logs that are kept, one folder for each run."""
        return self.out / "records"

    @property
    def store(self) -> Path:
        """The KV of all sessions: the largest file by far."""
        return self.work / "store.kv"

    @property
    def runtime(self) -> Path:
        """Sockets and secrets of the daemons, of which one runs at a time."""
        return self.work / "run"

    def sections(
        self,
        sizes: DaemonSizes,
        storage: Mapping[str, Any],
        policy: Mapping[str, Any] | None = None,
    ) -> BedSections:
        """The configuration of a daemon; `storage` and `policy` are keys of those sections."""
        payload = sizes.payload_bytes
        store_bytes = int(sizes.stored_bytes * STORE_SLACK * (payload + LBA_BYTES) / payload)
        store_bytes += 64 * SEGMENT_BYTES
        return {
            "daemon": {
                "endpoint": f"ipc://{self.runtime / 'control'}",
                "runtime_dir": str(self.runtime),
                "metrics_endpoint": "",
            },
            "arena": {
                "size": sizes.slots * (payload + LBA_BYTES),
                "payload": payload,
                "layers": sizes.layers,
                "block_tokens": sizes.block_tokens,
            },
            "storage": {
                "path": str(self.store),
                "size": -(-store_bytes // SEGMENT_BYTES) * SEGMENT_BYTES,
                "lba": LBA_BYTES,
                **storage,
            },
            "store": {"segment": SEGMENT_BYTES, "write": "through", "durable": False},
            "policy": {
                **(policy or {}),
                "window_tokens": sizes.window_tokens,
            },
            "limits": {
                "sessions": max(16, 2 * sizes.sessions),
                "context_tokens": sizes.context_tokens + sizes.block_tokens,
                "records": 1 << 16,
                "log": 64 << 20,
            },
            "tenant": [{"name": TENANT}],
        }
