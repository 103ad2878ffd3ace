"""External policies that fail, each in its own way; named `lab_policies:Class`."""

import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.bindings.layouts import CAUSES
from offstage.testbeds.lab.policies.policy import CoreSwitches, Setting, View, guesses, no_guesses

PATTERN = CAUSES.index("pattern")
STEP = 5
"""The step at which it happens."""


class Silent:
    """Guesses nothing, so it behaves like `none`."""

    name: ClassVar[str] = "silent"
    uses: ClassVar[str] = "nothing"
    source: ClassVar[str] = "a test"
    core: ClassVar[CoreSwitches] = CoreSwitches()

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """Makes no guess."""
        return no_guesses()

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Makes no guess, only calls `happens`."""
        return self.happens(view) if view.step == STEP else no_guesses()

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """Does nothing."""
        return no_guesses()


class Raises(Silent):
    """Raises."""

    name = "raises"

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """Raises an error of two lines, as libraries do."""
        raise ValueError("no such\nblock")


class Outside(Silent):
    """Guesses a block that does not exist."""

    name = "outside"

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """Guesses the first ordinal behind the last."""
        return guesses([0], [view.blocks], after_layer=0, cause=PATTERN)


class Kills(Silent):
    """Ends its process as the kernel does when memory is short."""

    name = "kills"

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """SIGKILL."""
        os.kill(os.getpid(), signal.SIGKILL)
        return no_guesses()


class KillsOnce(Silent):
    """Ends its process the first time, by a marker file that `LAB_MARK` names."""

    name = "kills-once"

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """SIGKILL if the file does not exist."""
        mark = Path(os.environ["LAB_MARK"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return no_guesses()


class Waits(Silent):
    """Waits at its step until the file `LAB_MARK` exists, and writes to `LAB_MARK.reached` which
    instance waits."""

    name = "waits"

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """Waits for the file."""
        mark = Path(os.environ["LAB_MARK"])
        if not mark.exists():
            mark.with_suffix(".reached").write_text(str(os.getpid()))
        while not mark.exists():
            time.sleep(0.01)
        return no_guesses()


class SecondWaits(Waits):
    """Like `Waits`, but the first one opened does not wait: the seeds of one point end together, so
    a seed that has ended while another waits is a different one."""

    name = "second-waits"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        try:
            Path(os.environ["LAB_MARK"]).with_suffix(".first").touch(exist_ok=False)
            self.passes = True
        except FileExistsError:
            self.passes = False

    def happens(self, view: View) -> npt.NDArray[np.void]:
        """All but the first wait."""
        return no_guesses() if self.passes else super().happens(view)
