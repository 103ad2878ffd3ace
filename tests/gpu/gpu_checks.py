"""What a check of the GPU run is: how to register it, what it receives, and what it may return.

To add a check: write a function in a file `checks_<part>.py` of this folder and register it:

    from gpu_checks import Run, check

    @check(point=2, needs=("torch",), device="cuda", limit_s=30)
    def copies_by_the_driver(run: Run) -> dict[str, object]:
        '''Does a batch of copies reach 85 % of one large pinned copy?'''
        ...
        run.aim("share of the pinned copy", share, at_least=0.85)
        return {"copy_gb_per_s": rate, "pinned_gb_per_s": roof}

The first line of its docstring is the question it answers. It returns its figures: plain numbers,
strings and lists. `run.aim` compares a figure with an aim; a missed aim does not fail the check.
An exception, usually an assertion, does; `run.skip(reason)` skips it.

`device`: "cuda" asks for a CUDA device. "either" runs on the CPU too, under Triton's interpreter,
with `--interpret`: keep it small there (`run.interpret`). "cpu" runs everywhere, CI included,
within a few seconds. `needs`: modules that must be installed; also "model", a folder given by
`--model`, and "firmware", the C extension, which is built if possible. Import optional modules
inside the function. The checks of a file run in one process, in the order of the file; a failure
starts a new process, because a device error affects the whole process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["CHECKS", "Aim", "Check", "Run", "Skipped", "check"]

Kind = Literal["check", "bench"]
Device = Literal["cuda", "either", "cpu"]
Figures = Mapping[str, Any]


class Skipped(Exception):
    """The check cannot run here; the text says why."""


@dataclass(frozen=True)
class Aim:
    """A figure and its aim; exactly one of the bounds is given."""

    what: str
    got: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound. NaN is not."""
        if self.at_least is not None:
            return self.got >= self.at_least
        return self.at_most is not None and self.got <= self.at_most


@dataclass
class Run:
    """What a check receives. `device` is torch's name of the device; `folder` is the check's own,
    empty, and deleted after the run; `model` is the folder of a model, or None."""

    device: str
    interpret: bool
    model: Path | None
    folder: Path
    aims: list[Aim] = field(default_factory=list)

    def aim(
        self, what: str, got: float, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Compare a figure with an aim of the project."""
        assert (at_least is None) != (at_most is None), "an aim has one bound"
        self.aims.append(Aim(what, float(got), at_least, at_most))

    def skip(self, reason: str) -> None:
        """End the check as skipped."""
        raise Skipped(reason)


@dataclass(frozen=True)
class Check:
    """A registered check; `module` is the name of its file without the suffix."""

    name: str
    module: str
    question: str
    point: int
    kind: Kind
    device: Device
    needs: tuple[str, ...]
    limit_s: float
    call: Callable[[Run], Figures]


CHECKS: dict[str, Check] = {}


def check(
    *,
    point: int,
    kind: Kind = "check",
    device: Device = "cuda",
    needs: tuple[str, ...] = (),
    limit_s: float = 60.0,
) -> Callable[[Callable[[Run], Figures]], Callable[[Run], Figures]]:
    """Register a function as a check. `point`: of the requirements in docs/how-to/gpu.md;
    `limit_s`: after that time the check is ended and has failed."""

    def register(call: Callable[[Run], Figures]) -> Callable[[Run], Figures]:
        name = call.__name__
        assert name not in CHECKS, f"two checks are called {name}"
        question = (call.__doc__ or "").strip().splitlines()
        assert question, f"{name} does not say which question it answers"
        CHECKS[name] = Check(
            name, call.__module__, question[0], point, kind, device, needs, limit_s, call
        )
        return call

    return register
