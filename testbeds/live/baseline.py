"""The demo's workload on a host without a DPU: what a user has today, on equal terms.

The same sessions, contexts, selections, HBM pool, pace and checks of every byte; the same drive,
real or modelled. `g2` has as many blocks of host memory as the tier has in its arena, `g3` has
none. Both bypass the page cache if the tier does. The file is written once, in the folder of the
tier's store, and all baselines read it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offstage.bindings.notes import Note
from offstage.bindings.storage import StorageConfig, preset
from offstage.host.baselines import (
    READ_ROWS,
    WRITE_ROWS,
    Drive,
    FirmwareDrive,
    KvikioDrive,
    LocalStore,
    LocalTier,
    why_no_kvikio,
)
from offstage.host.decode.session import Context
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.live.drive import decode, prefill
from offstage.testbeds.live.results import Provenance, RunResult
from offstage.testbeds.live.run_figures import (
    RunLabel,
    against_reference,
    emulation_notes,
    run_result,
)
from offstage.testbeds.live.workload import Workload, full_chunks
from offstage.testbeds.progress import Progress, note_hit

__all__ = ["Baselines"]


class Baselines:
    """The file at `path` and all runs on it."""

    def __init__(self, options: DemoOptions, workload: Workload, path: Path, storages: int) -> None:
        self._options, self._workload = options, workload
        plan = workload.plan
        chunks = {chunk for one in plan.sessions for chunk in full_chunks(one)}
        tokens = options.geometry.block_tokens
        grown = sum(1 + one.decode_steps // tokens for one in plan.sessions)
        runs = storages * len(options.baselines)
        self.store = LocalStore(
            path,
            options.geometry.layer_count,
            options.geometry.block_bytes(0),
            len(chunks) + grown * runs,
        )

    def fill(self, keys: Mapping[str, Any], progress: Progress) -> None:
        """Write every session's full chunks. `keys` are the daemon's `[storage]`."""
        drive = FirmwareDrive(self._config(keys), READ_ROWS + WRITE_ROWS, self.store.stride_bytes)
        tier = LocalTier(self.store, drive, keep=False)
        try:
            prefill(self._options, self._workload, tier, tier, progress)
        finally:
            tier.close()

    def measure(
        self,
        kind: str,
        contexts: dict[int, Context],
        keys: Mapping[str, Any],
        where: tuple[str, Provenance],
        without: RunResult,
        progress: Progress,
    ) -> RunResult:
        """Decode over baseline `kind`; `where` is the storage's name and provenance, `without`
        the tier's run without prefetch there, the base of traffic and coverage."""
        storage, provenance = where
        sessions = self._workload.plan.sessions
        progress.start(
            f"baseline {kind}, {storage}", sum(one.decode_steps for one in sessions), "steps"
        )
        slots = self._options.slot_count if kind == "g2" else READ_ROWS
        drive, notes = self._drive(keys, provenance, slots + WRITE_ROWS)
        tier = LocalTier(self.store, drive, keep=kind == "g2")
        try:
            record = decode(
                self._options,
                self._workload,
                contexts,
                tier,
                tier,
                f"{provenance}-{kind}",
                progress,
            )
        finally:
            counted = drive.stats()
            tier.close()
        shown = storage if provenance == "emulated" else drive.name
        label = RunLabel(kind, shown, provenance, ())
        notes += emulation_notes(label, counted)
        result = run_result(label, tier.ledger(), None, record, -1, notes)
        result.staging_bytes = self._options.slot_count * self.store.payload_bytes * (kind == "g2")
        note_hit(progress, result.hit)
        return against_reference(result, without)

    def _drive(
        self, keys: Mapping[str, Any], provenance: Provenance, rows: int
    ) -> tuple[Drive, list[Note]]:
        """kvikio if it can read a real drive, else the firmware's storage; and notes."""
        stride = self.store.stride_bytes
        if provenance == "emulated":
            emulated = FirmwareDrive(self._config(keys), rows, stride)
            return emulated, _notes(emulated.warning)
        why = why_no_kvikio()
        if not why:
            return KvikioDrive(self.store.path, rows, stride), []
        drive = FirmwareDrive(self._config(keys), rows, stride)
        return drive, _notes(f"baselines read with {drive.name}: {why}", drive.warning)

    def _config(self, keys: Mapping[str, Any]) -> StorageConfig:
        """The daemon's `[storage]` keys, as the daemon opens them, for the baselines' file."""
        config = StorageConfig(
            path=str(self.store.path),
            size_bytes=self.store.size_bytes,
            lba_size_bytes=4096,
            queue_depth_max=READ_ROWS,
            **{name: value for name, value in keys.items() if name != "nvme"},
        )
        return replace(config, nvme=preset(keys["nvme"]).params) if "nvme" in keys else config


def _notes(*texts: str) -> list[Note]:
    return [Note("baseline-drive", text) for text in texts if text]
