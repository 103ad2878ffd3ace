"""The host's time: the machine's, or slower by as much as that of the tier it decodes against.

Against a modelled device in dilated time everything a host waits for takes `dilation` times longer
on the machine: the device's own times, the GPU's, every deadline. Figures are in the device's time.
"""

import time

__all__ = ["Clock"]


class Clock:
    """Reads and waits; one of its nanoseconds takes `dilation` of the machine's."""

    def __init__(self, dilation: int = 1) -> None:
        self.dilation = dilation

    def now_ns(self) -> int:
        """Nanoseconds that never go back."""
        return time.monotonic_ns() // self.dilation

    def sleep_until_ns(self, then_ns: int) -> None:
        """Returns at once when that has passed."""
        left_ns = then_ns - self.now_ns()
        if left_ns > 0:
            time.sleep(left_ns * self.dilation / 1e9)
