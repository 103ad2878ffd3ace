"""Is the device what the rest of the run takes it for? These checks run first."""

import time

from gpu_checks import Run, check

__all__: list[str] = []


@check(point=1, kind="bench", needs=("torch",), limit_s=60)
def copy_bandwidth(run: Run) -> dict[str, object]:
    """How fast does this device copy its own memory, which is the roof of every kernel?"""
    from gpu_timing import copy_rate

    begun = time.monotonic()
    rates = {f"gb_per_s_{mib}_mib": copy_rate(mib << 20) / 1e9 for mib in (256, 1024, 4096)}
    return {**rates, "seconds": time.monotonic() - begun}
