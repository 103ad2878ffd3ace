"""Moments: when each read and command passed each station, and what turns of the reactor cost.

The recorder keeps them in `moments.bin`, rows of MOMENT back to back. Stations, phases, and what
each field means of which kind: `struct ofs_moment` in device.h. `at_ns` of a row is [7].
"""

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.layouts import layout, names

__all__ = ["MOMENT", "PHASES", "Moments", "station"]

MOMENT = layout("struct ofs_moment")
PHASES = names("enum ofs_phase", "OFS_PHASE_")
AWAY_SHARE, AWAY_NS = 0.02, 2_000
"""Time of a window that is no processor time, at most: reading the two clocks takes some."""
KINDS = names("enum ofs_moment_kind", "OFS_MOMENT_")
READ = names("enum ofs_read_station", "OFS_READ_")
COMMAND = names("enum ofs_command_station", "OFS_COMMAND_")


def station(rows: NDArray[np.void], kind: str, name: str) -> NDArray[np.int64]:
    """When each row passed the station of that name, in ns, signed for differences."""
    return rows["at_ns"][:, {"read": READ, "command": COMMAND}[kind].index(name)].astype(np.int64)


class Moments:
    """The moments of one recording, by kind: `reads`, `commands`, `turns`, each rows of MOMENT in
    the order in which they ended; `lost`: how many the ring lost. `undisturbed`: of each turn,
    whether the reactor was on its processor all the while, so that its phases are processor
    time."""

    def __init__(self, rows: NDArray[np.void]) -> None:
        self.reads, self.commands, self.turns, windows = (
            rows[rows["kind"] == kind] for kind in range(len(KINDS))
        )
        self.lost = int(rows["lost"].sum())
        order = np.flatnonzero(rows["kind"] == KINDS.index("turn"))
        ends = np.flatnonzero(rows["kind"] == KINDS.index("window"))
        took, ran = (windows["at_ns"][:, place].astype(np.int64) for place in (0, 1))
        calm = np.append(took - ran <= took * AWAY_SHARE + AWAY_NS, False)  # the last has no end
        self.undisturbed = calm[np.searchsorted(ends, order)]
