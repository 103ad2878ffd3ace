"""Every check and bench of the GPU node in one call; writes one JSON.

    python tests/gpu/run_all.py --out gpu.json [--model DIR] [--interpret] [--only NAME,...]

Needs only Python 3.11: a check whose library, device or model is missing is skipped with the
reason, so the file says of each check that it ran, failed or was skipped. Needs no network, and no
installation of Offstage: it uses the checkout that it is in. Packages that the machine's Python
lacks may come from a folder in PYTHONPATH.
Ends within `--seconds` (by default under 8 minutes): checks that there is no time for are skipped,
and a check that hangs leaves time for the later ones. The file is complete from the first second
on, and names the checks that have not run yet. The exit code is 1 if a check failed. gpu_checks.py
says how to add a check.

Each file of checks has its own process, started by this one, which imports nothing that can crash.
"""

import argparse
import contextlib
import datetime
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from gpu_checks import CHECKS, Check, Run, Skipped  # noqa: E402

__all__ = ["main"]

SECONDS = 460.0
"""The whole run, so that the call that makes it stays under eight minutes."""
PROBE_SECONDS = 60.0
INTERPRETED = 3
"""How many times its limit a check has under the interpreter, on a CPU that others may use."""


NOT_YET = "the run was ended before it"


@dataclass(frozen=True)
class Plan:
    """The options of the run."""

    out: Path
    model: Path | None
    interpret: bool
    only: tuple[str, ...]
    seconds: float


def main() -> int:
    """Run, write the file, print one line per check."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write")
    parser.add_argument("--model", type=Path, help="folder of a causal LM")
    parser.add_argument("--interpret", action="store_true", help="small checks without a GPU")
    parser.add_argument("--only", default="", help="names of checks, or points such as 1,7")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="end within this time")
    given = parser.parse_args()
    if given.model is not None and not given.model.is_dir():
        parser.error(f"--model: {given.model} is not a folder")
    only = tuple(word for word in given.only.split(",") if word)
    plan = Plan(given.out, given.model, given.interpret, only, given.seconds)
    load()
    if unknown := [one for one in only if one not in CHECKS and not one.isdigit()]:
        parser.error(f"--only: no check is called {unknown[0]!r}; there are {', '.join(CHECKS)}")
    return run(plan)


def load() -> None:
    """Import every file of checks; each registers its own."""
    for path in sorted(HERE.glob("checks_*.py")):
        __import__(path.stem)


def run(plan: Plan) -> int:
    """Run the chosen checks; see `main`."""
    begun = time.monotonic()
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = probe()
    chosen = [
        one
        for one in CHECKS.values()
        if not plan.only or one.name in plan.only or str(one.point) in plan.only
    ]
    results: list[dict[str, Any]] = []

    def told() -> list[dict[str, Any]]:
        """Return all results, with checks that have not run as they are if the run ends now."""
        ahead = [one for one in chosen if one.name not in {row["name"] for row in results}]
        return [*results, *(result_of(one, "skipped", NOT_YET) for one in ahead)]

    write(plan, machine, told(), began, begun)
    for module in dict.fromkeys(one.module for one in chosen):
        mine = [one for one in chosen if one.module == module]
        behind = sum(one.limit_s for one in chosen[chosen.index(mine[-1]) + 1 :])
        for result in of_module(plan, mine, begun + plan.seconds, machine, behind):
            results.append(result)
            write(plan, machine, told(), began, begun)
            show(result)
    write(plan, machine, results, began, begun)
    return 1 if any(one["outcome"] == "failed" for one in results) else 0


def probe() -> dict[str, Any]:
    """Return the machine, from a separate process; if that dies there is no device."""
    command = [sys.executable, str(HERE / "gpu_machine.py")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"no_device": f"no CUDA device: {error}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def of_module(
    plan: Plan, checks: list[Check], end: float, machine: Mapping[str, Any], behind_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the results of one file's checks, in order; checks with limits of `behind_s` follow."""
    waiting = []
    for one in checks:
        reason = unfit(one, plan, machine)
        if reason:
            yield result_of(one, "skipped", reason)
        else:
            waiting.append(one)
    while waiting:
        if time.monotonic() > end:
            yield result_of(waiting.pop(0), "skipped", f"the run's {plan.seconds:g} s are over")
            continue
        for answer in child(plan, waiting[0].module, list(waiting), end, behind_s):
            one = waiting.pop(0)
            yield {**result_of(one, "failed", "no answer"), **answer}


def unfit(one: Check, plan: Plan, machine: Mapping[str, Any]) -> str:
    """Return why the check cannot run on this device, or "" if it can."""
    if one.device == "cpu" or not machine["no_device"]:
        return ""
    if one.device == "either":
        return "" if plan.interpret else f"{machine['no_device']}; --interpret runs it on the CPU"
    return str(machine["no_device"])


def result_of(one: Check, outcome: str, reason: str) -> dict[str, Any]:
    """Return a row of the results, with nothing measured yet."""
    return {
        "name": one.name,
        "point": one.point,
        "kind": one.kind,
        "question": one.question,
        "outcome": outcome,
        "reason": reason,
        "wall_s": 0.0,
        "figures": {},
        "aims": [],
    }


def child(
    plan: Plan, module: str, checks: list[Check], end: float, behind_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the answers of a process that runs checks of a module one by one, until one fails. If
    the process dies or takes too long, its check has failed."""
    told = {
        "OFFSTAGE_GPU_MODEL": "" if plan.model is None else str(plan.model.resolve()),
        "OFFSTAGE_GPU_INTERPRET": "1" if plan.interpret else "",
    }
    if plan.interpret:
        told["TRITON_INTERPRET"] = "1"
    read, write_to = os.pipe()
    with tempfile.TemporaryFile("w+") as log, os.fdopen(read, "r") as answers:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "run_all.py"), "--child", str(write_to), module],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[write_to],
            text=True,
            env={**os.environ, **told},
        )
        os.close(write_to)
        assert process.stdin is not None
        try:
            for number, one in enumerate(checks):
                later_s = behind_s + sum(other.limit_s for other in checks[number + 1 :])
                own_s = one.limit_s * (INTERPRETED if plan.interpret else 1)
                limit_s = allowed(own_s, later_s, end - time.monotonic())
                with contextlib.suppress(BrokenPipeError):
                    print(one.name, file=process.stdin, flush=True)
                ready, _, _ = select.select([answers], [], [], limit_s)
                line = answers.readline() if ready else ""
                if line:
                    answer = json.loads(line)
                elif ready:
                    answer = failure(f"its process ended with {process.wait()}: {tail(log)}")
                else:
                    answer = failure(f"took more than {limit_s:.0f} s: {tail(log)}")
                yield answer
                if answer["outcome"] == "failed":
                    return
        finally:
            process.kill()
            process.wait()
            process.stdin.close()


def allowed(limit_s: float, later_s: float, left_s: float) -> float:
    """Return what a check may take of the time left: half of it, or all that the later checks,
    whose limits add up to `later_s`, do not need."""
    return min(limit_s, max(1.0, left_s - min(later_s, left_s / 2)))


def failure(reason: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": reason}


def tail(log: Any) -> str:
    """Return the last line that a child wrote."""
    log.seek(0)
    lines = log.read().strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def inside(answer_to: int, module: str) -> int:
    """Run as the child: print a line of JSON for each name it reads, until the first failure."""
    __import__(module)
    with (
        os.fdopen(answer_to, "w", buffering=1) as answers,
        tempfile.TemporaryDirectory(prefix="offstage-gpu-") as folder,
    ):
        for line in sys.stdin:
            own = Path(folder, line.strip())
            own.mkdir()
            answer = one_check(CHECKS[own.name], own)
            print(json.dumps(answer, default=float), file=answers)
            if answer["outcome"] == "failed":
                break
    return 0


def one_check(one: Check, folder: Path) -> dict[str, Any]:
    """Run one check here; returns its outcome, reason, figures and aims."""
    from gpu_machine import lacking

    model = os.environ["OFFSTAGE_GPU_MODEL"]
    interpret = bool(os.environ["OFFSTAGE_GPU_INTERPRET"])
    on_cpu = interpret or one.device == "cpu"
    run = Run("cpu" if on_cpu else "cuda", interpret, Path(model) if model else None, folder)
    outcome, reason, figures = "ran", lacking(one.needs, run.model), {}
    begun = time.monotonic()
    try:
        if reason:
            raise Skipped(reason)
        figures = dict(one.call(run))
        if not on_cpu:
            import torch

            torch.cuda.synchronize()  # a device error belongs to its own check
    except Skipped as skipped:
        outcome, reason = "skipped", str(skipped)
    except Exception as error:
        traceback.print_exc()
        outcome, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
    aims = [{**asdict(aim), "met": aim.met} for aim in run.aims]
    return {
        "outcome": outcome,
        "reason": reason,
        "figures": figures,
        "aims": aims,
        "wall_s": round(time.monotonic() - begun, 3),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print one line for people."""
    missed = [aim for aim in result["aims"] if not aim["met"]]
    text = result["reason"] or ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in result["figures"].items()
        if isinstance(value, int | float | str)
    )
    for aim in missed:
        bound = f"at least {aim['at_least']}" if aim["at_least"] else f"at most {aim['at_most']}"
        text += f"; AIM MISSED: {aim['what']} {aim['got']:.4g}, {bound}"
    print(f"{result['outcome']:8}{result['wall_s']:7.1f} s  {result['name']}: {text}", flush=True)


def write(
    plan: Plan, machine: Mapping[str, Any], results: list[dict[str, Any]], began: str, begun: float
) -> None:
    """Write the file so far: it is complete after every check, however the run ends."""
    outcomes = [one["outcome"] for one in results]
    content = {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "began": began,
        "wall_s": round(time.monotonic() - begun, 1),
        "machine": machine,
        "interpreted": plan.interpret,
        "counts": {word: outcomes.count(word) for word in ("ran", "failed", "skipped")},
        "checks": results,
    }
    part = plan.out.with_name(plan.out.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(plan.out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(inside(int(sys.argv[2]), sys.argv[3]))
    sys.exit(main())
