"""Replay of a recorded decision log: the same events must give the same decisions."""

import mmap
from pathlib import Path

from offstage.bindings.core import Replay, replay
from offstage.bindings.errors import BadInput
from offstage.bindings.replay import Event, events

__all__ = ["Replay", "first_difference", "replay_log"]


def replay_log(path: Path) -> Replay:
    """Replay a log file. Raises Corrupt for a torn or foreign one, BadInput where none is read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            return replay(log, str(path))
    except ValueError:  # an empty file cannot be mapped
        raise BadInput("is empty", str(path), "record a run with `dpu serve --record`") from None
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})",
            str(path),
            "give the decisions.log of a recorded run",
        ) from None


def first_difference(path: Path) -> Event | None:
    """The first event of a log file on which a fresh core decides otherwise; None: it agrees."""
    return next((event for event in events(path.read_bytes(), str(path)) if not event.agreed), None)
